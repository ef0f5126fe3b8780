"""Sends the sealed batches of a producer over one AppendStream, which is opened on demand.

Each partition has a `PartitionLane`, with its order, its failures and its pauses. The lanes take turns on the
stream, one batch a turn, and none waits for another.

No batch leaves its lane without a connection, so a failed connection has no effect: the sender tries again
after growing pauses. At the retry policy's deadline the queued batches of all lanes fail: it is one budget of
the connections, the producer id and the stream. The stream breaks for one of these reasons:

* The server has no room for another call (`OverloadedError`): nothing was applied. The sender tries again in
  the same way; at the deadline the queued batches of all lanes fail.
* The transport fails, or an answer does not come in time: the outcome of the batches in flight is unknown. An
  idempotent producer sends them again, until the deadline: the server recognises those that it has. Without
  idempotence those of all lanes fail with `ServerUnavailableError`, because sending them again could store
  their records twice; queued ones use a new stream.

A batch that is larger than the server accepts is not sent: its transport would break the stream, and put all
batches in flight in doubt. The headers of the stream have the limit. A batch that every server accepts does
not wait for them.

An idempotent producer has an id from the server. When a lane can no longer use it, the stream ends, and the
lane goes on with a new id; the other lanes keep theirs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import grpc

from stratalog.base.errors import LogStoreError, NotOwnerError, OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.errors import ClientClosedError
from stratalog.client.messages import DurabilityLike, wire_durability
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sending.partition_lane import (
    MAX_IN_FLIGHT_COUNT,
    PartitionLane,
    ProducerIdentity,
)
from stratalog.client.sending.sealed_batch import SealedBatch
from stratalog.v1 import log_pb2, log_pb2_grpc

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES_METADATA_KEY = "stratalog-max-request-bytes"
"""Initial metadata of a stream of appends: the size of the largest request that the server accepts."""

STALE_CODES = frozenset(("UNKNOWN_TOPIC_OR_PARTITION", "INCONSISTENT_TOPIC_ID", "RECORD_TOO_LARGE"))
"""The producer knows another state of the topic than the server."""

ANSWER_TIMEOUT_S = 30.0
"""A stream with requests and without answers for this time is broken."""


class SenderEvents(Protocol):
    """The user of a sender. Called on its event loop."""

    def on_settled(self, batch: SealedBatch, error: LogStoreError | None) -> None:
        """The batch is acknowledged or has failed. Called once for each batch."""
        ...

    def on_split(self, batch: SealedBatch, parts: Sequence[SealedBatch]) -> None:
        """The batch is replaced by its parts, and will not be settled."""
        ...

    def max_batch_bytes(self, topic: str) -> int | None:
        """Bytes of the largest batch that a topic takes, as it is sent; None if it is unknown."""
        ...

    def on_stale(self, topic: str) -> None:
        """The server does not have the topic, has another one of this name, or has another limit for it."""
        ...

    def on_cancelled(self) -> None:
        """Nothing can be sent any more: the event loop ends, or the client was closed."""
        ...


class AppendSender:
    """Sends the batches of a producer, in order within each partition. Belongs to one event loop. Sends while
    batches are queued; holds no stream when idle."""

    def __init__(
        self,
        channel: ServerChannel,
        durability: DurabilityLike | None,
        retry: RetryPolicy,
        events: SenderEvents,
        is_idempotent: bool = False,
    ) -> None:
        self._channel = channel
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._durability = wire_durability(durability)
        self._retry = retry
        self._events = events
        self._is_idempotent = is_idempotent
        self._identity: ProducerIdentity | None = None
        """For lanes that begin anew."""
        self._patience = Patience(retry)
        """Counts failures of the stream that had no effect."""
        self._pause_s = 0.0
        """Pause before the next stream."""
        self._lanes: dict[TopicPartition, PartitionLane] = {}
        self._busy: dict[TopicPartition, PartitionLane] = {}
        """Those with batches."""
        self._row: OrderedDict[TopicPartition, PartitionLane] = OrderedDict()
        """Those that may send a batch, in the order of their turns."""
        self._lane_by_sequence: dict[int, PartitionLane] = {}
        """The lanes of the requests of the current stream that have no answer."""
        self._last_sequence = 0
        self._max_request_bytes: int | None = None
        """Limit of the server of the current stream; None before its headers have come."""
        self._changed = asyncio.Event()
        self._is_ending = False
        """The current stream takes no more batches: a lane needs another identity, or another server owns the
        data.
        """
        self._stream: object = None
        """The stream that may take batches from the lanes."""
        self._task: asyncio.Task[None] | None = None

    def send(self, batch: SealedBatch) -> None:
        """Queue `batch` behind all earlier ones of its partition."""
        topic_partition = batch.topic_partition
        lane = self._lanes.get(topic_partition)
        if lane is None:
            lane = PartitionLane(
                topic_partition,
                self._retry,
                self._events.on_settled,
                self._events.on_split,
                self._lane_changed,
                self._is_idempotent,
            )
            self._lanes[topic_partition] = lane
        lane.queue(batch)
        self._busy[topic_partition] = lane
        self._lane_changed(lane)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def is_busy_with(self, topic_partition: TopicPartition) -> bool:
        """Whether another batch of the partition could not be sent now."""
        lane = self._lanes.get(topic_partition)
        return lane is not None and lane.batch_count >= MAX_IN_FLIGHT_COUNT

    def compressed(self, batch: SealedBatch) -> None:
        """Note that a queued batch has its records now."""
        lane = self._lanes.get(batch.topic_partition)
        if lane is not None:
            self._lane_changed(lane)

    def forget_limits(self, topic: str) -> None:
        """Note that the limits of a topic may have changed."""
        for topic_partition, lane in self._lanes.items():
            if topic_partition.topic == topic:
                lane.forget_limits()

    def abandon(self) -> None:
        """Stop at once and discard unacknowledged batches, which may or may not have been applied."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()
        # The task ends later. Batches from now on get a task and a stream of their own.
        self._task = None
        self._stream = None
        for lane in self._busy.values():
            lane.abandon()
        self._busy.clear()
        self._row.clear()

    def check(self) -> None:
        """Assert the invariants of the state."""
        for topic_partition, lane in self._lanes.items():
            lane.check()
            assert (topic_partition in self._busy) == lane.is_busy
        assert all(self._busy[topic_partition] is lane for topic_partition, lane in self._row.items())

    async def _run(self) -> None:
        try:
            await self._send_all()
        except (asyncio.CancelledError, ClientClosedError):
            if self._task is asyncio.current_task():
                # Not by `abandon`, but by the end of the loop or of the channel.
                self._events.on_cancelled()
        except Exception as failure:
            # Unexpected. Waiting callers must neither wait for ever nor get the answers of other batches.
            logger.exception("sending to %s failed", self._channel.address)
            cause = LogStoreError(
                "the client failed; report the traceback in the process's log", reason=repr(failure)
            )
            self._fail_lanes(lambda lane: lane.fail_all(cause))

    async def _send_all(self) -> None:
        # Failures before the last idle time no longer count.
        self._patience.succeed()
        self._pause_s = 0.0
        while self._busy:
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            now_s = asyncio.get_running_loop().time()
            attempt_s: float | None = now_s
            try:
                await self._channel.connect(self._patience)
                # A server that was reached and then failed is not left without a try of another one, however
                # late it failed.
                attempt_s = None
                if any(lane.needs_identity(self._identity) for lane in self._busy.values()):
                    self._identity = await self._new_identity()
                with self._channel.open():
                    await self._send_over_stream()
            except ClientClosedError:
                raise
            except LogStoreError as error:
                self._fail(error, attempt_s)

    async def _new_identity(self) -> ProducerIdentity:
        """An identity from the server, by one attempt; `_send_all` repeats it. Raises LogStoreError."""
        call = self._stub.InitProducer(log_pb2.InitProducerRequest(), timeout=CALL_TIMEOUT_S)
        response = await self._channel.attempt(call, self._patience)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    async def _send_over_stream(self) -> None:
        """Send over one stream until no lane has batches, one needs another identity, or the stream breaks.
        Raises LogStoreError of the transport.
        """
        stream = self._stream = object()
        self._max_request_bytes = None
        self._lane_by_sequence.clear()
        self._row.clear()
        self._is_ending = False
        self._offer_all()
        server = self._channel.address
        call = self._stub.AppendStream(self._requests(stream))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S) as deadline:
                headers = await call.initial_metadata()
                self._max_request_bytes = int(headers.get(MAX_REQUEST_BYTES_METADATA_KEY, sys.maxsize))
                # Large batches waited for the limit.
                self._offer_all()
                loop = asyncio.get_running_loop()
                async for response in call:
                    self._take_answer(response, server)
                    if not self._busy or (self._is_ending and not self._lane_by_sequence):
                        # Everything is answered. The next batch does not wait for the end of this stream.
                        break
                    deadline.reschedule(loop.time() + ANSWER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise self._channel.failure(error, server) from None
        except TimeoutError:
            raise self._channel.no_answer("the server did not answer in time; try again", server) from None
        finally:
            call.cancel()
            # grpc.aio may ask for requests after a call has failed. It must not get batches of the next
            # stream.
            if self._stream is stream:
                self._stream = None
                self._changed.set()
        if any(lane.in_flight_count for lane in self._busy.values()):
            # A server answers every request before it ends a stream, unless it is stopped.
            raise self._channel.no_answer("the server ended the stream early; try again", server)

    async def _requests(self, stream: object) -> AsyncIterator[log_pb2.AppendStreamRequest]:
        """The requests of one stream. Ends when no lane has batches, or the stream has ended."""
        while stream is self._stream:
            self._changed.clear()
            while stream is self._stream and (request := self._next_request()) is not None:
                yield request
            if not self._busy or self._is_ending:
                return
            await self._changed.wait()

    def _next_request(self) -> log_pb2.AppendStreamRequest | None:
        """The next batch of the lane whose turn it is; None if no lane may send one now."""
        while self._row and not self._is_ending:
            topic_partition, lane = self._row.popitem(last=False)
            sequence = self._last_sequence + 1
            max_batch_bytes = self._events.max_batch_bytes(topic_partition.topic)
            taken = lane.take(sequence, self._max_request_bytes, self._identity, max_batch_bytes)
            self._offer(lane)
            if taken is not None:
                self._last_sequence = sequence
                self._lane_by_sequence[sequence] = lane
                return log_pb2.AppendStreamRequest(
                    topic=topic_partition.topic,
                    partition=topic_partition.partition,
                    durability=self._durability,
                    batches=taken.batch,
                    sequence=sequence,
                    resume=taken.resume,
                    topic_id=taken.topic_id,
                )
        return None

    def _take_answer(self, response: log_pb2.AppendStreamResponse, server: str) -> None:
        lane = self._lane_by_sequence.pop(response.sequence, None)
        if lane is None:
            raise LogStoreError(
                "the server answered a request that was not sent; report it", sequence=response.sequence
            )
        self._patience.succeed()
        self._pause_s = 0.0
        if response.HasField("status"):
            error = self._channel.failure(response.status, server)
            if isinstance(error, NotOwnerError) and error.retriable:
                # The answers to the other requests say which batches it has stored.
                self._is_ending = True
            if error.code in STALE_CODES:
                self._events.on_stale(lane.topic_partition.topic)
            lane.refuse(response.sequence, error)
        else:
            lane.acknowledge(response.sequence, response.ack)
        self._lane_changed(lane)

    def _lane_changed(self, lane: PartitionLane) -> None:
        self._offer(lane)
        self._changed.set()

    def _offer_all(self) -> None:
        for lane in self._busy.values():
            self._offer(lane)
        self._changed.set()

    def _offer(self, lane: PartitionLane) -> None:
        """Put the lane at the end of the row, unless it is there, if it may send a batch."""
        if not lane.is_busy:
            self._busy.pop(lane.topic_partition, None)
            self._row.pop(lane.topic_partition, None)
        elif lane.needs_identity(self._identity):
            self._is_ending = True
        elif lane.may_send(self._max_request_bytes, self._identity):
            self._row.setdefault(lane.topic_partition, lane)

    def _fail(self, cause: LogStoreError, attempt_s: float | None) -> None:
        """Fail the batches that the end of the stream by `cause` demands, and queue the others again.
        `attempt_s`: as of `Patience.next_pause_s`.
        """
        in_flight_count = sum(lane.in_flight_count for lane in self._busy.values())
        if isinstance(cause, OverloadedError):
            may_try_again = self._may_try_again(cause, attempt_s)
            self._fail_lanes(lambda lane: lane.put_back() if may_try_again else lane.give_up(cause))
        elif in_flight_count and self._is_idempotent and cause.retriable:
            may_try_again = self._may_try_again(cause, attempt_s)
            self._fail_lanes(lambda lane: lane.lose())
            if not may_try_again:
                self._fail_lanes(lambda lane: lane.fail_all(cause))
        elif in_flight_count == 1:
            # The cause is about this batch.
            self._fail_lanes(lambda lane: lane.fail_oldest(cause) if lane.in_flight_count else None)
        elif in_flight_count > 1:
            self._fail_lanes(lambda lane: lane.fail_in_flight(cause))
        elif not cause.retriable:
            self._fail_lanes(lambda lane: lane.fail_oldest(cause))
        elif not self._may_try_again(cause, attempt_s):
            self._fail_lanes(lambda lane: lane.fail_all(cause))

    def _fail_lanes(self, fail: Callable[[PartitionLane], None]) -> None:
        for lane in list(self._busy.values()):
            # A callback may have abandoned all batches.
            if lane.is_busy:
                fail(lane)
            self._offer(lane)

    def _may_try_again(self, cause: LogStoreError, attempt_s: float | None) -> bool:
        """Count a failure without effect. Returns False if the next attempt would be too late; the
        deadline begins anew for later batches then.
        """
        pause_s = self._patience.next_pause_s(
            asyncio.get_running_loop().time(), cause.retry_delay_s, attempt_s
        )
        self._pause_s = pause_s or 0.0
        if pause_s is None:
            self._patience.succeed()
        return pause_s is not None
