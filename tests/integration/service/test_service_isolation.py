"""Transactions as readers see them over a loopback connection, at both isolation levels.

No client can send a transaction yet: the tests append transactional batches, and the markers that end them,
to the server's own logs.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import fetched_parts
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.v1 import log_pb2
from tests.support.logs.sampling import examples_of
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, end_transaction, service_bench
from tests.support.tiered.unstable_uploads import unstable_uploads

T0 = TopicPartition("t", 0)
MAX_TIME_MS = 100
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
COMMITTED = IsolationLevel.READ_COMMITTED
PLAIN = -1
"""Instead of a producer's id."""


class Step(NamedTuple):
    """The next event: `producer` sends records of these times, or its transaction ends."""

    producer: int
    times_ms: tuple[int, ...]
    ends: bool
    committed: bool


STEPS = st.lists(
    st.builds(
        Step,
        producer=st.sampled_from([PLAIN, 1, 2, 3]),
        times_ms=st.lists(st.integers(0, MAX_TIME_MS), min_size=1, max_size=3).map(tuple),
        ends=st.booleans(),
        committed=st.booleans(),
    ),
    max_size=30,
)


class Entry(NamedTuple):
    """One offset of the log. A marker has no value, and the time of its append."""

    offset: int
    timestamp_ms: int
    value: bytes | None


def value_of(producer: int, offset: int) -> bytes:
    """Some of them fill the smallest segment that can be had."""
    return (b"%d:%d" % (producer, offset)).ljust(200, b".")


class Oracle:
    """Knows what was sent and how each transaction ended, and nothing else."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.aborted: set[int] = set()
        """Offsets of records."""
        self.open: dict[int, list[int]] = {}

    @property
    def end_offset(self) -> int:
        return len(self.entries)

    def latest(self, isolation: IsolationLevel) -> int:
        if isolation is UNCOMMITTED:
            return self.end_offset
        return min((offsets[0] for offsets in self.open.values()), default=self.end_offset)

    def records(self, isolation: IsolationLevel, start_offset: int = 0) -> list[tuple[int, bytes | None]]:
        hidden = self.aborted if isolation is COMMITTED else set[int]()
        return [
            (entry.offset, entry.value)
            for entry in self.entries[start_offset : self.latest(isolation)]
            if entry.value is not None and entry.offset not in hidden
        ]

    def at_time(self, timestamp_ms: int, isolation: IsolationLevel) -> int:
        seen = self.entries[: self.latest(isolation)]
        return next((entry.offset for entry in seen if entry.timestamp_ms >= timestamp_ms), -1)

    def at_max_time(self, isolation: IsolationLevel) -> int:
        seen = self.entries[: self.latest(isolation)]
        return max(seen, key=lambda entry: (entry.timestamp_ms, -entry.offset)).offset if seen else -1


class Writer:
    """Appends to a partition of the server, and tells the oracle."""

    def __init__(self, partition: HostedPartition) -> None:
        self.oracle = Oracle()
        self._partition = partition
        self._next_sequence: dict[int, int] = {}

    def send(self, producer: int, *times_ms: int) -> None:
        base_offset = self.oracle.end_offset
        for offset, timestamp_ms in enumerate(times_ms, base_offset):
            self.oracle.entries.append(Entry(offset, timestamp_ms, value_of(producer, offset)))
        records = [Record(0, entry.timestamp_ms, b"k", entry.value) for entry in self.oracle.entries]
        identity = BatchProducer()
        if producer != PLAIN:
            sequence = self._next_sequence.get(producer, 0)
            self._next_sequence[producer] = sequence + len(times_ms)
            identity = BatchProducer(producer, 0, sequence, is_transactional=True)
            self.oracle.open.setdefault(producer, []).extend(range(base_offset, self.oracle.end_offset))
        batch = encode_batch(records[base_offset:], producer=identity)
        appended = self._partition.log.appender.append_as_leader(batch, self._partition.shard.leader_epoch())
        assert appended.base_offset == base_offset

    def end(self, producer: int, *, committed: bool) -> None:
        offsets = self.oracle.open.pop(producer)
        if not committed:
            self.oracle.aborted.update(offsets)
        marker = end_transaction(self._partition, producer, committed=committed)
        assert marker.base_offset == self.oracle.end_offset
        header = self._partition.log.reader.header_at(marker.base_offset)
        assert header is not None
        self.oracle.entries.append(Entry(marker.base_offset, header.max_timestamp, None))


async def writer_to(bench: ServiceBench, **config: str) -> Writer:
    await bench.client.admin.create_topic("t", config=config)
    return Writer(bench.server.engine.registry.partition("t", 0))


async def offset_at(
    bench: ServiceBench,
    isolation: IsolationLevel,
    spec: log_pb2.OffsetSpec.ValueType | None,
    timestamp_ms: int | None = None,
) -> int:
    [answer] = await bench.client.list_offsets([(T0, spec, timestamp_ms)], isolation=isolation)
    return answer.offset


async def fetched_in_pieces(
    bench: ServiceBench, isolation: IsolationLevel, start_offset: int, max_bytes: int
) -> list[tuple[int, bytes | None]]:
    """Each answer is read by itself, and says where the partition ends."""
    offset, found = start_offset, list[tuple[int, bytes | None]]()
    while True:
        [answer] = await bench.client.fetch({T0: offset}, partition_max_bytes=max_bytes, isolation=isolation)
        found += [
            (record.offset, record.value) for part in fetched_parts(answer, offset) for record in part.records
        ]
        end_offset = answer.high_watermark if isolation is UNCOMMITTED else answer.last_stable_offset
        if answer.next_fetch_offset == offset:
            assert offset == max(end_offset, start_offset)
            return found
        offset = answer.next_fetch_offset
        assert offset <= end_offset


@given(
    steps=STEPS,
    max_bytes=st.sampled_from([1, 500, 1500, 1 << 20]),
    start_share=st.sampled_from([0.0, 0.3, 0.8]),
    segment_bytes=st.sampled_from(["1024", "100000"]),
    uploads=st.sets(st.integers(0, 29), max_size=2),
)
@settings(max_examples=examples_of(4))
def test_readers_get_what_was_committed_or_all_there_is_from_either_tier(
    steps: list[Step], max_bytes: int, start_share: float, segment_bytes: str, uploads: set[int]
) -> None:
    async def run() -> None:
        store = MemoryObjectStore(SystemClock())
        async with service_bench("/", filesystem=MemoryFileSystem(), store=store) as bench:
            writer = await writer_to(bench, **{"segment.bytes": segment_bytes})
            for number, step in enumerate(steps):
                if step.ends and step.producer in writer.oracle.open:
                    writer.end(step.producer, committed=step.committed)
                else:
                    writer.send(step.producer, *step.times_ms)
                if number in uploads:
                    await bench.client.admin.upload(delete_local=True)
            start_offset = int(start_share * writer.oracle.end_offset)
            for isolation in IsolationLevel:
                await require_records(bench, writer.oracle, isolation, start_offset, max_bytes)
                await require_offsets(bench, writer.oracle, isolation)
                await require_times(bench, writer.oracle, isolation)

    asyncio.run(run())


async def test_a_transaction_that_is_open_below_the_tiered_end_is_not_yet_committed(
    bench: ServiceBench,
) -> None:
    writer = await writer_to(bench)
    writer.send(PLAIN, 10, 20)
    writer.send(1, 30, 90)
    writer.send(PLAIN, 40)
    with unstable_uploads():
        await bench.client.admin.upload(delete_local=True)
    assert bench.server.engine.registry.partition("t", 0).tiered_end_offset == 5
    for turn in range(2):
        for isolation in IsolationLevel:
            await require_records(bench, writer.oracle, isolation, 0, 1)
            await require_offsets(bench, writer.oracle, isolation)
            await require_times(bench, writer.oracle, isolation)
        if turn == 0:
            assert await offset_at(bench, COMMITTED, None, 30) == -1
            writer.end(1, committed=True)


async def require_offsets(bench: ServiceBench, oracle: Oracle, isolation: IsolationLevel) -> None:
    assert await offset_at(bench, isolation, log_pb2.OFFSET_SPEC_EARLIEST) == 0
    assert await offset_at(bench, isolation, log_pb2.OFFSET_SPEC_LATEST) == oracle.latest(isolation)


async def require_times(bench: ServiceBench, oracle: Oracle, isolation: IsolationLevel) -> None:
    newest = await offset_at(bench, isolation, log_pb2.OFFSET_SPEC_MAX_TIMESTAMP)
    assert newest == oracle.at_max_time(isolation)
    for timestamp_ms in (0, MAX_TIME_MS // 2, MAX_TIME_MS, MAX_TIME_MS + 1):
        found = await offset_at(bench, isolation, None, timestamp_ms)
        assert found == oracle.at_time(timestamp_ms, isolation), timestamp_ms


async def require_records(
    bench: ServiceBench, oracle: Oracle, isolation: IsolationLevel, start_offset: int, max_bytes: int
) -> None:
    pieces = await fetched_in_pieces(bench, isolation, start_offset, max_bytes)
    assert pieces == oracle.records(isolation, start_offset)
    [consumed] = await bench.read_all("t", isolation=isolation)
    assert [(record.offset, record.value) for record in consumed] == oracle.records(isolation)


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_poll_for_committed_records_wakes_when_their_transaction_ends(
    bench: ServiceBench, durability: str, committed: bool
) -> None:
    writer = await writer_to(bench, **{"min.durability": durability})
    writer.send(1, 10)
    await bench.append("t", [b"behind it"])
    poll = asyncio.create_task(bench.client.fetch({T0: 0}, max_wait_ms=60_000, isolation=COMMITTED))
    await bench.until_waiting(1)
    [answer] = await bench.client.fetch({T0: 0}, max_wait_ms=60_000)
    assert (answer.next_fetch_offset, answer.high_watermark, answer.last_stable_offset) == (2, 2, 0)
    assert not poll.done()
    partition = bench.server.engine.registry.partition("t", 0)
    await asyncio.to_thread(end_transaction, partition, 1, committed=committed)
    [answer] = await asyncio.wait_for(poll, PATIENCE_S)
    assert (answer.next_fetch_offset, answer.high_watermark, answer.last_stable_offset) == (3, 3, 3)
    told = [(one.producer_id, one.first_offset, one.last_offset) for one in answer.aborted_transactions]
    assert told == ([] if committed else [(1, 0, 2)])
    values = [record.value for part in fetched_parts(answer, 0) for record in part.records]
    assert values == ([value_of(1, 0), b"behind it"] if committed else [b"behind it"])


async def test_a_session_follows_the_last_stable_offset(bench: ServiceBench) -> None:
    writer = await writer_to(bench)
    fetches = bench.client.consumer({T0: 0}, isolation=COMMITTED).fetches()
    for turn, committed in enumerate([True, False, True]):
        writer.send(1, 10)
        writer.send(PLAIN, 20)
        coming = asyncio.ensure_future(anext(fetches))
        await bench.until_waiting(1)
        assert not coming.done()
        writer.end(1, committed=committed)
        fetched = await asyncio.wait_for(coming, PATIENCE_S)
        found = [(record.offset, record.value) for record in fetched.records]
        assert found == writer.oracle.records(COMMITTED, 3 * turn)
    await fetches.aclose()


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
