"""Sends the sealed batches of a producer to one server over one AppendStream, which is opened on demand.

Each partition has a `PartitionLane`, with its order, its failures and its pauses. The lanes take turns on the
stream, one batch a turn, and none waits for another. A `BatchRouter` gives each sender its lanes.

No batch leaves its lane without a connection, so a failed connection has no effect: the sender tries again
after growing pauses. At the retry policy's deadline the queued batches of all lanes fail: it is one budget of
the connections, the producer id and the stream. The stream breaks for one of these reasons:

* The server has no room for another call (`OverloadedError`): nothing was applied. The sender tries again in
  the same way; at the deadline the queued batches of all lanes fail. So it is where the server stops
  (`StoppingError`), which answers before the end of the stream all that it has taken.
* The transport fails, or an answer does not come in time: the outcome of the batches in flight is unknown. An
  idempotent producer sends them again, until the deadline: the server recognises those that it has. Without
  idempotence those of all lanes fail with `ServerUnavailableError`, because sending them again could store
  their records twice; queued ones use a new stream.

A batch that is larger than the server accepts is not sent: its transport would break the stream, and put all
batches in flight in doubt. The headers of the stream have the limit. A batch that every server accepts does
not wait for them.

An idempotent producer has an id from the server. When a lane can no longer use it, the stream ends, and the
lane goes on with a new id; the other lanes keep theirs.

Between two streams no batch is in flight, and lanes may change over to the senders of their owners. A sender
asks for the owners after a refusal because of another owner, and after the connection to a single owner has
failed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Protocol

import grpc

from stratalog.base.errors import LogStoreError, NotOwnerError, OverloadedError, StoppingError
from stratalog.base.types import TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import ClientClosedError
from stratalog.client.owner_channels import REFUSALS
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sending.append_encoding import encode_append_request
from stratalog.client.sending.partition_lane import PartitionLane
from stratalog.client.sending.producer_identities import ProducerIdentities, ProducerIdentity
from stratalog.client.sending.sealed_batch import SealedBatch
from stratalog.v1 import log_pb2

logger = logging.getLogger(__name__)

_APPEND_STREAM = f"/{log_pb2.DESCRIPTOR.services_by_name['LogService'].full_name}/AppendStream"

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


MoveLanes = Callable[["AppendSender", Collection[str]], Awaitable[None]]
"""Asks for the owners of topics, and passes lanes of the sender on to them. Raises LogStoreError."""


class AppendSender:
    """Sends the batches of lanes to one server, in order within each lane. Belongs to one event loop. Sends
    while batches are queued; holds no stream when idle."""

    def __init__(
        self,
        channel: ServerChannel,
        durability: log_pb2.Durability.ValueType,
        retry: RetryPolicy,
        events: SenderEvents,
        identities: ProducerIdentities | None,
        move: MoveLanes,
    ) -> None:
        """`identities` are those of an idempotent producer."""
        self.channel = channel
        """The connection to the server."""
        self._append_stream: grpc.aio.StreamStreamMultiCallable[bytes, log_pb2.AppendStreamResponse]
        self._append_stream = channel.grpc.stream_stream(
            _APPEND_STREAM, response_deserializer=log_pb2.AppendStreamResponse.FromString
        )
        self._durability = durability
        self._events = events
        self._identities = identities
        self._move = move
        self._patience = Patience(retry)
        """Counts failures of the stream that had no effect."""
        self._pause_s = 0.0
        """Pause before the next stream."""
        self._busy: dict[TopicPartition, PartitionLane] = {}
        """The lanes with batches."""
        self._stray_topics: set[str] = set()
        """Topics whose owners have to be asked for before the next stream."""
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

    def serve(self, lane: PartitionLane) -> None:
        """Send the batches of a lane, which no other sender has."""
        assert lane.is_busy
        self._busy[lane.topic_partition] = lane
        self.on_lane_changed(lane)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    @property
    def lanes(self) -> list[PartitionLane]:
        """Those that have batches here."""
        return list(self._busy.values())

    def release(self, lane: PartitionLane) -> None:
        """Pass a lane on to another sender. Only between two streams: none of its batches is in flight."""
        assert not lane.in_flight_count
        del self._busy[lane.topic_partition]
        self._row.pop(lane.topic_partition, None)

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
        self._stray_topics.clear()

    def check(self) -> None:
        """Assert the invariants of the state."""
        assert all(lane.is_busy for lane in self._busy.values())
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
            logger.exception("sending to %s failed", self.channel.address)
            cause = LogStoreError(
                "the client failed; report the traceback in the process's log", reason=repr(failure)
            )
            self._fail_lanes(lambda lane: lane.fail_all(cause))

    async def _send_all(self) -> None:
        # Failures before the last idle time no longer count.
        self._patience.succeed()
        self._pause_s = 0.0
        while self._busy:
            if self._stray_topics:
                await self._seek_owners()
                continue
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            now_s = asyncio.get_running_loop().time()
            attempt_s: float | None = now_s
            try:
                await self.channel.connect(self._patience)
                # A server that was reached and then failed is not left without a try of another one, however
                # late it failed.
                attempt_s = None
                if any(lane.needs_identity(self._identity) for lane in self._busy.values()):
                    assert self._identities is not None
                    await self._identities.renew(self.channel, self._patience)
                with self.channel.open():
                    await self._send_over_stream()
            except ClientClosedError:
                raise
            except LogStoreError as error:
                self._fail(error, attempt_s)
                if isinstance(error, NotOwnerError) or not self.channel.follows:
                    self._stray_topics.update(one.topic for one in self._busy)

    async def _seek_owners(self) -> None:
        """Let lanes change over to their owners. Raises ClientClosedError."""
        topics, self._stray_topics = self._stray_topics, set()
        try:
            await self._move(self, topics)
        except ClientClosedError:
            raise
        except LogStoreError as error:
            # The next stream fails, too, and counts.
            logger.debug("the owners of partitions are not known: %s", error)

    @property
    def _identity(self) -> ProducerIdentity | None:
        """The identity for lanes that begin anew."""
        return None if self._identities is None else self._identities.newest

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
        server = self.channel.address
        call = self._append_stream(self._requests(stream))
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
            raise self.channel.failure(error, server) from None
        except TimeoutError:
            raise self.channel.no_answer("the server did not answer in time; try again", server) from None
        finally:
            call.cancel()
            # grpc.aio may ask for requests after a call has failed. It must not get batches of the next
            # stream.
            if self._stream is stream:
                self._stream = None
                self._changed.set()
        if any(lane.in_flight_count for lane in self._busy.values()):
            # A server answers every request before it ends a stream, unless it is stopped.
            raise self.channel.no_answer("the server ended the stream early; try again", server)

    async def _requests(self, stream: object) -> AsyncIterator[bytes]:
        """The serialised requests of one stream. Ends when no lane has batches, or the stream has ended."""
        while stream is self._stream:
            self._changed.clear()
            while stream is self._stream and (request := self._next_request()) is not None:
                yield request
            if not self._busy or self._is_ending:
                return
            await self._changed.wait()

    def _next_request(self) -> bytes | None:
        """The request with the next batch of the lane whose turn it is; None if no lane may send one now."""
        while self._row and not self._is_ending:
            topic_partition, lane = self._row.popitem(last=False)
            sequence = self._last_sequence + 1
            max_batch_bytes = self._events.max_batch_bytes(topic_partition.topic)
            taken = lane.take(sequence, self._max_request_bytes, self._identity, max_batch_bytes)
            self._offer(lane)
            if taken is not None:
                self._last_sequence = sequence
                self._lane_by_sequence[sequence] = lane
                fields = log_pb2.AppendStreamRequest(
                    topic=topic_partition.topic,
                    partition=topic_partition.partition,
                    durability=self._durability,
                    sequence=sequence,
                    resume=taken.resume,
                    topic_id=taken.topic_id,
                )
                return encode_append_request(fields, taken.batch)
        return None

    def _take_answer(self, response: log_pb2.AppendStreamResponse, server: str) -> None:
        lane = self._lane_by_sequence.pop(response.sequence, None)
        if lane is None:
            raise LogStoreError(
                "the server answered a request that was not sent; report it", sequence=response.sequence
            )
        self._patience.succeed()
        self._pause_s = 0.0
        if lane.topic_partition not in self._busy:
            # Its batches have failed meanwhile. It may be with another sender.
            return
        if response.HasField("status"):
            error = self.channel.failure(response.status, server)
            if isinstance(error, REFUSALS) and error.retriable:
                # The answers to the other requests say which batches it has stored.
                self._is_ending = True
                self._stray_topics.add(lane.topic_partition.topic)
            if error.code in STALE_CODES:
                self._events.on_stale(lane.topic_partition.topic)
            lane.refuse(response.sequence, error)
        else:
            lane.acknowledge(response.sequence, response.ack)
        self.on_lane_changed(lane)

    def on_lane_changed(self, lane: PartitionLane) -> None:
        """Look again whether the lane may send a batch."""
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
        if isinstance(cause, OverloadedError | StoppingError):
            may_try_again = self._may_try_again(cause, attempt_s)
            self._fail_lanes(lambda lane: lane.put_back() if may_try_again else lane.give_up(cause))
        elif in_flight_count and self._identities is not None and cause.retriable:
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
        pause_s = self._patience.next_pause_s(asyncio.get_running_loop().time(), cause, attempt_s)
        self._pause_s = pause_s or 0.0
        if pause_s is None:
            self._patience.succeed()
        return pause_s is not None
