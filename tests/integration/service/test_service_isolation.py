"""Transactions as readers see them over a loopback connection, at both isolation levels.

No client can send a transaction yet: the tests append transactional batches, and the markers that end them,
to the server's own logs.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import fetched_parts
from stratalog.client.position import Place, Position, TimePosition
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, end_transaction
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)
COMMITTED = IsolationLevel.READ_COMMITTED


class Writer:
    """Appends to the partition. The value of a record is its time."""

    def __init__(self, bench: ServiceBench) -> None:
        self.partition = bench.partition()
        self._next_sequence = 0

    def send(self, *times_ms: int, is_transactional: bool = False) -> None:
        producer = BatchProducer()
        if is_transactional:
            producer = BatchProducer(1, 0, self._next_sequence, is_transactional=True)
            self._next_sequence += len(times_ms)
        records = [Record(0, time_ms, b"k", b"%d" % time_ms) for time_ms in times_ms]
        batch = encode_batch(records, producer=producer)
        self.partition.log.appender.append_as_leader(batch, self.partition.shard.leader_epoch())

    def end(self, *, committed: bool) -> None:
        end_transaction(self.partition, 1, committed=committed)


async def writer_to(bench: ServiceBench, **config: str) -> Writer:
    await bench.client.admin.create_topic("t", config=config)
    return Writer(bench)


async def offset_at(bench: ServiceBench, place: Place | Position) -> int:
    [answer] = await bench.client.list_offsets([(T0, place)], isolation=COMMITTED)
    return answer.offset


async def test_a_transaction_that_is_open_below_the_tiered_end_is_not_yet_committed(
    bench: ServiceBench,
) -> None:
    writer = await writer_to(bench)
    writer.send(10, 20)
    writer.send(30, 90, is_transactional=True)
    writer.send(40)
    with unstable_uploads():
        await bench.client.admin.upload(delete_local=True)
    assert writer.partition.tiered_end_offset == 5
    assert await bench.values("t", isolation=COMMITTED) == [[b"10", b"20"]]
    assert await bench.values("t") == [[b"10", b"20", b"30", b"90", b"40"]]
    assert await offset_at(bench, "latest") == 2
    assert await offset_at(bench, "max-timestamp") == 1
    assert await offset_at(bench, TimePosition(30)) == -1
    writer.end(committed=True)
    assert await bench.values("t", isolation=COMMITTED) == [[b"10", b"20", b"30", b"90", b"40"]]
    assert await offset_at(bench, "latest") == 6
    assert await offset_at(bench, TimePosition(30)) == 2


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_poll_for_committed_records_wakes_when_their_transaction_ends(
    bench: ServiceBench, durability: str, committed: bool
) -> None:
    writer = await writer_to(bench, **{"min.durability": durability})
    writer.send(10, is_transactional=True)
    await bench.append("t", [b"behind it"])
    poll = asyncio.create_task(bench.client.fetch({T0: 0}, max_wait_ms=60_000, isolation=COMMITTED))
    await bench.until_waiting(1)
    [answer] = await bench.client.fetch({T0: 0}, max_wait_ms=60_000)
    assert (answer.next_fetch_offset, answer.high_watermark, answer.last_stable_offset) == (2, 2, 0)
    assert not poll.done()
    await asyncio.to_thread(writer.end, committed=committed)
    [answer] = await asyncio.wait_for(poll, PATIENCE_S)
    assert (answer.next_fetch_offset, answer.high_watermark, answer.last_stable_offset) == (3, 3, 3)
    told = [(one.producer_id, one.first_offset, one.last_offset) for one in answer.aborted_transactions]
    assert told == ([] if committed else [(1, 0, 2)])
    values = [record.value for part in fetched_parts(answer, 0) for record in part.records]
    assert values == ([b"10", b"behind it"] if committed else [b"behind it"])


async def test_a_session_follows_the_last_stable_offset(bench: ServiceBench) -> None:
    writer = await writer_to(bench)
    consumer = bench.client.consume("t", isolation=COMMITTED)
    batches = consumer.batches()
    for committed in (True, False, True):
        writer.send(10, is_transactional=True)
        writer.send(20)
        coming = asyncio.ensure_future(anext(batches))
        await bench.until_waiting(1)
        assert not coming.done()
        writer.end(committed=committed)
        records = await asyncio.wait_for(coming, PATIENCE_S)
        assert [record.value for record in records] == ([b"10", b"20"] if committed else [b"20"])
    await consumer.aclose()


async def test_an_unknown_isolation_level_is_refused(bench: ServiceBench) -> None:
    await writer_to(bench)
    fetch = log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic="t")],
        isolation=7,  # type: ignore[arg-type]  # on purpose
    )
    offsets = log_pb2.ListOffsetsRequest(isolation=7)  # type: ignore[arg-type]  # on purpose
    for call in (bench.client.log.Fetch(fetch), bench.client.log.ListOffsets(offsets)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
