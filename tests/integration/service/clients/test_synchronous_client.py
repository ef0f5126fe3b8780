"""A program without an event loop: its results have types, and a table behaves as a mapping."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, ItemsView, Iterator, KeysView
from typing import Any, assert_type

import pyarrow as pa
import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.client import AppendRecord, SyncClient, values
from stratalog.client.blocking.sync_consumer import SyncConsumer
from stratalog.client.blocking.sync_producer import SyncProducer
from stratalog.client.blocking.sync_table import SyncTable
from stratalog.client.messages import AppendAck, FetchedPartition, OffsetAnswer
from stratalog.record.ack import Ack
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.native.record_accumulator import Delivery
from tests.support.service.service_bench import PATIENCE_S, ServiceBench


async def test_results_have_types(bench: ServiceBench) -> None:
    """The type checkers compare the types, and the server answers each call."""
    await asyncio.to_thread(use_with_types, bench.client.address)


def use_with_types(address: str) -> None:
    with SyncClient(address) as client:
        assert assert_type(client.topics.create("t", partitions=2), values.Topic).name == "t"
        assert assert_type(client.topics.list(), list[str]) == ["t"]
        ack = client.append("t", 0, [AppendRecord("7", "open")])
        assert assert_type(ack, AppendAck).base_offset == 0
        here = TopicPartition("t", 0)
        assert assert_type(client.fetch({here: 0}), list[FetchedPartition])[0].error is None
        assert assert_type(client.list_offsets([(here, "latest")]), list[OffsetAnswer])[0].offset == 1
        assert assert_type(client.admin.server_info(), values.ServerInfo).version
        send_with_types(client)
        read_with_types(client)
        started = assert_type(client.admin.start_upload(["t"]), values.Operation)
        watched = assert_type(client.operations.watch(started.operation_id), Generator[values.Operation])
        assert [one.operation_id for one in watched][-1] == started.operation_id
        assert assert_type(client.operations.list(), list[values.Operation])


def send_with_types(client: SyncClient) -> None:
    with assert_type(client.producer(), SyncProducer) as producer:
        delivery = assert_type(producer.send("t", key="7", value="paid", partition=0), Delivery)
        assert assert_type(delivery.result(PATIENCE_S), Ack).offset == 1
        rows = pa.table({"value": ["a", "b"], "partition": pa.array([1, 1], pa.int32())})
        assert assert_type(producer.send_many("t", rows), int) == 2


def read_with_types(client: SyncClient) -> None:
    with assert_type(client.consume("t", until="latest", partitions=[0]), SyncConsumer) as consumer:
        records = iter(consumer)
        record = next(assert_type(records, Iterator[ConsumerRecord]))
        assert (record.key, record.value) == (b"7", b"open")
        assert assert_type(consumer.positions, dict[int, int]) == {0: 1}
        [[rest]] = assert_type(consumer.batches(), Iterator[list[ConsumerRecord]])
        assert rest.value == b"paid"
    with assert_type(client.table("t"), SyncTable) as table:
        assert sorted(assert_type(table.keys(), KeysView[Any])) == [b"7"]
        assert dict(assert_type(table.items(), ItemsView[Any, Any])) == {b"7": b"paid"}
    assert assert_type(client.read_arrow("t"), pa.Table).num_rows == 4


# --- tables ------------------------------------------------------------------------------------------------


async def test_a_table_is_a_mapping_and_its_changes_have_a_name(bench: ServiceBench) -> None:
    await asyncio.to_thread(use_table, bench.client.address)


def use_table(address: str) -> None:
    with SyncClient(address) as client:
        client.topics.create("t")
        client.append("t", 0, [AppendRecord("7", "open"), AppendRecord("8", "open")])
        with client.table("t") as table:
            assert list(table) == list(table.keys()) == [b"7", b"8"]
            assert list(table.values()) == [b"open", b"open"]
            assert dict(table.items()) == {b"7": b"open", b"8": b"open"}
            assert len(table) == 2
            assert (table["7"], table.get("9"), table.get("9", b"none")) == (b"open", None, b"none")
            assert "7" in table
            assert "9" not in table
            with pytest.raises(KeyError):
                _ = table["9"]

            # Changes are those from the call on, and not from the first look.
            changes = table.changes()
            client.append("t", 0, [AppendRecord("8", "paid"), AppendRecord("7", None)])
            table.caught_up()
            assert [(one.key, one.value) for one in (next(changes), next(changes))] == [
                (b"8", b"paid"),
                (b"7", None),
            ]
            changes.close()
            assert dict(table.items()) == {b"8": b"paid"}
        assert dict(table.items()) == {b"8": b"paid"}
        assert list(table.changes()) == []
        with pytest.raises(InvalidRequestError):
            table.caught_up()


async def test_a_table_may_change_while_a_thread_looks_at_all_keys(bench: ServiceBench) -> None:
    await asyncio.to_thread(change_while_iterating, bench.client.address)


def change_while_iterating(address: str) -> None:
    with SyncClient(address) as client:
        client.topics.create("t")
        client.append("t", 0, [AppendRecord("7", "open"), AppendRecord("8", "open")])
        with client.table("t") as table:
            keys, values_of_then, items = table.keys(), table.values(), table.items()
            seen: list[bytes] = []
            for key in table:
                seen.append(key)
                client.append("t", 0, [AppendRecord(b"new-" + key, "open"), AppendRecord(key, None)])
                table.caught_up()
            assert seen == [*keys] == [b"7", b"8"]
            assert ([*values_of_then], dict(items)) == ([b"open"] * 2, dict.fromkeys([b"7", b"8"], b"open"))
            assert {*table} == {b"new-7", b"new-8"}
