"""Reads the tiered part of partitions, by offset and by time.

A read starts from a snapshot of the shard's state, which names the live slices of the partition. Slices tile,
so the read begins at the first slice that ends behind the wanted offset; a hole (records that compaction
removed) is a slice or batch that returns nothing. Batches are returned whole: the first may begin below the
wanted offset, and callers skip records by offset, as consumers of Kafka do.

A read waits for the store once, as a rule: it returns what one request brings, and what lies behind that in
memory. So the first read of a reader costs one index and one index interval. A reader that goes on gets
larger requests, and what lies ahead of it is loaded meanwhile (see `read_streams` and `read_ahead`).

A reader of committed records learns which transactions to leave out, as from the local log. The slice that
holds an abort marker names the transaction; the snapshot tells which slices to ask, without a request. It
also names the transactions that a gap has left undecided, which are left out, too.

If an object is missing, the snapshot is old or the store has lost the object. The reader reads the head once
more and starts again; an object that is missing under a fresh head is corruption.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from stratalog.base.errors import ObjectNotFoundError, OffsetOutOfRangeError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.record.batch import batches
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_entry import LeaderEpoch, joined_epochs
from stratalog.remote.read.batch_collection import BatchCollection
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.remote.read.producer_chain import producers_at_end
from stratalog.remote.read.read_ahead import ReadAhead
from stratalog.remote.read.read_streams import BEGIN, ReadEnd, ReadStream, ReadStreams
from stratalog.remote.read.slice_source import SliceCursor, SliceSource
from stratalog.remote.read.tiered_time_lookup import TieredTimeLookup
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.timestamp_offset import TimestampOffset

T = TypeVar("T")


class TieredState(NamedTuple):
    """Producers and leader epochs of a log at its tiered end."""

    producers: ProducerSnapshot
    leader_epochs: tuple[LeaderEpoch, ...]


class _ReadRequest(NamedTuple):
    tip: TopicIdPartition
    offset: int
    max_bytes: int
    is_committed: bool
    decided_end_offset: int
    min_one_message: bool


class RemoteReader:
    """Reads the tiered part of partitions. Thread-safe: a read works on an immutable snapshot and shares only
    the caches and the streams."""

    def __init__(self, reads: ObjectReads, metadata: MetadataLog) -> None:
        """`reads` may be shared by the readers of all shards."""
        settings = reads.settings
        self.reads = reads
        self._metadata = metadata
        self._source = SliceSource(reads, metadata.layout)
        self._times = TieredTimeLookup(self._source)
        self._streams = ReadStreams(
            2 * settings.first_bytes,
            settings.chunk_bytes,
            max(settings.chunk_bytes, settings.read_ahead_bytes),
        )
        self._ahead = ReadAhead(reads, self._source)
        self._first_bytes = settings.first_bytes
        self._chunk_bytes = settings.chunk_bytes

    def read(
        self,
        tip: TopicIdPartition,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        *,
        decided_end_offset: int = 0,
        min_one_message: bool = True,
    ) -> FetchData:
        """Whole batches, beginning with the first that reaches `offset`, at most `max_bytes` of them, and
        fewer where more would take another request.

        With `min_one_message` the first batch is returned even if it is larger. The next read begins at
        `next_offset`, which passes holes, up to the tiered end. For `TXN_COMMITTED` the limit is the stable
        end, or `decided_end_offset` where that is higher: a caller with the local log knows markers that are
        not tiered yet, and adds the transactions that they abort. Raises OffsetOutOfRangeError outside [log
        start, tiered end] (fields offset, log_start_offset, log_end_offset), StoreCorruptError,
        StoreUnavailableError.
        """
        is_committed = isolation is Isolation.TXN_COMMITTED
        request = _ReadRequest(
            tip=tip,
            offset=offset,
            max_bytes=max_bytes,
            is_committed=is_committed,
            decided_end_offset=decided_end_offset,
            min_one_message=min_one_message,
        )
        return self._with_fresh_head(lambda state: self._read(state, request))

    def leave(self, tip: TopicIdPartition, offset: int) -> None:
        """Load nothing more ahead of the reader that would have gone on at `offset`. A reader that does go on
        there loses only that."""
        stream = self._streams.at(tip, offset)
        if stream is not BEGIN:
            self.reads.leave(tip)
            self._ahead.end(stream.ahead)

    def offset_for_timestamp(self, tip: TopicIdPartition, timestamp_ms: int) -> TimestampOffset | None:
        """The first tiered record (markers included), by offset, at or after `timestamp_ms`; None if there
        is none. Raises StoreError.
        """
        return self._with_fresh_head(
            lambda state: self._times.first_at_or_after(state, state.partition(tip), timestamp_ms)
        )

    def max_timestamp(self, tip: TopicIdPartition, end_offset: int) -> TimestampOffset | None:
        """The first tiered record (markers included) below `end_offset` with the highest timestamp; None
        where no record has a timestamp. Raises StoreError.
        """
        return self._with_fresh_head(
            lambda state: self._times.newest(state, state.partition(tip), end_offset)
        )

    def state_at_end(self, tip: TopicIdPartition) -> TieredState | None:
        """Producers and leader epochs at the tiered end; None for a partition without slices. Raises
        StoreError.
        """
        return self._with_fresh_head(lambda state: self._state_at_end(state.partition(tip)))

    def _state_at_end(self, partition: TieredPartition) -> TieredState | None:
        if not partition.slices:
            return None
        epochs = joined_epochs(live.entry for live in partition.slices)
        end_offset = partition.tiered_end_offset
        # Only the newest counts: an older one may contradict later batches of a producer.
        newest = next((live for live in reversed(partition.slices) if live.gap is None), None)
        if newest is None:
            return TieredState(ProducerSnapshot(end_offset, ()), epochs)
        producers = producers_at_end(newest, partition.slice_before, self._source.index)
        snapshot = producers.snapshot._replace(end_offset=end_offset)
        if newest.end_offset < end_offset:
            # A batch that a producer repeats is still known, and one behind the lost ones is refused as out
            # of order. The gap has ended every transaction.
            entries = tuple(entry._replace(current_txn_first_offset=None) for entry in snapshot.entries)
            snapshot = snapshot._replace(entries=entries)
        return TieredState(snapshot, epochs)

    def _with_fresh_head(self, work: Callable[[ShardState], T]) -> T:
        try:
            return work(self._metadata.state())
        except ObjectNotFoundError:
            state = self._metadata.refresh()
        try:
            return work(state)
        except ObjectNotFoundError as error:
            raise StoreCorruptError(
                "a live object is missing; restore it from a copy of the bucket",
                **error.fields,
            ) from error

    def _read(self, state: ShardState, request: _ReadRequest) -> FetchData:
        partition = state.partition(request.tip)
        offset = request.offset
        if not partition.log_start_offset <= offset <= partition.tiered_end_offset:
            raise OffsetOutOfRangeError(
                "the offset is not in the tiered range; go on from the log start or read the local log",
                offset=offset,
                log_start_offset=partition.log_start_offset,
                log_end_offset=partition.tiered_end_offset,
            )
        if not request.is_committed:
            return self._collect(state, partition, request, partition.tiered_end_offset)
        decided_end_offset = min(request.decided_end_offset, partition.tiered_end_offset)
        end_offset = max(partition.stable_end_offset, decided_end_offset)
        found = self._collect(state, partition, request, end_offset)
        in_transactions = [
            header.base_offset
            for chunk in found.chunks
            for _, header in batches(chunk)
            if header.is_transactional
        ]
        if not in_transactions:
            return found
        aborted = self._aborted(partition, offset, found.next_offset, in_transactions)
        return found._replace(aborted_transactions=aborted)

    def _collect(
        self, state: ShardState, partition: TieredPartition, request: _ReadRequest, end_offset: int
    ) -> FetchData:
        stream = self._streams.at(request.tip, request.offset)
        found = BatchCollection(request.offset, end_offset, request.max_bytes, request.min_one_message)
        for live in partition.slices_from(request.offset):
            if live.entry.data_bytes and not found.take(self._cursor(state, live, request.offset, stream)):
                break
            found.pass_slice(live)
        data = found.data
        share_bytes = self.reads.share_bytes(request.tip)
        after = self._streams.end_read(
            stream, ReadEnd(request.tip, data, found.place, request.max_bytes, share_bytes)
        )
        if stream is not BEGIN:
            self._ahead.follow(state, partition, data.next_offset, after)
        return data

    def _cursor(self, state: ShardState, live: LiveSlice, offset: int, stream: ReadStream) -> SliceCursor:
        """A cursor at the batch that reaches `offset` and the slice's own range, or somewhat before it."""
        found = state.objects.get(live.object_name)
        # Slices and objects of a state come from the same commits.
        assert found is not None
        entry = live.entry
        window_bytes = min(stream.window_bytes, self._chunk_bytes)
        if stream.place is not None and stream.place.is_in(live):
            # The reader goes on: no index is needed.
            position = stream.place.position - entry.data_position
        elif max(offset, live.base_offset) == entry.base_offset:
            position = 0
        else:
            index = self._source.index(live)
            interval = index.interval(index.index_for_offset(max(offset, live.base_offset)))
            position = interval.position
            window_bytes = max(window_bytes, interval.end_position - position)
        return self._source.cursor(found.ref, live, position, window_bytes or self._first_bytes)

    def _aborted(
        self, partition: TieredPartition, start_offset: int, end_offset: int, in_transactions: Sequence[int]
    ) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with records in [start_offset, end_offset), in the order of their tiered
        markers, or of the gaps that left them undecided.

        `in_transactions`: base offsets of the transactional batches there, ascending. A slice without any is
        asked only if it has markers.
        """
        found: list[AbortedTransaction] = []
        for live in partition.deciding_slices(start_offset, end_offset):
            if live.gap is not None:
                found += live.abandoned_in(start_offset, end_offset)
                continue
            first = bisect_left(in_transactions, live.base_offset)
            was_read = first < len(in_transactions) and in_transactions[first] < live.end_offset
            if was_read or live.has_markers:
                found += self._source.index(live).aborted_in(start_offset, end_offset)
        return tuple(found)
