"""Transactions in a compaction of objects: what a job decides, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.run_transactions import RunTransactions, SliceMarkers
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import CONTROL_BIT, BatchHeader, parse_header
from stratalog.record.native.aborted_spans import AbortedSpans, ordered
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.written_transactions import WrittenTransactions
from tests.support.tiered.sample_entry import sample_entry
from tests.support.tiered.tiered_store import TieredStore

RETENTION_MS = 1_000
TO_HORIZON_MS = time_to_horizon_ms(RETENTION_MS)


class World:
    """One compacted partition. Used by one thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        config = {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(RETENTION_MS),
            "min.cleanable.dirty.ratio": "0.0",
        }
        self.tip = TopicIdPartition(self.tiered.catalog.create("t", 1, config).topic_id, 0)
        self.written = WrittenTransactions()
        self._parts: list[bytes] = []
        self._base_offset = 0

    def put(self, key: str, value: str | None, producer_id: int | None = None) -> None:
        encoded = None if value is None else value.encode()
        record = Record(0, self.clock.now_ms(), key.encode(), encoded)
        self._parts.append(self.written.data([record], Codec.NONE, producer_id))

    def end(self, producer_id: int, *, is_aborted: bool = False) -> None:
        self._parts.append(self.written.end(producer_id, self.clock.now_ms(), is_aborted=is_aborted))

    def upload(self, change: Callable[[SliceEnd], SliceEnd] = lambda end: end) -> None:
        end = change(self.written.slice_end(self._base_offset))
        self.tiered.upload({self.tip: self._parts}, ends={self.tip: end})
        self._parts, self._base_offset = [], self.written.next_offset

    def compact(self) -> Sequence[CompactionReport]:
        return self.tiered.compactor().run()

    @property
    def slices(self) -> list[LiveSlice]:
        return list(self.tiered.partition(self.tip).slices)

    @property
    def compacted_upto(self) -> int:
        return self.tiered.partition(self.tip).compacted_upto

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.tiered.records(self.tip)]

    def markers(self) -> dict[int, int | None]:
        """The horizons of the markers, by their offsets."""
        return {
            header.base_offset: header.delete_horizon_ms
            for live in self.slices
            for _, header in batches(self.tiered.slice_data(live.object_name, live.entry))
            if header.is_control
        }

    def aborted(self) -> list[int]:
        """The offsets of the markers that the indexes name."""
        layout = self.tiered.layout
        return [
            one.last_offset
            for live in self.slices
            for one in read_slice_index(self.store, layout, live.object_name, live.entry).aborted
        ]


def test_a_marker_goes_with_its_entry_a_retention_after_a_job_found_no_data() -> None:
    world = World()
    world.put("a", "1", 7)
    world.end(7, is_aborted=True)
    world.put("b", "1", 7)
    world.end(7)
    world.upload()
    world.compact()
    assert world.offsets == [2]
    assert world.markers() == {1: None, 3: None}, "the data was there when the job began"
    world.put("c", "1")
    world.upload()
    world.compact()
    horizon_ms = world.clock.now_ms() + TO_HORIZON_MS
    assert world.markers() == {1: horizon_ms, 3: None}, "a marker with data stays without a horizon"
    assert world.aborted() == [1]
    assert not world.compact(), "nothing is due"
    world.clock.advance(TO_HORIZON_MS)
    (report,) = world.compact()
    assert report.refused is None
    assert world.markers() == {3: None}
    assert world.aborted() == []
    assert world.offsets == [2, 4]
    assert not world.compact()


@pytest.mark.parametrize("is_aborted", [True, False], ids=["aborted", "committed"])
def test_a_marker_outlives_the_records_of_its_slice(is_aborted: bool) -> None:
    """The slice must be read for it, although no record of it stays."""
    world = World()
    world.put("b", "1", 7)
    world.end(7, is_aborted=is_aborted)
    world.put("b", "2")
    world.upload()
    world.compact()
    assert world.offsets == [2]
    assert world.markers() == {1: None}
    assert world.slices[0].entry.key_stream is not None
    world.put("b", "3")
    world.upload()
    world.compact()
    assert world.offsets == [3]
    assert list(world.markers()) == [1], "its horizon has only been set"
    assert world.aborted() == ([1] if is_aborted else [])


def test_an_index_that_names_a_transaction_without_a_marker_is_refused() -> None:
    world = World()
    world.put("a", "1", 7)
    world.end(7, is_aborted=True)
    world.put("b", "1")

    def forged(end: SliceEnd) -> SliceEnd:
        (one,) = end.aborted
        return end._replace(aborted=(one, one._replace(producer_id=8, first_offset=2, last_offset=2)))

    world.upload(forged)
    (report,) = [one for one in world.compact() if one.inputs]
    assert report.refused is not None
    assert "marker" in report.refused
    assert world.compacted_upto == 0


def test_committed_records_displace_and_aborted_ones_do_not() -> None:
    world = World()
    world.put("a", "1")
    world.put("b", "1")
    world.put("a", "2", 7)
    world.put("b", "2", 8)
    world.end(7)
    world.end(8, is_aborted=True)
    world.upload()
    world.compact()
    assert world.offsets == [1, 2]
    (live,) = world.slices
    assert live.entry.key_stream is not None
    assert live.entry.key_stream.entry_count == 2


def test_an_undecided_record_stays_and_displaces_none_and_no_job_is_made_for_it() -> None:
    world = World()
    world.put("a", "1")
    world.put("b", "1")
    world.upload()
    world.put("b", "2")
    world.put("a", "2", 7)
    world.upload()
    world.put("b", "3")
    world.upload()
    world.end(7)
    world.upload()
    (report,) = world.tiered.compactor(change=two_inputs).run()
    assert report.inputs == 2
    assert world.offsets[:3] == [0, 2, 3], "the transaction is open at the end of the job"
    assert world.compacted_upto == 3
    assert world.slices[0].entry.key_stream is None
    while world.compact():
        pass
    assert world.offsets == [3, 4]
    assert world.compacted_upto == 6


def two_inputs(settings: CompactionSettings) -> CompactionSettings:
    return dataclasses.replace(settings, max_inputs_per_job=2)


def test_a_transaction_that_stays_open_is_no_work() -> None:
    world = World()
    world.put("a", "1")
    world.put("a", "2")
    world.upload()
    world.put("c", "1", 7)
    world.upload()
    for value in range(3):
        world.put("a", str(value))
        world.upload()
    while world.compact():
        pass
    assert world.compacted_upto == 2
    assert world.offsets[0] == 1


def test_a_tombstone_above_an_undecided_record_has_no_horizon() -> None:
    """Else it might go before that record, which would come back with the commit."""
    world = World()
    world.put("a", "1")
    world.upload()
    world.put("a", "2", 7)
    world.put("a", None)
    world.upload()
    world.end(7)
    world.upload()
    world.tiered.compactor(change=two_inputs).run()
    assert world.offsets == [1, 2]
    assert world.slices[0].entry.earliest_delete_horizon_ms is None
    world.clock.advance(2 * TO_HORIZON_MS)
    world.compact()
    assert world.offsets == [2], "it is decided now, and its clock begins"
    world.clock.advance(TO_HORIZON_MS)
    world.compact()
    assert world.offsets == []


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "invented"])
def test_an_index_that_contradicts_the_markers_stops_the_job(is_missing: bool) -> None:
    world = World()
    world.put("a", "1")
    world.put("a", "2", 7)
    world.end(7, is_aborted=is_missing)
    before = world.written.next_offset

    def damaged(end: SliceEnd) -> SliceEnd:
        return end._replace(aborted=() if is_missing else (AbortedTransaction(7, 1, 2, 3),))

    world.upload(damaged)
    slices = world.slices
    reports = world.compact()
    assert "marker" in (reports[0].refused or "")
    assert "marker_offset=`2`" in (reports[0].refused or "")
    assert world.slices == slices, "nothing has changed"
    assert world.tiered.partition(world.tip).tiered_end_offset == before


def test_a_key_stream_with_a_record_that_an_index_says_was_aborted_stops_the_job() -> None:
    """The slice with the key stream has a commit for the record, and a later index has an abort."""
    world = World()
    world.put("a", "1")
    world.upload()
    world.put("a", "2", 7)
    world.end(7)
    world.put("b", "1")
    world.upload()
    while world.compact():
        pass
    [compacted] = world.slices
    assert compacted.entry.key_stream is not None
    world.end(7, is_aborted=True)
    world.put("c", "1")
    world.upload(lambda end: end._replace(aborted=(AbortedTransaction(7, 1, 4, 5),)))
    slices = world.slices
    (report,) = [one for one in world.compact() if one.inputs]
    assert "aborted transaction" in (report.refused or "")
    assert "base_offset=`1`" in (report.refused or "")
    assert world.slices == slices, "nothing has changed"


def marker(producer_id: int, offset: int, control_type: ControlType = ControlType.ABORT) -> BatchHeader:
    return parse_header(EndTransactionMarker(control_type, 0).to_batch(producer_id, 0, 5, base_offset=offset))


def test_each_entry_of_an_index_belongs_to_one_marker() -> None:
    entries = [AbortedTransaction(7, 1, 5, 6), AbortedTransaction(8, 2, 9, 10)]

    def markers(first_offset: int = 0) -> SliceMarkers:
        return SliceMarkers(sample_entry(0, 20), entries, first_offset)

    both = markers()
    assert both.take(marker(7, 5), ControlType.ABORT, has_data=True) == entries[0]
    assert both.take(marker(7, 6), ControlType.ABORT, has_data=False) is None, "there was no transaction"
    assert both.take(marker(7, 7), ControlType.COMMIT, has_data=True) is None
    assert both.take(marker(8, 9), ControlType.ABORT, has_data=False) == entries[1]
    both.end()
    later = markers(6)
    assert later.take(marker(8, 9), ControlType.ABORT, has_data=True) == entries[1]
    later.end()
    for offset, producer_id, control_type in ((3, 7, ControlType.ABORT), (5, 7, ControlType.COMMIT)):
        with pytest.raises(StoreCorruptError):
            markers().take(marker(producer_id, offset), control_type, has_data=True)
    for offset, producer_id in ((5, 8), (6, 7)):
        with pytest.raises(StoreCorruptError):
            markers().take(marker(producer_id, offset), ControlType.ABORT, has_data=False)
    with pytest.raises(StoreCorruptError):
        markers().end()


def test_a_producer_has_aborted_decided_and_undecided_data() -> None:
    aborted = AbortedSpans(ordered([(7, 10, 20)]))
    transactions = RunTransactions(aborted, AbortedSpans(ordered([(7, 30, 2**63 - 1)])))

    def data(offset: int, producer_id: int = 7) -> BatchHeader:
        header = marker(producer_id, offset)
        return header._replace(attributes=header.attributes & ~CONTROL_BIT)

    fates = [
        (transactions.is_aborted(one), transactions.is_undecided(one))
        for one in (data(9), data(10), data(19), data(21), data(30), data(31), data(15, 8))
    ]
    assert fates == [
        (False, False),
        (True, False),
        (True, False),
        (False, False),
        (False, True),
        (False, True),
        (False, False),
    ]


def test_a_slice_has_the_earliest_horizon_and_the_first_offset_of_its_newest_time() -> None:
    """Also in an output of several intervals of the index."""
    world = World()
    world.put("a", None)
    world.put("x", "1")
    world.put("y", "1")
    world.upload()
    world.compact()
    horizon_ms = world.clock.now_ms() + TO_HORIZON_MS
    for value in "23":
        world.clock.advance(RETENTION_MS // 4)
        newest_ms, first_offset = world.clock.now_ms(), world.written.next_offset
        world.put("x", value * 9_000)
        world.put("b" + value, None)
        world.upload()
        world.compact()
        (live,) = world.slices
        assert live.entry.earliest_delete_horizon_ms == horizon_ms
        assert (live.entry.max_timestamp, live.entry.max_timestamp_offset) == (newest_ms, first_offset)
    assert world.offsets == [0, 2, 4, 5, 6]


def test_a_slice_that_is_carried_names_no_transaction_whose_marker_is_deleted() -> None:
    world = World()
    world.tiered.catalog.alter(world.tip.topic_id, config={"cleanup.policy": "delete"})
    for producer_id in (7, 8):
        world.put("a", "1", producer_id)
        world.end(producer_id, is_aborted=True)
    world.upload()
    for number in range(3):
        world.put("b", str(number))
        world.upload()
    world.tiered.advance_log_start(world.tip, 2)
    (report,) = world.compact()
    assert (report.refused, report.inputs, len(world.slices)) == (None, 4, 1)
    assert list(world.markers()) == world.aborted() == [3]
    assert world.offsets == [2, 4, 5, 6]
