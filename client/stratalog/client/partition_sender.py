"""Sends the sealed batches of one partition, in order, over one AppendStream that is opened on demand.

No batch leaves the queue without a connection, so a failed connection has no effect: the sender tries again
after growing pauses. At the retry policy's deadline all queued batches fail.

Many batches are in flight at a time. The server answers in order and stops at its first failure; later
batches are not applied. The stream breaks for one of these reasons:

* The server has no room (`OverloadedError`): the first unanswered batch was not applied. It is sent again
  with all later ones, in order, after growing pauses; at the deadline it fails.
* The server refuses a batch (an answer with an error): that batch fails. The later batches are sent again
  over a new stream, in order.
* The batch is larger than its topic accepts (`RecordTooLargeError`): a batch of several records is replaced
  by its halves, and so is every batch of that size from then on. A single record that is too large fails.
* The transport fails: the outcome of the batches in flight is unknown. All of them fail with
  `ServerUnavailableError`; sending them again could store their records twice. Later ones use a new stream.

A batch that is larger than the server accepts is not sent: its transport would break the stream, and put all
batches in flight in doubt. The headers of the stream have the limit. A batch that every server accepts does
not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from stratalog.base.errors import LogStoreError, OverloadedError, RecordTooLargeError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import ServerUnavailableError, error_of_call, error_of_status
from stratalog.client.messages import wire_durability
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.v1 import log_pb2, log_pb2_grpc

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT_COUNT = 8

SURE_BYTES = 1_000_000
"""The transport of every server accepts a message with a batch of this size."""

MAX_REQUEST_BYTES_METADATA_KEY = "stratalog-max-request-bytes"
"""Initial metadata of a stream of appends: the size of the largest request that the server accepts."""

ANSWER_ERRORS_METADATA = (("stratalog-answer-errors", "1"),)
"""Requests failures as answers: grpc.aio may lose the status of a call that is still written to
(grpc/grpc#36066).
"""


class PartitionSender:
    """Sends the batches of one partition in order. Belongs to one event loop. Sends while batches are queued;
    holds no connection when idle."""

    def __init__(
        self,
        channel: ServerChannel,
        topic_partition: TopicPartition,
        durability: Durability | None,
        retry: RetryPolicy,
        on_settled: Callable[[SealedBatch, LogStoreError | None], None],
        on_split: Callable[[SealedBatch, Sequence[SealedBatch]], None],
    ) -> None:
        """`on_settled` is called once for each batch that is acknowledged or fails. For a batch that is
        replaced by its halves `on_split` is called instead; for an abandoned one there is no call.
        """
        self._channel = channel
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._topic_partition = topic_partition
        self._durability = durability
        self._patience = Patience(retry)
        """Counts failures that had no effect."""
        self._pause_s = 0.0
        """Pause before the next attempt."""
        self._on_settled = on_settled
        self._on_split = on_split
        self._refused_bytes: int | None = None
        """Size of the smallest batch of several records that was too large; larger ones are split before
        sending.
        """
        self._max_request_bytes: int | None = None
        """Limit of the server of the current stream; None before its headers have come."""
        self._queued: deque[SealedBatch] = deque()
        self._in_flight: deque[SealedBatch] = deque()
        self._changed = asyncio.Event()
        self._stream = 0
        """Number of the stream that may take batches from the queue."""
        self._task: asyncio.Task[None] | None = None

    def send(self, batch: SealedBatch) -> None:
        self._queued.append(batch)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def abandon(self) -> None:
        """Stop at once and discard unacknowledged batches, which may or may not have been applied."""
        if self._task is not None:
            self._task.cancel()
        self._in_flight.clear()
        self._queued.clear()

    async def _run(self) -> None:
        try:
            await self._send_all()
        except Exception as failure:
            # Unexpected. Waiting callers must neither wait for ever nor get the answers of other batches.
            logger.exception("sending to %s failed", self._topic_partition)
            left = [*self._in_flight, *self._queued]
            self._in_flight.clear()
            self._queued.clear()
            cause = LogStoreError(
                "the client failed, and these records may or may not be stored; report the traceback in the"
                " process's log",
                reason=repr(failure),
            )
            for batch in left:
                self._fail_one(batch, cause)

    async def _send_all(self) -> None:
        # Failures before the last idle time no longer count.
        self._patience.succeed()
        self._pause_s = 0.0
        while self._queued:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            try:
                await self._channel.connect()
                await self._send_queued()
            except LogStoreError as error:
                self._fail(error, is_judged=False)

    async def _send_queued(self) -> None:
        """Send over one stream until the queue is empty or the stream breaks. Raises LogStoreError of the
        transport.
        """
        self._max_request_bytes = None
        call = self._stub.AppendStream(self._requests(self._stream), metadata=ANSWER_ERRORS_METADATA)
        try:
            headers = await call.initial_metadata()
            self._max_request_bytes = int(headers.get(MAX_REQUEST_BYTES_METADATA_KEY, sys.maxsize))
            self._changed.set()
            async for response in call:
                if response.HasField("error"):
                    self._fail(error_of_status(response.error), is_judged=True)
                    return
                self._acknowledge_oldest(response)
                self._changed.set()
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._channel.address) from None
        finally:
            call.cancel()
            # grpc.aio may ask for requests after a call has failed. It must not get batches of the next
            # stream.
            self._stream += 1
            self._changed.set()
        if self._in_flight:
            # A server answers every request before it ends a stream, unless it is stopped.
            raise ServerUnavailableError(
                "the server ended the stream early; try again", server=self._channel.address
            )

    async def _requests(self, stream: int) -> AsyncIterator[log_pb2.AppendRequest]:
        """The requests of one stream. Ends when the queue is empty and every batch is answered, or the stream
        has ended.
        """
        topic, partition = self._topic_partition
        while stream == self._stream:
            self._changed.clear()
            while stream == self._stream and self._queued and self._has_room():
                batch = self._take_next()
                if batch is None:
                    continue
                self._in_flight.append(batch)
                yield log_pb2.AppendRequest(
                    topic=topic,
                    partition=partition,
                    durability=wire_durability(self._durability),
                    batches=batch.batch,
                )
            if not self._queued and not self._in_flight:
                return
            await self._changed.wait()

    def _has_room(self) -> bool:
        """Whether the oldest queued batch may be taken beside those in flight."""
        size_bytes = len(self._queued[0].batch)
        if self._max_request_bytes is None and size_bytes > SURE_BYTES:
            return False
        # A batch that is too large fails in its turn.
        is_beside = len(self._in_flight) < MAX_IN_FLIGHT_COUNT and not self._exceeds_request(size_bytes)
        return is_beside or not self._in_flight

    def _exceeds_request(self, size_bytes: int) -> bool:
        return self._max_request_bytes is not None and size_bytes > self._max_request_bytes

    def _take_next(self) -> SealedBatch | None:
        """Take the oldest queued batch, or its beginning if batches of that size are refused. None if it is a
        record that is too large for the server, which has failed."""
        batch = self._queued.popleft()
        while batch.record_count > 1 and self._is_refused(len(batch.batch)):
            self._split(batch)
            batch = self._queued.popleft()
        size_bytes = len(batch.batch)
        if not self._exceeds_request(size_bytes):
            return batch
        refusal = RecordTooLargeError(
            "the request is larger than the server accepts; send less at once",
            size_bytes=size_bytes,
            max_bytes=self._max_request_bytes,
        )
        self._fail_one(batch, _too_large_alone(refusal))
        return None

    def _is_refused(self, size_bytes: int) -> bool:
        is_known = self._refused_bytes is not None and size_bytes >= self._refused_bytes
        return is_known or self._exceeds_request(size_bytes)

    def _split(self, batch: SealedBatch) -> None:
        halves = batch.halves()
        self._queued.extendleft(reversed(halves))
        self._on_split(batch, halves)

    def _acknowledge_oldest(self, response: log_pb2.AppendResponse) -> None:
        batch = self._in_flight.popleft()
        try:
            self._acknowledge(batch, response)
        except BaseException:
            # Its waiting callers have no result yet.
            self._in_flight.appendleft(batch)
            raise

    def _acknowledge(self, batch: SealedBatch, response: log_pb2.AppendResponse) -> None:
        self._patience.succeed()
        self._pause_s = 0.0
        assert response.last_offset - response.base_offset + 1 == batch.record_count
        durability = Durability(response.durability)
        for place, future in batch.futures:
            if not future.done():
                offset = response.base_offset + place
                future.set_result(Acknowledged(self._topic_partition, offset, durability))
        self._on_settled(batch, None)

    def _fail(self, cause: LogStoreError, *, is_judged: bool) -> None:
        """Fail the oldest batches as `cause` demands, and put the others back into the queue, in order."""
        failed_count = self._failed_count(cause, is_judged=is_judged)
        self._queued.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        for _ in range(failed_count):
            batch = self._queued.popleft()
            if failed_count == 1 and isinstance(cause, RecordTooLargeError):
                if batch.record_count > 1:
                    if cause.fields.get("size_bytes", len(batch.batch)) == len(batch.batch):
                        # The size as sent, not the size in the topic's own compression.
                        self._refused_bytes = len(batch.batch)
                    self._split(batch)
                    continue
                cause = _too_large_alone(cause)
            self._fail_one(batch, cause)

    def _fail_one(self, batch: SealedBatch, cause: LogStoreError) -> None:
        batch.fail(cause)
        self._on_settled(batch, cause)

    def _failed_count(self, cause: LogStoreError, *, is_judged: bool) -> int:
        if isinstance(cause, OverloadedError):
            return 0 if self._may_try_again(cause) else 1
        if is_judged:
            return 1
        if self._in_flight:
            return len(self._in_flight)
        # Nothing was sent; the queue may be empty.
        if not cause.retriable:
            return min(1, len(self._queued))
        return 0 if self._may_try_again(cause) else len(self._queued)

    def _may_try_again(self, cause: LogStoreError) -> bool:
        """Count a failure without effect. Returns False if the next attempt would be too late; the
        deadline begins anew for later batches then.
        """
        pause_s = self._patience.next_pause_s(asyncio.get_running_loop().time(), cause.retry_delay_s)
        self._pause_s = pause_s or 0.0
        if pause_s is None:
            self._patience.succeed()
        return pause_s is not None


def _too_large_alone(cause: RecordTooLargeError) -> RecordTooLargeError:
    """The error for a record that is too large although it is alone in its batch."""
    fields = {**cause.fields, "reason": cause.message}
    return RecordTooLargeError(
        "a record is too large even alone; make it smaller or raise the limit that the reason names",
        **fields,
    )
