"""Topics as Arrow tables: the oracle is the consumer that makes records."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.client.client import Client
from stratalog.client.errors import RecordDecodingError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.logs.sampling import some_seeds
from tests.support.service.scripted_service import ScriptedService, answer, scripted
from tests.support.service.service_bench import ServiceBench, end_transaction

NAMES = ["partition", "offset", "timestamp", "key", "value", "headers"]


def record_of(random: Random) -> Record:
    def part() -> bytes | None:
        return random.choice([None, b"", "ä".encode(), b"x" * random.randrange(200)])

    headers = tuple((random.choice(["h", "ä"]), part()) for _ in range(random.choice([0, 0, 2])))
    return Record(0, random.choice([-1, 0, 1_357_034_400_123]), part(), part(), headers)


async def fill(bench: ServiceBench, random: Random) -> None:
    """Batches of all codecs in two partitions, with transactions, committed and aborted, and a part of it all
    in the object store."""
    await bench.client.admin.create_topic("t", 2, {"message.timestamp.before.max.ms": str(2**62)})
    sequence = 0
    for _ in range(random.randrange(1, 12)):
        number = random.randrange(2)
        records = [record_of(random) for _ in range(random.choice([1, 3, 50]))]
        if random.random() < 0.3:
            partition = bench.partition(number=number)
            producer = BatchProducer(number, 0, 0, is_transactional=True)
            batch = encode_batch(records, producer=producer._replace(producer_id=sequence))
            partition.log.appender.append_as_leader(batch, partition.shard.leader_epoch())
            end_transaction(partition, sequence, committed=random.random() < 0.5)
            sequence += 1
        else:
            await bench.client.append("t", number, records, codec=random.choice(list(Codec)))
        if random.random() < 0.2:
            await bench.client.admin.upload(delete_local=True)


@pytest.mark.parametrize("seed", some_seeds(12))
async def test_rows_are_the_records_of_a_consumer(bench: ServiceBench, seed: int) -> None:
    random = Random(seed)
    await fill(bench, random)
    options: dict[str, Any] = {
        "start": random.choice(["earliest", 3, -5, {0: 2}]),
        "isolation": random.choice(list(IsolationLevel)),
        "until": "latest",
    }
    if options["start"] in (3, {0: 2}):
        options["auto_offset_reset"] = "earliest"
    expected = sorted(
        [
            (record.partition, record.offset, record.timestamp, record.key, record.value, record.headers)
            async for record in bench.client.consume("t", **options)
        ],
        key=lambda row: row[:2],
    )
    table = await bench.client.read_arrow("t", **options)
    table.validate(full=True)
    assert table.column_names == NAMES
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    found = [
        (*[row[name] for name in NAMES[:5]], tuple((one["key"], one["value"]) for one in row["headers"]))
        for row in rows
    ]
    assert found == expected
    # Columns by themselves are the same columns.
    names = random.sample(NAMES, random.randrange(1, 6))
    some = await bench.client.read_arrow("t", columns=names, **options)
    some.validate(full=True)
    assert some.column_names == names
    assert some.equals(table.select(names))


async def test_the_schema_of_a_topic_without_records(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    table = await bench.client.read_arrow("t")
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    assert table.num_rows == 0
    types: list[pa.DataType] = [
        *(pa.int32(), pa.int64(), pa.timestamp("ms", tz="UTC")),
        *(pa.binary(), pa.binary(), pa.list_(header)),
    ]
    assert (table.schema.names, table.schema.types) == (NAMES, types)


async def test_text_limits_and_refusals(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.client.append("t", 0, [Record(0, 5, b"%d" % number, "ä".encode()) for number in range(5)])
    table = await bench.client.read_arrow("t", columns=["key", "value"], decode="utf-8", max_records=3)
    assert table.schema == pa.schema({"key": pa.string(), "value": pa.string()})
    assert table.to_pylist() == [{"key": str(number), "value": "ä"} for number in range(3)]
    refused: list[dict[str, Any]] = [{"columns": ["topic"]}, {"decode": int}]
    for options in refused:
        with pytest.raises(InvalidRequestError):
            await bench.client.read_arrow("t", **options)


async def test_a_large_topic_comes_in_chunks(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    batch = encode_batch([Record(0, 5, b"k", bytes(500))] * 2000, codec=Codec.ZSTD)
    for _ in range(2):
        await bench.client.append_batches("t", 0, batch * 10)
    table = await bench.client.read_arrow("t")
    assert table.num_rows == 40_000
    assert table["offset"].to_pylist() == list(range(40_000))
    assert table["value"].num_chunks > 2


async def test_a_damaged_batch_is_refused() -> None:
    damaged = answer(2, 2)
    damaged.batches = damaged.batches[:-1] + b"x"
    service = ScriptedService([[answer(0, 2), damaged]])
    service.log_end_offset = 9
    async with scripted(service) as address, Client(address) as client:
        with pytest.raises(CorruptRecordError) as caught:
            await client.read_arrow("t", until=9)
    assert {"topic": "t", "partition": 0, "base_offset": 2}.items() <= caught.value.fields.items()


@pytest.mark.parametrize(
    ("columns", "offset", "origin"), [(None, 3, "key"), (["value", "key"], 3, "key"), (["value"], 4, "value")]
)
async def test_a_record_that_is_no_text_is_named(
    bench: ServiceBench, columns: list[str] | None, offset: int, origin: str
) -> None:
    await bench.client.admin.create_topic("t")
    rows = [(b"k", b"v"), (None, b"v"), (b"k", None), (b"\xff", b"v"), (b"\xff", b"\xff")]
    for key, value in rows:
        await bench.client.append("t", 0, [Record(0, 5, key, value)])
    with pytest.raises(RecordDecodingError) as caught:
        await bench.client.read_arrow("t", columns=columns, decode="utf-8")
    place = {"topic": "t", "partition": 0, "offset": offset, "origin": origin}
    assert place.items() <= caught.value.fields.items()


def test_the_client_does_without_pyarrow() -> None:
    program = """
import asyncio, sys
sys.modules["pyarrow"] = None
from stratalog.base.errors import UnsupportedOperationError
from stratalog.client.client import Client
from stratalog.client.consuming.consumer import Consumer

async def main():
    async with Client("127.0.0.1:1") as client:
        try:
            await client.read_arrow("t")
        except UnsupportedOperationError as error:
            print(error.code)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "UNSUPPORTED_OPERATION\n"
