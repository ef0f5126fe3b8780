"""CopyBatches over a loopback connection: batches in the values of records become appends elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from stratalog.base.errors import LogStoreError
from stratalog.client.append_record import AppendRecord
from stratalog.client.client import Client
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.server.rpc.copy_servicer import MAX_COPY_BYTES, MAX_COPY_COUNT
from stratalog.v1 import log_pb2
from tests.support.access.guarded_site import EVERYTHING, GuardedSite
from tests.support.service.service_bench import ServiceBench

NOW_MS = int(time.time() * 1000)


def batch_of(*values: bytes, codec: Codec = Codec.NONE, producer: BatchProducer | None = None) -> bytes:
    records = [Record(number, NOW_MS, b"key", value) for number, value in enumerate(values)]
    return encode_batch(records, codec=codec, producer=producer or BatchProducer())


async def stage(client: Client, values: Sequence[bytes | None], topic: str = "source") -> list[int]:
    """Append records of these values to partition 1, and return their offsets."""
    acks = [await client.append(topic, 1, [AppendRecord(b"attempt", value)]) for value in values]
    return [ack.base_offset for ack in acks]


async def new_producer(client: Client) -> int:
    return (await client.log.InitProducer(log_pb2.InitProducerRequest())).producer_id


def copy_of(
    offset: int, producer_id: int, sequence: int, partition: int = 0, topic: str = "t", topic_id: str = ""
) -> log_pb2.BatchCopy:
    producer = log_pb2.ProducerSequence(producer_id=producer_id, base_sequence=sequence)
    return log_pb2.BatchCopy(
        offset=offset, topic=topic, topic_id=topic_id, partition=partition, producer=producer
    )


async def copied(
    client: Client, copies: Sequence[log_pb2.BatchCopy], *, topic_id: str = "", partition: int = 1
) -> list[log_pb2.CopiedBatch]:
    """The outcomes of the copies. Raises LogStoreError for a call that fails as a whole."""
    request = log_pb2.CopyBatchesRequest(
        topic="source", topic_id=topic_id, partition=partition, copies=copies
    )
    try:
        return list((await client.log.CopyBatches(request)).copied)
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, "") from None


def codes(answers: Sequence[log_pb2.CopiedBatch]) -> list[str]:
    """The code of each outcome; `OK`, or `AGAIN` of a duplicate."""
    return [
        error_of_status(one.status).code if one.HasField("status") else "AGAIN" if one.ack.duplicate else "OK"
        for one in answers
    ]


async def client_of(bench: ServiceBench) -> Client:
    """A client of a server with the topics."""
    await bench.client.topics.create("source", partitions=2)
    await bench.client.topics.create("t", partitions=2)
    return bench.client


async def test_copies_are_appends_of_their_producer(bench: ServiceBench) -> None:
    client = await client_of(bench)
    former = BatchProducer(producer_id=0, producer_epoch=7, base_sequence=3)
    offsets = await stage(
        client,
        [
            batch_of(b"a", b"b", producer=former),
            b"of another attempt",
            batch_of(b"c", codec=Codec.GZIP),
            batch_of(b"d"),
        ],
    )
    producer = await new_producer(client)
    copies = [
        copy_of(offsets[0], producer, 0, 1),
        copy_of(offsets[2], producer, 0, 0),
        copy_of(offsets[3], producer, 2, 1),
    ]
    answers = await copied(client, copies)
    assert codes(answers) == ["OK"] * 3
    assert [(one.ack.partition, one.ack.base_offset, one.ack.last_offset) for one in answers] == [
        (1, 0, 1),
        (0, 0, 0),
        (1, 2, 2),
    ]
    for _ in range(2):
        assert await bench.values("t") == [[b"c"], [b"a", b"b", b"d"]]
        [state] = await client.admin.list_producers("t", 1)
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer, 0, 2)
        # The same call again, as after a lost answer.
        assert codes(await copied(client, copies)) == ["AGAIN"] * 3


async def test_behind_a_failed_copy_nothing_of_its_partition_is_applied(bench: ServiceBench) -> None:
    client = await client_of(bench)
    offsets = await stage(client, [batch_of(b"%d" % number) for number in range(4)])
    producer = await new_producer(client)
    answers = await copied(
        client,
        [
            copy_of(offsets[0], producer, 0, 0),
            copy_of(offsets[1], producer, 5, 0),
            copy_of(offsets[2], producer, 6, 0),
            copy_of(offsets[3], producer, 0, 1),
        ],
    )
    assert codes(answers) == ["OK", "OUT_OF_ORDER_SEQUENCE", "PRECEDING_APPEND_FAILED", "OK"]
    assert await bench.values("t") == [[b"0"], [b"3"]]


async def test_a_copy_that_means_nothing_fails_alone(bench: ServiceBench) -> None:
    client = await client_of(bench)
    # Each is to a topic of its own, because it fails what comes behind it in its partition.
    two, whole = batch_of(b"1") + batch_of(b"2"), batch_of(b"3")
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])
    transactional = batch_of(b"4", producer=BatchProducer(1, 0, 0, is_transactional=True))
    values = [b"no batch", two, None, whole[:-1], transactional, *[whole] * 7]
    offsets = await stage(client, values)
    for number in range(len(values) + 1):
        await client.topics.create(f"t{number}")
    producer = await new_producer(client)
    copies = [copy_of(offset, producer, 0, topic=f"t{n}") for n, offset in enumerate(offsets)]
    copies[5].ClearField("producer")
    copies[6].producer.producer_id = producer + 100_000
    copies[7].topic = "missing"
    copies[8].topic_id = "00000000-0000-0000-0000-000000000001"
    copies[9].producer.producer_id = -1
    copies[10].producer.base_sequence = -1
    copies[11].key = b"of another attempt"
    good = await stage(client, [whole])
    copies.append(copy_of(good[0], producer, 0, topic=f"t{len(values)}"))
    copies[-1].key = b"attempt"
    assert codes(await copied(client, copies)) == [
        "INVALID_RECORD",
        "INVALID_RECORD",
        "OFFSET_OUT_OF_RANGE",
        "INVALID_RECORD",
        "INVALID_RECORD",
        "INVALID_REQUEST",
        "UNKNOWN_PRODUCER_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INCONSISTENT_TOPIC_ID",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_REQUEST",
        "OFFSET_OUT_OF_RANGE",
        "OK",
    ]
    assert [await bench.values(f"t{number}") for number in range(13)] == [[[]]] * 12 + [[[b"3"]]]
    # The record's own bytes are those that count, so the checksum is that of its log.
    [offset] = await stage(client, [damaged])
    assert codes(await copied(client, [copy_of(offset, producer, 0)])) == ["INVALID_RECORD"]


async def test_a_call_that_means_nothing_is_refused_as_a_whole(bench: ServiceBench) -> None:
    client = await client_of(bench)
    first, second = await stage(client, [batch_of(b"1"), batch_of(b"2")])
    producer = await new_producer(client)
    one, other = copy_of(first, producer, 0), copy_of(second, producer, 1)
    end = copy_of(second + 1, producer, 0)
    compressed = await client.append("source", 1, [AppendRecord(None, batch_of(b"3"))], codec=Codec.GZIP)
    other_id = "00000000-0000-0000-0000-000000000001"
    for copies, partition, topic_id, code in (
        ([], 1, "", "INVALID_REQUEST"),
        ([other, one], 1, "", "INVALID_REQUEST"),
        ([one, one], 1, "", "INVALID_REQUEST"),
        ([one] * (MAX_COPY_COUNT + 1), 1, "", "INVALID_REQUEST"),
        ([copy_of(-1, producer, 0)], 1, "", "OFFSET_OUT_OF_RANGE"),
        ([copy_of(end.offset + 1, producer, 0)], 1, "", "OFFSET_OUT_OF_RANGE"),
        ([one], 2, "", "UNKNOWN_TOPIC_OR_PARTITION"),
        ([one], 1, other_id, "INCONSISTENT_TOPIC_ID"),
        ([copy_of(compressed.base_offset, producer, 0)], 1, "", "INVALID_REQUEST"),
    ):
        with pytest.raises(LogStoreError) as refused:
            await copied(client, copies, partition=partition, topic_id=topic_id)
        assert refused.value.code == code, (copies, refused.value)
    await client.admin.delete_records("source", 1, second)
    with pytest.raises(LogStoreError) as gone:
        await copied(client, [one, other])
    assert (gone.value.code, gone.value.fields["log_start_offset"]) == ("OFFSET_OUT_OF_RANGE", second)
    assert codes(await copied(client, [copy_of(second, producer, 0)])) == ["OK"]


async def test_a_call_copies_some_mebibytes(bench: ServiceBench) -> None:
    client = await client_of(bench)
    values = [bytes([number]) * (1 << 20) for number in range(12)]
    await client.topics.alter("source", {"max.message.bytes": 2 << 20})
    await client.topics.alter("t", {"max.message.bytes": 2 << 20})
    offsets = await stage(client, [batch_of(value) for value in values])
    producer = await new_producer(client)
    copies = [copy_of(offset, producer, number) for number, offset in enumerate(offsets)]
    first = await copied(client, copies)
    assert MAX_COPY_BYTES // 2 <= len(first) << 20 <= MAX_COPY_BYTES
    assert codes(first) == ["OK"] * len(first)
    assert codes(await copied(client, copies[len(first) :])) == ["OK"] * (len(copies) - len(first))
    assert (await bench.values("t"))[0] == values
    assert bench.server.fetch_memory.held_bytes == bench.server.append_memory.held_bytes == 0


@pytest.mark.parametrize(("lacks", "of"), [("", ""), ("read", "source"), ("write", "source"), ("read", "t")])
async def test_a_copy_needs_to_read_and_to_write_both_topics(tmp_path: Path, lacks: str, of: str) -> None:
    rights = {topic: {"read", "write"} - ({lacks} if topic == of else set()) for topic in ("source", "t")}
    rules = ", ".join(
        f'{{ topics = ["{topic}"], operations = {sorted(some)} }}' for topic, some in rights.items()
    )
    site = GuardedSite(tmp_path, ours=rules.replace("'", '"'), admin=EVERYTHING)
    async with site.running(), site.client("ours") as ours, site.client("admin") as admin:
        for topic in ("source", "t"):
            await admin.topics.create(topic, partitions=2)
        [offset] = await stage(admin, [batch_of(b"1")])
        copies = [copy_of(offset, await new_producer(admin), 0)]
        if not lacks:
            assert codes(await copied(ours, copies)) == ["OK"]
            return
        with pytest.raises(LogStoreError) as refused:
            await copied(ours, copies)
        fields = refused.value.fields
        assert (refused.value.code, fields["operation"], fields["topic"]) == (
            "AUTHORIZATION_FAILED",
            lacks,
            of,
        )
