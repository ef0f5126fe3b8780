"""Where compaction has left nothing, a reader goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench, service_bench

KEYED = TopicPartition("keyed", 0)


async def test_a_session_steps_over_a_hole_at_the_end(bench: ServiceBench) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    await bench.client.admin.create_topic("keyed", 1, config)
    await bench.client.append("keyed", 0, [Record(0, 1000, b"k", None)])
    for _ in range(2):
        await bench.client.admin.upload([], delete_local=True)
        await bench.client.admin.run_compaction(["keyed"])
    async with asyncio.timeout(20):
        async for response in bench.fetch_stream({KEYED: 0}):
            [answer] = response.partitions
            assert (answer.batches, answer.next_fetch_offset) == (b"", 1)
            break
        assert await bench.read_all("keyed") == [[]]


async def test_a_reader_of_committed_records_steps_over_a_hole_before_an_open_transaction(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("keyed", 1, {"cleanup.policy": "compact"})
    log = bench.server.engine.local.logs.log(KEYED)
    log.appender.append_as_follower(encode_batch([Record(0, 1000, b"k", b"0")], leader_epoch=1))
    open_one = BatchProducer(7, 0, 0, is_transactional=True)
    held = [Record(0, 1000, b"k", b"4")]
    log.appender.append_as_follower(encode_batch(held, base_offset=4, leader_epoch=1, producer=open_one))
    assert log.offsets.last_stable_offset == 4
    async with asyncio.timeout(20):
        positions = [2]
        async for response in bench.fetch_stream({KEYED: 2}, isolation=IsolationLevel.READ_COMMITTED):
            [answer] = response.partitions
            positions.append(answer.next_fetch_offset)
            if positions[-1] == 4:
                break
        assert positions == [2, 4]
        [fetched] = await bench.client.fetch({KEYED: 2}, isolation=IsolationLevel.READ_COMMITTED)
        assert (fetched.batches, fetched.next_fetch_offset) == (b"", 4)


async def test_a_partition_that_gives_nothing_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps a log from giving what lies below its end: the server goes on, and the reader later."""
    read: Callable[..., FetchData] = LogReader.read
    is_stuck = False

    def give_nothing(
        reader: LogReader, offset: int, max_bytes: int, isolation: Isolation, *, min_one_message: bool
    ) -> FetchData:
        if is_stuck and reader is keyed:
            return FetchData((), offset)
        return read(reader, offset, max_bytes, isolation, min_one_message=min_one_message)

    def not_in_memory(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(LogReader, "read", give_nothing)
    monkeypatch.setattr(LogReader, "read_recent", not_in_memory)
    async with service_bench(tmp_path) as bench, asyncio.timeout(20):
        for name in ("keyed", "other"):
            await bench.client.admin.create_topic(name, 1, {})
            await bench.client.append(name, 0, [Record(0, 1000, b"k", b"v")])
        keyed = bench.server.engine.topics.registry.partition("keyed", 0).log.reader
        is_stuck = True
        answers = aiter(bench.fetch_stream({KEYED: 0}))
        first = asyncio.ensure_future(anext(answers))
        assert await bench.read_all("other") == [[Record(0, 1000, b"k", b"v")]]
        assert not first.done()
        is_stuck = False
        await bench.client.append("keyed", 0, [Record(0, 1000, b"k", b"v")])
        [answer] = (await first).partitions
        assert answer.next_fetch_offset == 2
