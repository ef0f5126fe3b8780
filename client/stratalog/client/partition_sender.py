"""Sends the sealed batches of one partition, in order, over one AppendStream that is opened when needed.

Nothing leaves the queue before a connection stands, so where none can be made nothing took effect: the queue
is tried again after a pause that grows. At the retry policy's deadline everything in it fails.

Many batches are under way at a time. The server answers in order and stops at its first failure, applying
nothing behind it. So when the stream breaks:

* because the server had no room (`OverloadedError`): nothing of the first unanswered batch took effect. It
  goes out again, and all behind it, in order, after a pause that grows, until the deadline, where it fails;
* by the server's judgement on a batch (an answer with an error): that batch has failed, the ones behind it
  were not applied and go out again over a new stream, in order;
* because the batch is larger than its topic or the server takes (`RecordTooLargeError`): of several records
  it goes out in halves, in its place, and so does everything of that size from then on. A record that is too
  large alone fails alone. What a transport may refuse for its size travels alone, so that nothing else is in
  question then;
* by the transport: whether the batches under way took effect is unknown. All of them fail with
  `ServerUnavailableError`; sending them again could store their records twice. Later ones start a new stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from stratalog.base.errors import LogStoreError, OverloadedError, RecordTooLargeError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import ServerUnavailableError, error_of_call, error_of_info
from stratalog.client.messages import wire_acks
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.v1 import log_pb2, log_pb2_grpc

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT_COUNT = 8

LONELY_BYTES = 32 << 20
"""A batch of this size, which a server's transport may refuse, is under way alone."""

ANSWER_ERRORS_METADATA = (("stratalog-answer-errors", "1"),)
"""Asks for failures as answers: grpc.aio may lose the status of a call that is still written to
(grpc/grpc#36066).
"""


class PartitionSender:
    """Belongs to one event loop. Sends as long as something is queued; holds no connection when idle."""

    def __init__(
        self,
        channel: ServerChannel,
        topic_partition: TopicPartition,
        acks: Durability | None,
        retry: RetryPolicy,
        on_settled: Callable[[SealedBatch, LogStoreError | None], None],
        on_split: Callable[[SealedBatch, Sequence[SealedBatch]], None],
    ) -> None:
        """`on_settled` is called once for each batch, acknowledged or failed, unless it is abandoned or
        `on_split` was told what goes out in its stead.
        """
        self._channel = channel
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._topic_partition = topic_partition
        self._acks = acks
        self._patience = Patience(retry)
        """With failures after which nothing had taken effect."""
        self._pause_s = 0.0
        """Before the next try."""
        self._on_settled = on_settled
        self._on_split = on_split
        self._refused_bytes: int | None = None
        """Size of the smallest batch of several records that was too large; no such goes out again."""
        self._queued: deque[SealedBatch] = deque()
        self._in_flight: deque[SealedBatch] = deque()
        self._changed = asyncio.Event()
        self._stream = 0
        """Number of the stream that may take from the queue."""
        self._task: asyncio.Task[None] | None = None

    def send(self, batch: SealedBatch) -> None:
        """Queue a batch behind all earlier ones."""
        self._queued.append(batch)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def abandon(self) -> None:
        """Stop at once and forget what is not acknowledged: it may or may not have taken effect."""
        if self._task is not None:
            self._task.cancel()
        self._in_flight.clear()
        self._queued.clear()

    async def _run(self) -> None:
        try:
            await self._send_all()
        except Exception as failure:
            # Nobody expects this. Whoever waits must not wait for ever, nor get the answers of other batches.
            logger.exception("sending to %s failed", self._topic_partition)
            left = [*self._in_flight, *self._queued]
            self._in_flight.clear()
            self._queued.clear()
            cause = LogStoreError(
                "the client failed to send these records, and nobody knows whether they are stored; tell its"
                " developers what the process's log says",
                reason=repr(failure),
            )
            for batch in left:
                batch.fail(cause)
                self._on_settled(batch, cause)

    async def _send_all(self) -> None:
        # What failed before the last pause without work is of no interest now.
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
        """One stream, until nothing is left to send or it breaks. Raises LogStoreError for the transport."""
        call = self._stub.AppendStream(self._requests(self._stream), metadata=ANSWER_ERRORS_METADATA)
        try:
            async for response in call:
                if response.HasField("error"):
                    self._fail(error_of_info(response.error), is_judged=True)
                    return
                self._acknowledge_oldest(response)
                self._changed.set()
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._channel.address) from None
        finally:
            call.cancel()
            # grpc.aio goes on asking for requests after a call that failed by itself: whoever asks then gets
            # nothing, least of all a batch of the next stream.
            self._stream += 1
            self._changed.set()
        if self._in_flight:
            # A server answers every request before it ends a stream, unless it is stopped in between.
            raise ServerUnavailableError(
                "the server ended the stream early, try again", server=self._channel.address
            )

    async def _requests(self, stream: int) -> AsyncIterator[log_pb2.AppendRequest]:
        """What goes into one stream; ends once nothing is queued and everything is answered, or the stream is
        over.
        """
        topic, partition = self._topic_partition
        while stream == self._stream:
            self._changed.clear()
            while stream == self._stream and self._queued and self._has_room():
                batch = self._take_next()
                self._in_flight.append(batch)
                yield log_pb2.AppendRequest(
                    topic=topic, partition=partition, acks=wire_acks(self._acks), batches=batch.batch
                )
            if not self._queued and not self._in_flight:
                return
            await self._changed.wait()

    def _has_room(self) -> bool:
        """Whether the oldest batch of the queue may go out beside those that are under way."""
        if not self._in_flight:
            return True
        largest_bytes = max(len(self._queued[0].batch), len(self._in_flight[-1].batch))
        return len(self._in_flight) < MAX_IN_FLIGHT_COUNT and largest_bytes < LONELY_BYTES

    def _take_next(self) -> SealedBatch:
        """The oldest batch of the queue, or its beginning where batches of that size were refused."""
        batch = self._queued.popleft()
        while self._refused_bytes is not None and len(batch.batch) >= self._refused_bytes:
            if batch.record_count == 1:
                break
            self._split(batch)
            batch = self._queued.popleft()
        return batch

    def _split(self, batch: SealedBatch) -> None:
        """Put the halves of a batch that was the oldest in its place."""
        halves = batch.halves()
        self._queued.extendleft(reversed(halves))
        self._on_split(batch, halves)

    def _acknowledge_oldest(self, response: log_pb2.AppendResponse) -> None:
        batch = self._in_flight.popleft()
        try:
            self._acknowledge(batch, response)
        except BaseException:
            # Nobody has told those who wait.
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
        """Fail what has failed, the oldest batches, and put the rest back into the queue, in order."""
        failed_count = self._failed_count(cause, is_judged=is_judged)
        self._queued.extendleft(reversed(self._in_flight))
        self._in_flight.clear()
        for _ in range(failed_count):
            batch = self._queued.popleft()
            if failed_count == 1 and isinstance(cause, RecordTooLargeError):
                if batch.record_count > 1:
                    if cause.fields.get("size_bytes", len(batch.batch)) == len(batch.batch):
                        # Not for what it would take in the topic's own compression.
                        self._refused_bytes = len(batch.batch)
                    self._split(batch)
                    continue
                cause = _too_large_alone(cause)
            batch.fail(cause)
            self._on_settled(batch, cause)

    def _failed_count(self, cause: LogStoreError, *, is_judged: bool) -> int:
        if isinstance(cause, OverloadedError):
            return 0 if self._may_try_again() else 1
        if is_judged:
            return 1
        if self._in_flight:
            return len(self._in_flight)
        # Nothing was sent, and perhaps nothing is there to send.
        if not cause.retriable:
            return min(1, len(self._queued))
        return 0 if self._may_try_again() else len(self._queued)

    def _may_try_again(self) -> bool:
        """Count a failure after which nothing had taken effect; False where the next try would be too late.
        What comes after that begins with new patience.
        """
        pause_s = self._patience.next_pause_s(asyncio.get_running_loop().time())
        self._pause_s = pause_s or 0.0
        if pause_s is None:
            self._patience.succeed()
        return pause_s is not None


def _too_large_alone(cause: RecordTooLargeError) -> RecordTooLargeError:
    """What the sender of a record that was the only one of its batch is told."""
    fields = {**cause.fields, "reason": cause.message}
    return RecordTooLargeError(
        "a record is too large even alone; make it smaller or raise the limit that the reason names",
        **fields,
    )
