"""A server that begins with an empty data directory goes on where the bucket says that the last one stood:
what producers may send next, what their transactions hide, and where readers of committed records stop.
"""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from stratalog.base.clock import SystemClock
from stratalog.base.errors import OutOfOrderSequenceError, ProducerFencedError
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.client.isolation_level import IsolationLevel
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.golden_records import golden_records
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, end_transaction, service_bench
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)


EPOCH = 3
CENTURY_MS = 100 * 365 * 86_400_000
"""A retention that keeps records which a broker wrote in 2023."""


def sent_by(producer_id: int, sequence: int, *, epoch: int = EPOCH, is_transactional: bool = False) -> bytes:
    """A batch of two records."""
    now_ms = SystemClock().now_ms()
    records = [Record(0, now_ms, b"k", b"%d:%d" % (producer_id, sequence + number)) for number in range(2)]
    return encode_batch(records, producer=BatchProducer(producer_id, epoch, sequence, is_transactional))


async def append(bench: ServiceBench, data: bytes, topic: str = "t") -> tuple[int, bool]:
    """Base offset, and whether it was there already."""
    answer = await bench.client.append_batches(topic, 0, data)
    return answer.base_offset, answer.duplicate


async def seen(
    bench: ServiceBench, topic: str
) -> dict[IsolationLevel, tuple[dict[TopicPartition, int], list[list[Record]]]]:
    """Where the topic ends and what is in it, at each isolation level."""
    return {
        isolation: (
            await bench.client.latest(topic, isolation=isolation),
            await bench.read_all(topic, isolation=isolation),
        )
        for isolation in IsolationLevel
    }


@pytest.mark.parametrize("disk_is_lost", [False, True])
async def test_producers_go_on_where_they_were(disk_is_lost: bool) -> None:
    """After a restart Kafka's snapshots know one batch of a producer, wherever they lie: it is answered as
    the first time, those before it are known to be too late, and nothing is stored twice.
    """
    store = MemoryObjectStore(SystemClock())
    disk = MemoryFileSystem()
    sent = [sent_by(7, sequence) for sequence in range(0, 14, 2)]
    async with service_bench("/", filesystem=disk, store=store) as bench:
        await bench.client.admin.create_topic("t")
        await bench.take_producer_ids(7)
        for number, data in enumerate(sent):
            assert await append(bench, data) == (2 * number, False)
        for number, data in list(enumerate(sent))[-5:]:
            assert await append(bench, data) == (2 * number, True)
        await bench.client.admin.upload()
        before = await seen(bench, "t")
    disk = MemoryFileSystem() if disk_is_lost else disk
    async with service_bench("/", filesystem=disk, store=store) as bench:
        assert await seen(bench, "t") == before
        assert await append(bench, sent[-1]) == (12, True)
        for data in (*sent[:-1], sent_by(7, 16)):
            with pytest.raises(OutOfOrderSequenceError) as refused:
                await append(bench, data)
            assert refused.value.fields["expected_sequence"] == 14
        with pytest.raises(ProducerFencedError) as fenced:
            await append(bench, sent_by(7, 14, epoch=EPOCH - 1))
        assert fenced.value.fields == {
            "topic": "t",
            "partition": 0,
            "producer_id": 7,
            "epoch": EPOCH - 1,
            "current_epoch": EPOCH,
        }
        assert await seen(bench, "t") == before, "nothing of all that was stored"
        assert await append(bench, sent_by(7, 14)) == (14, False)


@pytest.mark.parametrize("committed", [True, False])
async def test_an_open_transaction_is_ended_on_the_next_machine(committed: bool) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench("/", filesystem=MemoryFileSystem(), store=store) as bench:
        await bench.client.admin.create_topic("t")
        partition = bench.partition()
        log, epoch = partition.log, partition.shard.leader_epoch()
        log.appender.append_as_leader(sent_by(1, 0, is_transactional=True), epoch)
        end_transaction(partition, 1, EPOCH, committed=False)
        log.appender.append_as_leader(sent_by(1, 2, is_transactional=True), epoch)
        await bench.take_producer_ids(7)
        await append(bench, sent_by(7, 0))
        with unstable_uploads():
            await bench.client.admin.upload()
        before = await seen(bench, "t")
    async with service_bench("/", filesystem=MemoryFileSystem(), store=store) as bench:
        assert await seen(bench, "t") == before
        assert await bench.client.latest("t", isolation=IsolationLevel.READ_COMMITTED) == {T0: 3}
        partition = bench.partition()
        with pytest.raises(ProducerFencedError):
            end_transaction(partition, 1, EPOCH - 1, committed=committed)
        end_transaction(partition, 1, EPOCH, committed=committed)
        assert await bench.client.latest("t", isolation=IsolationLevel.READ_COMMITTED) == {T0: 8}
        [records] = await bench.read_all("t", isolation=IsolationLevel.READ_COMMITTED)
        assert [record.offset for record in records] == ([3, 4, 5, 6] if committed else [5, 6])


async def test_producers_of_a_broker_go_on_from_the_bucket(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "data", tmp_path / "kafka")
    arguments = ["import", "kafka", f"{tmp_path}/kafka", "--data-dir", f"{tmp_path}/data"]
    assert CliRunner().invoke(stratalog, arguments, catch_exceptions=False).exit_code == 0
    async with service_bench(tmp_path, config={"producer.id.expiration.ms": str(CENTURY_MS)}) as bench:
        await bench.client.admin.upload()
        before = {name: await seen(bench, f"g1-{name}") for name in ("txn", "compacted")}
    shutil.rmtree(tmp_path / "data")
    async with service_bench(tmp_path, config={"producer.id.expiration.ms": str(CENTURY_MS)}) as bench:
        for name, isolation in product(before, IsolationLevel):
            assert await seen(bench, f"g1-{name}") == before[name]
            [records] = before[name][isolation][1]
            assert records == golden_records(GOLDEN, name, isolation.value)
        # Producer 5 is the idempotent one, and 255 its last offset; producer 2 was fenced by a time-out.
        data = (GOLDEN / "data" / "g1-txn-0" / f"{201:020}.log").read_bytes()
        [last] = [
            data[position : position + header.size_in_bytes]
            for position, header in batches(data)
            if header.base_offset == 255
        ]
        assert await append(bench, last, "g1-txn") == (255, True)
        with pytest.raises(OutOfOrderSequenceError):
            await append(bench, sent_by(5, 25, epoch=0), "g1-txn")
        with pytest.raises(ProducerFencedError):
            await append(bench, sent_by(2, 81, epoch=0), "g1-txn")
        assert await seen(bench, "g1-txn") == before["txn"]
        assert await append(bench, sent_by(5, 24, epoch=0), "g1-txn") == (259, False)
