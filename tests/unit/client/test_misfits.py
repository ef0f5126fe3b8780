"""A request that no message can hold is refused before it is sent, with the error of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.producer import Producer

HALF_A_PAIR = "x\udcff"
NOWHERE = "127.0.0.1:1"
"""Every call fails because no server answers."""

Call = Callable[[Client], Awaitable[Any]]
INT32_END, INT64_END = 1 << 31, 1 << 63


async def read(client: Client, topic: str) -> None:
    async for _ in client.consume(topic):
        pass


async def sent(producer: Producer, topic: str) -> None:
    await producer.send(topic, None, b"")


NUMBERS: dict[str, Call] = {
    "create_topic": lambda client: client.admin.create_topic("t", INT32_END),
    "describe_log": lambda client: client.admin.describe_log("t", [INT32_END]),
    "delete_records, partition": lambda client: client.admin.delete_records("t", -INT32_END - 1, 0),
    "add_partitions": lambda client: client.admin.add_partitions("t", INT32_END),
    "list_segments": lambda client: client.admin.list_segments("t", INT32_END),
    "list_slices": lambda client: client.admin.list_slices("t", INT32_END),
    "list_producers": lambda client: client.admin.list_producers("t", INT32_END),
    "roll": lambda client: client.admin.roll("t", [INT32_END]),
    "flush": lambda client: client.admin.flush("t", [INT32_END]),
    "append": lambda client: client.append_batches("t", INT32_END, b""),
    "fetch, partition": lambda client: client.fetch({TopicPartition("t", INT32_END): 0}),
    "fetch, wait": lambda client: client.fetch({}, max_wait_ms=10**400),
    "fetch, bytes": lambda client: client.fetch({}, max_bytes=INT32_END),
}
POSITIONS: dict[str, Call] = {
    "delete_records": lambda client: client.admin.delete_records("t", 0, INT64_END),
    "delete_records_of": lambda client: client.admin.delete_records_of("t", {0: INT64_END}),
    "fetch": lambda client: client.fetch({TopicPartition("t", 0): INT64_END}),
    "list_offsets": lambda client: client.list_offsets([(TopicPartition("t", 0), INT64_END)]),
}
TEXTS: dict[str, Call] = {
    "create_topic, name": lambda client: client.admin.create_topic(HALF_A_PAIR),
    "create_topic, key": lambda client: client.admin.create_topic("t", config={HALF_A_PAIR: "1"}),
    "create_topic, value": lambda client: client.admin.create_topic("t", config={"a": HALF_A_PAIR}),
    "describe_topics": lambda client: client.admin.describe_topics([HALF_A_PAIR]),
    "delete_topic": lambda client: client.admin.delete_topic(HALF_A_PAIR),
    "cordon_log_dir": lambda client: client.admin.cordon_log_dir(HALF_A_PAIR),
    "forget_log_dir": lambda client: client.admin.forget_log_dir(HALF_A_PAIR),
    "describe_log": lambda client: client.admin.describe_log(HALF_A_PAIR),
    "delete_records": lambda client: client.admin.delete_records(HALF_A_PAIR, 0, 0),
    "add_partitions": lambda client: client.admin.add_partitions(HALF_A_PAIR, 1),
    "list_segments": lambda client: client.admin.list_segments(HALF_A_PAIR, 0),
    "list_slices": lambda client: client.admin.list_slices(HALF_A_PAIR, 0),
    "list_producers": lambda client: client.admin.list_producers(HALF_A_PAIR, 0),
    "roll": lambda client: client.admin.roll(HALF_A_PAIR),
    "flush": lambda client: client.admin.flush(HALF_A_PAIR),
    "upload": lambda client: client.admin.upload([HALF_A_PAIR]),
    "run_compaction": lambda client: client.admin.run_compaction([HALF_A_PAIR]),
    "append": lambda client: client.append_batches(HALF_A_PAIR, 0, b""),
    "fetch": lambda client: client.fetch({TopicPartition(HALF_A_PAIR, 0): 0}),
    "consume": lambda client: read(client, HALF_A_PAIR),
    "offsets": lambda client: client.offsets([TopicPartition(HALF_A_PAIR, 0)], "latest"),
    "producer": lambda client: sent(client.producer(), HALF_A_PAIR),
}


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS)
async def test_a_number_that_its_field_does_not_hold(call: Call) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await call(client)
        assert set(caught.value.fields) == {"reason"}


@pytest.mark.parametrize("call", POSITIONS.values(), ids=POSITIONS)
async def test_a_position_that_no_log_has(call: Call) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await call(client)
        assert caught.value.fields.keys() == {"position", "allowed"}


MISFITS: dict[str, tuple[Call, set[str]]] = {
    "a configuration value": (
        lambda client: client.topics.create("t", config={"retention.ms": cast(Any, [1])}),
        {"name", "value", "type"},
    ),
    "a durability": (
        lambda client: client.append("t", 0, [], durability=cast(Any, "memory")),
        {"durability", "allowed"},
    ),
    "an isolation level": (
        lambda client: client.fetch({}, isolation=cast(Any, "dirty")),
        {"isolation", "allowed"},
    ),
    "a place without partitions": (
        lambda client: client.admin.delete_records_of("t", cast(Any, "latest")),
        {"topic", "before"},
    ),
}


@pytest.mark.parametrize(("call", "fields"), MISFITS.values(), ids=MISFITS)
async def test_a_value_of_another_kind(call: Call, fields: set[str]) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await call(client)
        assert caught.value.fields.keys() == fields


@pytest.mark.parametrize(
    "setting", [{"batch_bytes": 0}, {"linger_ms": -1}, {"max_buffered_bytes": 1 << 31}, {"compression": None}]
)
async def test_a_setting_of_a_producer_that_means_nothing(setting: dict[str, Any]) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequestError):
            client.producer(**setting)


@pytest.mark.parametrize("call", TEXTS.values(), ids=TEXTS)
async def test_a_text_that_is_not_unicode(call: Call) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await call(client)
        assert caught.value.fields["text"] == ascii(HALF_A_PAIR)


async def test_an_address_that_is_not_unicode() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Client(f"{HALF_A_PAIR}:9190")
    assert "text" in caught.value.fields
