"""CopyBatches: appends record batches that are the values of records of this server.

A batch was on its way once, into the log that has it. To send it to another partition a client would have to
read it and send it again. Here it goes from one log to the others: a thread of the source's log directory
reads the records, each batch gets its new producer in its header, and is an ordinary append from there on,
with all checks of one. So nothing of the source counts but the bytes of the value.

Only the local log is read: what has left it is answered as out of range, and its client sends it itself.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import grpc

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    forget_frames,
)
from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData, whole_chunks
from stratalog.log.isolation import Isolation
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import MAX_BATCH_LENGTH, batch_of_producer
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
from stratalog.record.record import Record
from stratalog.server.append.append_decoding import DecodedAppend
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend, preceding_append_failed
from stratalog.server.fetch.fetch_cursor import out_of_range
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.request_memory import LEAST_FETCH_BYTES, RequestMemory
from stratalog.server.rpc import convert
from stratalog.server.rpc.access.unpacked_charge import charge_copied, charge_unpacked
from stratalog.server.rpc.answer_errors import AnswerErrors
from stratalog.server.rpc.call_guard import Context, guarded
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2

MAX_COPY_COUNT = 1_000
MAX_COPY_BYTES = 8 << 20
"""A call reads about so many bytes of the source."""

Attempt: TypeAlias = "PendingAppend | Exception"
"""An append that was submitted, or the reason why it was not."""


RequireProducer: TypeAlias = "Callable[[int], Awaitable[None]]"
"""Refuses the id of a producer that no server has given. Raises LogStoreError."""
Prepare: TypeAlias = "Callable[[DecodedAppend, AppendSession | None], tuple[PartitionWriter, PendingAppend]]"
"""Checks an append, and takes its memory. Raises LogStoreError."""


class CopyServicer:
    """A part of `LogService`; see `method_handlers`. Belongs to the event loop."""

    def __init__(
        self,
        require_producer: RequireProducer,
        prepare: Prepare,
        partitions: PartitionRegistry,
        pools: WorkerPools,
        memory: RequestMemory,
        statuses: ErrorStatuses,
    ) -> None:
        """`require_producer` and `prepare` are those of all appends, `memory` is that of reads."""
        self._require_producer = require_producer
        self._prepare = prepare
        self._partitions = partitions
        self._pools = pools
        self._memory = memory
        self.statuses = statuses

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handler by the name of its call."""
        return {
            "CopyBatches": grpc.unary_unary_rpc_method_handler(
                self.CopyBatches,
                log_pb2.CopyBatchesRequest.FromString,
                log_pb2.CopyBatchesResponse.SerializeToString,
            )
        }

    @guarded
    async def CopyBatches(
        self, request: log_pb2.CopyBatchesRequest, context: Context
    ) -> log_pb2.CopyBatchesResponse:
        offsets = _offsets(request)
        source = self._partitions.partition(request.topic, request.partition, request.topic_id)
        source.ensure_served()
        memory = self._memory.lease()
        try:
            granted_bytes = memory.take_up_to(MAX_COPY_BYTES, LEAST_FETCH_BYTES)
            read = partial(_read, source, offsets[0], granted_bytes)
            data = await self._pools.read(source.log_dir, read)
            memory.settle(granted_bytes, data.size_bytes)
            copies = [copy for copy in request.copies if copy.offset < data.next_offset]
            assert copies, "a read goes on"
            unknown = await self._unknown_producers(copies)
            appends = await self._pools.compute(partial(_appends, data, copies, unknown))
            attempts = self._submit(copies, appends)
        finally:
            memory.close()
        return await self._answer(copies, attempts)

    async def _unknown_producers(self, copies: Sequence[log_pb2.BatchCopy]) -> dict[int, LogStoreError]:
        """The producers that no server has given, or that cannot be looked up now, with the reason."""
        unknown: dict[int, LogStoreError] = {}
        for producer_id in {copy.producer.producer_id for copy in copies if copy.HasField("producer")}:
            try:
                await self._require_producer(producer_id)
            except LogStoreError as error:
                forget_frames(error)
                unknown[producer_id] = error
        return unknown

    def _submit(
        self, copies: Sequence[log_pb2.BatchCopy], appends: Sequence[DecodedAppend | Exception]
    ) -> list[Attempt]:
        """Pass the batches on to the writers of their partitions, in order."""
        attempts: list[Attempt] = []
        sessions: dict[TopicPartition, AppendSession] = {}
        for copy, decoded in zip(copies, appends, strict=True):
            session = sessions.setdefault(TopicPartition(copy.topic, copy.partition), AppendSession())
            try:
                if session.is_broken:
                    raise preceding_append_failed()
                if isinstance(decoded, Exception):
                    raise decoded
                writer, append = self._prepare(decoded, session)
            except Exception as error:  # noqa: BLE001 - it is the answer to this copy
                forget_frames(error)
                session.fail(error)
                attempts.append(error)
            else:
                writer.submit(append)
                charge_copied(append)
                attempts.append(append)
        return attempts

    async def _answer(
        self, copies: Sequence[log_pb2.BatchCopy], attempts: Sequence[Attempt]
    ) -> log_pb2.CopyBatchesResponse:
        """Wait for the appends; an outcome for each copy."""
        submitted = [one for one in attempts if isinstance(one, PendingAppend)]
        try:
            if submitted:
                await asyncio.wait([one.future for one in submitted])
        finally:
            for one in submitted:
                if not one.future.done():
                    one.abandon()
        errors = AnswerErrors(self.statuses)
        response = log_pb2.CopyBatchesResponse()
        for copy, attempt in zip(copies, attempts, strict=True):
            error: BaseException | None
            if isinstance(attempt, PendingAppend):
                charge_unpacked(attempt)
                error = attempt.failure()
                if error is None:
                    response.copied.add(ack=convert.append_response(attempt, attempt.future.result()))
                    continue
            else:
                error = attempt
            place = TopicPartition(copy.topic, copy.partition)
            response.copied.add(status=errors.status(error, "CopyServicer.CopyBatches", place))
        return response


def _offsets(request: log_pb2.CopyBatchesRequest) -> list[int]:
    """The offsets of the copies. Raises InvalidRequestError."""
    offsets = [copy.offset for copy in request.copies]
    if not 1 <= len(offsets) <= MAX_COPY_COUNT:
        raise InvalidRequestError(
            "a call has too many copies, or none; use several calls",
            copy_count=len(offsets),
            allowed=f"1 to {MAX_COPY_COUNT}",
        )
    if offsets != sorted(set(offsets)):
        raise InvalidRequestError("the copies of a call come in the order of their offsets, each once")
    return offsets


def _read(source: HostedPartition, offset: int, max_bytes: int) -> FetchData:
    """Read the local log from a visible record on. Raises OffsetOutOfRangeError, LogStoreError. On a thread
    that may block."""
    marks = source.watermarks()
    if not marks.local_log_start_offset <= offset < marks.high_watermark:
        raise out_of_range(offset, marks.local_log_start_offset, marks.high_watermark)
    return source.read_local(offset, max_bytes, Isolation.HIGH_WATERMARK, min_one_message=True)


def _appends(
    data: FetchData, copies: Sequence[log_pb2.BatchCopy], unknown: Mapping[int, LogStoreError]
) -> list[DecodedAppend | Exception]:
    """The append of each copy, or its failure; `unknown` are the producers that fail theirs. Raises
    InvalidRequestError for a source that is compressed, CorruptRecordError."""
    records = _records(data, [copy.offset for copy in copies])
    found: list[DecodedAppend | Exception] = []
    for copy in copies:
        try:
            if copy.HasField("producer") and copy.producer.producer_id in unknown:
                raise unknown[copy.producer.producer_id]
            found.append(_append(copy, records.get(copy.offset)))
        except LogStoreError as error:
            found.append(error)
    return found


def _records(data: FetchData, offsets: Sequence[int]) -> dict[int, Record]:
    """The records with these offsets, which are in order, as far as they are there."""
    found: dict[int, Record] = {}
    for chunk in whole_chunks(data.chunks):
        for position, header in batches(chunk):
            begin, end = bisect_left(offsets, header.base_offset), bisect_left(offsets, header.next_offset)
            if begin == end or header.is_control:
                continue
            if header.codec is not Codec.NONE:
                raise InvalidRequestError(
                    "the source is compressed; read the batches and append them", codec=header.codec.name
                )
            wanted = frozenset(offsets[begin:end])
            records = decode(chunk, position, max_bytes=MAX_BATCH_LENGTH)
            found |= {one.offset: one for one in records if one.offset in wanted}
    return found


def _append(copy: log_pb2.BatchCopy, record: Record | None) -> DecodedAppend:
    """The append of a copy. Raises InvalidRequestError, InvalidRecordError, OffsetOutOfRangeError."""
    if not copy.HasField("producer"):
        raise InvalidRequestError("a copy needs a producer, so that it is applied once")
    if record is None or record.value is None or (copy.HasField("key") and record.key != copy.key):
        raise OffsetOutOfRangeError(
            "the source has no record with a value and the key at this offset", offset=copy.offset
        )
    batch = _with_producer(record.value, convert.batch_producer(copy))
    request = log_pb2.AppendRequest(
        topic=copy.topic, topic_id=copy.topic_id, partition=copy.partition, durability=copy.durability
    )
    return DecodedAppend(request, memoryview(batch), None, len(batch))


def _with_producer(value: bytes, producer: BatchProducer) -> bytes:
    """The batch of a value with this producer. Raises InvalidRecordError for a value that is no batch."""
    try:
        header = parse_header(value)
    except CorruptRecordError as error:
        raise InvalidRecordError("the record of the source is no batch", reason=error) from None
    # Another bit of the attributes would give the records another meaning.
    if header.size_in_bytes != len(value) or header.records_count < 1 or header.attributes != header.codec:
        raise InvalidRecordError("the record of the source is not one plain batch of data")
    return batch_of_producer(value, header, producer)
