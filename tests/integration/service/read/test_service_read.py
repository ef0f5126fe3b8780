"""Read over a loopback connection: plain records, when they come, and how a read ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.messages import fetched_parts
from stratalog.log.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.v1 import log_pb2
from tests.support.service.error_details import error_info
from tests.support.service.plain_reads import PlainRead, read_plain, reason_of
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, catalog_elsewhere, service_bench

LATEST = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)


def at(offset: int) -> log_pb2.Position:
    return log_pb2.Position(offset=offset)


def of(*numbers: int) -> list[log_pb2.ReadPartition]:
    return [log_pb2.ReadPartition(partition=number) for number in numbers]


def values_of(read: PlainRead) -> dict[int, list[bytes | None]]:
    return {number: [one.value for one in records] for number, records in read.records.items()}


class Following:
    """A read that follows."""

    def __init__(self, responses: AsyncIterator[log_pb2.ReadResponse]) -> None:
        self.read = PlainRead()
        self._responses = responses

    async def until_next(self, partition: int, offset: int) -> None:
        """Read until the partition's next offset."""
        async with asyncio.timeout(PATIENCE_S):
            while self.read.next_offsets.get(partition, -1) < offset:
                self.read.add(await anext(self._responses))

    async def until_heartbeats(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.read.heartbeat_count < count:
                self.read.add(await anext(self._responses))

    async def until_end(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            async for response in self._responses:
                self.read.add(response)


@asynccontextmanager
async def following(bench: ServiceBench, **fields: object) -> AsyncGenerator[Following]:
    request = log_pb2.ReadRequest(topic="t", follow=True, **fields)  # type: ignore[arg-type]  # of the message
    call = bench.client.log.Read(request)
    try:
        yield Following(aiter(call))
    finally:
        call.cancel()


async def with_topic(
    bench: ServiceBench, partition_count: int = 1, config: Mapping[str, str] | None = None
) -> None:
    await bench.client.admin.create_topic("t", partition_count, config)


async def test_a_large_batch_that_is_still_in_memory_is_read_as_a_whole(bench: ServiceBench) -> None:
    await with_topic(bench)
    values = [bytes(100_000), b"small", b"x" * 90_000]
    for value in values:
        await bench.append("t", [value])
    assert values_of(await read_plain(bench, log_pb2.ReadRequest(topic="t"))) == {0: values}
    [answer] = await bench.client.fetch({TopicPartition("t", 0): 0})
    assert [one.value for part in fetched_parts(answer, 0) for one in part.records] == values


async def refusal(bench: ServiceBench, request: log_pb2.ReadRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_plain(bench, request)
    return caught.value.code(), reason_of(caught.value)


# --- ends --------------------------------------------------------------------------------------------------


async def test_a_read_of_a_topic_has_all_partitions_and_ends_at_their_ends(bench: ServiceBench) -> None:
    await with_topic(bench, 3)
    for number in range(2):
        await bench.append("t", [b"%d" % number] * (number + 1), partition=number)
    read = await read_plain(bench, log_pb2.ReadRequest(topic="t"))
    assert values_of(read) == {0: [b"0"], 1: [b"1", b"1"], 2: []}
    assert read.next_offsets == {0: 1, 1: 2, 2: 0}
    assert read.last_epochs == {0: 1, 1: 1, 2: -1}
    [topic] = await bench.client.admin.list_topics()
    response = await anext(aiter(bench.client.log.Read(log_pb2.ReadRequest(topic="t"))))
    assert response.topic_id == str(topic.topic_id)
    marks = {part.partition: (part.log_start_offset, part.high_watermark) for part in response.partitions}
    assert marks == {0: (0, 1), 1: (0, 2), 2: (0, 0)}


async def test_a_partition_may_have_a_start_of_its_own(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    for number in range(2):
        await bench.append("t", [b"0", b"1", b"2"], partition=number)
    partitions = [
        log_pb2.ReadPartition(partition=1),
        log_pb2.ReadPartition(partition=0, start=log_pb2.Position(tail_count=1)),
    ]
    read = await read_plain(bench, log_pb2.ReadRequest(topic="t", partitions=partitions, start=at(1)))
    assert values_of(read) == {1: [b"1", b"2"], 0: [b"2"]}


async def test_the_limit_counts_over_all_partitions(bench: ServiceBench) -> None:
    await with_topic(bench, 3)
    for number in range(3):
        await bench.append("t", [b"x"] * 4, partition=number)
    for limit in range(1, 13):
        request = log_pb2.ReadRequest(topic="t", max_record_count=limit, follow=True)
        read = await read_plain(bench, request)
        assert sum(map(len, read.records.values())) == limit
        assert read.next_offsets == {number: len(read.records[number]) for number in range(3)}


async def test_records_that_come_while_a_read_runs_are_not_for_it(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_topic(bench)
    await bench.append("t", [b"before"])
    responses = aiter(bench.client.log.Read(log_pb2.ReadRequest(topic="t", start=at(0), until=at(99))))
    read = PlainRead()
    read.add(await anext(responses))
    await bench.append("t", [b"behind"])
    async for response in responses:
        read.add(response)
    assert values_of(read) == {0: [b"before"]}


async def test_a_read_that_follows_ends_at_until(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"0"])
    async with following(bench, until=at(3)) as reader:
        await reader.until_next(0, 1)
        await bench.append("t", [b"1", b"2", b"3", b"4"])
        await reader.until_end()
    assert values_of(reader.read) == {0: [b"0", b"1", b"2"]}
    assert reader.read.next_offsets == {0: 3}


async def test_a_hole_at_the_end_is_read_over(bench: ServiceBench) -> None:
    await with_topic(bench, config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
    await bench.client.append("t", 0, [Record(0, 1000, b"k", None)] * 3)
    for _ in range(2):
        await bench.client.admin.upload([], delete_local=True)
        await bench.client.admin.run_compaction(["t"])
    for request in (log_pb2.ReadRequest(topic="t"), log_pb2.ReadRequest(topic="t", until=at(2))):
        read = await read_plain(bench, request)
        assert values_of(read) == {0: []}
        assert read.next_offsets == {0: 2 if request.HasField("until") else 3}


# --- following ---------------------------------------------------------------------------------------------


async def test_a_reader_knows_its_place_before_the_first_record(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"old", b"old"])
    async with following(bench, start=LATEST) as reader:
        await reader.until_next(0, 2)
        assert values_of(reader.read) == {0: []}
        await bench.append("t", [b"new"])
        await reader.until_next(0, 3)
    assert values_of(reader.read) == {0: [b"new"]}


async def test_heartbeats_come_while_nothing_else_does(bench: ServiceBench) -> None:
    await with_topic(bench)
    async with following(bench, heartbeat_ms=100) as reader:
        await reader.until_heartbeats(3)
        await bench.append("t", [b"x"])
        await reader.until_next(0, 1)
        await reader.until_heartbeats(4)
    assert values_of(reader.read) == {0: [b"x"]}


async def test_partitions_that_are_added_are_read_from_their_start(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"old"])
    async with following(bench, start=LATEST) as reader, following(bench, partitions=of(0)) as of_one:
        await reader.until_next(0, 1)
        await of_one.until_next(0, 1)
        await bench.until_waiting(2)
        catalog = catalog_elsewhere(bench.server.engine.tier.store)
        catalog.alter(catalog.topics()["t"].topic_id, partition_count=3)
        await bench.refresh()
        await reader.until_next(2, 0)
        await bench.append("t", [b"added"], partition=2)
        await reader.until_next(2, 1)
        await bench.append("t", [b"new"])
        await reader.until_next(0, 2)
        await of_one.until_next(0, 2)
    assert values_of(reader.read) == {0: [b"new"], 1: [], 2: [b"added"]}
    assert values_of(of_one.read) == {0: [b"old", b"new"]}


async def test_a_read_from_both_tiers_goes_on_in_the_local_log(bench: ServiceBench) -> None:
    await with_topic(bench)
    for number in range(4):
        await bench.append("t", [b"%d" % number])
        if number == 1:
            await bench.client.admin.upload(delete_local=True)
    async with following(bench) as reader:
        await reader.until_next(0, 4)
        await bench.append("t", [b"4"])
        await reader.until_next(0, 5)
    assert values_of(reader.read) == {0: [b"0", b"1", b"2", b"3", b"4"]}


async def test_a_deleted_topic_ends_its_readers(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    async with following(bench) as reader:
        await reader.until_next(1, 0)
        await bench.client.admin.delete_topic("t")
        await reader.until_end()
    assert reader.read.errors == dict.fromkeys((0, 1), "UNKNOWN_TOPIC_OR_PARTITION")


async def test_a_server_that_stops_ends_a_read_with_stopping(tmp_path: Path) -> None:
    async with service_bench(tmp_path, shutdown_grace_s=PATIENCE_S) as bench:
        await with_topic(bench)
        async with following(bench) as reader:
            await reader.until_next(0, 0)
            await bench.until_waiting(1)
            stopping = asyncio.create_task(bench.server.stop())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await reader.until_end()
            assert reason_of(caught.value) == "STOPPING"
            await asyncio.wait_for(stopping, PATIENCE_S / 2)


# --- failures ----------------------------------------------------------------------------------------------


async def test_the_failure_of_one_partition_leaves_the_others(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    await bench.append("t", [b"x"])
    request = log_pb2.ReadRequest(topic="t", partitions=of(7, 0))
    request.partitions.add(partition=1).start.offset = 5
    read = await read_plain(bench, request)
    assert read.errors == {7: "UNKNOWN_TOPIC_OR_PARTITION", 1: "OFFSET_OUT_OF_RANGE"}
    assert values_of(read)[0] == [b"x"]


async def test_the_failure_of_a_single_partition_is_that_of_the_call(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    request = log_pb2.ReadRequest(topic="t", partitions=of(1), start=at(1))
    assert await refusal(bench, request) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE")
    request = log_pb2.ReadRequest(topic="t", start=at(1))
    assert set((await read_plain(bench, request)).errors) == {0, 1}


async def test_a_damaged_batch_fails_after_the_records_before_it(bench: ServiceBench) -> None:
    await with_topic(bench, 2)
    for number in range(4):
        await bench.append("t", [b"%d" % number])
    await bench.append("t", [b"x"], partition=1)
    local_log = bench.partition().log.local_log
    # The file is read, as if others had been appended since.
    local_log.tail.clear()
    path = Path(local_log.directory) / f"{0:020d}.log"
    stored = bytearray(path.read_bytes())
    # A byte of the third batch that no header has.
    stored[len(stored) * 3 // 4 - 3] ^= 1
    path.write_bytes(stored)
    read = await read_plain(bench, log_pb2.ReadRequest(topic="t"))
    assert values_of(read) == {0: [b"0", b"1"], 1: [b"x"]}
    assert (read.errors, read.next_offsets[0]) == ({0: "CORRUPT_RECORD"}, 2)
    async with following(bench, partitions=of(0)) as reader:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reader.until_end()
    assert reason_of(caught.value) == "CORRUPT_RECORD"
    assert values_of(reader.read) == {0: [b"0", b"1"]}


async def test_another_topic_of_the_name_is_not_read(bench: ServiceBench) -> None:
    await with_topic(bench)
    [topic] = await bench.client.admin.list_topics()
    request = log_pb2.ReadRequest(topic="t", topic_id=str(topic.topic_id))
    assert (await read_plain(bench, request)).next_offsets == {0: 0}
    await bench.client.admin.delete_topic("t")
    await with_topic(bench)
    code, reason = await refusal(bench, request)
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "INCONSISTENT_TOPIC_ID")


async def test_a_read_without_sense_is_refused(bench: ServiceBench) -> None:
    await with_topic(bench)
    unknown = log_pb2.ReadRequest(topic="nope")
    assert await refusal(bench, unknown) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC_OR_PARTITION")
    for request in (
        log_pb2.ReadRequest(topic="t", partitions=of(0, 0)),
        log_pb2.ReadRequest(topic="t", partitions=of(*range(10_001))),
        log_pb2.ReadRequest(topic="t", max_record_count=-1),
        log_pb2.ReadRequest(topic="t", heartbeat_ms=99),
        log_pb2.ReadRequest(topic="t", isolation=7),  # type: ignore[arg-type]  # on purpose
        log_pb2.ReadRequest(topic="t", partitions=of(0), start=log_pb2.Position()),
        log_pb2.ReadRequest(topic="t", partitions=of(0), start=log_pb2.Position(tail_count=-1)),
        log_pb2.ReadRequest(topic="t", partitions=of(0), until=log_pb2.Position(timestamp_ms=-1)),
        log_pb2.ReadRequest(topic="t", partitions=of(0), until=log_pb2.Position(spec=99)),  # type: ignore[arg-type]  # on purpose
    ):
        assert await refusal(bench, request) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


# --- positions of Fetch, FetchStream and ListOffsets -------------------------------------------------------

SPEC = log_pb2.OffsetSpec


async def filled(bench: ServiceBench) -> None:
    """Offsets 0 to 5 at times 10 to 60; 0 and 1 are in the object store alone."""
    await with_topic(bench)
    await bench.client.append("t", 0, [Record(0, 10 * n, None, b"x") for n in (1, 2)])
    await bench.client.admin.upload(delete_local=True)
    await bench.client.append("t", 0, [Record(0, 10 * n, None, b"x") for n in (3, 4, 5, 6)])


@pytest.mark.parametrize(
    ("position", "offset"),
    [
        (None, 0),
        (log_pb2.Position(offset=3), 3),
        (log_pb2.Position(timestamp_ms=20), 1),
        (log_pb2.Position(timestamp_ms=41), 4),
        (log_pb2.Position(timestamp_ms=61), 6),
        (log_pb2.Position(tail_count=0), 6),
        (log_pb2.Position(tail_count=2), 4),
        (log_pb2.Position(tail_count=100), 0),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_EARLIEST), 0),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_LATEST), 6),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_MAX_TIMESTAMP), 5),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_EARLIEST_LOCAL), 2),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_LATEST_TIERED), 1),
    ],
    ids=lambda value: str(value).strip(),
)
async def test_every_reader_begins_at_the_same_place(
    bench: ServiceBench, position: log_pb2.Position | None, offset: int
) -> None:
    await filled(bench)
    wanted = log_pb2.FetchPartition(topic="t", start=position)
    request = log_pb2.FetchRequest(partitions=[wanted])
    [answer] = (await bench.client.log.Fetch(request)).partitions
    assert answer.fetch_offset == offset
    assert answer.next_fetch_offset > offset or offset == 6
    query = log_pb2.OffsetQuery(topic="t", at=position or log_pb2.Position(offset=0))
    [found] = (await bench.client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).answers
    assert found.offset == (-1 if query.at.timestamp_ms > 60 else offset)
    call = bench.client.log.FetchStream(request)
    async with asyncio.timeout(PATIENCE_S):
        next_offset, is_first = offset, True
        while is_first or next_offset < 6:
            [answer] = (await anext(aiter(call))).partitions
            assert answer.fetch_offset == next_offset
            next_offset, is_first = answer.next_fetch_offset, False
        await bench.append("t", [b"behind"])
        [answer] = (await anext(aiter(call))).partitions
        assert (answer.fetch_offset, answer.next_fetch_offset) == (6, 7)
    call.cancel()


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (log_pb2.Position(), "INVALID_REQUEST"),
        (log_pb2.Position(timestamp_ms=-1), "INVALID_REQUEST"),
        (log_pb2.Position(tail_count=-1), "INVALID_REQUEST"),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_UNSPECIFIED), "INVALID_REQUEST"),
        (log_pb2.Position(offset=-1), "OFFSET_OUT_OF_RANGE"),
        (log_pb2.Position(offset=1), "OFFSET_OUT_OF_RANGE"),
        (log_pb2.Position(spec=SPEC.OFFSET_SPEC_LATEST_TIERED), "OFFSET_OUT_OF_RANGE"),
    ],
    ids=lambda value: str(value).strip(),
)
async def test_a_place_that_is_not_there_fails_its_partition(
    bench: ServiceBench, position: log_pb2.Position, reason: str
) -> None:
    await with_topic(bench, 2)
    wanted = log_pb2.FetchPartition(topic="t", start=position)
    request = log_pb2.FetchRequest(partitions=[wanted, log_pb2.FetchPartition(topic="t", partition=1)])
    answer, other = (await bench.client.log.Fetch(request)).partitions
    assert error_info(answer.error).reason == reason
    assert not other.HasField("error")
    query = log_pb2.OffsetQuery(topic="t", at=position)
    [found] = (await bench.client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).answers
    is_name = position.spec == SPEC.OFFSET_SPEC_LATEST_TIERED
    assert error_info(found.error).reason == ("" if is_name else reason)
    assert found.offset == -1


async def test_a_record_that_comes_during_a_search_by_time_is_not_skipped(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_topic(bench)
    await bench.client.append("t", 0, [Record(0, 10, None, b"early")])
    search = LogReader.offset_for_timestamp

    def search_too_early(
        reader: LogReader, timestamp_ms: int, isolation: Isolation
    ) -> TimestampOffset | None:
        found = search(reader, timestamp_ms, isolation)
        monkeypatch.undo()
        batch = encode_batch([Record(0, 30, None, b"late")])
        partition = bench.partition()
        partition.log.appender.append_as_leader(batch, partition.shard.leader_epoch())
        return found

    monkeypatch.setattr(LogReader, "offset_for_timestamp", search_too_early)
    wanted = log_pb2.FetchPartition(topic="t", start=log_pb2.Position(timestamp_ms=20))
    [answer] = (await bench.client.log.Fetch(log_pb2.FetchRequest(partitions=[wanted]))).partitions
    assert (answer.fetch_offset, answer.next_fetch_offset) == (1, 2)


async def test_a_session_by_name_goes_on_from_the_offset_that_it_told(bench: ServiceBench) -> None:
    await with_topic(bench)
    await bench.append("t", [b"0", b"1"])
    wanted = log_pb2.FetchPartition(topic="t", start=LATEST)
    call = bench.client.log.FetchStream(log_pb2.FetchRequest(partitions=[wanted]))
    [answer] = (await anext(aiter(call))).partitions
    assert (answer.fetch_offset, answer.next_fetch_offset, answer.batches) == (2, 2, b"")
    call.cancel()
    await bench.append("t", [b"2"])
    [fetched] = await bench.client.fetch({TopicPartition("t", 0): answer.next_fetch_offset})
    assert (fetched.fetch_offset, fetched.next_fetch_offset) == (2, 3)
