"""Tables of Apache Arrow become records: every type that holds keys, values, times, headers or partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.errors import InvalidRequestError, RecordTooLargeError, UnknownTopicOrPartitionError
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench

KEYS = ["a", None, "ccc", "", "a"]
VALUES = [b"1", b"22", None, b"", b"5"]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("x", b"1"), ("y", None)],
    [],
    [("", b"")],
    [],
    [("z", b"9")],
]
TIMES = [5, 6, 7, 8, 9]
PLACES = [2, 0, 1, 2, 2]


def table(**columns: Any) -> pa.Table:
    return pa.table({"value": pa.array(VALUES, pa.binary()), **columns})


async def stored(bench: ServiceBench) -> dict[bytes | None, Record]:
    """The records of all partitions by their values."""
    found = [record for records in await bench.read_all("t") for record in records]
    assert len(found) == len(VALUES)
    return {record.value: record._replace(offset=0) for record in found}


KEY_TYPES = [
    pa.string(),
    pa.binary(),
    pa.large_string(),
    pa.large_binary(),
    pa.dictionary(pa.int8(), pa.string()),
]
HEADER_TYPES = [
    pa.map_(pa.string(), pa.binary()),
    pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
]


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=str)
@pytest.mark.parametrize("header_type", HEADER_TYPES, ids=["map", "list"])
async def test_rows_are_stored_as_records(bench: ServiceBench, key_type: Any, header_type: Any) -> None:
    await bench.client.topics.create("t", partitions=3)
    headers: list[Any] = list(HEADERS)
    if pa.types.is_list(header_type):
        headers = [[{"name": name, "value": value} for name, value in row] for row in HEADERS]
    rows = table(
        key=pa.array(KEYS, pa.string()).cast(key_type),
        headers=pa.array(headers, header_type),
        timestamp=pa.array(TIMES, pa.timestamp("us" if header_type is HEADER_TYPES[0] else "ms")).cast(
            pa.timestamp("ms"), safe=False
        )
        if header_type is HEADER_TYPES[1]
        else pa.array(TIMES),
        partition=pa.array(PLACES, pa.int64()),
    )
    async with bench.client.producer() as producer:
        # Pieces, and a slice whose buffers begin earlier.
        assert await producer.send_many("t", rows.slice(0, 2)) == 2
        assert await producer.send_many("t", pa.concat_tables([rows.slice(2, 1), rows.slice(3, 2)])) == 3
        assert await producer.send_many("t", rows.slice(0, 0)) == 0
    expected = {
        value: Record(0, TIMES[row], None if key is None else key.encode(), value, tuple(HEADERS[row]))
        for row, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    }
    assert await stored(bench) == expected
    counts = [len(records) for records in await bench.read_all("t")]
    assert counts == [PLACES.count(number) for number in range(3)]


async def test_rows_without_places_and_times_go_by_their_keys_now(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=3)
    rows = table(
        key=pa.array(KEYS),
        partition=pa.nulls(5, pa.int32()),
        timestamp=pa.array([None] * 5, pa.timestamp("s")),
    )
    async with bench.client.producer() as producer:
        [batch] = rows.to_batches()
        await producer.send_many("t", batch)
        places = [(await producer.send("t", key, b"")).partition for key in ("a", "ccc", "")]
    for partition, records in enumerate(await bench.read_all("t")):
        for record in records:
            assert record.timestamp_ms > 1_600_000_000_000
            if record.key is not None:
                assert places[["a", "ccc", ""].index(record.key.decode())] == partition


async def test_more_rows_than_the_buffer_holds_wait_for_room(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", partitions=2)
    rows = pa.table({"value": [b"%05d" % number + bytes(100) for number in range(5000)]})
    async with bench.client.producer(max_buffered_bytes=20_000, batch_bytes=4_000, linger_ms=0) as producer:
        sending = asyncio.create_task(producer.send_many("t", rows))
        while not sending.done():
            await asyncio.sleep(0)
            assert producer.buffered_bytes < 20_200
        assert await sending == 5000
    values = sorted(value or b"" for partition in await bench.values("t") for value in partition)
    assert [int(value[:5]) for value in values] == list(range(5000))


@pytest.mark.parametrize(
    "rows",
    [
        [1, 2],
        pa.table({"key": ["a"]}),
        pa.table({"value": [1]}),
        pa.table({"value": ["a"], "other": ["b"]}),
        pa.table({"value": ["a"], "timestamp": [-1]}),
        pa.table({"value": ["a"], "timestamp": ["soon"]}),
        pa.table({"value": ["a"], "partition": [-1]}),
        pa.table({"value": ["a"], "partition": [7]}),
        pa.table({"value": ["a"], "headers": ["b"]}),
        pa.table({"value": ["a"], "headers": pa.array([None], pa.map_(pa.string(), pa.string()))}),
    ],
)
async def test_tables_that_are_no_records_are_refused(bench: ServiceBench, rows: Any) -> None:
    await bench.client.topics.create("t", partitions=2)
    async with bench.client.producer() as producer:
        with pytest.raises(InvalidRequestError):
            await producer.send_many("t", rows)
    assert await bench.values("t") == [[], []]


async def test_a_failure_is_that_of_the_call(bench: ServiceBench) -> None:
    await bench.client.topics.create("t", config={"max.message.bytes": "1000"})
    async with bench.client.producer() as producer:
        with pytest.raises(RecordTooLargeError):
            await producer.send_many("t", pa.table({"value": [b"small", bytes(5000), b"small"]}))
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send_many("nope", pa.table({"value": [b"x"]}))
    assert await bench.values("t") == [[b"small"]]
