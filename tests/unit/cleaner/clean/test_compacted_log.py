"""Compacted logs at their limits, after a truncation, and with a lost recovery point."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, LogMachine

WIDE = dataclasses.replace(CONFIG, segment_bytes=1 << 24)
SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms
SHORT_MS = 1000
HOLED = LogConfig(remote_storage_enable=False, retention_ms=UNLIMITED)
BASES = (0, 100, 200)


def pairs(history: CompactedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in history.read()]


def test_an_empty_key_is_a_key_and_an_empty_value_is_a_value() -> None:
    history = CompactedLog(WIDE)
    history.put("=1", "a=")
    history.put("=", "a=x")
    history.put("b=x", "b=")
    history.clean_all()
    history.machine.clock.advance(10 * RETENTION_MS)
    history.put("z=z")
    history.clean_all()
    assert pairs(history) == [(2, b"", b""), (3, b"a", b"x"), (5, b"b", b""), (6, b"z", b"z")]


@pytest.mark.parametrize("delete_retention_ms", [0, 1, 2**63 - 1])
def test_times_at_their_limits_stay_what_they_are(delete_retention_ms: int) -> None:
    history = CompactedLog(
        dataclasses.replace(
            SMALL, message_timestamp_after_max_ms=2**63 - 1, delete_retention_ms=delete_retention_ms
        )
    )
    for number, time_ms in enumerate((0, 2**62, 2**63 - 2, 1, NO_TIMESTAMP)):
        history.append(
            [Record(0, time_ms, b"k%d" % number, None), Record(0, min(time_ms, 5), b"o%d" % number, b"v")]
        )
    before = history.read()
    history.clean_all()
    assert history.read() == before
    history.put("z=1")
    history.machine.clock.advance(1)
    history.clean_all()
    values_only = [one for one in before if one.value is not None]
    assert history.read()[:-1] == (before if delete_retention_ms == 2**63 - 1 else values_only)


def test_the_batch_of_a_producer_that_was_forgotten_goes() -> None:
    history = CompactedLog(SMALL)
    for producer_id in range(10):
        history.append([Record(0, history.now_ms, b"k", b"v")], producer_id=producer_id)
    history.log.set_producer_id_expiration_ms(1000)
    history.machine.clock.advance(2000)
    history.log.remove_expired_producers()
    history.put("k=last")
    history.clean_all()
    history.put("k=really")
    history.clean_all()
    assert not [header for header in history.headers() if header.has_producer_id]


def test_what_is_undecided_again_is_not_due_for_its_tombstones() -> None:
    """No clean may go beyond the last stable offset, be it only for the time of what it kept."""
    history = CompactedLog(dataclasses.replace(CONFIG, delete_retention_ms=SHORT_MS))
    history.put("z=1", "t")
    history.put("a=1", txn=1)
    history.put("b=1")
    history.end(1, committed=True)
    history.put("b=2")
    history.put("b=3")
    history.log.roll()
    history.put("q=1")
    history.log.roll()
    assert history.clean() is not None
    manager = history.machine.manager
    cleaner = manager.cleaner
    manager.truncate_to(PARTITION, 4)
    history.log = manager.log(PARTITION)
    history.log.roll()
    assert history.log.offsets.last_stable_offset == 2
    assert (
        cleaner.cleaned_offset(PARTITION, DATA_DIR) == history.log.local_log.segments.active.base_offset == 4
    )
    for _ in range(3):
        history.machine.clock.advance(5 * SHORT_MS)
        assert not cleaner.find_next_clean()
        assert history.clean() is None
    history.log.appender.append_end_transaction_marker(1, 0, 0, committed=True, leader_epoch=1)
    history.log.roll()
    # Decided, it is dirt behind what is clean; the tombstone goes with the first clean.
    assert history.clean() is not None
    assert [(one.offset, one.key) for one in history.read()] == [(0, b"z"), (2, b"a")]
    assert cleaner.failures() == ()


def with_holes() -> LogMachine:
    """Three segments of one record each, as a broker's cleaner leaves them, and no recovery point."""
    machine = LogMachine(MemoryFileSystem(), HOLED)
    machine.start()
    machine.kill()
    for base_offset in BASES:
        file = machine.disk.open_append(segment_path(PARTITION_DIR, base_offset, LOG_SUFFIX))
        file.append([encode_batch([Record(0, 1, b"k%d" % base_offset, b"v")], base_offset=base_offset)])
        file.close()
    return machine


def cleaned_up_to(machine: LogMachine, offset: int) -> None:
    OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").write({PARTITION: offset})


@pytest.mark.parametrize(("cleaned_offset", "expected"), [(200, BASES), (199, (0, 100)), (99, (0,))])
def test_below_the_end_of_a_clean_a_hole_is_no_loss(cleaned_offset: int, expected: tuple[int, ...]) -> None:
    machine = with_holes()
    cleaned_up_to(machine, cleaned_offset)
    log = machine.start()
    assert tuple(record.offset for record in read_local(log)) == expected
    assert len(log.recovery_report.remains) == len(BASES) - len(expected), "what is cut is kept aside"


def test_holes_stay_known_where_the_end_of_the_clean_says_nothing_of_this_log() -> None:
    machine = with_holes()
    cleaned_up_to(machine, 1000)
    for _ in range(2):
        log = machine.start()
        assert tuple(record.offset for record in read_local(log)) == BASES
        assert OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").read() == {}
        machine.kill()
