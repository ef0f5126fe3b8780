"""Holes between segments, or at the end of a log, that moves: whoever opens it takes none for lost data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.exchange.log_copy import Commit, LogCopy
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.compacted_log import CONFIG, KILLED, CompactedLog
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import (
    DATA_DIR,
    OTHER_DIR,
    PARTITION,
    PARTITION_DIR,
    LogMachine,
    machine_on,
)

BASES = (0, 20, 40, 60)


def with_holes(base_offsets: tuple[int, ...]) -> LogMachine:
    """A log with a segment for each, the last one active, as a broker's cleaner leaves them."""
    config = LogConfig(remote_storage_enable=False, retention_ms=-1)
    machine = machine_on(MemoryFileSystem(), config)
    machine.start(start_offset=base_offsets[0])
    machine.kill()
    for base_offset in base_offsets:
        file = machine.disk.open_append(segment_path(PARTITION_DIR, base_offset, LOG_SUFFIX))
        file.append([encode_batch([Record(0, 1000, b"k", b"v")] * 3, base_offset=base_offset)])
        file.close()
    OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{RECOVERY_POINT_FILE}").write({PARTITION: base_offsets[-1]})
    log = machine.start()
    assert [one.base_offset for one in log.local_log.segments] == list(base_offsets)
    return machine


def manager_of(machine: LogMachine) -> LogManager:
    assert machine.manager is not None
    return machine.manager


def nothing(_: UnifiedLog) -> None:
    """The log stays as it is."""


def grow(log: UnifiedLog) -> None:
    batch = encode_batch([Record(0, 1000, b"k", b"v")])
    log.appender.append_as_leader(batch, 1)
    log.roll()
    log.appender.append_as_leader(batch, 1)


def delete(log: UnifiedLog) -> None:
    log.increment_log_start_offset(1)


@pytest.mark.parametrize("at_last", [nothing, UnifiedLog.roll, grow, delete])
@pytest.mark.parametrize("count", range(1, len(BASES) + 1))
def test_what_lies_behind_a_hole_is_there_after_a_move_and_a_kill(
    monkeypatch: pytest.MonkeyPatch, count: int, at_last: Callable[[UnifiedLog], None]
) -> None:
    machine = with_holes(BASES[:count])
    relocate, calls = LogCopy.relocate, list[bool]()

    def after_a_change(copy: LogCopy, commit: Commit) -> bool:
        if not calls:
            at_last(log)
        calls.append(relocate(copy, commit))
        return calls[-1]

    monkeypatch.setattr(LogCopy, "relocate", after_a_change)
    manager = manager_of(machine)
    log = manager.log(PARTITION)
    assert manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    records, end_offset = read_local(log), log.offsets.log_end_offset
    assert end_offset >= BASES[count - 1] + 3
    machine.kill()
    noted = OffsetCheckpoint(machine.disk, f"{OTHER_DIR}/{RECOVERY_POINT_FILE}").read()[PARTITION]
    assert log.local_log.segments.active.base_offset <= noted <= end_offset
    log = machine.start()
    log.check()
    assert (read_local(log), log.offsets.log_end_offset) == (records, end_offset)
    assert log.recovery_report.remains == ()


@pytest.mark.parametrize("has_recovery_point", [True, False])
@pytest.mark.parametrize("is_moved", [True, False])
def test_readers_of_committed_records_get_to_the_end_behind_a_hole(
    *, is_moved: bool, has_recovery_point: bool
) -> None:
    """A truncation has ended the log inside of one that a clean had left."""
    history = CompactedLog(replace(CONFIG, delete_retention_ms=0))
    machine = history.machine = machine_on(MemoryFileSystem(), CONFIG)
    history.log = machine.start()
    for pairs in (("a=1",), ("a=2",), ("b=1", "b=2"), ("b=3",)):
        history.put(*pairs)
    history.clean_all()
    manager = manager_of(machine)
    manager.truncate_to(PARTITION, 4)
    log = manager.log(PARTITION)
    assert [(one.base_offset, one.end_offset) for one in log.local_log.segments] == [(0, 2), (4, 4)]
    if is_moved:
        assert manager.begin_move(PARTITION, OTHER_DIR).run() is MoveState.DONE
    machine.disk = history.disk_now(KILLED)
    machine.kill()
    if not has_recovery_point:
        for directory in (DATA_DIR, OTHER_DIR):
            OffsetCheckpoint(machine.disk, f"{directory}/{RECOVERY_POINT_FILE}").write({})
    log = machine.start()
    log.check()
    assert (log.offsets.high_watermark, log.offsets.last_stable_offset, log.offsets.log_end_offset) == (
        4,
        4,
        4,
    )
    assert [one.offset for one in read_local(log)] == [1]
