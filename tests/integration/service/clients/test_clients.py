"""The same tests pass through our client and through one of generated stubs and gRPC alone."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
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
from stratalog.server.rpc import paging
from stratalog.v1 import log_pb2
from tests.support.service import plain_client, wire_client
from tests.support.service.our_client import OurClient
from tests.support.service.plain_client import PlainClient
from tests.support.service.service_bench import ServiceBench
from tests.support.service.wire_client import (
    EARLIEST,
    LATEST,
    Appended,
    At,
    AtTail,
    AtTime,
    Explained,
    Numbered,
    RefusedError,
    Sent,
    Stored,
    WireClient,
)

PARTITION_COUNT = 4
RECORDS = [
    Sent(b"key-%d" % (number % 11), None if number % 7 == 0 else b"value-%d" % number) for number in range(60)
]
RECORD = Sent(b"k", b"v")
HOUR_MS = 3_600_000


@pytest_asyncio.fixture(params=[OurClient, PlainClient], loop_scope="session")
async def client(bench: ServiceBench, request: pytest.FixtureRequest) -> AsyncGenerator[WireClient]:
    made: WireClient = request.param(bench.client.address)
    yield made
    await made.close()


@contextmanager
def refused(reason: str) -> Generator[None]:
    with pytest.raises(RefusedError) as caught:
        yield
    assert caught.value.reason == reason


def test_the_plain_client_is_written_from_the_contract_alone() -> None:
    allowed = re.compile(r"(grpc|google\.rpc|stratalog\.v1)(\.|$)")
    for module in (plain_client, wire_client):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                is_of_python = name.partition(".")[0] in sys.stdlib_module_names
                assert is_of_python or name == wire_client.__name__ or allowed.match(name), name


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
    ends = await client.offsets("t", LATEST)
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
    found = await client.read("t", start=7)
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
        await client.read("t", start=1)


async def test_a_topic_that_was_made_again_is_another_one(client: WireClient) -> None:
    former_id = await client.create("t", 1)
    await client.send("t", [Sent(b"k", b"former")])
    await client.delete("t", former_id)
    topic_id = await client.create("t", 1)
    assert topic_id != former_id
    with refused("INCONSISTENT_TOPIC_ID"):
        await client.read("t", topic_id=former_id)
    with refused("INCONSISTENT_TOPIC_ID"):
        await client.append("t", 0, [RECORD], topic_id=former_id)
    with refused("INCONSISTENT_TOPIC_ID"):
        await client.delete_records("t", {0: LATEST}, former_id)
    with refused("INCONSISTENT_TOPIC_ID"):
        await client.delete("t", former_id)
    assert not (await client.read("t", topic_id=topic_id)).get(0)
    assert await client.append("t", 0, [RECORD], topic_id=topic_id) == Appended(0)


async def test_an_append_of_a_producer_is_stored_once(client: WireClient) -> None:
    await client.create("t", 1)
    producer_id = await client.producer_id()
    assert await client.producer_id() != producer_id
    for is_again in (False, True):
        first = await client.append("t", 0, [RECORD, RECORD], numbered=Numbered(producer_id, 0))
        second = await client.append("t", 0, [RECORD], numbered=Numbered(producer_id, 2))
        assert (first, second) == (Appended(0, is_again), Appended(2, is_again))
    with refused("OUT_OF_ORDER_SEQUENCE"):
        await client.append("t", 0, [RECORD], numbered=Numbered(producer_id, 4))
    with refused("UNKNOWN_PRODUCER_ID"):
        await client.append("t", 0, [RECORD], numbered=Numbered(10**15, 0))
    assert await client.offsets("t", LATEST) == {0: 3}


async def test_an_append_may_depend_on_the_end_of_the_log(client: WireClient) -> None:
    await client.create("t", 1)
    assert await client.append("t", 0, [RECORD], expected_offset=0) == Appended(0)
    for wrong in (0, 2):
        with refused("UNEXPECTED_OFFSET"):
            await client.append("t", 0, [RECORD], expected_offset=wrong)
    assert await client.append("t", 0, [RECORD], expected_offset=1) == Appended(1)
    assert await client.offsets("t", LATEST) == {0: 2}


async def test_a_fencing_token_keeps_former_holders_out(client: WireClient) -> None:
    await client.create("t", 1)
    assert await client.append("t", 0, [RECORD], fencing_token="") == Appended(0)
    assert await client.fence("t", 0, "one") == 1
    assert await client.append("t", 0, [RECORD], fencing_token="one") == Appended(1)
    with refused("FENCING_TOKEN_MISMATCH"):
        await client.fence("t", 0, "three", current_token="two")
    assert await client.fence("t", 0, "two", current_token="one") == 2
    for former in ("", "one"):
        with refused("FENCING_TOKEN_MISMATCH"):
            await client.append("t", 0, [RECORD], fencing_token=former)
    assert await client.append("t", 0, [RECORD], fencing_token="two") == Appended(2)
    assert await client.append("t", 0, [RECORD]) == Appended(3), "without a token none is checked"


@pytest.mark.parametrize(
    ("at", "offset", "start"),
    [
        (EARLIEST, 1, 1),
        (LATEST, 5, 5),
        (AtTime(0), 1, 1),
        (AtTime(30), 3, 3),
        (AtTime(31), 4, 4),
        (AtTime(41), -1, 5),
        (AtTail(0), 5, 5),
        (AtTail(2), 3, 3),
        (AtTail(100), 1, 1),
    ],
    ids=str,
)
async def test_places_are_found_and_read_from(client: WireClient, at: At, offset: int, start: int) -> None:
    await client.create("t", 1)
    sent = [Sent(b"k", b"%d" % number, timestamp_ms=number * 10) for number in range(5)]
    await client.append("t", 0, sent)
    await client.delete_records("t", {0: 1})
    assert await client.offsets("t", at) == {0: offset}
    found = (await client.read("t", start=at)).get(0, [])
    assert [one.offset for one in found] == list(range(start, 5))


async def test_a_partition_that_fails_holds_up_no_other_one_of_its_stream(client: WireClient) -> None:
    await client.create("t", 2, {"cleanup.policy": "compact"})
    value = bytes(150)
    keyed = [(number % 2, Sent(b"%02d" % number, value)) for number in range(20)]
    keyless = (1, Sent(None, value))
    outcomes = await client.stream("t", [*keyed[:10], keyless, *keyed[10:]])
    assert outcomes[10] == "INVALID_REQUEST", "a compacted topic takes no record without a key"
    del outcomes[10]
    assert outcomes == [number // 2 for number in range(20)]
    found = await client.read("t")
    for partition in (0, 1):
        keys = [one.key for number, one in keyed if number == partition]
        assert [one.key for one in found[partition]] == keys


async def test_the_pages_of_a_list_are_the_whole_list(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MAX_PAGE_SIZE", 2)
    names = [f"t{number}" for number in range(5)]
    for name in reversed(names):
        await client.create(name, 1)
    assert await client.topics() == names


async def test_records_of_several_partitions_are_deleted_at_once(client: WireClient) -> None:
    await client.create("t", 4)
    for partition in range(4):
        sent = [Sent(None, b"%d" % number, timestamp_ms=number * 10) for number in range(5)]
        await client.append("t", partition, sent)
    places: dict[int, At] = {0: 2, 1: LATEST, 2: AtTail(1), 3: AtTime(11)}
    with refused("OFFSET_OUT_OF_RANGE"):
        await client.delete_records("t", {**places, 0: 6})
    with refused("UNKNOWN_TOPIC_OR_PARTITION"):
        await client.delete_records("t", {**places, 4: 0})
    assert await client.offsets("t", EARLIEST) == dict.fromkeys(range(4), 0), "nothing was deleted"
    expected = {0: 2, 1: 5, 2: 4, 3: 2}
    assert await client.delete_records("t", places) == expected
    assert await client.delete_records("t", {0: 1}) == {0: 2}, "a log start does not move back"
    assert await client.offsets("t", EARLIEST) == expected


async def test_retention_is_explained_and_then_run(client: WireClient) -> None:
    await client.create("t", 2, {"remote.storage.enable": "false", "retention.ms": str(HOUR_MS)})
    await client.append("t", 0, [Sent(None, b"old", timestamp_ms=1)] * 3)
    await client.append("t", 1, [RECORD])
    explained = {0: Explained(0, 3, (("RETENTION_MS", 0, 3),)), 1: Explained(0, 0, ())}
    for _ in range(2):
        assert await client.explain_retention("t") == explained
    assert await client.offsets("t", EARLIEST) == {0: 0, 1: 0}, "it changes nothing"
    with refused("UNKNOWN_TOPIC_OR_PARTITION"):
        await client.explain_retention("nope")

    work = await client.run_retention("t")
    assert set(work.states[:-1]) <= {"RUNNING"}
    assert (work.states[-1], work.log_starts) == ("SUCCEEDED", {0: (0, 3)})
    assert await client.offsets("t", EARLIEST) == {0: 3, 1: 0}
    with refused("UNKNOWN_TOPIC_OR_PARTITION"):
        await client.run_retention("nope")
    with refused("UNKNOWN_OPERATION"):
        await client.cancel("00000000-0000-4000-8000-000000000000")


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
