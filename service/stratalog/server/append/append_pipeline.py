"""One AppendStream: requests of many partitions in flight, each partition in order and by itself.

A reader task takes requests off the wire and submits them to the writers of their partitions. The requests
that name a partition are a `StreamLane`, which keeps their order and their failures. When a writer has
answered a request, the ready answers of its lane move to the outgoing ones, where partitions take turns: so
none delays the answers of the others, neither by being slow nor by having many.

A request that names no partition has no lane, because its client knows none to resume: it succeeds or fails
alone, and is answered as soon as its writer has answered.

The numbers of requests and of bytes in flight are bounded for each stream: beyond them the next request stays
on the wire, and the transport's flow control holds the client back. A request is in flight until its answer
is taken. Once the requests of all connections take half of the memory, a stream has one request in flight; so
many streams slow down before one is refused.

When the server stops, the stream takes no request any more, answers those in flight, and ends with
`StoppingError`. So a request without an answer has had no effect then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

from stratalog.base.errors import InvalidRequestError, forget_frames
from stratalog.base.types import TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.remote.metadata.catalog.topic_entry import MAX_NAME_LENGTH
from stratalog.server.append.append_decoding import DecodedStreamAppend
from stratalog.server.append.outgoing_answers import OutgoingAnswers
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer, StreamLane
from stratalog.server.fetch.closing import Closing
from stratalog.server.log_identity import named_partition
from stratalog.server.request_memory import RequestMemory

MAX_IN_FLIGHT_COUNT = 256
MAX_IN_FLIGHT_BYTES = 32 << 20
"""The request that reaches this is the last one in flight."""

MAX_LANE_COUNT = 10_000
"""The most partitions of a stream with a lane: they have requests in flight or a failure."""

Resolve = Callable[[DecodedStreamAppend], Awaitable[None]]
"""Sets the partition of a request that names none, and learns what the check of the request needs. Raises
LogStoreError."""

Prepare = Callable[[DecodedStreamAppend, AppendSession | None], tuple[PartitionWriter, PendingAppend]]
"""Checks a request, takes its memory, and returns the append with its writer; without a session it fails
alone. Raises LogStoreError."""


class AppendPipeline:
    """The requests of one AppendStream, in order within each partition. Belongs to the event loop."""

    def __init__(
        self,
        requests: AsyncIterator[DecodedStreamAppend],
        resolve: Resolve,
        prepare: Prepare,
        memory: RequestMemory,
        closing: Closing,
    ) -> None:
        """`prepare` takes the memory of a request from `memory`. `closing` ends the stream."""
        self._memory = memory
        self._closing = closing
        self._requests = requests
        self._resolve = resolve
        self._prepare = prepare
        self._lanes: dict[TopicPartition, StreamLane] = {}
        """Those with requests in flight or a failure."""
        self._alone: set[PendingAppend] = set()
        """The appends in flight that have no lane."""
        self._outgoing = OutgoingAnswers()
        self._has_news = asyncio.Event()
        """Set when there is an answer, the reader has ended, or the server stops."""
        self._has_answered = asyncio.Event()
        """Set when an answer is taken."""
        self._in_flight_count = 0
        self._in_flight_bytes = 0
        self._has_read_all = False
        self._failure: Exception | None = None

    @property
    def lane_count(self) -> int:
        """The number of partitions that have state."""
        return len(self._lanes)

    async def answers(self) -> AsyncGenerator[StreamAnswer, None]:
        """Yield one answer for each request; those of a partition in the order of its requests. Raises the
        failure of the stream itself, after the answers to the requests before it; StoppingError if the server
        stops before the client has ended its requests.
        """
        reader = asyncio.create_task(self._read())
        is_cut_off = False
        self._closing.signal.enter(self._has_news)
        try:
            while self._in_flight_count > 0 or not self._has_read_all:
                self._has_news.clear()
                if self._closing.is_set and not self._has_read_all:
                    # Not by the task's own end: one that has not begun has none.
                    self._has_read_all = is_cut_off = reader.cancel()
                while self._outgoing:
                    answer = self._outgoing.take()
                    self._in_flight_count -= 1
                    self._in_flight_bytes -= answer.size_bytes
                    self._has_answered.set()
                    yield answer
                if self._in_flight_count > 0 or not self._has_read_all:
                    await self._has_news.wait()
            if self._failure is not None:
                raise self._failure
            if is_cut_off:
                self._closing.check()
        finally:
            self._closing.signal.leave(self._has_news)
            reader.cancel()
            self._abandon()

    def check(self) -> None:
        """Assert the invariants of the state."""
        assert 0 <= len(self._outgoing) <= self._in_flight_count
        answered_bytes = sum(answer.size_bytes for answer in self._outgoing)
        assert self._in_flight_bytes >= answered_bytes + sum(append.size_bytes for append in self._alone)
        for topic_partition, lane in self._lanes.items():
            assert lane.topic_partition == topic_partition
            assert not lane.is_idle, "a lane without requests and without a failure has no state"

    async def _read(self) -> None:
        last_sequence = -1
        try:
            async for request in self._requests:
                sequence = request.request.sequence
                if sequence <= last_sequence:
                    raise InvalidRequestError(
                        "the sequence of a request must be larger than that of the request before it",
                        sequence=sequence,
                        last_sequence=last_sequence,
                    )
                last_sequence = sequence
                await self._take(request)
                while not self._has_room():
                    await self._next_answer()
        except Exception as error:  # noqa: BLE001 - raised by `answers`
            # The requests before this one are answered first; then the stream ends with this.
            self._failure = error
        finally:
            self._has_read_all = True
            self._has_news.set()

    async def _take(self, decoded: DecodedStreamAppend) -> None:
        """Pass a request to its writer, or answer it with a failure."""
        request = decoded.request
        if not request.HasField("partition"):
            await self._take_alone(decoded)
            return
        failure: Exception | None = None
        try:
            await self._resolve(decoded)
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            forget_frames(error)
            failure = error
        lane = self._lane(TopicPartition(request.topic, request.partition))
        self._in_flight_count += 1
        if request.resume:
            lane.resume()
        if lane.has_failed():
            lane.refuse(request.sequence)
            self._collect(lane)
            return
        try:
            if failure is not None:
                raise failure
            writer, append = self._prepare(decoded, lane.session)
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            forget_frames(error)
            lane.fail(request.sequence, error)
            self._collect(lane)
            return
        if lane.must_wait(writer):
            await self._turn(lane, writer, append)
            if lane.has_failed():
                append.give_back_memory()
                lane.refuse(request.sequence)
                self._collect(lane)
                return
            # An idle lane was forgotten meanwhile.
            self._lanes[lane.topic_partition] = lane
        self._in_flight_bytes += append.size_bytes
        lane.submit(request.sequence, append, writer)
        append.future.add_done_callback(partial(self._collect, lane))

    async def _take_alone(self, decoded: DecodedStreamAppend) -> None:
        """Pass a request without a partition to the writer of the one that is chosen for it, or answer it
        with a failure.
        """
        sequence = decoded.request.sequence
        try:
            await self._resolve(decoded)
            writer, append = self._prepare(decoded, None)
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            forget_frames(error)
            self._in_flight_count += 1
            self._outgoing.add(StreamAnswer(sequence, None, named_partition(decoded.request), error))
            self._has_news.set()
            return
        self._in_flight_count += 1
        self._in_flight_bytes += append.size_bytes
        self._alone.add(append)
        writer.submit(append)
        append.future.add_done_callback(partial(self._collect_alone, sequence, append))

    def _collect_alone(
        self, sequence: int, append: PendingAppend, _future: asyncio.Future[AppendInfo]
    ) -> None:
        """Move the answer of a request without a lane to the outgoing queue, unless it is abandoned."""
        if append in self._alone:
            self._alone.remove(append)
            self._outgoing.add(
                StreamAnswer(sequence, append, append.identity.topic_partition, append.failure())
            )
            self._has_news.set()

    def _lane(self, topic_partition: TopicPartition) -> StreamLane:
        lane = self._lanes.get(topic_partition)
        if lane is None:
            if len(topic_partition.topic) > MAX_NAME_LENGTH:
                raise InvalidRequestError("the name of a topic is too long", allowed=MAX_NAME_LENGTH)
            if len(self._lanes) >= MAX_LANE_COUNT:
                raise InvalidRequestError(
                    "too many partitions of the stream have failed; begin another stream",
                    allowed=MAX_LANE_COUNT,
                )
            lane = self._lanes[topic_partition] = StreamLane(topic_partition)
        return lane

    def _collect(self, lane: StreamLane, _future: asyncio.Future[AppendInfo] | None = None) -> None:
        """Move the ready answers of a lane to the outgoing queue, and forget the lane once it is idle."""
        lane.collect(self._outgoing.add)
        if self._outgoing:
            self._has_news.set()
        if lane.is_idle and self._lanes.get(lane.topic_partition) is lane:
            del self._lanes[lane.topic_partition]

    async def _turn(self, lane: StreamLane, writer: PartitionWriter, append: PendingAppend) -> None:
        """Wait for the requests of the lane in flight, before `append` goes to another writer: that one would
        not know of a failure in time.
        """
        try:
            while lane.must_wait(writer):
                await self._next_answer()
        except asyncio.CancelledError:
            # No writer will answer it.
            append.give_back_memory()
            self._in_flight_count -= 1
            self._has_news.set()
            raise

    async def _next_answer(self) -> None:
        self._has_answered.clear()
        await self._has_answered.wait()

    def _has_room(self) -> bool:
        """Whether to read another request. Always without one in flight: only an answer wakes this stream."""
        if self._in_flight_count == 0:
            return True
        within_bytes = self._in_flight_bytes < MAX_IN_FLIGHT_BYTES
        return within_bytes and self._in_flight_count < MAX_IN_FLIGHT_COUNT and not self._memory.is_scarce

    def _abandon(self) -> None:
        """Forget the requests in flight. They may be applied, unless their session is broken."""
        for lane in self._lanes.values():
            lane.abandon()
        self._lanes.clear()
        for append in self._alone:
            append.abandon()
        self._alone.clear()
        self._outgoing.clear()
