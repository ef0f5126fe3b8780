"""The same tests pass through our client and through one of generated stubs and gRPC alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio

from stratalog.base.errors import InconsistentTopicIdError
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.record.builder import encode_batch
from stratalog.record.key_partition import partition_for_key
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench
from tests.support.service.wire_clients import OurClient, PlainClient, RefusedError, Sent, Stored, WireClient

PARTITION_COUNT = 4
RECORDS = [
    Sent(b"key-%d" % (number % 11), None if number % 7 == 0 else b"value-%d" % number) for number in range(60)
]


@pytest_asyncio.fixture(params=[OurClient, PlainClient], loop_scope="session")
async def client(
    bench: ServiceBench, request: pytest.FixtureRequest
) -> AsyncGenerator[OurClient | PlainClient]:
    made: OurClient | PlainClient = request.param(bench.client.address)
    yield made
    await made.close()


@contextmanager
def refused(reason: str) -> Generator[None]:
    with pytest.raises(RefusedError) as caught:
        yield
    assert caught.value.reason == reason


async def test_records_come_back_by_key_and_in_order(client: WireClient) -> None:
    await client.create("t", PARTITION_COUNT)
    places = await client.send("t", RECORDS)
    expected: dict[int, list[Stored]] = {}
    for record, place in zip(RECORDS, places, strict=True):
        assert record.key is not None
        assert place.partition == partition_for_key(record.key, PARTITION_COUNT)
        own = expected.setdefault(place.partition, [])
        assert place.offset == len(own)
        own.append(Stored(place.offset, record.key, record.value, ()))
    found = await client.read("t")
    assert {number: records for number, records in found.items() if records} == expected
    ends = await client.end_offsets("t")
    assert ends == {number: len(expected.get(number, ())) for number in range(PARTITION_COUNT)}


async def test_headers_and_nulls_are_kept(client: WireClient) -> None:
    await client.create("t", 1)
    headers = (("src", b"web"), ("none", None), ("src", b""))
    sent = [Sent(b"", b"", headers), Sent(b"k", None), Sent(None, b"v")]
    await client.send("t", sent)
    found = (await client.read("t"))[0]
    assert found == [Stored(at, one.key, one.value, one.headers) for at, one in enumerate(sent)]


async def test_a_read_goes_on_from_an_offset(client: WireClient) -> None:
    await client.create("t", 1)
    await client.send("t", [Sent(b"k", b"%d" % number) for number in range(10)])
    found = await client.read("t", start={0: 7})
    assert [record.value for record in found[0]] == [b"7", b"8", b"9"]


async def test_a_reader_that_follows_gets_later_records(client: WireClient) -> None:
    await client.create("t", 1)
    await client.send("t", [Sent(b"k", b"first")])
    following = asyncio.create_task(client.follow("t", 3))
    await client.send("t", [Sent(b"k", b"second"), Sent(b"k", b"third")])
    found = await asyncio.wait_for(following, 60)
    assert [record.value for record in found] == [b"first", b"second", b"third"]


async def test_what_is_not_there_is_refused(client: WireClient) -> None:
    with refused("UNKNOWN_TOPIC_OR_PARTITION"):
        await client.send("nope", [Sent(b"k", b"v")])
    with refused("UNKNOWN_TOPIC_OR_PARTITION"):
        await client.read("nope")
    await client.create("t", 1)
    with refused("TOPIC_ALREADY_EXISTS"):
        await client.create("t", 1)
    with refused("OFFSET_OUT_OF_RANGE"):
        await client.read("t", start={0: 1})


async def test_a_topic_that_was_made_again_is_another_one(client: WireClient) -> None:
    former_id = await client.create("t", 1)
    await client.send("t", [Sent(b"k", b"former")])
    await client.delete("t")
    topic_id = await client.create("t", 1)
    assert topic_id != former_id
    with refused("INCONSISTENT_TOPIC_ID"):
        await client.read("t", topic_id=former_id)
    assert not (await client.read("t", topic_id=topic_id)).get(0)


async def test_a_smaller_topic_of_the_same_name_is_another_one(bench: ServiceBench) -> None:
    admin = bench.client.admin
    former = await admin.create_topic("t", 4)
    await admin.delete_topic("t")
    await admin.create_topic("t", 1)
    where: dict[str, Any] = {"topic": "t", "partition": 3, "topic_id": former.topic_id}
    batch = encode_batch([Record(0, 0, None, b"value")])
    fetch = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(**where)])
    query = log_pb2.OffsetQuery(**where, at=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST))
    queries = log_pb2.ListOffsetsRequest(queries=[query])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.client.log.Append(log_pb2.AppendRequest(**where, batches=batch))
    found = [
        error_of_call(caught.value, ""),
        error_of_status((await bench.client.log.Fetch(fetch)).partitions[0].error),
        error_of_status((await bench.client.log.ListOffsets(queries)).answers[0].error),
    ]
    assert [type(error) for error in found] == [InconsistentTopicIdError] * 3


async def test_records_of_a_producer_for_a_partition_that_is_gone_fail(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t", 4)
    async with bench.client.producer() as producer:
        await producer.send("t", value=b"former", partition=3)
        await admin.delete_topic("t")
        await admin.create_topic("t", 1)
        with pytest.raises(InconsistentTopicIdError):
            await producer.send("t", value=b"of the former", partition=3)
