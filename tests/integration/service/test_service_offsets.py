"""ListOffsets across both tiers, beside an oracle that knows every record."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import grpc
import pytest

from stratalog.base.errors import InvalidRequestError, StoreUnavailableError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.client.position import SPECS, NamedPosition, TimePosition
from stratalog.record.record import Record
from stratalog.server.worker_pools import WorkerPools
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.service.error_details import error_info
from tests.support.service.service_bench import ServiceBench

T0 = TopicPartition("t", 0)


class Answer(NamedTuple):
    offset: int
    timestamp_ms: int = -1


async def by_name(bench: ServiceBench, name: str) -> Answer:
    [answer] = await bench.client.list_offsets([(T0, name)])
    return Answer(answer.offset, answer.timestamp_ms)


async def by_time(bench: ServiceBench, timestamp_ms: int) -> Answer:
    [answer] = await bench.client.list_offsets([(T0, TimePosition(timestamp_ms))])
    return Answer(answer.offset, answer.timestamp_ms)


async def all_specs(bench: ServiceBench) -> dict[str, int]:
    answers = await bench.client.list_offsets([(T0, name) for name in SPECS])
    names = [name.replace("-", "_") for name in SPECS]
    return dict(zip(names, [answer.offset for answer in answers], strict=True))


async def append(bench: ServiceBench, *timestamps_ms: int) -> None:
    await bench.client.append("t", 0, [Record(0, timestamp_ms, b"k", b"v") for timestamp_ms in timestamps_ms])


async def test_every_name_of_an_offset_as_data_moves_through_the_tiers(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"cleanup.policy": "compact"})
    empty = {
        "earliest": 0,
        "latest": 0,
        "max_timestamp": -1,
        "earliest_local": 0,
        "latest_tiered": -1,
        "earliest_pending_upload": 0,
        "compacted_upto": 0,
    }
    assert await all_specs(bench) == empty
    await append(bench, 10, 30, 20)
    assert await all_specs(bench) == {**empty, "latest": 3, "max_timestamp": 1}
    await bench.client.admin.upload()
    tiered = {**empty, "latest": 3, "max_timestamp": 1, "latest_tiered": 2, "earliest_pending_upload": 3}
    assert await all_specs(bench) == tiered
    await bench.client.admin.upload(delete_local=True)
    assert await all_specs(bench) == {**tiered, "earliest_local": 3}
    await append(bench, 25)
    assert await all_specs(bench) == {**tiered, "earliest_local": 3, "latest": 4}
    assert await bench.client.admin.delete_records("t", 0, 2) == 2
    moved = await all_specs(bench)
    assert (moved["earliest"], moved["latest"], moved["max_timestamp"]) == (2, 4, 3)


async def test_readers_learn_of_compaction_once_it_is_served_and_operators_at_once(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t", config={"cleanup.policy": "compact"})
    for _ in range(2):
        await append(bench, *range(10))
        await bench.client.admin.upload()
    [job] = await bench.client.admin.run_compaction(["t"])
    assert (job.input_record_count, job.output_record_count) == (20, 1)
    state = bench.partition().tier_state()
    assert state is not None
    assert state.compacted_upto == 20
    assert (await all_specs(bench))["compacted_upto"] == 0, "the local copy still has every record"
    [described] = await bench.client.admin.describe_log("t")
    assert described.compacted_upto == 20, "the object store has one record"
    await bench.client.admin.upload(delete_local=True)
    assert (await all_specs(bench))["compacted_upto"] == 20


async def test_a_topic_that_is_not_tiered_has_nothing_pending(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"remote.storage.enable": "false"})
    await append(bench, 1, 2)
    answers = await all_specs(bench)
    assert (answers["latest_tiered"], answers["earliest_pending_upload"], answers["latest"]) == (
        -1,
        -1,
        2,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_a_search_by_time_finds_the_first_record_in_whichever_tier(
    bench: ServiceBench, seed: int
) -> None:
    chance = random.Random(seed)
    await bench.client.admin.create_topic("t")
    timestamps: list[int] = []
    for turn in range(6):
        for _ in range(chance.randrange(1, 6)):
            times = [chance.randrange(1000) for _ in range(chance.randrange(1, 5))]
            await append(bench, *times)
            timestamps += times
        if turn in (1, 3):
            await bench.client.admin.upload(delete_local=chance.random() < 0.7)
    log_start_offset = chance.randrange(len(timestamps) // 3)
    await bench.client.admin.delete_records("t", 0, log_start_offset)
    readable = list(enumerate(timestamps))[log_start_offset:]
    for wanted in (0, *(chance.randrange(1100) for _ in range(20)), 10**12):
        found = next((Answer(*at) for at in readable if at[1] >= wanted), Answer(-1))
        assert await by_time(bench, wanted) == found, (wanted, timestamps)
    newest = max(readable, key=lambda at: (at[1], -at[0]))
    assert await by_name(bench, "max-timestamp") == Answer(*newest)


LOOKS = {"offset_for_timestamp": Answer(1, 2000), "max_timestamp": Answer(2, 4000)}


@pytest.mark.parametrize("local_look", LOOKS)
async def test_segments_that_are_deleted_between_the_looks_into_the_tiers_are_found(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, local_look: str
) -> None:
    await bench.client.admin.create_topic("t")
    for timestamp_ms in (1000, 2000, 4000, 4000):
        await append(bench, timestamp_ms)
        await bench.client.admin.upload()
    engine = bench.server.engine
    reader = engine.topics.registry.partition("t", 0).log.reader
    look = getattr(reader, local_look)

    def look_too_late(*arguments: int) -> object:
        engine.tier.manager.upload_now([], delete_local=True)
        return look(*arguments)

    monkeypatch.setattr(reader, local_look, look_too_late)
    find = {
        "offset_for_timestamp": lambda: by_time(bench, 1500),
        "max_timestamp": lambda: by_name(bench, "max-timestamp"),
    }
    assert await find[local_look]() == LOOKS[local_look]


async def test_a_query_without_sense_is_refused_and_harms_no_other(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    with pytest.raises(InvalidRequestError):
        await bench.client.list_offsets([(T0, NamedPosition(log_pb2.OFFSET_SPEC_UNSPECIFIED))])
    with pytest.raises(InvalidRequestError):
        await bench.client.list_offsets([(T0, TimePosition(-5))])
    with pytest.raises(UnknownTopicOrPartitionError):
        await bench.client.list_offsets([(TopicPartition("t", 1), "latest")])
    request = log_pb2.ListOffsetsRequest()
    latest = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)
    request.queries.add(topic="nope", at=latest)
    request.queries.add(topic="t", at=latest)
    answers = (await bench.client.log.ListOffsets(request)).answers
    assert [(error_info(answer.error).reason, answer.offset) for answer in answers] == [
        ("UNKNOWN_TOPIC_OR_PARTITION", -1),
        ("", 0),
    ]


async def test_many_queries_at_once_are_answered_in_order(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", 8)
    for partition in range(8):
        await bench.append("t", [b"x"] * partition, partition) if partition else None
    latest = await asyncio.gather(*(bench.client.latest("t") for _ in range(10)))
    assert all(offsets == {TopicPartition("t", number): number for number in range(8)} for offsets in latest)


async def test_starts_and_ends_are_answered_while_no_read_of_the_store_gets_through(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_self: WorkerPools, _function: object) -> None:
        raise StoreUnavailableError("too many reads wait")

    await bench.client.admin.create_topic("t")
    await bench.append("t", [b"x"])
    monkeypatch.setattr(WorkerPools, "cold_lookup", refuse)
    assert await by_name(bench, "latest") == Answer(1)
    assert (await by_time(bench, 0)).offset == 0, "the local log has all records"
    await bench.client.admin.upload(delete_local=True)
    assert await by_name(bench, "latest") == Answer(1)
    with pytest.raises(StoreUnavailableError):
        await by_time(bench, 0)


async def test_a_request_has_a_limit_of_queries_and_the_client_has_none(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await append(bench, 10, 20)
    latest = log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)
    many = [log_pb2.OffsetQuery(topic="t", at=latest)] * 4_001
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=many))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    places = ["earliest", "latest"] * 2_001
    answers = await bench.client.list_offsets([(T0, place) for place in places])
    assert [answer.offset for answer in answers] == [0, 2] * 2_001


async def test_failures_of_all_queries_fit_the_answer(bench: ServiceBench) -> None:
    name = "t" * 249
    await bench.client.admin.create_topic(name)
    outside = log_pb2.OffsetQuery(topic=name, at=log_pb2.Position(offset=(1 << 63) - 1))
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = log_pb2_grpc.LogServiceStub(channel)
        response = await stub.ListOffsets(log_pb2.ListOffsetsRequest(queries=[outside] * 4_000))
    assert len(response.answers) == 4_000
    assert all(answer.HasField("error") for answer in response.answers)
