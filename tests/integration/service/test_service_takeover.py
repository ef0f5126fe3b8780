"""A client follows the data when another server takes the store over, and every user of it goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    FencingTokenMismatchError,
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    LogTruncatedError,
    NotOwnerError,
    UnexpectedOffsetError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client import values
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import AppendAck
from stratalog.client.operations import result_of
from stratalog.client.position import Place
from stratalog.client.retry import RetryPolicy
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.service.scripted_service import ScriptedService, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

T0 = TopicPartition("t", 0)
PATIENT = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.01)
HASTY = RetryPolicy(deadline_s=0.2, first_pause_s=0.001, max_pause_s=0.01)
PARTITION_COUNT = 3


def record(value: bytes, key: bytes | None = None) -> Record:
    return Record(0, 0, key, value)


def refused_address() -> str:
    """An address where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@asynccontextmanager
async def replaced(
    folder: Path, *, advertise: str = "", partition_count: int = 1
) -> AsyncGenerator[tuple[ServiceBench, ServiceBench]]:
    """A server that knows that it was replaced, and its successor. The topic `t` has no records."""
    store = MemoryObjectStore(SystemClock())
    async with service_bench(folder / "a", store=store) as former:
        await former.client.admin.create_topic("t", partition_count)
        async with service_bench(folder / "b", store=store, advertise=advertise) as owner:
            await former.refresh()
            yield former, owner


async def test_everything_goes_on_at_the_successor(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "a", store=store) as former,
        Client(former.client.address, retry=PATIENT) as client,
    ):
        await client.topics.create("t", partitions=PARTITION_COUNT)
        await client.topics.create("single")
        producer = client.producer(linger_ms=0)
        consumer = client.consume("t", max_records=200, metadata_max_age_s=0.01)
        seen: list[bytes] = []
        has_half = asyncio.Event()

        async def follow() -> None:
            async for one in consumer:
                assert isinstance(one.value, bytes)
                seen.append(one.value)
                if len(seen) == 100:
                    has_half.set()

        following = asyncio.create_task(follow())
        sent = [producer.send("t", b"%d" % number, b"%d" % number) for number in range(100)]
        await producer.flush()
        await client.append("single", 0, [record(b"before")])
        await asyncio.wait_for(has_half.wait(), PATIENCE_S)
        # All of it is in the object store, so nothing is lost.
        await client.admin.upload()
        async with service_bench(tmp_path / "b", store=store) as owner:
            await former.refresh()
            # The producer's stream, and the consumer's session, meet the refusal by themselves.
            sent += [producer.send("t", b"%d" % number, b"%d" % number) for number in range(100, 200)]
            acks = [await one for one in sent]
            await producer.close()
            await asyncio.wait_for(following, PATIENCE_S)
            assert client.address == owner.client.address
            assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
            assert len({(ack.partition, ack.offset) for ack in acks}) == 200
            stored = await owner.values("t")
            assert sorted(map(len, stored)) == sorted(
                sum(ack.partition == number for ack in acks) for number in range(PARTITION_COUNT)
            )
            ack = await client.append("single", 0, [record(b"after")])
            assert (ack.base_offset, ack.leader_epoch) == (1, 2)
            assert await owner.values("single") == [[b"before", b"after"]]


async def test_a_former_owner_says_so_once_and_does_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryObjectStore(SystemClock())
    async with service_bench(tmp_path / "a", store=store) as former:
        await former.client.admin.create_topic("t")
        await former.append("t", [b"only here"])
        async with service_bench(tmp_path / "b", store=store) as owner:
            for _ in range(3):
                await former.refresh()
            [line] = [one for one in caplog.records if "another server" in one.getMessage()]
            assert owner.client.address in line.getMessage()
            with pytest.raises(NotOwnerError):
                await former.append("t", [b"x"])
            with pytest.raises(NotOwnerError):
                former.partition().ensure_served()
            before = {info.key: info.modified_ms for info in store.list("")}
            for task in ("upload", "remote-retention", "collector", "fold", "deleted-topics"):
                await former.run_task(task)
            assert {info.key: info.modified_ms for info in store.list("")} == before
            assert await owner.values("t") == [[]]


CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "append": lambda client: client.append("t", 0, [record(b"x")]),
    "fetch": lambda client: client.fetch({T0: 0}),
    "list_offsets": lambda client: client.list_offsets([(T0, "latest")]),
    "fence": lambda client: client.fence("t", 0, ""),
    "metadata": lambda client: client.metadata(["newer"]),
    "create_topic": lambda client: client.topics.create("u"),
    "list_topics": lambda client: client.topics.list(),
    "describe_topics": lambda client: client.topics.describe("t"),
    "describe_newer_topic": lambda client: client.topics.describe("newer"),
    "describe_configs": lambda client: client.admin.describe_configs("t"),
    "delete_records": lambda client: client.admin.delete_records("t", 0, -1),
    "roll": lambda client: client.admin.roll("t"),
    "upload": lambda client: client.admin.upload(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_is_made_again_at_the_successor(tmp_path: Path, name: str) -> None:
    async with replaced(tmp_path) as (former, owner):
        await owner.client.topics.create("newer")
        async with Client(former.client.address, retry=PATIENT) as client:
            await CALLS[name](client)
            assert client.address == owner.client.address
        async with Client(former.client.address, retry=RetryPolicy(deadline_s=0)) as still:
            if name not in ("fetch", "metadata", "roll"):
                with pytest.raises(NotOwnerError) as refusal:
                    await CALLS[name](still)
                assert refusal.value.fields["endpoint"] == owner.client.address
            assert still.address == former.client.address


async def test_many_calls_at_once_move_the_connection_once(tmp_path: Path) -> None:
    async with replaced(tmp_path) as (former, owner):
        async with Client(former.client.address, retry=PATIENT) as client:
            acks = await asyncio.gather(*(client.append("t", 0, [record(b"%d" % n)]) for n in range(50)))
            assert sorted(ack.base_offset for ack in acks) == list(range(50))
        [values] = await owner.values("t")
        assert sorted(map(int, filter(None, values))) == list(range(50))


async def test_a_watch_goes_on_at_the_successor(tmp_path: Path) -> None:
    async with replaced(tmp_path) as (former, owner):
        await owner.append("t", [b"x"])
        async with Client(former.client.address, retry=PATIENT) as client:
            started = await client.admin.start_upload(["t"])
            ended = [one async for one in client.operations.watch(started.operation_id)][-1]
            assert ended.state is values.OperationState.SUCCEEDED
            assert result_of(ended, values.UploadResult).object_count == 1


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_batches_in_flight_are_stored_once_at_the_successor(
    tmp_path: Path, is_idempotent: bool
) -> None:
    async with replaced(tmp_path, partition_count=PARTITION_COUNT) as (former, owner):
        async with (
            Client(former.client.address, retry=PATIENT) as client,
            client.producer(idempotent=is_idempotent, linger_ms=0, batch_bytes=1000) as producer,
        ):
            for number in range(300):
                producer.send("t", None, b"%d" % number + bytes(100), partition=number % PARTITION_COUNT)
        for partition, values in enumerate(await owner.values("t")):
            found = [int((value or b"").rstrip(b"\0")) for value in values]
            assert found == list(range(partition, 300, PARTITION_COUNT))


async def test_a_reader_of_a_tail_that_is_lost_learns_where_the_logs_part(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    async with (
        service_bench(tmp_path / "a", store=store) as former,
        Client(former.client.address, retry=PATIENT) as client,
    ):
        await client.topics.create("t")
        await client.append("t", 0, [record(b"0")])
        await client.admin.upload()
        await client.append("t", 0, [record(b"lost")])
        consumer = client.consume("t")
        records = aiter(consumer)
        assert [(await anext(records)).value for _ in range(2)] == [b"0", b"lost"]
        async with service_bench(tmp_path / "b", store=store) as owner:
            await owner.append("t", [b"1"])
            await former.refresh()
            with pytest.raises(LogTruncatedError) as parted:
                await asyncio.wait_for(anext(records), PATIENCE_S)
            assert parted.value.fields["end_offset"] == 1
            await consumer.aclose()
            follower = client.consume("t", start={0: 1}, until="latest")
            assert [one.value async for one in follower] == [b"1"]


async def test_two_servers_that_name_each_other_are_asked_until_the_deadline(tmp_path: Path) -> None:
    former, other = ScriptedService([]), ScriptedService([])
    async with scripted(former) as first, scripted(other) as second:
        former.refusal = NotOwnerError("replaced", owner="b", endpoint=second, epoch=2)
        other.refusal = NotOwnerError("replaced", owner="a", endpoint=first, epoch=3)
        async with Client(first, retry=HASTY) as client:
            with pytest.raises(NotOwnerError) as refusal:
                await client.topics.describe("t")
            fields = refusal.value.fields
            assert {fields["server"], fields["endpoint"]} == {first, second}
            with pytest.raises(NotOwnerError):
                _ = [one async for one in client.consume("t")]
            with pytest.raises(NotOwnerError):
                async with client.producer() as producer:
                    await producer.send("t", None, b"x")
            other.refusal = None
            assert (await client.topics.describe("t")).topic_id == other.topic_id


@pytest.mark.parametrize("endpoint", ["", "nowhere", None])
async def test_a_refusal_without_a_way_on_is_raised_at_once(endpoint: str | None) -> None:
    service = ScriptedService([])
    async with scripted(service) as address:
        service.refusal = NotOwnerError("replaced", endpoint=address if endpoint is None else endpoint)
        async with Client(address, retry=RetryPolicy(deadline_s=PATIENCE_S)) as client:
            with pytest.raises(NotOwnerError) as refusal:
                await client.topics.describe("t")
            assert not refusal.value.retriable
            assert service.refused_count == 1


async def test_a_successor_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    nowhere = refused_address()
    async with replaced(tmp_path, advertise=nowhere) as (former, owner):
        async with Client(former.client.address, retry=HASTY) as client:
            with pytest.raises(NotOwnerError) as refusal:
                await client.append("t", 0, [record(b"x")])
            fields = refusal.value.fields
            assert (fields["server"], fields["endpoint"]) == (former.client.address, nowhere)
        assert await owner.values("t") == [[]]


async def test_a_client_with_several_addresses_finds_the_server_that_runs(tmp_path: Path) -> None:
    store = MemoryObjectStore(SystemClock())
    nowhere = refused_address()
    async with service_bench(tmp_path / "b", store=store) as owner:
        owner_address = owner.client.address
        async with service_bench(tmp_path / "a", store=MemoryObjectStore(SystemClock())) as other:
            addresses = f"{nowhere}, {other.client.address},{owner_address}"
            async with Client(addresses, retry=PATIENT) as client:
                # Nothing was sent to the first one, so even a change goes to the next one.
                await client.topics.create("t")
                assert client.address == other.client.address
                await owner.client.topics.create("t")
                await other.server.stop()
                assert (await client.fetch({T0: 0}))[0].error is None
                assert client.address == owner_address
                async with client.producer() as producer:
                    producer.send("t", None, b"x")
                assert await owner.values("t") == [[b"x"]]
    async with Client(f"{nowhere},{refused_address()}", retry=RetryPolicy(deadline_s=0)) as client:
        with pytest.raises(ServerUnavailableError):
            await client.fetch({T0: 0})
    with pytest.raises(InvalidRequestError):
        Client("a:1,,b:2")


async def test_the_synchronous_client_follows(tmp_path: Path) -> None:
    async with replaced(tmp_path) as (former, owner):

        def append() -> str:
            with SyncClient(former.client.address, retry=PATIENT) as client:
                client.append("t", 0, [record(b"x")])
                address: str = client.address
                return address

        assert await asyncio.to_thread(append) == owner.client.address


# --- conditions --------------------------------------------------------------------------------------------


async def test_one_of_several_candidates_is_elected(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    for term in range(5):
        candidates = [
            bench.client.append("t", 0, [record(b"%d leads" % number)], expected_offset=term)
            for number in range(10)
        ]
        outcomes = await asyncio.gather(*candidates, return_exceptions=True)
        [elected] = [one for one in outcomes if isinstance(one, AppendAck)]
        assert elected.base_offset == term
        refusals = [one.fields for one in outcomes if isinstance(one, UnexpectedOffsetError)]
        refusal = {"topic": "t", "partition": 0, "expected_offset": term, "log_end_offset": term + 1}
        assert refusals == [refusal] * 9
    assert await bench.client.latest("t") == {T0: 5}


async def test_a_fenced_writer_appends_no_more(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    client = bench.client
    assert await client.fence("t", 0, "first") == 0
    await client.append("t", 0, [record(b"0")], fencing_token="first")
    rivals = [client.fence("t", 0, token, current_token="first") for token in ("second", "third")]
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    assert [isinstance(one, FencingTokenMismatchError) for one in outcomes].count(True) == 1
    assert 1 in outcomes
    with pytest.raises(FencingTokenMismatchError) as refusal:
        await client.append("t", 0, [record(b"late")], fencing_token="first")
    assert refusal.value.fields["current_token"] in ("second", "third")
    with pytest.raises(InconsistentTopicIdError):
        await client.append("t", 0, [record(b"late")], topic_id="00000000-0000-4000-8000-000000000000")
    assert await bench.values("t") == [[b"0"]]


async def test_the_server_chooses_a_partition_by_the_key(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=8)
    async with bench.client.producer() as producer:
        placed = await producer.send("t", b"key", b"0")
    sent = Record(0, 5, b"key", b"1", (("h", b"v"), ("n", None)))
    ack = await bench.client.append("t", None, [sent])
    assert (ack.topic, ack.partition, ack.base_offset, ack.last_offset) == ("t", placed.partition, 1, 1)
    assert (ack.durability, ack.duplicate) == (Durability.OS, False)
    [[_, stored]] = [part for part in await bench.read_all("t") if part]
    assert stored == sent._replace(offset=1)
    with pytest.raises(InvalidRequestError):
        await bench.client.append("t", None, [sent], codec=Codec.ZSTD)
    with pytest.raises(InvalidRequestError):
        await bench.client.append("t", None, [sent], expected_offset=2)


# --- values ------------------------------------------------------------------------------------------------


async def test_metadata_are_values(bench: ServiceBench) -> None:
    created = await bench.client.topics.create("u", partitions=2, config={"max.message.bytes": "5000"})
    await bench.client.topics.create("t")
    found = await bench.client.metadata()
    assert found.store_id == str(bench.server.engine.tier.identity.store_id)
    assert found.max_request_bytes == bench.server.settings.max_request_bytes
    assert [topic.topic for topic in found.topics] == ["t", "u"]
    topic = found.topics[1]
    assert (topic.topic_id, topic.max_message_bytes, topic.error) == (created.topic_id, 5000, None)
    epoch = bench.partition("u").shard.claimed.epoch
    assert [tuple(one) for one in topic.partitions] == [
        (number, bench.client.address, epoch, None) for number in range(2)
    ]
    unknown, known = (await bench.client.metadata(["nope", "t"])).topics
    assert isinstance(unknown.error, UnknownTopicOrPartitionError)
    assert (unknown.topic_id, unknown.partitions, known.error) == ("", (), None)
    hash(found)


async def test_places_are_written_as_for_a_consumer(bench: ServiceBench) -> None:
    await bench.client.topics.create("t")
    await bench.append("t", [b"0", b"1", b"2"])
    client = bench.client
    places: tuple[Place, ...] = ("earliest", "latest", 1, -1)
    assert [(await client.offsets([T0], place))[T0] for place in places] == [0, 3, 1, 2]
    for place, offset in zip(places, (0, 3, 1, 2), strict=True):
        [answer] = await client.fetch({T0: place})
        assert (answer.error, answer.fetch_offset, answer.next_fetch_offset) == (None, offset, 3)
    with pytest.raises(LogStoreError):
        await client.offsets([T0], "nowhere")
