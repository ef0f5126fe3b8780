"""Times of tiered records and markers beside a list of them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.read.highest_times import HighestTimes
from stratalog.remote.read.slice_source import SliceSource
from stratalog.remote.read.tiered_time_lookup import TieredTimeLookup
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.tiered_store import TieredStore

NEWEST_MS = 20


class One(NamedTuple):
    """A batch of one record or of one marker; a time of -1 is none."""

    timestamp_ms: int
    is_marker: bool

    def encoded(self, offset: int) -> bytes:
        if self.is_marker:
            return EndTransactionMarker(ControlType.ABORT, 0).to_batch(
                7, 0, self.timestamp_ms, base_offset=offset
            )
        return encode_batch([Record(0, self.timestamp_ms, b"k", b"v" * 50)], base_offset=offset)


SLICES = st.lists(
    st.lists(st.builds(One, st.integers(-1, NEWEST_MS), st.booleans()), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@given(SLICES, st.data())
def test_times_are_those_of_records_and_markers(slices: list[list[One]], data: st.DataObject) -> None:
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    tiered = TieredStore(MemoryFileSystem(), store, clock, SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {}).topic_id, 0)
    log: list[One] = []
    for found in slices:
        tiered.upload({tip: [one.encoded(len(log) + number) for number, one in enumerate(found)]})
        log += found
    log_start_offset = data.draw(st.integers(0, len(log)))
    tiered.advance_log_start(tip, log_start_offset)
    lookup = TieredTimeLookup(SliceSource(inline_reads(store), tiered.layout))
    check_times(lookup, tiered, tiered.partition(tip), list(enumerate(log))[log_start_offset:])


def check_times(
    lookup: TieredTimeLookup,
    tiered: TieredStore,
    partition: TieredPartition,
    readable: list[tuple[int, One]],
) -> None:
    state = tiered.metadata.state()
    for wanted_ms in range(NEWEST_MS + 2):
        first = next(
            ((one.timestamp_ms, offset) for offset, one in readable if one.timestamp_ms >= wanted_ms), None
        )
        assert lookup.first_at_or_after(state, partition, wanted_ms) == first
    for end_offset in range(partition.log_start_offset, partition.tiered_end_offset + 1):
        times = [(one.timestamp_ms, -offset) for offset, one in readable if 0 <= offset < end_offset]
        newest_ms, offset = max(times, default=(-1, 0))
        expected = None if newest_ms < 0 else (newest_ms, -offset)
        assert lookup.newest(state, partition, end_offset) == expected


def test_a_look_up_among_many_slices_costs_an_index_and_an_interval() -> None:
    """The times go up and down: each slice has the highest time so far in every third one only."""
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    tiered = TieredStore(MemoryFileSystem(), store, clock, SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {}).topic_id, 0)
    times = [number if number % 3 == 0 else number // 2 for number in range(90)]
    for offset, time_ms in enumerate(times):
        tiered.upload({tip: [One(time_ms, is_marker=False).encoded(offset)]})
    counting = CountingObjectStore(store)
    lookup = TieredTimeLookup(SliceSource(inline_reads(counting), tiered.layout))
    state, partition = tiered.metadata.state(), tiered.partition(tip)
    for wanted_ms in (1, 44, 45, 46, 87):
        counting.reset()
        first = next(offset for offset, time_ms in enumerate(times) if time_ms >= wanted_ms)
        assert lookup.first_at_or_after(state, partition, wanted_ms) == (times[first], first)
        assert counting.total("GET").requests <= 2
    counting.reset()
    assert lookup.first_at_or_after(state, partition, 88) is None
    assert counting.total("GET").requests == 0


def test_each_row_of_slices_has_its_own_times() -> None:
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {}).topic_id, 0)
    highest = HighestTimes()
    rows: list[TieredPartition] = []
    for offset, time_ms in enumerate((5, 3, 9)):
        tiered.upload({tip: [One(time_ms, is_marker=False).encoded(offset)]})
        rows.append(tiered.partition(tip))
    for _ in range(2):
        found = [[highest.first_reaching(row, wanted_ms) for wanted_ms in (4, 6, 10)] for row in rows]
        assert found == [[0, 1, 1], [0, 2, 2], [0, 2, 3]]


def test_the_times_of_stored_slices_are_read_once() -> None:
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    tip = TopicIdPartition(tiered.catalog.create("t", 1, {}).topic_id, 0)
    for offset, time_ms in enumerate((5, 3, 9)):
        tiered.upload({tip: [One(time_ms, is_marker=False).encoded(offset)]})
    tiered.metadata.fold()
    highest = HighestTimes()
    assert highest.first_reaching(tiered.partition(tip), 6) == 2
    # Without pages the slices cannot be read again.
    assert highest.first_reaching(TieredPartition(tip, tiered.partition(tip).row), 10) == 3
