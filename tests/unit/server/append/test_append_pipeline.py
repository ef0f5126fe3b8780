"""A stream of appends: bounded, each partition in order and by itself, nothing applied behind a failure until
the partition is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from stratalog.base.errors import (
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    PrecedingAppendFailedError,
    StoppingError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append import append_pipeline
from stratalog.server.append.append_decoding import Decoded, DecodedStreamAppend
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.server.fetch.closing import Closing
from stratalog.server.request_memory import RequestMemory
from stratalog.v1 import log_pb2
from tests.support.service.held_writer import BAD, SOME_LOG, HeldWriter


class Request:
    """A request of a stream, short."""

    def __init__(
        self,
        partition: int,
        data: bytes,
        *,
        is_named: bool = True,
        resume: bool = False,
        disk: bool = False,
    ) -> None:
        """`is_named`: the request names its partition; otherwise the server chooses that one."""
        self.partition = partition
        self.is_named = is_named
        self.data = data
        self.resume = resume
        self.durability = Durability.DISK if disk else Durability.OS


async def resolved(decoded: DecodedStreamAppend) -> None:
    """Every request names its partition."""
    assert decoded.request.HasField("partition")


class Stream:
    """A pipeline over writers by partition, and its answers. The sequence of a request is its place. Belongs
    to the test's loop."""

    def __init__(
        self,
        requests: Sequence[Request],
        partition_count: int = 3,
        limit_bytes: int = 1 << 20,
        sequences: Sequence[int] | None = None,
    ) -> None:
        self.memory = RequestMemory(limit_bytes)
        self.writers = [HeldWriter() for _ in range(partition_count)]
        self.replaced: list[HeldWriter] = []
        self.taken = 0
        self.answers: list[StreamAnswer] = []
        self.failure: LogStoreError | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._requests = requests
        self._sequences = range(len(requests)) if sequences is None else sequences
        self.closing = Closing(asyncio.get_running_loop())
        self.pipeline = AppendPipeline(
            self._source(), self._resolve, self._prepare, self.memory, self.closing
        )
        self._task = asyncio.create_task(self._run())

    @property
    def answered(self) -> list[int]:
        """The sequences of the answers, in order."""
        return [answer.sequence for answer in self.answers]

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    @property
    def errors(self) -> dict[int, type[Exception]]:
        """The classes of the failures, by sequence."""
        return {answer.sequence: type(answer.error) for answer in self.answers if answer.error is not None}

    async def _run(self) -> None:
        try:
            async for answer in self.pipeline.answers():
                self.answers.append(answer)
        except LogStoreError as error:
            self.failure = error

    async def _source(self) -> AsyncIterator[DecodedStreamAppend]:
        for sequence, request in zip(self._sequences, self._requests, strict=True):
            # The transport gives each request in a turn of its own.
            await asyncio.sleep(0)
            self.taken += 1
            message = log_pb2.AppendStreamRequest(
                topic="t",
                partition=request.partition if request.is_named else None,
                durability=log_pb2.DURABILITY_DISK
                if request.durability is Durability.DISK
                else log_pb2.DURABILITY_OS,
                sequence=sequence,
                resume=request.resume,
            )
            yield Decoded(message, memoryview(request.data), None, len(request.data))
        await self.may_end.wait()

    async def _resolve(self, decoded: DecodedStreamAppend) -> None:
        request = self._requests[self._sequences.index(decoded.request.sequence)]
        decoded.request.partition = request.partition

    def _prepare(
        self, decoded: DecodedStreamAppend, session: AppendSession | None
    ) -> tuple[PartitionWriter, PendingAppend]:
        if decoded.request.partition >= len(self.writers):
            raise UnknownTopicOrPartitionError("no such partition")
        assert decoded.batches is not None
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        memory = self.memory.lease(decoded.size_bytes)
        append = PendingAppend(
            batches=bytes(decoded.batches),
            durability=Durability(decoded.request.durability),
            future=future,
            memory=memory,
            identity=SOME_LOG,
            session=session,
        )
        return self.writers[decoded.request.partition], append

    def replace_writer(self, partition: int) -> None:
        """The topic of the partition is deleted and created again."""
        self.replaced.append(self.writers[partition])
        self.writers[partition] = HeldWriter()

    def cancel(self) -> None:
        self._task.cancel()

    def stop(self) -> None:
        """The server stops."""
        self.closing.set(ends_work=True)

    async def settle(self) -> None:
        """Until nothing moves any more without the writers."""
        for _ in range(50):
            await asyncio.sleep(0)
        self.pipeline.check()

    async def write_until_done(self) -> None:
        async with asyncio.timeout(30):
            while not self._task.done():
                self.pipeline.check()
                for writer in (*self.writers, *self.replaced):
                    writer.write_all()
                await asyncio.sleep(0)
        await self._task
        for writer in self.writers:
            writer.write_all()
        await self.settle()
        assert self.memory.held_bytes == 0


async def test_many_requests_of_one_partition_are_in_flight_at_once() -> None:
    stream = Stream([Request(0, b"%d" % number) for number in range(20)])
    await stream.settle()
    assert len(stream.writers[0].waiting) == 20
    await stream.write_until_done()
    assert stream.answered == list(range(20))
    assert stream.writers[0].written == [b"%d" % number for number in range(20)]
    assert stream.failure is None


async def test_a_slow_partition_delays_no_answer_of_another() -> None:
    stream = Stream([Request(number % 3, b"%d" % number) for number in range(9)])
    await stream.settle()
    assert [len(writer.waiting) for writer in stream.writers] == [3, 3, 3]
    stream.writers[2].write_all()
    await stream.settle()
    assert stream.answered == [2, 5, 8]
    stream.writers[1].write_all()
    await stream.settle()
    assert stream.answered == [2, 5, 8, 1, 4, 7]
    await stream.write_until_done()
    assert stream.answered[6:] == [0, 3, 6]


async def test_partitions_take_turns_with_answers_that_are_ready_at_once() -> None:
    """A client sends more for each answer: the last partition would fall behind the first one."""
    stream = Stream([Request(partition, b"x") for partition in (0, 0, 0, 1, 2, 2)])
    await stream.settle()
    for writer in stream.writers:
        writer.write_all()
    await stream.write_until_done()
    assert stream.answered == [0, 3, 4, 1, 5, 2]


async def test_an_earlier_durability_holds_back_the_later_answers_of_its_partition() -> None:
    """The writer answers `os` before the fsync; the stream keeps the order of the requests."""
    requests = [Request(0, b"a", disk=True), Request(0, b"b"), Request(1, b"c"), Request(0, b"d", disk=True)]
    stream = Stream(requests)
    await stream.settle()
    for writer in stream.writers:
        writer.write_os()
    await stream.settle()
    assert stream.answered == [2]
    stream.writers[0].flush()
    await stream.settle()
    assert stream.answered == [2, 0, 1, 3]
    await stream.write_until_done()


@pytest.mark.parametrize("bad_at", range(6))
async def test_a_failure_stops_its_partition_and_no_other(bad_at: int) -> None:
    requests = [Request(number % 2, b"%d" % number) for number in range(8)]
    requests[bad_at].data = BAD
    stream = Stream(requests)
    await stream.write_until_done()
    assert stream.failure is None
    assert sorted(stream.answered) == list(range(8)), "one answer for each request"
    behind = dict.fromkeys(range(bad_at + 2, 8, 2), PrecedingAppendFailedError)
    assert stream.errors == {bad_at: InvalidRecordError, **behind}
    for partition in range(2):
        assert stream.writers[partition].written == [
            b"%d" % number for number in range(partition, 8, 2) if number not in stream.errors
        ]


async def test_a_partition_is_refused_until_it_is_resumed() -> None:
    requests = [
        Request(0, BAD),
        Request(0, b"refused"),
        Request(0, b"resumed", resume=True),
        Request(0, b"behind"),
        Request(0, BAD),
        Request(0, b"refused again"),
    ]
    stream = Stream(requests)
    await stream.write_until_done()
    assert stream.answered == list(range(6))
    assert stream.errors == {
        0: InvalidRecordError,
        1: PrecedingAppendFailedError,
        4: InvalidRecordError,
        5: PrecedingAppendFailedError,
    }
    assert stream.writers[0].written == [b"resumed", b"behind"]


async def test_after_the_answer_of_a_failure_its_partition_is_refused_at_once() -> None:
    requests = [Request(0, BAD), *[Request(1, b"%d" % number) for number in range(4)], Request(0, b"late")]
    stream = Stream(requests, limit_bytes=8)
    await stream.settle()
    assert stream.taken == 3, "memory is scarce"
    await stream.write_until_done()
    assert stream.errors == {0: InvalidRecordError, 5: PrecedingAppendFailedError}
    assert stream.writers[0].submitted_count == 1, "the later request has not reached the writer"


async def test_a_failure_of_an_earlier_session_breaks_no_later_one() -> None:
    requests = [Request(0, BAD), Request(0, b"resumed", resume=True), Request(0, b"behind")]
    stream = Stream(requests)
    await stream.settle()
    assert len(stream.writers[0].waiting) == 3, "the resume did not wait for the failure"
    await stream.write_until_done()
    assert (stream.answered, stream.errors) == ([0, 1, 2], {0: InvalidRecordError})
    assert stream.writers[0].written == [b"resumed", b"behind"]


async def test_a_request_that_cannot_be_prepared_fails_in_its_place_and_spares_those_before_it() -> None:
    stream = Stream(
        [Request(0, bytes(40)), Request(0, bytes(70)), Request(1, b"other"), Request(0, b"behind")],
        limit_bytes=100,
    )
    await stream.settle()
    assert stream.answered == [], "the request before it is answered first"
    await stream.write_until_done()
    assert stream.errors == {1: OverloadedError, 3: PrecedingAppendFailedError}
    [overloaded] = [answer.error for answer in stream.answers if answer.sequence == 1]
    assert isinstance(overloaded, OverloadedError)
    assert overloaded.fields == {"size_bytes": 70, "held_bytes": 40, "limit_bytes": 100}
    assert [answer for answer in stream.answered if answer != 2] == [0, 1, 3]
    assert stream.writers[0].written == [bytes(40)]
    assert stream.writers[1].written == [b"other"]


async def test_an_unknown_partition_ends_no_stream() -> None:
    stream = Stream([Request(7, b"a"), Request(0, b"b"), Request(7, b"c"), Request(7, b"d", resume=True)])
    await stream.write_until_done()
    assert stream.failure is None
    assert stream.errors == {
        0: UnknownTopicOrPartitionError,
        2: PrecedingAppendFailedError,
        3: UnknownTopicOrPartitionError,
    }
    assert stream.writers[0].written == [b"b"]


@pytest.mark.parametrize("second", [5, 4, 0])
async def test_a_sequence_that_does_not_grow_ends_the_stream_behind_the_earlier_answers(second: int) -> None:
    requests = [Request(0, b"a"), Request(1, b"b"), Request(1, b"c")]
    stream = Stream(requests, sequences=[5, second, 6])
    await stream.settle()
    assert stream.answered == []
    await stream.write_until_done()
    assert stream.answered == [5]
    assert isinstance(stream.failure, InvalidRequestError)
    assert stream.failure.fields == {"sequence": second, "last_sequence": 5}
    assert stream.writers[1].written == []


async def test_requests_of_a_topic_that_was_created_again_wait_for_those_of_the_deleted_one() -> None:
    for first, expected in ((b"a", [b"b"]), (BAD, [])):
        stream = Stream([Request(0, first), Request(1, b"x"), Request(0, b"b"), Request(1, b"y")])
        while stream.taken < 2:
            await asyncio.sleep(0)
        stream.replace_writer(0)
        await stream.settle()
        assert stream.writers[0].waiting == []
        await stream.write_until_done()
        assert stream.writers[0].written == expected
        assert set(stream.errors) == (set() if first == b"a" else {0, 2})
        assert stream.writers[1].written == [b"x", b"y"]


@pytest.mark.parametrize(
    ("limit", "value", "expected"), [("MAX_IN_FLIGHT_COUNT", 3, 3), ("MAX_IN_FLIGHT_BYTES", 25, 3)]
)
async def test_what_is_in_flight_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, expected: int
) -> None:
    monkeypatch.setattr(append_pipeline, limit, value)
    stream = Stream([Request(number % 2, b"%010d" % number) for number in range(10)])
    await stream.settle()
    assert sum(len(writer.waiting) for writer in stream.writers) == expected
    assert stream.taken == expected, "the transport holds back the rest"
    await stream.write_until_done()
    assert len(stream.answers) == 10


async def test_refusals_that_the_client_does_not_read_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_pipeline, "MAX_IN_FLIGHT_COUNT", 3)
    taken = 0

    async def source() -> AsyncIterator[DecodedStreamAppend]:
        nonlocal taken
        for sequence in range(10):
            taken += 1
            yield Decoded(log_pb2.AppendStreamRequest(partition=0, sequence=sequence), None, None, 1)

    def refuse(_: DecodedStreamAppend, __: AppendSession | None) -> tuple[PartitionWriter, PendingAppend]:
        raise UnknownTopicOrPartitionError("no such partition")

    closing = Closing(asyncio.get_running_loop())
    answers = AppendPipeline(source(), resolved, refuse, RequestMemory(100), closing).answers()
    first = await anext(answers)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (first.sequence, taken) == (0, 4)
    assert [answer.sequence async for answer in answers] == list(range(1, 10))


async def test_one_request_may_be_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pipeline, "MAX_IN_FLIGHT_BYTES", 5)
    stream = Stream([Request(0, bytes(100)), Request(0, bytes(100))])
    await stream.write_until_done()
    assert len(stream.answers) == 2


async def test_where_memory_is_scarce_a_stream_has_one_request_in_flight() -> None:
    stream = Stream([Request(0, b"%010d" % number) for number in range(10)], limit_bytes=100)
    elsewhere = stream.memory.lease(45)
    await stream.settle()
    assert stream.taken == 1, "55 of 100 bytes are taken"
    stream.writers[0].write_all()
    await stream.settle()
    assert stream.taken == 2
    elsewhere.close()
    stream.writers[0].write_all()
    await stream.settle()
    assert stream.taken == 8, "six more, of which the last makes it scarce"
    await stream.write_until_done()
    assert len(stream.answers) == 10


async def test_a_stream_that_is_cut_off_gives_everything_back() -> None:
    requests = [Request(0, bytes(10)), Request(0, BAD), Request(1, bytes(10)), Request(7, bytes(10))]
    stream = Stream(requests)
    await stream.settle()
    assert stream.memory.held_bytes == 20 + len(BAD)
    stream.cancel()
    await stream.settle()
    assert stream.memory.held_bytes == 20 + len(BAD), "what a writer has it still writes"
    for writer in stream.writers:
        writer.write_all()
    await stream.settle()
    assert stream.memory.held_bytes == 0
    assert (stream.writers[0].written, stream.writers[1].written) == ([bytes(10)], [bytes(10)])


async def test_a_request_without_a_partition_fails_alone() -> None:
    requests = [
        Request(0, BAD),
        Request(0, b"alone", is_named=False),
        Request(0, b"refused"),
        Request(0, BAD, is_named=False),
        Request(0, b"refused, too"),
        Request(1, BAD, is_named=False),
        Request(1, b"behind it"),
        Request(7, b"nowhere", is_named=False),
        Request(0, b"no lane is resumed", is_named=False, resume=True),
        Request(0, b"still refused"),
    ]
    stream = Stream(requests)
    await stream.write_until_done()
    assert stream.failure is None
    assert stream.errors == {
        **dict.fromkeys((0, 3, 5), InvalidRecordError),
        **dict.fromkeys((2, 4, 9), PrecedingAppendFailedError),
        7: UnknownTopicOrPartitionError,
    }
    assert stream.writers[0].written == [b"alone", b"no lane is resumed"]
    assert stream.writers[1].written == [b"behind it"]


async def test_a_request_without_a_partition_has_no_state_and_waits_for_no_earlier_answer() -> None:
    requests = [Request(0, b"a", disk=True), Request(0, b"b", is_named=False)]
    stream = Stream([*requests, *[Request(0, BAD, is_named=False) for _ in range(3)]])
    await stream.settle()
    assert stream.pipeline.lane_count == 1, "that of the first one"
    stream.writers[0].write_os()
    await stream.settle()
    assert stream.answered == [1, 2, 3, 4]
    stream.writers[0].flush()
    await stream.settle()
    assert stream.pipeline.lane_count == 0
    await stream.write_until_done()


async def test_a_stream_that_is_cut_off_forgets_the_requests_without_a_partition() -> None:
    stream = Stream([Request(0, bytes(10), is_named=False), Request(0, BAD, is_named=False)])
    await stream.settle()
    stream.writers[0].write_one()
    stream.cancel()
    await stream.settle()
    stream.writers[0].write_all()
    await stream.settle()
    assert stream.memory.held_bytes == 0
    assert stream.writers[0].written == [bytes(10)]


async def test_a_request_that_waits_for_the_deleted_topic_gives_its_memory_back() -> None:
    stream = Stream([Request(0, bytes(10)), Request(1, bytes(10)), Request(0, bytes(10))])
    while stream.taken < 2:
        await asyncio.sleep(0)
    stream.replace_writer(0)
    await stream.settle()
    assert stream.memory.held_bytes == 30
    stream.cancel()
    await stream.settle()
    assert stream.memory.held_bytes == 20
    for writer in (*stream.writers, *stream.replaced):
        writer.write_all()
    assert stream.memory.held_bytes == 0


async def test_partitions_with_state_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pipeline, "MAX_LANE_COUNT", 2)
    stream = Stream([Request(number, b"x") for number in (7, 8, 9)])
    await stream.write_until_done()
    assert stream.errors == dict.fromkeys((0, 1), UnknownTopicOrPartitionError)
    assert type(stream.failure) is InvalidRequestError


async def test_an_error_that_waits_holds_no_frames() -> None:
    stream = Stream([Request(0, BAD), Request(7, b"x")])
    await stream.write_until_done()
    assert [answer.error and answer.error.__traceback__ for answer in stream.answers] == [None, None]


async def test_a_partition_without_requests_and_without_a_failure_has_no_state() -> None:
    requests = [Request(number, b"x") for number in range(100)]
    requests += [Request(number, BAD) for number in range(3)]
    stream = Stream(requests, partition_count=100)
    stream.may_end.clear()
    async with asyncio.timeout(30):
        while len(stream.answers) < len(requests):
            for writer in stream.writers:
                writer.write_all()
            stream.pipeline.check()
            await asyncio.sleep(0)
    assert stream.pipeline.lane_count == 3, "those that have failed"
    stream.may_end.set()
    await stream.write_until_done()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_stop_ends_an_idle_stream_at_once(has_begun: bool) -> None:
    stream = Stream([])
    stream.may_end.clear()
    if has_begun:
        await stream.settle()
    stream.stop()
    await stream.write_until_done()
    assert isinstance(stream.failure, StoppingError)
    assert stream.failure.retriable


async def test_a_stop_lets_a_stream_answer_what_is_in_flight_and_take_no_more() -> None:
    stream = Stream([Request(number % 2, b"%d" % number) for number in range(20)])
    while stream.taken < 5:
        await asyncio.sleep(0)
    stream.stop()
    await stream.settle()
    assert not stream.has_ended, "its answers are missing"
    taken = sum(len(writer.waiting) for writer in stream.writers)
    assert taken <= 6, "one may be on its way"
    await stream.write_until_done()
    assert isinstance(stream.failure, StoppingError)
    assert sorted(stream.answered) == list(range(taken))
    written = [one for writer in stream.writers for one in writer.written]
    assert sorted(written) == [b"%d" % number for number in range(taken)], "no other has an effect"


async def test_a_stop_forgets_a_request_that_waits_for_another_writer() -> None:
    stream = Stream([Request(0, b"a"), Request(1, b"x"), Request(0, b"b")])
    while stream.taken < 2:
        await asyncio.sleep(0)
    stream.replace_writer(0)
    await stream.settle()
    assert stream.taken == 3
    stream.stop()
    await stream.write_until_done()
    assert isinstance(stream.failure, StoppingError)
    assert sorted(stream.answered) == [0, 1]
    assert stream.replaced[0].written == [b"a"]
    assert stream.writers[0].written == []


async def test_a_stop_is_no_failure_of_a_stream_whose_client_has_sent_all() -> None:
    stream = Stream([Request(0, b"a")])
    await stream.settle()
    stream.stop()
    await stream.write_until_done()
    assert (stream.answered, stream.failure) == ([0], None)
