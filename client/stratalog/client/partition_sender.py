"""Sends the sealed batches of one partition, in order, over one AppendStream that is opened when needed.

Many batches are under way at a time. The server answers in order and stops at its first failure, applying
nothing behind it. So when the stream breaks:

* because the server had no room (`OverloadedError`): nothing of the first unanswered batch took effect. It
  goes out again, and all behind it, in order, after a pause that grows, until the retry policy's deadline;
* by the server's judgement on a batch (an answer with an error): that batch has failed, the ones behind it
  were not applied and go out again over a new stream, in order;
* by the transport: whether the batches under way took effect is unknown. All of them fail with
  `ServerUnavailableError`; sending them again could store their records twice. Later ones start a new stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import ServerUnavailableError, error_of_call, error_of_info
from stratalog.client.messages import wire_acks
from stratalog.client.retry import RetryPolicy
from stratalog.v1 import log_pb2, log_pb2_grpc

MAX_IN_FLIGHT_COUNT = 8

ANSWER_ERRORS_METADATA = (("stratalog-answer-errors", "1"),)
"""Asks for failures as answers: grpc.aio may lose the status of a call that is still written to
(grpc/grpc#36066).
"""


class Acknowledged(NamedTuple):
    """Where a record went."""

    topic_partition: TopicPartition
    offset: int
    durability: Durability


@dataclass(slots=True, eq=False)
class SealedBatch:
    """A batch that waits to be sent or acknowledged, and who waits for it. Guarded by its producer."""

    topic_partition: TopicPartition
    batch: bytes
    record_count: int
    first_tag: int
    """What its first record was posted with."""
    futures: Sequence[tuple[int, asyncio.Future[Acknowledged]]]
    """Of the records that somebody waits for, each with its place in the batch."""
    size_bytes: int
    """What it counts for in the producer's buffer."""

    def fail(self, cause: LogStoreError) -> None:
        """Tell everybody who waits for its records."""
        for _, future in self.futures:
            if not future.done():
                future.set_exception(cause)


class PartitionSender:
    """Belongs to one event loop. Sends as long as something is queued; holds no connection when idle."""

    def __init__(
        self,
        channel: ServerChannel,
        topic_partition: TopicPartition,
        acks: Durability | None,
        retry: RetryPolicy,
        on_settled: Callable[[SealedBatch, LogStoreError | None], None],
    ) -> None:
        """`on_settled` is called once for each batch, acknowledged or failed, unless it is abandoned."""
        self._channel = channel
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._topic_partition = topic_partition
        self._acks = acks
        self._retry = retry
        self._refusal_count = 0
        """How often in a row the server had no room."""
        self._deadline_s = 0.0
        """When to give up then, on the loop's clock."""
        self._on_settled = on_settled
        self._queued: deque[SealedBatch] = deque()
        self._in_flight: deque[SealedBatch] = deque()
        self._changed = asyncio.Event()
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
        while self._queued:
            if self._refusal_count:
                await asyncio.sleep(self._retry.pause_s(self._refusal_count))
            call = self._stub.AppendStream(self._requests(), metadata=ANSWER_ERRORS_METADATA)
            try:
                async for response in call:
                    if response.HasField("error"):
                        self._fail(error_of_info(response.error), is_judged=True)
                        break
                    self._acknowledge(self._in_flight.popleft(), response)
                    self._changed.set()
                else:
                    self._fail_unanswered()
            except grpc.aio.AioRpcError as error:
                self._fail(error_of_call(error, self._channel.address), is_judged=False)
            finally:
                call.cancel()

    def _fail_unanswered(self) -> None:
        """A server answers every request before it ends a stream, unless it is stopped in between."""
        if self._in_flight:
            server = self._channel.address
            self._fail(
                ServerUnavailableError("the server ended the stream early, try again", server=server),
                is_judged=False,
            )

    async def _requests(self) -> AsyncIterator[log_pb2.AppendRequest]:
        """What goes into one stream; ends once nothing is queued and everything is answered."""
        topic, partition = self._topic_partition
        while True:
            self._changed.clear()
            while self._queued and len(self._in_flight) < MAX_IN_FLIGHT_COUNT:
                batch = self._queued.popleft()
                self._in_flight.append(batch)
                yield log_pb2.AppendRequest(
                    topic=topic, partition=partition, acks=wire_acks(self._acks), batches=batch.batch
                )
            if not self._queued and not self._in_flight:
                return
            await self._changed.wait()

    def _acknowledge(self, batch: SealedBatch, response: log_pb2.AppendResponse) -> None:
        self._refusal_count = 0
        assert response.last_offset - response.base_offset + 1 == batch.record_count
        durability = Durability(response.durability)
        for place, future in batch.futures:
            if not future.done():
                offset = response.base_offset + place
                future.set_result(Acknowledged(self._topic_partition, offset, durability))
        self._on_settled(batch, None)

    def _fail(self, cause: LogStoreError, *, is_judged: bool) -> None:
        if not self._in_flight:
            # The stream broke before anything was sent: the next batch fails, later ones try a new stream.
            self._in_flight.append(self._queued.popleft())
        if isinstance(cause, OverloadedError):
            failed_count = 0 if self._may_send_again() else 1
        else:
            failed_count = 1 if is_judged else len(self._in_flight)
        for _ in range(failed_count):
            batch = self._in_flight.popleft()
            batch.fail(cause)
            self._on_settled(batch, cause)
        self._queued.extendleft(reversed(self._in_flight))
        self._in_flight.clear()

    def _may_send_again(self) -> bool:
        """Count a refusal for want of room; False where the next try would come behind the deadline."""
        now_s = asyncio.get_running_loop().time()
        if self._refusal_count == 0:
            self._deadline_s = now_s + self._retry.deadline_s
        self._refusal_count += 1
        if now_s + self._retry.pause_s(self._refusal_count) <= self._deadline_s:
            return True
        # The next batch has a deadline of its own.
        self._refusal_count = 0
        return False
