"""An append wakes all readers at the end of a log, and one read and one encoding serve them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from stratalog.base.types import TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.rpc.fetch_encoding import FetchEncoder
from tests.support.service.service_bench import ServiceBench, service_bench

READER_COUNT = 60
POLLS = TopicPartition("t", 0)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a log was read, from memory or from its file, and an answer encoded."""
    found = Counter[str]()
    recent, read = LogReader.read_recent, LogReader.read
    encode = FetchEncoder._encoded  # pyright: ignore[reportPrivateUsage]  # its calls are counted

    def read_recent(
        reader: LogReader, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData | None:
        found["recent"] += 1
        return recent(reader, offset, max_bytes, isolation, min_one_message=min_one_message)

    def read_file(
        reader: LogReader, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        found["file"] += 1
        return read(reader, offset, max_bytes, isolation, min_one_message=min_one_message)

    def encoded(encoder: FetchEncoder, cursors: Iterable[FetchCursor]) -> bytes:
        found["encoded"] += 1
        return encode(encoder, cursors)

    monkeypatch.setattr(LogReader, "read_recent", read_recent)
    monkeypatch.setattr(LogReader, "read", read_file)
    monkeypatch.setattr(FetchEncoder, "_encoded", encoded)
    return found


async def values_of_poll(bench: ServiceBench, offset: int) -> int:
    """The size of what a long poll brings."""
    [fetched] = await bench.client.fetch({POLLS: offset}, max_wait_ms=60_000)
    return len(fetched.batches)


async def test_long_polls_share_an_answer(tmp_path: Path, counts: Counter[str]) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        for offset in range(2):
            polls = [asyncio.create_task(values_of_poll(bench, offset)) for _ in range(READER_COUNT)]
            await bench.until_waiting(READER_COUNT)
            counts.clear()
            await bench.append("t", [b"x" * 1000])
            sizes = await asyncio.gather(*polls)
            assert min(sizes) == max(sizes) > 1000
            assert counts == {"recent": 1, "encoded": 1}


async def test_streams_share_their_answers(tmp_path: Path, counts: Counter[str]) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        streams = [bench.fetch_stream({POLLS: 0}) for _ in range(READER_COUNT)]
        for offset in range(3):
            answers = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await bench.until_waiting(READER_COUNT)
            counts.clear()
            await bench.append("t", [b"x" * 1000])
            for answer in await asyncio.gather(*answers):
                [part] = answer.partitions
                assert (part.fetch_offset, part.next_fetch_offset) == (offset, offset + 1)
            assert counts == {"recent": 1, "encoded": 1}
