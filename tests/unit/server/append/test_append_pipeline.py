"""A session: bounded, in order, and nothing behind a failure, also where it turns to another partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stratalog.base.errors import (
    InvalidRecordError,
    LogStoreError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append import append_pipeline
from stratalog.server.append.append_decoding import DecodedAppend
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.request_memory import RequestMemory
from stratalog.v1 import log_pb2

BAD = b"bad"


class FakeWriter(PartitionWriter):
    """Keeps what is submitted until the test lets it be written. Belongs to the test's loop."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]  # nothing of the real one is used
        self.waiting: list[PendingAppend] = []
        self.written: list[bytes] = []

    def submit(self, append: PendingAppend) -> None:
        self.waiting.append(append)

    def write_all(self) -> None:
        for append in self.waiting:
            data = append.take_batches()
            append.give_back_memory()
            assert isinstance(data, bytes)
            assert append.session is not None
            if append.session.is_broken:
                continue
            if data == BAD:
                append.session.is_broken = True
                append.future.set_exception(InvalidRecordError("bad"))
                continue
            offset = len(self.written)
            self.written.append(data)
            if not append.future.cancelled():
                append.future.set_result(AppendInfo(offset, offset, len(data)))
        self.waiting = []


class Session:
    """A pipeline over writers by partition, and what came of it. Belongs to the test's loop."""

    def __init__(
        self, requests: list[tuple[int, bytes]], partition_count: int = 3, limit_bytes: int = 1 << 20
    ) -> None:
        self.memory = RequestMemory(limit_bytes)
        self.writers = [FakeWriter() for _ in range(partition_count)]
        self.taken = 0
        self.results: list[AppendInfo] = []
        self.failure: LogStoreError | None = None
        self._requests = requests
        self._task = asyncio.create_task(self._run())

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    async def _run(self) -> None:
        try:
            async for append in AppendPipeline(self._source(), self._prepare, self.memory).answered():
                self.results.append(append.future.result())
        except LogStoreError as error:
            self.failure = error

    async def _source(self) -> AsyncIterator[DecodedAppend]:
        for partition, data in self._requests:
            self.taken += 1
            yield DecodedAppend(log_pb2.AppendRequest(partition=partition), memoryview(data), len(data))

    def _prepare(
        self, decoded: DecodedAppend, session: AppendSession
    ) -> tuple[PartitionWriter, PendingAppend]:
        if decoded.request.partition >= len(self.writers):
            raise UnknownTopicOrPartitionError("no such partition")
        assert decoded.batches is not None
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        memory = self.memory.lease(decoded.size_bytes)
        append = PendingAppend(
            batches=bytes(decoded.batches),
            durability=Durability.OS,
            future=future,
            memory=memory,
            size_bytes=decoded.size_bytes,
            session=session,
        )
        return self.writers[decoded.request.partition], append

    def cancel(self) -> None:
        self._task.cancel()

    async def settle(self) -> None:
        """Until nothing moves any more without the writers."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def write_until_done(self) -> None:
        async with asyncio.timeout(30):
            while not self._task.done():
                for writer in self.writers:
                    writer.write_all()
                await asyncio.sleep(0)
        await self._task
        for writer in self.writers:
            writer.write_all()
        await self.settle()
        assert self.memory.held_bytes == 0


async def test_many_requests_of_one_partition_are_under_way_at_once() -> None:
    session = Session([(0, b"%d" % number) for number in range(20)])
    await session.settle()
    assert len(session.writers[0].waiting) == 20
    await session.write_until_done()
    assert [appended.base_offset for appended in session.results] == list(range(20))


async def test_a_turn_to_another_partition_waits_for_what_is_under_way() -> None:
    session = Session([(0, b"a"), (0, b"b"), (1, b"c"), (0, b"d")])
    await session.settle()
    assert [len(writer.waiting) for writer in session.writers] == [2, 0, 0]
    session.writers[0].write_all()
    await session.settle()
    assert [len(writer.waiting) for writer in session.writers] == [0, 1, 0]
    await session.write_until_done()
    assert (session.writers[0].written, session.writers[1].written) == ([b"a", b"b", b"d"], [b"c"])


@pytest.mark.parametrize("bad_at", range(6))
async def test_nothing_behind_a_failure_is_written_in_any_partition(bad_at: int) -> None:
    requests = [(number % 3, b"%d" % number) for number in range(6)]
    requests[bad_at] = (bad_at % 3, BAD)
    session = Session(requests)
    await session.write_until_done()
    assert isinstance(session.failure, InvalidRecordError)
    assert sorted(value for writer in session.writers for value in writer.written) == [
        b"%d" % number for number in range(bad_at)
    ]
    assert len(session.results) == bad_at


async def test_a_request_that_cannot_be_prepared_fails_in_its_place() -> None:
    session = Session([(0, b"a"), (7, b"b"), (0, b"c")])
    await session.settle()
    assert session.has_failed is False, "the requests before it are answered first"
    await session.write_until_done()
    assert isinstance(session.failure, UnknownTopicOrPartitionError)
    assert (len(session.results), session.writers[0].written) == (1, [b"a"])


@pytest.mark.parametrize(
    ("limit", "value", "expected"), [("MAX_IN_FLIGHT_COUNT", 3, 3), ("MAX_IN_FLIGHT_BYTES", 25, 3)]
)
async def test_what_is_under_way_is_bounded(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, expected: int
) -> None:
    monkeypatch.setattr(append_pipeline, limit, value)
    session = Session([(0, b"%010d" % number) for number in range(10)])
    await session.settle()
    assert len(session.writers[0].waiting) == expected
    assert session.taken == expected, "the transport holds back the rest"
    await session.write_until_done()
    assert len(session.results) == 10


async def test_one_request_may_be_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pipeline, "MAX_IN_FLIGHT_BYTES", 5)
    session = Session([(0, bytes(100)), (0, bytes(100))])
    await session.write_until_done()
    assert len(session.results) == 2


async def test_where_memory_is_scarce_a_stream_has_one_request_under_way() -> None:
    session = Session([(0, b"%010d" % number) for number in range(10)], limit_bytes=100)
    elsewhere = session.memory.lease(45)
    await session.settle()
    assert session.taken == 1, "55 of 100 bytes are taken"
    session.writers[0].write_all()
    await session.settle()
    assert session.taken == 2
    elsewhere.close()
    session.writers[0].write_all()
    await session.settle()
    assert session.taken == 8, "six more, of which the last makes it scarce"
    await session.write_until_done()
    assert len(session.results) == 10


async def test_a_request_without_room_ends_the_stream_in_its_place() -> None:
    session = Session([(0, bytes(40)), (0, bytes(70)), (0, bytes(1))], limit_bytes=100)
    await session.settle()
    assert session.has_failed is False
    await session.write_until_done()
    assert isinstance(session.failure, OverloadedError)
    assert session.failure.fields == {"size_bytes": 70, "held_bytes": 40, "limit_bytes": 100}
    assert session.writers[0].written == [bytes(40)], "nothing behind it is applied"


async def test_a_stream_that_is_cut_off_gives_everything_back() -> None:
    session = Session([(0, bytes(10)), (0, bytes(10)), (1, bytes(10)), (1, bytes(10))])
    await session.settle()
    assert session.memory.held_bytes == 30, "the third waits for its turn"
    session.cancel()
    await session.settle()
    assert session.memory.held_bytes == 20, "what a writer has it still writes"
    session.writers[0].write_all()
    assert session.memory.held_bytes == 0
