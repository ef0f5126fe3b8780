"""A topic's codec and its bounds of time, from CreateTopic through appends to what a fetch gives back."""

from __future__ import annotations

import pytest

from stratalog.base.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.logs.decoded_records import decode_all
from tests.support.service.service_bench import ServiceBench

VALUE = b"all work and no play " * 50
RECORDS = [
    Record(0, 5, b"k", VALUE, (("h", b"1"), ("h", None))),
    Record(1, 7, None, None),
    Record(2, 6, b"", VALUE),
]


async def fetched(bench: ServiceBench, topic: str) -> bytes:
    """The bytes of the topic's only partition, as the wire carries them."""
    wanted = log_pb2.FetchPartition(topic=topic, partition=0, fetch_offset=0)
    answer = await bench.client.log.Fetch(log_pb2.FetchRequest(partitions=[wanted]))
    [partition] = answer.partitions
    return partition.batches


@pytest.mark.parametrize("kind", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_kept_in_the_topics_codec_in_every_tier(bench: ServiceBench, kind: str) -> None:
    await bench.client.admin.create_topic("t", config={"compression.type": kind})
    for source in Codec:
        await bench.client.append_batches("t", 0, encode_batch(RECORDS, codec=source))
    # Plain records are encoded by the server, and then they are a batch like any other.
    await bench.client.append("t", 0, RECORDS)
    codec = {"uncompressed": Codec.NONE}.get(kind) or Codec.__members__.get(kind.upper(), Codec.NONE)
    expected = [*Codec, Codec.NONE] if kind == "producer" else [codec] * 6
    for _ in range(2):
        data = await fetched(bench, "t")
        assert [header.codec for _, header in batches(data)] == expected
        assert decode_all(data) == [record._replace(offset=index) for index, record in enumerate(RECORDS * 6)]
        await bench.client.admin.upload(delete_local=True)


async def test_a_level_that_the_codec_does_not_know_is_refused_with_the_topic(bench: ServiceBench) -> None:
    for key, value in (("compression.type", "brotli"), ("compression.gzip.level", "0")):
        with pytest.raises(InvalidConfigError) as caught:
            await bench.client.admin.create_topic("t", config={key: value})
        assert caught.value.fields["name"] == key
    assert await bench.client.admin.list_topics() == []


async def test_a_time_out_of_bounds_is_refused_by_name_and_nothing_is_stored(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config={"message.timestamp.before.max.ms": "1000"})
    request = encode_batch([Record(0, NO_TIMESTAMP, b"k", b"v"), Record(1, 5, b"k", b"v")])
    with pytest.raises(InvalidTimestampError) as caught:
        await bench.client.append_batches("t", 0, request)
    fields = caught.value.fields
    assert (fields["batch_index"], fields["record_index"], fields["timestamp_ms"]) == (0, 1, 5)
    assert {"earliest_ms", "latest_ms"} <= set(fields)
    assert await bench.client.latest("t") == await bench.client.earliest("t")
    await bench.client.admin.create_topic(
        "own", config={"message.timestamp.before.max.ms": "0", "message.timestamp.type": "LogAppendTime"}
    )
    await bench.client.append_batches("own", 0, request)
    [records] = await bench.read_all("own")
    assert len({record.timestamp_ms for record in records}) == 1
    assert records[0].timestamp_ms > 5


async def test_a_record_without_a_key_is_named_where_keys_are_needed(bench: ServiceBench) -> None:
    config = {"cleanup.policy": "compact", "compression.type": "lz4"}
    await bench.client.admin.create_topic("t", config=config)
    with pytest.raises(InvalidRequestError) as caught:
        await bench.client.append("t", 0, RECORDS)
    assert caught.value.fields == {"batch_index": 0, "record_index": 1, "null_key_count": 1}


async def test_what_is_too_large_for_the_topic_once_it_is_unpacked_is_refused(bench: ServiceBench) -> None:
    config = {"compression.type": "uncompressed", "max.message.bytes": "2000"}
    await bench.client.admin.create_topic("t", config=config)
    with pytest.raises(RecordTooLargeError) as caught:
        await bench.client.append_batches("t", 0, encode_batch(RECORDS, codec=Codec.GZIP))
    assert caught.value.fields["max_bytes"] == 2000
    assert caught.value.fields["sent_in"] == "GZIP"
    assert await bench.client.latest("t") == await bench.client.earliest("t")
