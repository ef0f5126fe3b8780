"""A topic's codec and its bounds of time, from CreateTopic through appends to what a fetch gives back."""

from __future__ import annotations

import pytest

from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.decoded_records import decode_all
from tests.support.service.service_bench import ServiceBench

VALUE = b"all work and no play " * 50
RECORDS = [
    Record(0, 5, b"k", VALUE, (("h", b"1"), ("h", None))),
    Record(1, 7, None, None),
    Record(2, 6, b"", VALUE),
]


async def fetched(bench: ServiceBench, topic: str) -> bytes:
    """The bytes of the topic's only partition, as the wire carries them."""
    wanted = log_pb2.FetchPartition(topic=topic, start=log_pb2.Position(offset=0))
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
