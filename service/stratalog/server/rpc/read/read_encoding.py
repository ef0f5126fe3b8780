"""Makes responses of plain records from fetched batches, each of bounded size and with bounded work.

Batches are decompressed in sections, so memory does not depend on the size that a batch decompresses to.
Decompressed bytes, records and the response that waits for the transport count in the memory of all fetches.
They are always granted, since they are a few mebibytes, unless a single record is larger: then its partition
fails as retriable while there is no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, OverloadedError, RecordTooLargeError, forget_frames
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import whole_chunks
from stratalog.record.reading.readable_batches import readable_batches
from stratalog.record.reading.record_stream import RecordPiece, record_stream
from stratalog.record.record import Record
from stratalog.server.fetch.fetch_cursor import Collected, FetchCursor, Watermarks
from stratalog.server.request_memory import RequestMemory
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.v1 import log_pb2

MAX_RESPONSE_BYTES = 1 << 20
"""Most bytes of records of a response, unless a single record is larger."""

MAX_STEP_BYTES = 8 << 20
"""About the decompressed bytes after which a step ends, with a response or without."""

RECORD_OVERHEAD_BYTES = 32
HEADER_OVERHEAD_BYTES = 8
NO_EPOCH = -1


class FetchedBatches(NamedTuple):
    """The news of one cursor."""

    topic_partition: TopicPartition
    start_offset: int
    next_offset: int
    """At most the end of the cursor, and at least the start."""
    collected: Collected
    marks: Watermarks | None
    error: LogStoreError | None

    @property
    def partition(self) -> int:
        return self.topic_partition.partition


def take_batches(cursors: Iterable[FetchCursor]) -> list[FetchedBatches]:
    """The news of the cursors, which continue behind it. On the event loop."""
    return [_taken(cursor) for cursor in cursors]


def _taken(cursor: FetchCursor) -> FetchedBatches:
    start_offset, next_offset = cursor.start, cursor.position
    if cursor.end_offset is not None:
        next_offset = max(start_offset, min(next_offset, cursor.end_offset))
    return FetchedBatches(
        topic_partition=cursor.topic_partition,
        start_offset=start_offset,
        next_offset=next_offset,
        collected=cursor.take(),
        marks=None if cursor.partition is None else cursor.partition.watermarks(),
        error=cursor.error,
    )


class ReadEncoder:
    """Makes the responses of one read. One thread at a time may use it; any may close it."""

    def __init__(
        self,
        clock: Clock,
        statuses: ErrorStatuses,
        memory: RequestMemory,
        topic_id: str,
        max_record_count: int | None,
        *,
        is_single: bool,
    ) -> None:
        """`is_single`: the failure of a partition is that of the read."""
        self._clock = clock
        self._statuses = statuses
        self._memory = memory
        self._lease = memory.lease()
        self._leased_bytes = 0
        self._topic_id = topic_id
        self._left_count = max_record_count
        self._is_single = is_single
        self._last_epochs: dict[int, int] = {}
        self._response = log_pb2.ReadResponse()
        self._response_bytes = 0
        self.failures: dict[int, LogStoreError] = {}
        """The partitions that have failed."""

    @property
    def is_finished(self) -> bool:
        """The read has all the records that it may have."""
        return self._left_count == 0

    def close(self) -> None:
        """Give back the memory."""
        self._lease.close()
        # gRPC's objects of the call hold this encoder, and each other until the collector comes.
        self.failures = {}

    def heartbeat(self) -> bytes:
        return self._begun().SerializeToString()

    def responses(self, fetched: Iterable[FetchedBatches]) -> Iterator[bytes | None]:
        """Yield the serialised responses of an answer, and None after much work without one.

        Raises the failure of a single partition, after its records.
        """
        self._response, self._response_bytes = self._begun(), 0
        failure: LogStoreError | None = None
        for one in fetched:
            if one.partition in self.failures:
                continue
            try:
                yield from self._records_of(one)
            except LogStoreError as error:
                forget_frames(error)
                self.failures[one.partition] = failure = error
                where = f"a read from {one.topic_partition}"
                status = self._statuses.status(error, where, one.topic_partition)
                self._response.partitions[-1].error.CopyFrom(status)
                self._response_bytes += status.ByteSize()
            if self._response_bytes > MAX_RESPONSE_BYTES and not self._is_single:
                yield self._flushed(0)
            self._hold(self._response_bytes)
        if failure is not None and self._is_single:
            self._response.partitions[-1].ClearField("error")
            if self._response.partitions[-1].records:
                yield self._flushed(0)
            raise failure
        if self._response.partitions:
            yield self._flushed(0)
        self._hold(0)

    def _records_of(self, one: FetchedBatches) -> Iterator[bytes | None]:
        part = self._begin_part(one, one.start_offset)
        step_bytes = 0
        for piece in self._pieces(one):
            self._last_epochs[one.partition] = part.last_epoch = piece.leader_epoch
            self._hold(self._response_bytes + piece.held_bytes)
            records = self._limited(piece)
            for record in records:
                size_bytes = _size_bytes(record)
                if self._response_bytes and self._response_bytes + size_bytes > MAX_RESPONSE_BYTES:
                    part.next_offset = record.offset
                    yield self._flushed(piece.held_bytes)
                    step_bytes = 0
                    part = self._begin_part(one, record.offset)
                self._response_bytes += size_bytes
                _add(part, record)
            if self.is_finished:
                part.next_offset = records[-1].offset + 1
                return
            part.next_offset = piece.next_offset
            step_bytes += piece.held_bytes
            if step_bytes > MAX_STEP_BYTES:
                yield None
                step_bytes = 0
        if not self.is_finished:
            part.next_offset = one.next_offset
        if one.error is not None:
            raise one.error

    def _pieces(self, one: FetchedBatches) -> Iterator[RecordPiece]:
        """The records of the answer; none once the read is finished."""
        if self.is_finished:
            return
        chunks, _, aborted = one.collected
        is_readable = readable_batches(aborted)
        for chunk in whole_chunks(chunks):
            yield from record_stream(chunk, is_readable, one.start_offset, one.next_offset, self._reserve)

    def _limited(self, piece: RecordPiece) -> list[Record]:
        """The records of the piece that the limit allows, which are counted."""
        records = piece.records
        if self._left_count is not None:
            records = records[: self._left_count]
            self._left_count -= len(records)
        return records

    def _begun(self) -> log_pb2.ReadResponse:
        return log_pb2.ReadResponse(topic_id=self._topic_id, time_ms=self._clock.now_ms())

    def _begin_part(self, one: FetchedBatches, next_offset: int) -> log_pb2.ReadRecords:
        part = self._response.partitions.add(
            partition=one.partition,
            next_offset=next_offset,
            last_epoch=self._last_epochs.get(one.partition, NO_EPOCH),
        )
        if one.marks is not None:
            part.log_start_offset = one.marks.log_start_offset
            part.high_watermark = one.marks.high_watermark
        return part

    def _flushed(self, held_bytes: int) -> bytes:
        """The response so far; the next one begins. `held_bytes` stay beside it."""
        data = self._response.SerializeToString()
        self._response, self._response_bytes = self._begun(), 0
        self._hold(held_bytes + len(data))
        return data

    def _hold(self, size_bytes: int) -> None:
        """Count that many bytes for this read."""
        self._lease.settle(self._leased_bytes, size_bytes)
        self._leased_bytes = size_bytes

    def _reserve(self, record_bytes: int) -> None:
        """Take the memory of a large record: decompressed, as a record and as a response. Raises
        RecordTooLargeError, and OverloadedError without room."""
        size_bytes = 3 * record_bytes
        if size_bytes > self._memory.limit_bytes:
            raise RecordTooLargeError(
                "the record is too large to be read in plain form, fetch its batch instead",
                size_bytes=record_bytes,
                max_bytes=self._memory.limit_bytes // 3,
            )
        granted_bytes = self._lease.take_up_to(size_bytes, 0)
        if granted_bytes < size_bytes:
            self._lease.settle(granted_bytes, 0)
            raise OverloadedError(
                "there is no memory for a large record now, read on from it after a pause",
                size_bytes=record_bytes,
            )
        self._leased_bytes += granted_bytes


def _size_bytes(record: Record) -> int:
    """About the size of the record in a response."""
    _, _, key, value, headers = record
    size_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, header_value in headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(name) + len(header_value or b"")
    return size_bytes


def _add(part: log_pb2.ReadRecords, record: Record) -> None:
    offset, timestamp_ms, key, value, headers = record
    # None leaves a field out.
    stored = part.records.add(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value)
    for name, header_value in headers:
        stored.headers.add(key=name, value=header_value)
