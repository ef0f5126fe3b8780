"""Transactions in a compacted log: what was aborted is never seen, what was committed is never lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from stratalog.cleaner.clean import group_cleaner
from stratalog.log.isolation import Isolation
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import without_markers
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer
from tests.support.logs.log_machine import PARTITION

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms


def age(history: CompactedLog, number: int) -> None:
    """Let every delete horizon come and be met: twice, for what gets one only then."""
    for delta in range(3):
        history.machine.clock.advance(RETENTION_MS + 1)
        history.put(f"age={number}{delta}")
        history.clean_all()


def test_a_transaction_without_data_and_one_of_nothing_but_tombstones() -> None:
    history = CompactedLog(SMALL)
    history.put("a=1", "b=1")
    history.log.appender.append_end_transaction_marker(3, 0, 0, committed=False, leader_epoch=1)
    history.put("a", txn=4)
    history.end(4, committed=True)
    history.put("b", txn=4)
    history.end(4, committed=False)
    history.clean_all()
    assert history.read_table() == {b"b": b"1"}
    for number in range(3):
        age(history, number)
        assert history.read_table().get(b"b") == b"1"
        assert b"a" not in history.read_table()
    assert b"a" not in {one.key for one in history.read(Isolation.LOG_END)}


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
    assert history.machine.manager is not None
    assert history.machine.manager.truncate_to(PARTITION, 5) == 5
    history.log.check()
    assert history.log.offsets.last_stable_offset == 1
    history.restart(is_clean=False)
    assert history.log.offsets.last_stable_offset == 1
    history.log.appender.append_end_transaction_marker(7, 0, 0, committed=False, leader_epoch=1)
    assert history.log.offsets.last_stable_offset == 6
    history.clean_all()
    assert history.read_table() == {b"z": b"1", b"a": b"1", b"c": b"2"}


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


def test_what_is_kept_of_dropped_markers_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is taken for the part that is being looked at, and for nothing before it."""
    sizes: list[int] = []

    def counted(entries: bytes, last_offsets: Collection[int]) -> bytes:
        sizes.append(len(last_offsets))
        return without_markers(entries, last_offsets)

    monkeypatch.setattr(group_cleaner, "without_markers", counted)
    history = CompactedLog(SMALL)
    for number in range(60):
        history.put(f"k={number}", txn=number % 2)
        history.end(number % 2, committed=False)
    for number in range(4):
        age(history, number)
    assert sum(sizes) > 40
    assert max(sizes) < 10


def test_transaction_indexes_below_the_log_start_are_not_looked_at() -> None:
    """Retention may drop their segments at any time: a clean does not end for it."""
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
