"""Finds records by time in the slices of a partition, as the local log does in its segments.

It finds the first record, by offset, that is new enough, and the first of the newest records. A transaction
marker is a record like any other.

Timestamps may be out of order, so the search is over the highest timestamp up to each slice, which never
falls: the first slice where it reaches the wanted time holds the first record that is new enough. That costs
no request. Only where the slice's newest records lie below log start, or below the slice's first valid
offset, further slices are looked at. A look-up mostly costs the index of a slice and one of its intervals.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.record.reading.record_portions import batch_records
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.read.highest_times import HighestTimes
from stratalog.remote.read.slice_source import SliceSource
from stratalog.segment.timestamp_offset import NO_TIMESTAMP_OFFSET, TimestampOffset


class TieredTimeLookup:
    """Looks up tiered offsets by timestamp. Thread-safe: its parts are. Methods raise the source's errors."""

    def __init__(self, source: SliceSource) -> None:
        self._source = source
        self._highest = HighestTimes()

    def first_at_or_after(
        self, state: ShardState, partition: TieredPartition, timestamp_ms: int
    ) -> TimestampOffset | None:
        """The first record at or above log start with `timestamp_ms` or a later timestamp."""
        slices = partition.slices
        for number in range(self._highest.first_reaching(partition, timestamp_ms), len(slices)):
            live = slices[number]
            start_offset = max(live.base_offset, partition.log_start_offset)
            for record in self._records_since(state, live, timestamp_ms, start_offset):
                if record.timestamp_ms >= timestamp_ms:
                    return TimestampOffset(record.timestamp_ms, record.offset)
        return None

    def newest(
        self, state: ShardState, partition: TieredPartition, end_offset: int
    ) -> TimestampOffset | None:
        """The first record with the highest timestamp from log start up to `end_offset`; None if no record
        has a timestamp.
        """
        best = NO_TIMESTAMP_OFFSET
        for live in partition.slices:
            entry = live.entry
            start_offset = max(live.base_offset, partition.log_start_offset)
            if start_offset >= end_offset:
                break
            if start_offset <= entry.max_timestamp_offset < end_offset:
                if entry.max_timestamp > best.timestamp_ms:
                    best = TimestampOffset(entry.max_timestamp, entry.max_timestamp_offset)
                continue
            # The newest record of the slice lies outside of the range.
            for record in self._records_since(state, live, best.timestamp_ms + 1, start_offset):
                if record.offset >= end_offset:
                    break
                if record.timestamp_ms > best.timestamp_ms:
                    best = TimestampOffset(record.timestamp_ms, record.offset)
        return None if best == NO_TIMESTAMP_OFFSET else best

    def _records_since(
        self, state: ShardState, live: LiveSlice, since_ms: int, start_offset: int
    ) -> Iterator[Record]:
        """The records at or above `start_offset` of batches that may have a record at or after `since_ms`."""
        entry = live.entry
        if entry.record_count == 0 or entry.max_timestamp < since_ms:
            return
        found = state.objects.get(live.object_name)
        # Slices and objects of a state come from the same commits.
        assert found is not None
        index = self._source.index(live)
        for number in range(index.index_for_offset(start_offset), index.interval_count):
            if index.max_timestamps[number] < since_ms:
                continue
            interval = index.interval(number)
            for batch in self._source.batches(found.ref, live, interval.position, interval.end_position):
                if batch.header.max_timestamp >= since_ms and batch.header.next_offset > start_offset:
                    yield from (
                        record for record in batch_records(batch.data) if record.offset >= start_offset
                    )
