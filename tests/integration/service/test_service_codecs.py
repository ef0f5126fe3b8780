"""Batches of every codec on their way: appended as they are, fetched, tiered, compacted, and read as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiokafka.record.default_records  # type: ignore[import-untyped]  # marks no types
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.source.slice_scan import scan
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import MAGIC_POSITION
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all
from tests.support.places import GOLDEN
from tests.support.service.service_bench import ServiceBench, service_bench
from tests.support.spark.topic_scan import topic_spans

AIOKAFKA: Any = aiokafka.record.default_records
CODECS_LOG = GOLDEN / "data" / "g1-codecs-0" / "00000000000000000000.log"
KEY_COUNT = 50

each_codec = pytest.mark.parametrize("codec", Codec)


def round_of(number: int) -> list[Record]:
    """An update of every key, in every third case a deletion."""
    return [
        Record(
            0,
            1_000 + number,
            b"key %d" % key,
            None if (key + number) % 3 == 0 else b"%d of %d " % (number, key) * 50,
        )
        for key in range(KEY_COUNT)
    ]


def by_aiokafka(codec: Codec, records: list[Record]) -> bytes:
    builder = AIOKAFKA.DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 2**20)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, [])
    return bytes(builder.build())


async def fetched(bench: ServiceBench, topic: str) -> bytes:
    """The bytes of the topic's one partition."""
    position = TopicPartition(topic, 0)
    data, offset = b"", 0
    [end] = (await bench.client.latest(topic)).values()
    while offset < end:
        [partition] = await bench.client.fetch({position: offset})
        assert partition.error is None
        data += partition.batches
        *_, (_, last) = batches(partition.batches)
        offset = last.next_offset
    return data


def bodies(data: bytes) -> list[bytes]:
    """The batches without what the log writes: base offset, length and epoch."""
    return [
        data[position + MAGIC_POSITION : position + header.size_in_bytes]
        for position, header in batches(data)
    ]


def codecs_of(data: bytes) -> set[Codec]:
    return {header.codec for _, header in batches(data)}


@each_codec
async def test_a_codec_on_its_way(tmp_path: Path, codec: Codec) -> None:
    store = MemoryObjectStore(SystemClock())
    rounds = [round_of(number) for number in range(4)]
    sent = [(by_aiokafka if number % 2 else encode)(codec, records) for number, records in enumerate(rounds)]
    assert codecs_of(b"".join(sent)) == {codec}
    records = [
        record._replace(offset=offset)
        for offset, record in enumerate(record for some in rounds for record in some)
    ]
    latest = {record.key: record for record in records}
    async with service_bench(tmp_path, store=store) as bench:
        await bench.client.admin.create_topic("t", config={"cleanup.policy": "compact", "retention.ms": "-1"})
        for number, batch in enumerate(sent):
            assert (await bench.client.append_batches("t", 0, batch)).base_offset == number * KEY_COUNT
            if number == 1:
                # One half on the disk, the other in the store.
                await bench.client.admin.upload(delete_local=True)
        assert bodies(await fetched(bench, "t")) == [batch[MAGIC_POSITION:] for batch in sent]
        assert await bench.read_all("t") == [records]

        await bench.client.admin.upload(delete_local=True)
        assert bodies(await fetched(bench, "t")) == [batch[MAGIC_POSITION:] for batch in sent]
        assert rows(store) == [(record.offset, record.key, record.value) for record in records]

        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.reason == ""
        kept = sorted(latest.values())
        compacted = await fetched(bench, "t")
        assert codecs_of(compacted) == {codec}
        assert decode_all(compacted) == kept
        assert rows(store) == [(record.offset, record.key, record.value) for record in kept]
        assert (job.input_record_count, job.output_record_count) == (4 * KEY_COUNT, KEY_COUNT)


def encode(codec: Codec, records: list[Record]) -> bytes:
    return encode_batch(records, codec=codec)


def rows(store: MemoryObjectStore) -> list[tuple[int, bytes | None, bytes | None]]:
    """The rows that the pipeline reads from the store."""
    spans = topic_spans(store, topic="t")
    found = [row for batch in scan(store, spans, ("offset", "key", "value")) for row in batch.to_pylist()]
    return [(row["offset"], row["key"], row["value"]) for row in found]


async def test_batches_of_librdkafka_pass_as_they_are(bench: ServiceBench) -> None:
    """Those that a broker kept of it, bare snappy among them."""
    data = CODECS_LOG.read_bytes()
    plain = [
        data[position : position + header.size_in_bytes]
        for position, header in batches(data)
        if not header.has_producer_id
    ]
    assert codecs_of(b"".join(plain)) == set(Codec) - {Codec.LZ4}
    await bench.client.admin.create_topic("t", config={"retention.ms": "-1"})
    for batch in plain:
        await bench.client.append_batches("t", 0, batch)
    assert bodies(await fetched(bench, "t")) == [batch[MAGIC_POSITION:] for batch in plain]
    [found] = await bench.read_all("t")
    assert [record._replace(offset=0) for record in found] == [
        record._replace(offset=0) for batch in plain for record in decode_all(batch)
    ]
