"""Append and AppendStream over a loopback connection: what is stored, what is refused, in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from stratalog.base.errors import (
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    PrecedingAppendFailedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.message_fields import varint
from stratalog.base.types import Durability
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_PRODUCER, encode_batch
from stratalog.record.record import Record
from stratalog.server.app import LOG_SERVICE
from stratalog.server.rpc.call_guard import MAX_DECODED_BYTES
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.service.service_bench import ServiceBench, service_bench

NOW_MS = 1_357_034_400_000


TRANSACTIONAL = BatchProducer(7, 0, 0, is_transactional=True)


def of_values(*values: bytes, producer: BatchProducer = NO_PRODUCER) -> bytes:
    return encode_batch([Record(0, NOW_MS, b"key", value) for value in values], producer=producer)


async def test_plain_records_are_encoded_by_the_server(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    plain = log_pb2.Records()
    full = plain.records.add(key=b"k", value=b"v", timestamp_ms=NOW_MS)
    full.headers.add(key="h", value=b"x")
    full.headers.add(key="null")
    plain.records.add(key=b"gone", timestamp_ms=NOW_MS + 1)
    plain.records.add(value=b"", timestamp_ms=NOW_MS + 2)
    plain.records.add(value=b"timed by the server")
    answer = await bench.client.log.Append(log_pb2.AppendRequest(topic="t", records=plain))
    assert (answer.base_offset, answer.last_offset, answer.durability) == (0, 3, log_pb2.DURABILITY_OS)
    [records] = await bench.read_all("t")
    assert records[0] == Record(0, NOW_MS, b"k", b"v", (("h", b"x"), ("null", None)))
    assert records[1] == Record(1, NOW_MS + 1, b"gone", None)
    assert records[2] == Record(2, NOW_MS + 2, None, b"")
    assert records[3].timestamp_ms > NOW_MS


async def test_a_bomb_of_empty_records_is_counted_and_refused(bench: ServiceBench) -> None:
    """Each becomes at least seven bytes; as objects they would take gigabytes."""
    await bench.client.admin.create_topic("t")
    head = log_pb2.AppendRequest(topic="t", partition=0).SerializeToString()
    records = b"\x0a\x00" * (10 << 20)
    bomb = head + b"\x2a" + varint(len(records)) + records
    with pytest.raises(RecordTooLargeError) as refused:
        await raw_call(bench, "Append", bomb)
    assert refused.value.fields["records_count"] == 10 << 20
    # Without a partition the keys are looked at first.
    with pytest.raises(RecordTooLargeError):
        await raw_call(bench, "Append", bomb[:3] + bomb[5:])
    answer = await bench.client.append_batches("t", 0, of_values(b"a"))
    assert answer.base_offset == 0


async def test_a_large_request_without_records_is_refused_undecoded(bench: ServiceBench) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await raw_call(bench, "ListOffsets", b"\x0a\x00" * (3 << 20))
    assert refused.value.fields["allowed"] == MAX_DECODED_BYTES


async def raw_call(bench: ServiceBench, method: str, request: bytes) -> object:
    """Send bytes as they are. Raises the refusal."""
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        try:
            return await cast("Any", channel).unary_unary(f"/{LOG_SERVICE}/{method}")(request)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, "") from error


@pytest.mark.parametrize(
    ("durability", "minimum", "expected"),
    [
        (None, "os", Durability.OS),
        (None, "disk", Durability.DISK),
        (Durability.OS, "disk", Durability.DISK),
        (Durability.DISK, "os", Durability.DISK),
    ],
)
async def test_the_stronger_of_request_and_topic_holds(
    bench: ServiceBench, durability: Durability | None, minimum: str, expected: Durability
) -> None:
    await bench.client.admin.create_topic("t", config={"min.durability": minimum})
    answer = await bench.client.append_batches("t", 0, of_values(b"a"), durability=durability)
    assert answer.durability == int(expected)
    [partition] = await bench.client.admin.describe_log("t")
    assert partition.recovery_point == (1 if expected is Durability.DISK else 0)
    assert partition.high_watermark == 1


async def test_object_durability_is_refused_with_advice_where_nothing_is_uploaded(
    bench: ServiceBench,
) -> None:
    await bench.client.admin.create_topic("t", config={"remote.storage.enable": "false"})
    with pytest.raises(InvalidRequestError) as refused:
        await bench.client.append_batches("t", 0, of_values(b"a"), durability=Durability.OBJECT)
    assert "remote.storage.enable" in str(refused.value)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", InvalidRequestError),
        (of_values(b"abc")[:-1] + b"\x7f", InvalidRecordError),
        (of_values(bytes(3000)), RecordTooLargeError),
        (of_values(b"a", producer=TRANSACTIONAL), UnsupportedOperationError),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
async def test_what_is_no_good_is_refused_and_nothing_of_it_is_stored(
    bench: ServiceBench, sent: bytes, expected: type[LogStoreError]
) -> None:
    await bench.client.admin.create_topic("t", config={"max.message.bytes": "2000"})
    await bench.take_producer_ids(TRANSACTIONAL.producer_id)
    with pytest.raises(expected) as caught:
        await bench.client.append_batches("t", 0, sent)
    assert type(caught.value) is expected
    await bench.client.append_batches("t", 0, of_values(b"after"))
    assert await bench.values("t") == [[b"after"]]


async def test_a_producers_batch_that_comes_again_gets_its_offsets_again(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    await bench.take_producer_ids(7)
    await bench.client.append_batches("t", 0, of_values(b"before"))
    sent = [
        of_values(b"a", b"b", producer=BatchProducer(7, 0, 0)),
        of_values(b"c", producer=BatchProducer(7, 0, 2)),
    ]
    for is_again in (False, True):
        answers = [
            await bench.client.append_batches("t", 0, data, durability=Durability.DISK) for data in sent
        ]
        assert [(answer.base_offset, answer.last_offset) for answer in answers] == [(1, 2), (3, 3)]
        assert [answer.duplicate for answer in answers] == [is_again] * 2
    [records] = await bench.read_all("t")
    assert [record.value for record in records] == [b"before", b"a", b"b", b"c"]


@pytest.mark.parametrize(("topic", "partition"), [("nope", 0), ("", 0), ("t", 2)])
async def test_an_unknown_topic_or_partition_is_named(
    bench: ServiceBench, topic: str, partition: int
) -> None:
    await bench.client.admin.create_topic("t", 2)
    with pytest.raises(UnknownTopicOrPartitionError) as caught:
        await bench.client.append_batches(topic, partition, of_values(b"a"))
    known = {"partition_count": 2} if topic == "t" else {}
    assert caught.value.fields == {"topic": topic, "partition": partition, **known}


@pytest.mark.parametrize("topic", ["t", "nope"])
async def test_a_negative_partition_is_an_invalid_request(bench: ServiceBench, topic: str) -> None:
    await bench.client.admin.create_topic("t", 2)
    log = bench.client.log
    fetch = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic=topic, partition=-1)])
    query = log_pb2.OffsetQuery(
        topic=topic, partition=-1, at=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST)
    )
    found = [
        error_of_status((await log.Fetch(fetch)).partitions[0].error),
        error_of_status(
            (await log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).answers[0].error
        ),
    ]
    read = log.Read(log_pb2.ReadRequest(topic=topic, partitions=[log_pb2.ReadPartition(partition=-1)]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await anext(aiter(read))
    found.append(error_of_call(refused.value, ""))
    for calling in (
        bench.client.append_batches(topic, -1, of_values(b"a")),
        bench.client.fence(topic, -1, "token"),
        bench.client.admin.describe_log(topic, [-1]),
        bench.client.admin.list_segments(topic, -1),
        bench.client.admin.list_slices(topic, -1),
        bench.client.admin.list_producers(topic, -1),
        bench.client.admin.delete_records(topic, -1, 0),
        bench.client.admin.roll(topic, [-1]),
        bench.client.admin.flush(topic, [-1]),
        bench.client.admin.reset_excluded_partition(topic, -1),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await calling
        found.append(caught.value)
    for error in found:
        assert type(error) is InvalidRequestError
        assert error.fields == {"topic": topic, "partition": -1}


async def test_an_append_without_payload_is_refused(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    for request in (
        log_pb2.AppendRequest(topic="t"),
        log_pb2.AppendRequest(topic="t", records=log_pb2.Records()),
        log_pb2.AppendRequest(topic="t", partition=0, durability=9, batches=of_values(b"a")),  # type: ignore[arg-type]  # on purpose
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bench.client.log.Append(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_the_servers_limit_is_explained(tmp_path: Path) -> None:
    async with service_bench(tmp_path, max_request_bytes=2_000_000) as bench:
        await bench.client.admin.create_topic("t")
        for size_bytes in (2_100_000, 5_000_000):
            with pytest.raises(RecordTooLargeError):
                await bench.client.append_batches("t", 0, bytes(size_bytes))
        await bench.client.append_batches("t", 0, of_values(b"still there"))


# --- streams -----------------------------------------------------------------------------------------------


def stream_request(
    sequence: int,
    data: bytes,
    partition: int = 0,
    *,
    topic: str = "t",
    durability: Durability = Durability.OS,
    resume: bool = False,
) -> log_pb2.AppendStreamRequest:
    levels = {Durability.OS: log_pb2.DURABILITY_OS, Durability.DISK: log_pb2.DURABILITY_DISK}
    return log_pb2.AppendStreamRequest(
        topic=topic,
        partition=partition,
        durability=levels[durability],
        batches=data,
        sequence=sequence,
        resume=resume,
    )


async def stream(
    bench: ServiceBench, requests: Sequence[log_pb2.AppendStreamRequest]
) -> dict[int, log_pb2.AppendResponse | LogStoreError]:
    """The outcomes of the requests by sequence, in the order of the answers."""

    async def send() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        for request in requests:
            yield request

    outcomes: dict[int, log_pb2.AppendResponse | LogStoreError] = {}
    async for answer in bench.client.log.AppendStream(send()):
        assert answer.sequence not in outcomes, "one answer for each request"
        outcomes[answer.sequence] = (
            error_of_status(answer.status) if answer.HasField("status") else answer.ack
        )
    return outcomes


def offset_of(outcome: log_pb2.AppendResponse | LogStoreError) -> int:
    assert isinstance(outcome, log_pb2.AppendResponse)
    return outcome.base_offset


async def test_a_partition_stops_at_its_first_failure_until_it_is_resumed(bench: ServiceBench) -> None:
    assert await stream(bench, []) == {}
    await bench.client.admin.create_topic("t")
    values = [str(number).encode() for number in range(60)]
    requests = [stream_request(number, of_values(value)) for number, value in enumerate(values)]
    requests[30] = stream_request(30, b"\x00" * 80)
    requests[50].resume = True
    outcomes = await stream(bench, requests)
    assert list(outcomes) == list(range(60))
    assert [offset_of(outcomes[number]) for number in (*range(30), *range(50, 60))] == list(range(40))
    assert type(outcomes[30]) is InvalidRecordError
    assert {type(outcomes[number]) for number in range(31, 50)} == {PrecedingAppendFailedError}
    assert await bench.values("t") == [[*values[:30], *values[50:]]]


async def test_a_deleted_topic_disturbs_no_other_partition_of_the_stream(bench: ServiceBench) -> None:
    """A plain grpc client, which sees the fields of the answers."""
    partition_count = 12
    await bench.client.admin.create_topic("t", partition_count)
    await bench.client.admin.create_topic("deleted")
    await bench.client.admin.delete_topic("deleted")
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        call = log_pb2_grpc.LogServiceStub(channel).AppendStream()
        sequence = 0
        for turn in range(5):
            for partition in range(partition_count):
                sequence += 1
                durability = Durability.DISK if partition % 2 else Durability.OS
                await call.write(
                    stream_request(
                        sequence, of_values(b"%d" % turn), partition=partition, durability=durability
                    )
                )
            sequence += 1
            await call.write(stream_request(sequence, of_values(b"lost"), topic="deleted"))
        await call.done_writing()
        answers = [answer async for answer in call]
        assert await call.code() is grpc.StatusCode.OK
    assert sorted(answer.sequence for answer in answers) == list(range(1, sequence + 1))
    by_partition: dict[int, list[log_pb2.AppendStreamResponse]] = {}
    for answer in answers:
        by_partition.setdefault((answer.sequence - 1) % (partition_count + 1), []).append(answer)
    refused = by_partition.pop(partition_count)
    assert [answer.WhichOneof("outcome") for answer in refused] == ["status"] * 5
    codes = [grpc.StatusCode.NOT_FOUND, *[grpc.StatusCode.ABORTED] * 4]
    assert [answer.status.code for answer in refused] == [code.value[0] for code in codes]
    for of_partition in by_partition.values():
        assert [answer.ack.base_offset for answer in of_partition] == list(range(5))
    assert await bench.values("t") == [[b"%d" % turn for turn in range(5)]] * partition_count


@pytest.mark.parametrize("second", [7, 6, 0])
async def test_a_sequence_that_does_not_grow_ends_the_call(bench: ServiceBench, second: int) -> None:
    await bench.client.admin.create_topic("t", 2)
    call = bench.client.log.AppendStream()
    await call.write(stream_request(7, of_values(b"a")))
    await call.write(stream_request(second, of_values(b"b"), partition=1))
    first = await call.read()
    assert isinstance(first, log_pb2.AppendStreamResponse)
    assert (first.sequence, first.WhichOneof("outcome")) == (7, "ack")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = error_of_call(caught.value, "")
    assert type(error) is InvalidRequestError
    assert error.fields == {"sequence": second, "last_sequence": 7}
    assert await bench.values("t") == [[b"a"], []]


async def test_a_stream_that_is_cancelled_leaves_whole_requests(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t")
    call = bench.client.log.AppendStream()
    for sequence in range(20):
        await call.write(stream_request(sequence, of_values(b"a", b"b")))
    await call.read()
    call.cancel()
    await bench.client.append_batches("t", 0, of_values(b"end"))
    [records] = await bench.read_all("t")
    assert len(records) % 2 == 1
    assert records[-1].value == b"end"
