"""Holes between segments, or at the end of a log, are not taken for lost records after a move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.exchange.log_copy import Commit, LogCopy
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
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
    manager = machine.manager
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
