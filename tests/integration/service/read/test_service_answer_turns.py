"""Large answers of all calls that read take turns on the event loop, and appends hold them up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.answer_turns import LARGE_BYTES, AnswerTurns
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench

RECORDS = [Record(0, 1, None, bytes(1000)) for _ in range(2 * LARGE_BYTES // 1000)]
SMALL = encode_batch(RECORDS[:1])


class Watch:
    """The turns that the calls of a server take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes_bytes: list[int] = []
        self.are_tiered: list[bool] = []
        self.readers: list[object] = []
        self.appends: list[tuple[int, asyncio.Future[Any]]] = []
        self.call_count = 0
        take, add, expect = AnswerTurns.take, AnswerTurns.add_append, AnswerTurns.expect_append

        async def taking(
            turns: AnswerTurns, size_bytes: int, tiered_bytes: int, reader: object = None
        ) -> None:
            if size_bytes >= LARGE_BYTES:
                self.readers.append(reader)
                self.sizes_bytes.append(size_bytes)
                self.are_tiered.append(LARGE_BYTES <= tiered_bytes <= size_bytes)
                assert self.are_tiered[-1] or tiered_bytes == 0
            await take(turns, size_bytes, tiered_bytes, reader)

        def adding(turns: AnswerTurns, size_bytes: int, answered: asyncio.Future[Any]) -> None:
            self.appends.append((size_bytes, answered))
            add(turns, size_bytes, answered)

        def expecting(turns: AnswerTurns) -> None:
            self.call_count += 1
            expect(turns)

        monkeypatch.setattr(AnswerTurns, "take", taking)
        monkeypatch.setattr(AnswerTurns, "add_append", adding)
        monkeypatch.setattr(AnswerTurns, "expect_append", expecting)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.parametrize("is_tiered", [False, True])
async def test_large_answers_take_turns(bench: ServiceBench, watch: Watch, is_tiered: bool) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, RECORDS)
    if is_tiered:
        await bench.client.admin.upload(["t"], delete_local=True)
    stub = bench.client.log
    partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=0))
    request = log_pb2.FetchRequest(partitions=[partition], max_wait_ms=1)
    answer = await stub.Fetch(request)
    size_bytes = len(answer.partitions[0].batches)
    assert watch.sizes_bytes == [size_bytes]
    del watch.sizes_bytes[:]
    stream = stub.FetchStream(request)
    streamed: Any = await stream.read()
    stream.cancel()
    assert watch.sizes_bytes == [streamed.ByteSize()]
    del watch.sizes_bytes[:]
    responses = [one async for one in stub.Read(log_pb2.ReadRequest(topic="t"))]
    large = [one.ByteSize() for one in responses if one.ByteSize() >= LARGE_BYTES]
    assert watch.sizes_bytes == large != []
    assert set(watch.are_tiered) == {is_tiered}


async def test_a_stream_is_one_reader(bench: ServiceBench, watch: Watch) -> None:
    """It encodes and sends its answers in turns, and does not wait for itself."""
    await bench.client.admin.create_topic("t")
    for _ in range(3):
        await bench.client.append("t", 0, RECORDS)
    partition = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=0))
    request = log_pb2.FetchRequest(partitions=[partition], max_bytes=1)
    for _ in range(2):
        stream = bench.client.log.FetchStream(request)
        for _ in range(3):
            await stream.read()
        stream.cancel()
    first, *others = dict.fromkeys(watch.readers)
    assert first is not None
    assert len(others) == 1, "another stream is another reader"
    assert None not in others
    assert len(watch.readers) > 6, "answers with more behind them are encoded in a turn, too"


async def test_appends_hold_up_large_answers(bench: ServiceBench, watch: Watch) -> None:
    await bench.client.admin.create_topic("t")
    stub = bench.client.log
    await stub.Append(log_pb2.AppendRequest(topic="t", partition=0, batches=SMALL))
    assert watch.call_count == 1
    [(size_bytes, answered)] = watch.appends
    assert size_bytes >= len(SMALL)
    assert answered.done()

    async def requests() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        for sequence in range(3):
            yield log_pb2.AppendStreamRequest(sequence=sequence, topic="t", partition=0, batches=SMALL)

    del watch.appends[:]
    assert len([one async for one in stub.AppendStream(requests())]) == 3
    assert [answered.done() for _, answered in watch.appends] == [True] * 3
