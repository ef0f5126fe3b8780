"""Compacted logs at their limits, after a truncation or a deletion, and with a lost recovery point."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from stratalog.cleaner.clean import group_rewrite
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.segment.indexes.transaction_index import without_markers
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer
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


def test_a_batch_larger_than_max_message_bytes_was_lowered_to_is_cleaned() -> None:
    history = CompactedLog(WIDE)
    history.append([Record(0, history.now_ms, b"large", bytes(100_000))] * 3)
    history.log.reconfigure(dataclasses.replace(WIDE, max_message_bytes=1000))
    history.put("a=1")
    history.clean_all()
    assert history.read() == history.final_records()


def test_a_leader_epoch_ends_where_it_did() -> None:
    """Though none of its records is left, nor any segment that began with it."""
    history = CompactedLog(SMALL)
    ends: dict[int, int] = {}
    for epoch in range(1, 12):
        history.leader_epoch = 2 * epoch
        for number in range(epoch % 3 + 1):
            history.put(f"k{number}={epoch}")
        ends[2 * epoch] = history.log.offsets.log_end_offset
    expected = {epoch: history.log.end_offset_for(epoch) for epoch in range(26)}
    for epoch, end_offset in ends.items():
        found = expected[epoch]
        assert found is not None
        assert (found.epoch, found.end_offset) == (epoch, end_offset)
    history.log.roll()
    assert history.clean() is not None
    assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected
    for is_clean in (True, False):
        history.restart(is_clean=is_clean)
        assert {epoch: history.log.end_offset_for(epoch) for epoch in range(26)} == expected


def age(history: CompactedLog, number: int) -> None:
    """Let every delete horizon come and be met: twice, for what gets one only then."""
    for delta in range(3):
        history.machine.clock.advance(RETENTION_MS + 1)
        history.put(f"age={number}{delta}")
        history.clean_all()


def test_a_truncation_opens_a_transaction_again_of_which_nothing_is_left() -> None:
    """Its records were dropped as aborted, then its marker is cut off: until it is ended again it is unknown
    that nothing depends on it."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=220))
    history.put("z=1")
    history.put("k=1", txn=7)
    history.put("a=1")
    history.log.roll()
    history.put("c=1")
    history.put("c=2")
    history.log.roll()
    history.end(7, committed=False)
    history.append([Record(0, history.now_ms, b"d", b"1")], producer_id=7)
    history.clean_all()
    assert history.read() == history.final_records()
    assert history.machine.manager.truncate_to(PARTITION, 5) == 5
    history.log.check()
    assert history.log.offsets.last_stable_offset == 1
    history.restart(is_clean=False)
    assert history.log.offsets.last_stable_offset == 1
    history.log.appender.append_end_transaction_marker(7, 0, 0, committed=False, leader_epoch=1)
    assert history.log.offsets.last_stable_offset == 6
    history.clean_all()
    assert history.read_table() == {b"z": b"1", b"a": b"1", b"c": b"2"}


def test_what_is_kept_of_dropped_markers_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is taken for the part that is being looked at, and for nothing before it."""
    sizes: list[int] = []

    def counted(entries: bytes, last_offsets: Collection[int]) -> bytes:
        sizes.append(len(last_offsets))
        return without_markers(entries, last_offsets)

    monkeypatch.setattr(group_rewrite, "without_markers", counted)
    history = CompactedLog(SMALL)
    for number in range(60):
        history.put(f"k={number}", txn=number % 2)
        history.end(number % 2, committed=False)
    for number in range(4):
        age(history, number)
    assert sum(sizes) > 40
    assert max(sizes) < 10


def test_segments_below_the_log_start_may_go_during_a_clean() -> None:
    """Neither their batches nor their transaction indexes are looked at."""
    history = CompactedLog(SMALL)
    for number in range(12):
        history.put(f"k{number % 3}={number}", txn=1)
        history.end(1, committed=number % 2 == 0)
    history.log.roll()
    segments = history.log.local_log.segments
    assert segments[0].has_aborted
    history.log.increment_log_start_offset(segments[3].base_offset)
    counts: list[int] = []
    result = history.clean(on_step=lambda: counts.append(history.log.retention.delete_old_segments()))
    assert sum(counts) == 3
    assert result is not None
    assert history.read_table() == history.table()


@pytest.mark.parametrize("key_count", [6, 9, 1000])
def test_entries_of_aborted_transactions_are_those_of_the_segment_that_has_their_markers(
    key_count: int,
) -> None:
    """A group that was one segment becomes several, because its indexes have no room any more; what lies
    above the end of the map is copied as it is."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=8000))
    for number in range(12):
        history.put(f"a{number}=aborted", f"k{number}=aborted", txn=number % 3)
        # Each of these is written by itself, so that there are places to begin another segment.
        history.put(f"k{number}=plain", codec=Codec.GZIP)
        if number % 2:
            history.end(number % 3, committed=number % 4 == 1)
    for producer_id in history.open_producers:
        history.end(producer_id, committed=False)
    end_offset = history.log.offsets.log_end_offset
    before = history.log.reader.aborted_transactions(0, end_offset)
    config = dataclasses.replace(history.machine.config, segment_index_bytes=40, index_interval_bytes=1)
    history.machine.config = config
    history.log.reconfigure(config)
    history.log.roll()
    result = history.clean(key_count)
    assert result is not None
    assert result.stats.written_segment_count > result.stats.cleaned_segment_count
    assert (result.end_offset <= before[-1].first_offset) == (key_count < 1000)
    for is_restarted in (False, True):
        if is_restarted:
            history.restart(is_clean=False)
        for segment in history.log.local_log.segments:
            for entry in segment.indexes().transaction_index:
                assert segment.base_offset <= entry.last_offset < segment.end_offset
        assert history.log.reader.aborted_transactions(0, end_offset) == before
        for offset in range(end_offset):
            seen = Consumer(history.log, offset).catch_up()
            assert seen == [one for one in history.committed(offset) if one in seen]
            assert {one.key for one in seen} == {one.key for one in history.committed(offset)}
        assert history.read_table() == history.table()
