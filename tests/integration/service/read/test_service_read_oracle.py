"""Read beside Fetch and a plain decoder, on random logs and from random places."""

from __future__ import annotations

import random

import grpc
import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import wire_isolation
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.reading import record_sections
from stratalog.record.record import Record
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.read import read_encoding
from stratalog.v1 import log_pb2
from tests.support.logs.sampling import Sampling
from tests.support.service.plain_reads import fetched_records, read_plain, reason_of
from tests.support.service.service_bench import ServiceBench, end_transaction

T0 = TopicPartition("t", 0)
ISOLATIONS = list(IsolationLevel)
SPECS = [spec for spec in log_pb2.OffsetSpec.values() if spec != log_pb2.OFFSET_SPEC_UNSPECIFIED]
CONFIG = {"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": "60000"}


class RandomLog:
    """Appends at random to one partition."""

    def __init__(self, partition: HostedPartition, chance: random.Random) -> None:
        self.partition = partition
        self.chance = chance
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        self.now_ms = 1000

    def append(self) -> None:
        producer = BatchProducer()
        records = [self._record() for _ in range(self.chance.choice([1, 1, 3, 40]))]
        if self.chance.random() < 0.5:
            producer_id = self.chance.randrange(1, 4)
            sequence = self.sequences.get(producer_id, 0)
            producer = BatchProducer(producer_id, 0, sequence, is_transactional=True)
            self.sequences[producer_id] = sequence + len(records)
            self.open.add(producer_id)
        batch = encode_batch(records, codec=self.chance.choice(list(Codec)), producer=producer)
        self.partition.log.appender.append_as_leader(batch, self.partition.shard.leader_epoch())

    def end_one(self) -> None:
        if self.open:
            producer_id = self.chance.choice(sorted(self.open))
            self.open.discard(producer_id)
            end_transaction(self.partition, producer_id, committed=self.chance.random() < 0.5)

    def _record(self) -> Record:
        self.now_ms += self.chance.choice([0, 1, 7, -3])
        chance = self.chance
        value = None if chance.random() < 0.1 else chance.randbytes(1) * chance.choice([0, 5, 60, 300, 950])
        headers = (("h", b"1"), ("h", None)) if chance.random() < 0.2 else ()
        return Record(0, self.now_ms, b"%d" % chance.randrange(12), value, headers)


async def build(bench: ServiceBench, log: RandomLog) -> None:
    for _ in range(log.chance.randrange(5, 40)):
        log.append()
        if log.chance.random() < 0.4:
            log.end_one()
        if log.chance.random() < 0.1:
            await bench.client.admin.upload(delete_local=log.chance.random() < 0.6)
        if log.chance.random() < 0.1:
            await bench.client.admin.run_compaction(["t"])


def random_position(chance: random.Random, end_offset: int, now_ms: int) -> log_pb2.Position:
    kind = chance.choice(["offset", "offset", "timestamp", "spec", "tail"])
    if kind == "offset":
        inside = chance.randrange(end_offset + 1)
        return log_pb2.Position(offset=chance.choice([inside, inside, inside, inside, -1, end_offset + 1]))
    if kind == "timestamp":
        return log_pb2.Position(timestamp_ms=chance.randrange(990, now_ms + 20))
    if kind == "tail":
        return log_pb2.Position(tail_count=chance.randrange(end_offset + 5))
    return log_pb2.Position(spec=chance.choice(SPECS))


class Places:
    """Where positions are, as ListOffsets says."""

    def __init__(self, bench: ServiceBench, isolation: IsolationLevel) -> None:
        self.bench = bench
        self.isolation = isolation

    async def at(self, position: log_pb2.Position) -> int:
        query = log_pb2.OffsetQuery(topic="t", at=position)
        request = log_pb2.ListOffsetsRequest(queries=[query], isolation=wire_isolation(self.isolation))
        [answer] = (await self.bench.client.log.ListOffsets(request)).answers
        assert not answer.HasField("error"), answer.error
        return answer.offset

    async def end(self) -> int:
        return await self.at(log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST))

    async def of_reader(self, position: log_pb2.Position) -> int | None:
        """None where a reader is refused."""
        kind = position.WhichOneof("at")
        if kind == "offset":
            return position.offset
        if kind == "tail_count":
            start = await self.at(log_pb2.Position(spec=log_pb2.OFFSET_SPEC_EARLIEST))
            return max(await self.end() - position.tail_count, start)
        found = await self.at(position)
        if found != -1:
            return found
        is_by_time = kind == "timestamp_ms" or position.spec == log_pb2.OFFSET_SPEC_MAX_TIMESTAMP
        return await self.end() if is_by_time else None


async def check_one(bench: ServiceBench, log: RandomLog, seen: set[str]) -> None:
    chance, partition = log.chance, log.partition
    isolation = chance.choice(ISOLATIONS)
    places = Places(bench, isolation)
    request = log_pb2.ReadRequest(
        topic="t",
        isolation=wire_isolation(isolation),
        max_record_count=chance.choice([0, 0, 1, 5, 100]),
        partitions=[log_pb2.ReadPartition()],
    )
    now_ms, log_end_offset = log.now_ms, partition.log_end_offset
    start_offset: int | None = partition.log_start_offset
    if chance.random() < 0.8:
        start = random_position(chance, log_end_offset, now_ms)
        (request if chance.random() < 0.5 else request.partitions[0]).start.CopyFrom(start)
        start_offset = await places.of_reader(start)
        seen.add(f"start {start.WhichOneof('at')}")
    end_offset = await places.end()
    until_offset: int | None = end_offset
    if chance.random() < 0.6:
        request.until.CopyFrom(random_position(chance, log_end_offset, now_ms))
        until_offset = await places.of_reader(request.until)
        seen.add(f"until {request.until.WhichOneof('at')}")
    is_outside = start_offset is not None and not (
        partition.log_start_offset <= start_offset <= log_end_offset
    )
    if start_offset is None or until_offset is None or is_outside:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_plain(bench, request)
        assert reason_of(caught.value) == "OFFSET_OUT_OF_RANGE", request
        seen.add("refused")
        return
    until_offset = min(until_offset, end_offset)
    readable = await fetched_records(bench, "t", 0, isolation)
    expected = [one for one in readable if start_offset <= one.offset < until_offset]
    next_offset = max(start_offset, until_offset)
    if 0 < request.max_record_count <= len(expected):
        expected = expected[: request.max_record_count]
        next_offset = expected[-1].offset + 1
        seen.add("limited")
    read = await read_plain(bench, request)
    assert read.records[0] == expected, request
    assert read.next_offsets[0] == next_offset, request
    assert read.heartbeat_count == 0
    assert all(size <= 1000 or count == 1 for size, count in zip(read.sizes, read.counts, strict=True))
    if expected and expected[-1].offset + 1 == next_offset:
        assert read.last_epochs[0] == partition.shard.leader_epoch()
    seen.add("several" if len(read.sizes) > 1 else "one")


@pytest.mark.parametrize("first_seed", Sampling().at_most(range(0, 40, 10), 1))
async def test_plain_records_are_those_of_fetch(
    bench: ServiceBench, first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_encoding, "MAX_RESPONSE_BYTES", 900)
    monkeypatch.setattr(read_encoding, "MAX_STEP_BYTES", 2000)
    monkeypatch.setattr(record_sections, "WHOLE_BYTES", 1500)
    monkeypatch.setattr(record_sections, "PORTION_BYTES", 300)
    monkeypatch.setattr(record_sections, "_FILLED_BYTES", 600)
    seen: set[str] = set()
    for seed in range(first_seed, first_seed + 10):
        await bench.client.admin.create_topic("t", config=CONFIG)
        log = RandomLog(bench.partition(), random.Random(seed))
        await build(bench, log)
        for _ in range(12):
            await check_one(bench, log, seen)
        await bench.client.admin.delete_topic("t")
    kinds = ("offset", "timestamp_ms", "spec", "tail_count")
    assert {f"start {kind}" for kind in kinds} | {f"until {kind}" for kind in kinds} <= seen
    assert {"refused", "limited", "several", "one"} <= seen
