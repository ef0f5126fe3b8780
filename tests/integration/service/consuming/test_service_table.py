"""Tables over a loopback connection: the oracle is a dictionary that replays what was appended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import InvalidRequestError, LogTruncatedError, UnknownTopicOrPartitionError
from stratalog.client.client import Client
from stratalog.client.consuming.table import Table
from stratalog.client.errors import RecordDecodingError
from stratalog.record.record import Record
from tests.support.logs.sampling import some_seeds
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench

KEYS = [b"k%d" % number for number in range(12)]


class Writer:
    """Appends random changes, and replays them in a dictionary."""

    def __init__(self, bench: ServiceBench, random: Random) -> None:
        self._bench = bench
        self._random = random
        self.expected: dict[bytes, bytes] = {}
        self.latest: dict[bytes, bytes | None] = {}
        """The latest value of each key, None after a tombstone."""

    async def append_some(self) -> None:
        random = self._random
        for partition in random.sample([0, 1, 2], 2):
            records: list[Record] = []
            for _ in range(random.choice([1, 3, 30])):
                key = random.choice([*KEYS[partition::3], None])
                value = None if random.random() < 0.3 else random.randbytes(2)
                records.append(Record(0, 5, key, value))
                if key is None:
                    continue
                self.latest[key] = value
                if value is None:
                    self.expected.pop(key, None)
                else:
                    self.expected[key] = value
            await self._bench.client.append("t", partition, records)


@pytest.mark.parametrize("seed", some_seeds(8))
async def test_a_table_is_what_a_dictionary_replays(bench: ServiceBench, seed: int) -> None:
    random = Random(seed)
    await bench.client.admin.create_topic("t", 3)
    writer = Writer(bench, random)
    for _ in range(random.randrange(6)):
        await writer.append_some()
    if random.random() < 0.5:
        await bench.client.admin.upload(delete_local=True)
    async with bench.client.table("t") as table, asyncio.timeout(PATIENCE_S):
        assert dict(table.items()) == writer.expected
        changes = aiter(table)
        seen: dict[bytes, bytes | None] = dict(writer.expected)
        writer.latest.clear()
        for _ in range(5):
            await writer.append_some()
            await table.caught_up()
            assert dict(table.items()) == writer.expected
            assert len(table) == len(writer.expected)
            assert set(table) == set(table.keys()) == set(writer.expected)
            assert sorted(table.values()) == sorted(writer.expected.values())
            for key in KEYS:
                assert (key in table) == (key in writer.expected)
                assert table.get(key, b"none") == writer.expected.get(key, b"none")
                assert table.get(key.decode()) == writer.expected.get(key)
            if random.random() < 0.5:
                # A reader who comes late gets the latest change of each key, and each once.
                changed: dict[bytes, bytes | None] = {}
                while changed.keys() != writer.latest.keys():
                    record = await anext(changes)
                    assert record.key not in changed
                    changed[record.key] = record.value
                assert changed == writer.latest
                writer.latest.clear()
                seen.update(changed)
                assert {key: value for key, value in seen.items() if value is not None} == writer.expected
        await changes.aclose()


async def test_a_table_of_text(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, [Record(0, 5, b"7", b"3"), Record(0, 5, b"8", b"4")])
    async with bench.client.table("t", decode_key="utf-8", decode_value=int) as table:
        assert (table["7"], table["8"]) == (3, 4)
        with pytest.raises(KeyError):
            table[b"7"]


async def test_changes_end_with_the_table(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.table("t") as table:
        changes = aiter(table)
        waiting = asyncio.ensure_future(anext(changes))
        await bench.until_waiting(1)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, PATIENCE_S)


async def test_changes_that_are_not_read_are_not_kept(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.table("t") as table, asyncio.timeout(PATIENCE_S):
        never_begun, begun = table.changes(), table.changes()
        await bench.client.append("t", 0, [Record(0, 5, b"7", b"3")])
        assert (await anext(begun)).value == b"3"
        listeners = table._listeners  # pyright: ignore[reportPrivateUsage]  # they hold records
        assert len(listeners) == 2
        del never_begun
        gc.collect()
        assert len(listeners) == 1
        await begun.aclose()
        del begun
        gc.collect()
        assert not listeners


async def test_changes_are_those_since_the_call(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.table("t") as table, asyncio.timeout(PATIENCE_S):
        changes = table.changes()
        await bench.client.append("t", 0, [Record(0, 5, b"7", b"3")])
        await table.caught_up()
        gc.collect()
        assert (await anext(changes)).value == b"3"
        await changes.aclose()


async def test_a_closed_table_leaves_no_task_waiting(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, [Record(0, 5, b"7", b"3")])
    table = bench.client.table("t")
    with pytest.raises(InvalidRequestError):
        len(table)
    async with table:
        pass
    assert table["7"] == b"3"
    async with asyncio.timeout(PATIENCE_S):
        assert [change async for change in table] == []
        with pytest.raises(InvalidRequestError):
            await table.caught_up()


async def test_changes_of_a_table_without_partitions_end(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    async with bench.client.table("t", partitions=[]) as table, asyncio.timeout(PATIENCE_S):
        assert [change async for change in table] == []


async def test_a_table_of_a_topic_that_is_not_there(bench: ServiceBench) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        async with bench.client.table("nope"):
            pass


async def test_a_table_names_the_record_that_it_cannot_decode(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, [Record(0, 5, b"7", b"3"), Record(0, 5, b"\xff", b"\xff")])
    with pytest.raises(RecordDecodingError) as caught:
        async with bench.client.table("t", decode="utf-8"):
            pass
    assert {"partition": 0, "offset": 1, "origin": "key"}.items() <= caught.value.fields.items()


async def test_a_table_that_cannot_read_on_says_so() -> None:
    service = ScriptedService([[answer(0, 1), LogTruncatedError("the log parted", end_offset=0)]])

    async def follow(table: Table) -> None:
        async for change in table:
            assert change.value == b"0"

    async with scripted(service) as address, Client(address) as client, client.table("t") as table:
        with pytest.raises(LogTruncatedError):
            await asyncio.wait_for(follow(table), PATIENCE_S)
        looks: list[Callable[[], object]] = [lambda: table["k"], lambda: len(table), lambda: "k" in table]
        for look in looks:
            with pytest.raises(LogTruncatedError):
                look()
        with pytest.raises(LogTruncatedError):
            await table.caught_up()
