"""Transactions in a compacted log: what was aborted is never seen, what was committed is never lost."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection

import pytest

from stratalog.cleaner.clean import group_cleaner
from stratalog.log.read.isolation import Isolation
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.segment.indexes.transaction_index import without_markers
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_consumer import Consumer
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION

SMALL = dataclasses.replace(CONFIG, segment_bytes=300)
RETENTION_MS = CONFIG.delete_retention_ms


def pairs(history: CompactedLog) -> list[tuple[bytes | None, bytes | None]]:
    return [(one.key, one.value) for one in history.read()]


def age(history: CompactedLog, number: int) -> None:
    """Let every delete horizon come and be met: twice, for what gets one only then."""
    for delta in range(3):
        history.machine.clock.advance(RETENTION_MS + 1)
        history.put(f"age={number}{delta}")
        history.clean_all()


@pytest.mark.parametrize("outcomes", list(itertools.product([True, False], repeat=3)))
@pytest.mark.parametrize("rolls", [False, True])
def test_producers_interleave_on_one_key(outcomes: tuple[bool, ...], rolls: bool) -> None:
    """Who wrote last is decided by offsets among what was committed, not by when it was committed."""
    history = CompactedLog(SMALL)
    history.put("k=first", "other=1")
    for number in range(2):
        for producer_id in range(3):
            history.put(f"k={producer_id}.{number}", txn=producer_id)
            if rolls:
                history.log.roll()
    for producer_id, committed in enumerate(outcomes):
        history.end(producer_id, committed=committed)
        if rolls:
            history.log.roll()
        history.clean()
        assert history.read_table() == history.table(history.log.offsets.last_stable_offset)
    history.clean_all()
    last = max((number for number, committed in enumerate(outcomes) if committed), default=None)
    value = b"first" if last is None else b"%d.1" % last
    assert sorted(pairs(history)) == [(b"k", value), (b"other", b"1")]
    for number in range(2):
        age(history, number)
        assert history.read_table()[b"k"] == value
    history.restart(is_clean=False)
    assert history.read_table()[b"k"] == value


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_in_another_segment_than_its_data(committed: bool) -> None:
    """Whether or not all the data is superseded, in whatever order segments are put together."""
    history = CompactedLog(SMALL)
    history.put("a=1")
    for number in range(6):
        history.put(f"a=t{number}", f"b{number}=t", txn=7)
        history.log.roll()
    for number in range(5):
        history.put(f"x{number}=1")
        history.log.roll()
    history.end(7, committed=committed)
    history.log.roll()
    for key_count in (1, 2, 1, 1000):
        history.clean(key_count)
        assert history.read_table() == history.table()
    history.put(*(f"b{number}=2" for number in range(6)))
    history.clean_all()
    for number in range(2):
        age(history, number)
        assert history.read_table() == history.table()


def test_a_marker_stays_as_long_as_data_of_its_transaction_does() -> None:
    """A reader would else wait for the end of a transaction that has ended, or hide what was committed."""
    history = CompactedLog(SMALL)
    history.put("kept=1", txn=1)
    history.log.roll()
    history.end(1, committed=True)
    history.put("next=1", txn=1)
    history.end(1, committed=False)
    for number in range(4):
        age(history, number)
    markers = [one.offset for one in read_local(history.log) if one.offset not in history.published]
    assert 1 in markers
    assert (b"kept", b"1") in pairs(history)
    # Without it, these would be read as parts of the first, or as aborted with it.
    history.put("kept=2", txn=1)
    history.end(1, committed=True)
    assert history.read_table()[b"kept"] == b"2"


def test_an_open_transaction_holds_back_only_what_comes_after_its_beginning() -> None:
    history = CompactedLog(SMALL)
    for number in range(20):
        history.put(f"k={number}")
    history.log.roll()
    history.put("k=open", txn=1)
    for number in range(20, 40):
        history.put(f"k={number}")
    before = [one.offset for one in read_local(history.log) if one.offset >= 20]
    history.clean_all()
    there = [one.offset for one in read_local(history.log)]
    assert there == [19, *before]
    history.end(1, committed=False)
    history.clean_all()
    assert history.read() == history.final_records()


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("delete_to", [1, 3, 4, 5, 9, 10, 11])
def test_a_transaction_that_spans_the_log_start(delete_to: int, committed: bool) -> None:
    """What is left of it above the start is committed or aborted as before, also after all that only follows
    from the batches was forgotten."""
    history = CompactedLog(SMALL)
    history.put("a=0")
    history.put("a=1", "b=1", "c=1", txn=5)
    history.put("x=1")
    history.log.roll()
    history.put("b=2", "d=2", "a=2", txn=5)
    history.log.roll()
    history.put("y=1", "z=1")
    history.end(5, committed=committed)
    history.log.roll()
    history.put("last=1")
    history.log.increment_log_start_offset(delete_to)
    history.log.retention.delete_old_segments()
    for step in range(4):
        assert history.read_table() == history.table()
        if step % 2:
            history.restart(is_clean=step > 2)
            assert history.read_table() == history.table()
        history.clean_all(key_count=1 if step == 0 else 1000)
        history.put(f"step{step}=1")
    for number in range(2):
        age(history, number)
        assert history.read_table() == history.table()


def test_readers_of_committed_records_in_any_place_of_an_aborted_transaction() -> None:
    history = CompactedLog(SMALL)
    for number in range(12):
        history.put(f"k{number}=aborted", txn=number % 2)
        history.put(f"k{number}=plain")
        if number % 3 == 2:
            history.log.roll()
    history.end(0, committed=False)
    history.log.roll()
    history.end(1, committed=True)
    for _ in range(3):
        for offset in range(history.log.offsets.log_end_offset):
            seen = Consumer(history.log, offset).catch_up()
            expected = [one for one in history.committed(offset) if one in seen]
            assert seen == expected
            assert {one.key for one in seen} == {one.key for one in history.committed(offset)}
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


def test_markers_go_in_the_end() -> None:
    """A topic that is written by transactions for ever does not grow by its markers."""
    history = CompactedLog(SMALL)
    for number in range(60):
        history.put(f"k={number}", txn=number % 2)
        history.end(number % 2, committed=number % 3 > 0)
    for number in range(4):
        age(history, number)
    markers = [one for one in read_local(history.log) if one.offset not in history.published]
    # One of what is there, and at most the last one of each producer.
    assert len(markers) <= 3
    assert history.read_table() == history.table()


def test_a_truncation_opens_a_transaction_again_of_which_nothing_is_left() -> None:
    """Its records were dropped as aborted, then its marker is cut off: until it is ended again nobody knows
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
    """Of the part that is being looked at, and of nothing before it."""
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
