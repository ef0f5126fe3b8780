"""Reads the tiered part of partitions, by offset and by time.

A read starts from a snapshot of the shard's state, which names the live slices of the partition; they tile,
so the first slice that ends behind the wanted offset is where to look, and a hole (records that compaction
took) is only a slice or a batch that gives nothing. Batches are returned whole: the first may begin below
the wanted offset, and callers skip records by offset, as consumers of Kafka do.

An object that is missing means that the snapshot is old, or that the store has lost it. The head is read
once more and the read starts again; missing under a fresh head is corruption.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeVar

from stratalog.base.errors import ObjectNotFoundError, OffsetOutOfRangeError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.log.fetch_data import FetchData
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import decode
from stratalog.remote.metadata_log import MetadataLog
from stratalog.remote.partition_state import LiveSlice, PartitionState
from stratalog.remote.remote_reader_settings import RemoteReaderSettings
from stratalog.remote.shard_state import ShardState
from stratalog.remote.slice_source import SliceBatch, SliceSource
from stratalog.segment.timestamp_offset import TimestampOffset

T = TypeVar("T")


class RemoteReader:
    """Thread-safe: a read works on an immutable snapshot and shares only the caches."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        settings: RemoteReaderSettings | None = None,
    ) -> None:
        self._metadata = metadata
        self._source = SliceSource(store, metadata.layout, settings or RemoteReaderSettings())

    def read(
        self, tip: TopicIdPartition, offset: int, max_bytes: int, *, min_one_message: bool = True
    ) -> FetchData:
        """Whole batches from the first that reaches `offset` on, at most `max_bytes` of them.

        With `min_one_message` the first batch is returned even where it is larger. `next_offset` is where
        to go on: it passes holes, up to the tiered end. Raises OffsetOutOfRangeError outside [log start,
        tiered end] (fields offset, log_start_offset, log_end_offset), StoreCorruptError,
        StoreUnavailableError.
        """
        return self._with_fresh_head(lambda state: self._read(state, tip, offset, max_bytes, min_one_message))

    def offset_for_timestamp(self, tip: TopicIdPartition, timestamp_ms: int) -> TimestampOffset | None:
        """The first tiered record, by offset, at or after `timestamp_ms`; None where there is none. Raises
        StoreError.
        """
        return self._with_fresh_head(lambda state: self._offset_for_timestamp(state, tip, timestamp_ms))

    def max_timestamp(self, tip: TopicIdPartition) -> TimestampOffset | None:
        """The first of the tiered records with the highest timestamp; None where there is no record. Raises
        StoreError.
        """
        return self._with_fresh_head(lambda state: self._max_timestamp(state, tip))

    def _with_fresh_head(self, work: Callable[[ShardState], T]) -> T:
        try:
            return work(self._metadata.state())
        except ObjectNotFoundError:
            state = self._metadata.refresh()
        try:
            return work(state)
        except ObjectNotFoundError as error:
            raise StoreCorruptError(
                "an object that a commit calls live is missing; restore it from a copy of the bucket",
                **error.fields,
            ) from error

    def _read(
        self, state: ShardState, tip: TopicIdPartition, offset: int, max_bytes: int, min_one_message: bool
    ) -> FetchData:
        partition = state.partition(tip)
        if not partition.log_start_offset <= offset <= partition.tiered_end_offset:
            raise OffsetOutOfRangeError(
                "the offset is not in the tiered range; go on from the log start or read the local log",
                offset=offset,
                log_start_offset=partition.log_start_offset,
                log_end_offset=partition.tiered_end_offset,
            )
        parts: list[memoryview] = []
        size_bytes = 0
        next_offset = offset
        for live in _slices_from(partition, offset):
            for batch in self._batches_from(state, live, offset):
                size_bytes += len(batch.data)
                if size_bytes > max_bytes and (parts or not min_one_message):
                    return FetchData(b"".join(parts), next_offset)
                parts.append(batch.data)
                next_offset = max(next_offset, batch.header.next_offset)
            next_offset = live.end_offset
        return FetchData(b"".join(parts), next_offset)

    def _offset_for_timestamp(
        self, state: ShardState, tip: TopicIdPartition, timestamp_ms: int
    ) -> TimestampOffset | None:
        partition = state.partition(tip)
        for live in partition.slices:
            if live.entry.max_timestamp < timestamp_ms or live.entry.record_count == 0:
                continue
            start_offset = max(live.base_offset, partition.log_start_offset)
            index = self._source.index(live)
            for number in range(index.index_for_offset(start_offset), index.interval_count):
                if index.max_timestamps[number] < timestamp_ms:
                    continue
                interval = index.interval(number)
                for batch in self._batches(state, live, interval.position, interval.end_position):
                    found = _first_at_or_after(batch, timestamp_ms, start_offset)
                    if found is not None:
                        return found
        return None

    def _max_timestamp(self, state: ShardState, tip: TopicIdPartition) -> TimestampOffset | None:
        partition = state.partition(tip)
        best: TimestampOffset | None = None
        for live in partition.slices:
            entry = live.entry
            if entry.record_count == 0 or (best is not None and entry.max_timestamp <= best.timestamp_ms):
                continue
            start_offset = max(live.base_offset, partition.log_start_offset)
            if entry.max_timestamp_offset >= start_offset:
                best = TimestampOffset(entry.max_timestamp, entry.max_timestamp_offset)
            else:
                best = self._max_timestamp_from(state, live, start_offset, best)
        return best

    def _max_timestamp_from(
        self, state: ShardState, live: LiveSlice, start_offset: int, best: TimestampOffset | None
    ) -> TimestampOffset | None:
        """The better of `best` and the slice's records from `start_offset` on; for a slice that is cut at
        its low end.
        """
        index = self._source.index(live)
        number = index.index_for_offset(start_offset)
        while number < index.interval_count:
            interval = index.interval(number)
            if best is None or index.max_timestamps[number] > best.timestamp_ms:
                for batch in self._batches(state, live, interval.position, interval.end_position):
                    best = _better(best, batch, start_offset)
            number += 1
        return best

    def _batches_from(self, state: ShardState, live: LiveSlice, offset: int) -> Iterator[SliceBatch]:
        """The slice's batches that reach `offset` and the slice's own range."""
        if live.entry.data_bytes == 0:
            return
        start_offset = max(offset, live.base_offset)
        index = self._source.index(live)
        position = index.interval(index.index_for_offset(start_offset)).position
        for batch in self._batches(state, live, position, live.entry.data_bytes):
            if batch.header.next_offset > start_offset:
                yield batch

    def _batches(
        self, state: ShardState, live: LiveSlice, position: int, end_position: int
    ) -> Iterator[SliceBatch]:
        found = state.objects.get(live.object_name)
        # A state's slices and objects come from the same commits.
        assert found is not None
        return self._source.batches(found.ref, live, position, end_position)


def _slices_from(partition: PartitionState, offset: int) -> tuple[LiveSlice, ...]:
    """The slices that end behind `offset`, in order."""
    first = max(bisect_right(partition.slices, offset, key=lambda live: live.base_offset) - 1, 0)
    return tuple(live for live in partition.slices[first:] if live.end_offset > offset)


def _first_at_or_after(batch: SliceBatch, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
    header = batch.header
    if header.is_control or header.max_timestamp < timestamp_ms or header.next_offset <= start_offset:
        return None
    for record in decode(batch.data):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return TimestampOffset(record.timestamp_ms, record.offset)
    return None


def _better(best: TimestampOffset | None, batch: SliceBatch, start_offset: int) -> TimestampOffset | None:
    header = batch.header
    if header.is_control or header.next_offset <= start_offset:
        return best
    if best is not None and header.max_timestamp <= best.timestamp_ms:
        return best
    for record in decode(batch.data):
        if record.offset >= start_offset and (best is None or record.timestamp_ms > best.timestamp_ms):
            best = TimestampOffset(record.timestamp_ms, record.offset)
    return best
