"""Lists of topics, segments, slices and producers in pages, over gRPC."""

from __future__ import annotations

from random import Random

import grpc
import pytest

from stratalog.base.errors import InvalidRequestError, UnknownTopicOrPartitionError
from stratalog.client import values
from stratalog.client.errors import error_of_call
from stratalog.client.values.conversion import values_of
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.rpc import paging
from stratalog.v1 import admin_pb2, admin_pb2_grpc, partition_pb2
from tests.support.service.service_bench import ServiceBench, end_transaction


async def page_names(bench: ServiceBench, size: int, token: str) -> tuple[list[str], str]:
    channel = grpc.aio.insecure_channel(bench.client.address)
    async with channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        page = await stub.ListTopics(admin_pb2.ListTopicsRequest(page_size=size, page_token=token))
    return [topic.name for topic in page.topics], page.next_page_token


@pytest.mark.parametrize("seed", range(3))
async def test_a_topic_that_exists_throughout_is_in_one_page(bench: ServiceBench, seed: int) -> None:
    admin, source = bench.client.admin, Random(seed)
    existing = {f"t{number:02}" for number in range(0, 20, 2)}
    for name in existing:
        await admin.create_topic(name)
    throughout, seen, token = set(existing), list[str](), ""
    while True:
        names, token = await page_names(bench, 3, token)
        seen += names
        if not token:
            break
        for name in source.sample([f"t{number:02}" for number in range(20)], 2) + names[-1:]:
            if name in existing:
                await admin.delete_topic(name)
                existing.discard(name)
                throughout.discard(name)
            else:
                await admin.create_topic(name)
                existing.add(name)
    assert seen == sorted(set(seen))
    assert throughout <= set(seen)


async def test_a_listed_topic_has_what_was_set(bench: ServiceBench) -> None:
    created = await bench.client.admin.create_topic("t", 3, {"retention.ms": "5"})
    [listed] = await bench.client.admin.list_topics()
    assert listed == values.TopicListing(
        name="t",
        topic_id=created.topic_id,
        partition_count=3,
        config_overrides={"retention.ms": "5"},
        offline_partition_count=0,
    )


async def test_a_description_names_from_one_to_a_thousand_topics(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        described = await stub.DescribeTopics(admin_pb2.DescribeTopicsRequest(names=["t"] * 1_000))
        assert len(described.topics) == 1_000
        for count in (0, 1_001):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.DescribeTopics(admin_pb2.DescribeTopicsRequest(names=["t"] * count))
            error = error_of_call(caught.value, "")
            assert isinstance(error, InvalidRequestError)
            assert error.fields == {"topic_count": count, "max_topic_count": 1_000}
    # The client asks for as many as it takes.
    assert len(await bench.client.admin.describe_topics(["t"] * 1_001)) == 1_001
    assert await bench.client.admin.describe_topics() == values_of(values.Topic, described.topics[:1])


async def test_the_client_reads_all_pages(bench: ServiceBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 2)
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await bench.client.admin.create_topic(name)
    assert [topic.name for topic in await bench.client.admin.list_topics()] == names


async def test_a_topic_that_goes_meanwhile_is_not_described(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bench.client.admin
    for name in ("2024", "a", "c"):
        await admin.create_topic(name)
    listed = await admin.list_topics()
    await admin.delete_topic("2024")

    async def list_before() -> list[values.TopicListing]:
        return listed

    monkeypatch.setattr(admin, "list_topics", list_before)
    assert [topic.name for topic in await admin.describe_topics()] == ["a", "c"]
    monkeypatch.undo()


async def test_segments_and_slices_come_in_pages(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 2)
    for _ in range(4):
        await bench.append("t", [b"x"] * 2)
        await admin.upload()
    segments = await admin.list_segments("t", 0)
    assert [(one.base_offset, one.end_offset, one.active) for one in segments] == [
        (0, 2, False),
        (2, 4, False),
        (4, 6, False),
        (6, 8, False),
        (8, 8, True),
    ]
    slices = await admin.list_slices("t", 0)
    assert [(one.base_offset, one.end_offset, one.record_count) for one in slices] == [
        (0, 2, 2),
        (2, 4, 2),
        (4, 6, 2),
        (6, 8, 2),
    ]
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        found, token = list[partition_pb2.Segment](), ""
        for expected_count in (2, 2, 1):
            page = await stub.ListSegments(
                partition_pb2.ListSegmentsRequest(topic="t", partition=0, page_size=2, page_token=token)
            )
            assert len(page.segments) == expected_count
            found, token = found + list(page.segments), page.next_page_token
        assert (values_of(values.Segment, found), token) == (segments, "")
        first = await stub.ListSlices(partition_pb2.ListSlicesRequest(topic="t", page_size=3))
        # A slice that goes does not disturb the next page.
        await admin.delete_records("t", 0, 6)
        rest = await stub.ListSlices(
            partition_pb2.ListSlicesRequest(topic="t", page_size=3, page_token=first.next_page_token)
        )
        assert values_of(values.Slice, [*first.slices, *rest.slices]) == slices
        # A token belongs to one list of one partition.
        for call in (
            stub.ListSlices(
                partition_pb2.ListSlicesRequest(topic="t", partition=1, page_token=first.next_page_token)
            ),
            stub.ListSegments(partition_pb2.ListSegmentsRequest(topic="t", page_token=first.next_page_token)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert isinstance(error_of_call(caught.value, ""), InvalidRequestError)


async def append_as(bench: ServiceBench, producer: BatchProducer, count: int, time_ms: int) -> None:
    records = [Record(number, time_ms, b"k", b"v") for number in range(count)]
    await bench.client.append_batches("t", 0, encode_batch(records, producer=producer))


async def test_producers_are_listed_with_their_last_batch_and_transaction(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t")
    await bench.take_producer_ids(9)
    await append_as(bench, BatchProducer(producer_id=9, producer_epoch=2, base_sequence=0), 3, 1000)
    await append_as(bench, BatchProducer(producer_id=4, producer_epoch=0, base_sequence=0), 1, 2000)
    await append_as(bench, BatchProducer(producer_id=4, producer_epoch=0, base_sequence=1), 2, 3000)
    transactional = BatchProducer(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    batch = encode_batch([Record(0, 4000, b"k", b"v")], producer=transactional)
    log, epoch = bench.partition().log, bench.partition().shard.leader_epoch()
    log.appender.append_as_leader(batch, epoch)
    listed = await admin.list_producers("t", 0)

    assert [tuple(one) for one in listed] == [
        (4, 0, 2, 5, 3000, -1),
        (7, 0, 0, 6, 4000, 6),
        (9, 2, 2, 2, 1000, -1),
    ]
    end_transaction(bench.partition(), 7, committed=True)
    assert [one.current_txn_first_offset for one in await admin.list_producers("t", 0)] == [-1, -1, -1]
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        first = await stub.ListProducers(partition_pb2.ListProducersRequest(topic="t", page_size=2))
        rest = await stub.ListProducers(
            partition_pb2.ListProducersRequest(topic="t", page_size=2, page_token=first.next_page_token)
        )
    assert [[one.producer_id for one in page.producers] for page in (first, rest)] == [[4, 7], [9]]
    assert rest.next_page_token == ""


async def test_a_list_of_an_unknown_partition_is_refused(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t")
    for listing in (admin.list_segments, admin.list_slices, admin.list_producers):
        for topic, partition in (("nope", 0), ("t", 1)):
            with pytest.raises(UnknownTopicOrPartitionError):
                await listing(topic, partition)
        with pytest.raises(InvalidRequestError):
            await listing("t", -1)


@pytest.mark.parametrize(("size", "token"), [(-1, ""), (0, "dG9waWNz"), (0, "x")])
async def test_a_bad_size_or_token_is_refused(bench: ServiceBench, size: int, token: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await page_names(bench, size, token)
    assert isinstance(error_of_call(caught.value, ""), InvalidRequestError)
