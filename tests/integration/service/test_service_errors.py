"""Errors on the wire, read with gRPC's own libraries and the generated stubs, without our client."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.app import SERVICES
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, partition_pb2
from tests.support.fuzz.http2_connection import call_of_path, send_bytes
from tests.support.service.error_details import error_info, retry_info
from tests.support.service.odd_requests import odd_requests
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false"}
BATCH = encode_batch([Record(0, 0, None, b"value")])
FOLLOW = log_pb2.FetchRequest(
    partitions=[log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=0))]
)


def of_producer(producer_id: int, epoch: int, sequence: int) -> bytes:
    """A batch of one record of an idempotent producer."""
    producer = BatchProducer(producer_id, epoch, sequence)
    return encode_batch([Record(0, 0, None, b"value")], producer=producer)


@contextmanager
def refused() -> Generator[list[Status]]:
    """The block's call must fail; the list has its status then."""
    statuses: list[Status] = []
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        yield statuses
    status = status_of_call(failure.value)
    assert status is not None
    statuses.append(status)


def status_of_call(error: grpc.aio.AioRpcError) -> Status | None:
    """The status in the trailing metadata; None if there is none. Raises if its code or message differ from
    those of the call."""
    status = cast(object, rpc_status.from_call(cast(grpc.Call, error)))  # pyright: ignore[reportUnknownMemberType]  # without types
    assert status is None or isinstance(status, Status)
    return status


def described(status: Status) -> tuple[int, str, dict[str, str]]:
    info = error_info(status)
    assert info.domain == "stratalog"
    return status.code, info.reason, dict(info.metadata)


def number(code: grpc.StatusCode) -> int:
    value: int = code.value[0]
    return value


async def test_a_program_without_our_client_reads_reason_and_metadata(bench: ServiceBench) -> None:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        log, admin = log_pb2_grpc.LogServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
        create = admin_pb2.CreateTopicRequest(name="t", partition_count=1, config=LOCAL)
        await admin.CreateTopic(create)
        with refused() as statuses:
            await admin.CreateTopic(create)
        assert [described(one) for one in statuses] == [
            (number(grpc.StatusCode.ALREADY_EXISTS), "TOPIC_ALREADY_EXISTS", {"topic": "t"})
        ]
        request = log_pb2.FetchRequest(
            partitions=[log_pb2.FetchPartition(topic="t", start=log_pb2.Position(offset=7))]
        )
        [answer] = (await log.Fetch(request)).partitions
        assert described(answer.error) == (
            number(grpc.StatusCode.OUT_OF_RANGE),
            "OFFSET_OUT_OF_RANGE",
            {"topic": "t", "partition": "0", "offset": "7", "log_start_offset": "0", "log_end_offset": "0"},
        )
        assert retry_info(answer.error) is None
        query = log_pb2.OffsetQuery(topic="nope", at=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_LATEST))
        [found] = (await log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).answers
        assert described(found.error)[:2] == (
            number(grpc.StatusCode.NOT_FOUND),
            "UNKNOWN_TOPIC_OR_PARTITION",
        )


PARTITION_2: dict[str, Any] = {"topic": "t", "partition": 2}


async def append_refusals(client: Client) -> list[Status]:
    """The refusals of appends to partition 2 of `t`, one by one and in a stream."""
    found: list[Status] = []

    async def appended(**fields: Any) -> None:
        """The refusals of an Append and of an AppendStream."""
        with refused() as statuses:
            await client.log.Append(log_pb2.AppendRequest(**PARTITION_2, **fields))
        found.extend(statuses)

        async def requests() -> AsyncIterator[log_pb2.AppendStreamRequest]:
            yield log_pb2.AppendStreamRequest(**PARTITION_2, **fields)

        found.extend([answer.status async for answer in client.log.AppendStream(requests())])

    producer_id = (await client.log.InitProducer(log_pb2.InitProducerRequest())).producer_id
    await client.log.Append(log_pb2.AppendRequest(**PARTITION_2, batches=of_producer(producer_id, 1, 0)))
    await appended(batches=BATCH, expected_offset=9)
    await appended(batches=BATCH, fencing_token="x")
    await appended(batches=BATCH, leader_epoch=99)
    await appended(batches=b"no batch")
    await appended(batches=of_producer(producer_id, 1, 7))
    await appended(batches=of_producer(producer_id, 0, 0))
    return found


async def read_refusals(client: Client) -> list[Status]:
    """The refusals of reads of partition 2 of `t`, by itself and beside another one."""
    found: list[Status] = []
    for start, last_fetched_epoch in ((9, None), (1, 0)):
        wanted: dict[str, Any] = {
            "start": log_pb2.Position(offset=start),
            "last_fetched_epoch": last_fetched_epoch,
        }
        fetch = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(**PARTITION_2, **wanted)])
        found.append((await client.log.Fetch(fetch)).partitions[0].error)
        of_read = log_pb2.ReadPartition(partition=2, **wanted)
        with refused() as statuses:
            async for _ in client.log.Read(log_pb2.ReadRequest(topic="t", partitions=[of_read])):
                pass
        found.extend(statuses)
        several = [log_pb2.ReadPartition(partition=0), of_read]
        async for read in client.log.Read(log_pb2.ReadRequest(topic="t", partitions=several)):
            found.extend(one.error for one in read.partitions if one.HasField("error"))
    return found


async def test_an_error_about_one_partition_names_it(bench: ServiceBench) -> None:
    client = bench.client
    await client.admin.create_topic("t", 3, config=LOCAL)
    found = [*await append_refusals(client), *await read_refusals(client)]
    query = log_pb2.OffsetQuery(**PARTITION_2, at=log_pb2.Position(offset=9))
    found.append((await client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=[query]))).answers[0].error)
    with refused() as statuses:
        await client.log.Fence(log_pb2.FenceRequest(**PARTITION_2, token="y", current_token="x"))
    found.extend(statuses)
    deletion = partition_pb2.RecordsToDelete(partition=2, before=log_pb2.Position(offset=9))
    request = partition_pb2.DeleteRecordsRequest(topic="t", partitions=[deletion])
    async with grpc.aio.insecure_channel(client.address) as channel:
        with refused() as statuses:
            await admin_pb2_grpc.AdminServiceStub(channel).DeleteRecords(request)
    found.extend(statuses)
    shown = [described(one) for one in found]
    assert {reason for _, reason, _ in shown} == {
        "UNEXPECTED_OFFSET",
        "FENCING_TOKEN_MISMATCH",
        "UNKNOWN_LEADER_EPOCH",
        "INVALID_RECORD",
        "OUT_OF_ORDER_SEQUENCE",
        "PRODUCER_FENCED",
        "OFFSET_OUT_OF_RANGE",
        "LOG_TRUNCATED",
    }
    assert [(fields["topic"], fields["partition"]) for _, _, fields in shown] == [("t", "2")] * len(shown)


async def test_a_request_without_effect_says_when_to_send_it_again(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config=LOCAL)
        memory = bench.server.append_memory
        lease = memory.lease(memory.limit_bytes)
        with refused() as statuses:
            await bench.client.log.Append(log_pb2.AppendRequest(topic="t", partition=0, batches=BATCH))
        lease.close()
        [status] = statuses
        assert described(status)[:2] == (number(grpc.StatusCode.RESOURCE_EXHAUSTED), "OVERLOADED")
        retry = retry_info(status)
        assert retry is not None
        assert retry.retry_delay.ToMicroseconds() > 0


async def test_bad_bytes_of_a_request_and_damage_of_stored_ones_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config=LOCAL)
        damaged = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
        with refused() as statuses:
            await bench.client.log.Append(log_pb2.AppendRequest(topic="t", partition=0, batches=damaged))
        code, reason, fields = described(statuses[0])
        assert (code, reason) == (number(grpc.StatusCode.INVALID_ARGUMENT), "INVALID_RECORD")
        assert (fields["field"], fields["position"]) == ("crc", "0")
        await bench.client.log.Append(log_pb2.AppendRequest(topic="t", partition=0, batches=BATCH))
        path = tmp_path / "data" / "t-0" / f"{0:020d}.log"
        stored = bytearray(path.read_bytes())
        # The highest byte of the batch's length.
        stored[8] ^= 0x10
        path.write_bytes(stored)
        # The file is read, as if others had been appended since.
        bench.partition().log.local_log.tail.clear()
        request = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")])
        with caplog.at_level(logging.WARNING):
            first = await bench.client.log.Fetch(request)
            [answer] = (await bench.client.log.Fetch(request)).partitions
        assert first.partitions == [answer]
        code, reason, fields = described(answer.error)
        assert (code, reason) == (number(grpc.StatusCode.DATA_LOSS), "CORRUPT_RECORD")
        assert "path" not in fields
        assert str(tmp_path).encode() not in answer.SerializeToString()
        assert sum(str(path) in message for message in caplog.messages) == 1


async def test_a_defect_is_answered_with_the_id_of_its_log_line(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the secret text")

    monkeypatch.setattr("stratalog.server.topics.topic_manager.TopicManager.create", fail)
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        with caplog.at_level(logging.ERROR), refused() as statuses:
            await admin.CreateTopic(admin_pb2.CreateTopicRequest(name="t", partition_count=1))
    [status] = statuses
    code, reason, fields = described(status)
    assert (code, reason, [*fields]) == (number(grpc.StatusCode.INTERNAL), "INTERNAL", ["error_id"])
    assert b"secret" not in status.SerializeToString()
    assert b"ZeroDivision" not in status.SerializeToString()
    [record] = [one for one in caplog.records if fields["error_id"] in one.getMessage()]
    assert record.exc_info is not None


@pytest.mark.parametrize("path", ["NoService/Append", f"{SERVICES[0]}/Appended", f"{SERVICES[0]}/append"])
async def test_a_method_that_the_server_does_not_know_is_refused_by_the_transport(
    bench: ServiceBench, path: str
) -> None:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await cast(Any, channel).unary_unary(f"/{path}")(b"")
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not refusal.value.trailing_metadata(), "no details"


NO_MESSAGE = b"\xff\xff\xff"
POOL: DescriptorPool = log_pb2.DESCRIPTOR.pool
METHODS: list[MethodDescriptor] = [
    method for name in SERVICES for method in POOL.FindServiceByName(name).methods
]
FOREIGN_METHODS: list[MethodDescriptor] = [
    method
    for service in (
        cast(Any, health_pb2).DESCRIPTOR.services_by_name["Health"],
        cast(Any, reflection_pb2).DESCRIPTOR.services_by_name["ServerReflection"],
    )
    for method in service.methods
]


def raw_call(channel: grpc.aio.Channel, method: MethodDescriptor) -> Callable[[bytes], Awaitable[object]]:
    """Sends bytes as the request of a method, whatever they are, and waits for the end of the call."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    raw = cast(Any, channel)
    if not method.server_streaming and not method.client_streaming:
        return cast("Callable[[bytes], Awaitable[object]]", raw.unary_unary(path))

    async def to_end(data: bytes) -> object:
        if method.client_streaming:
            return [one async for one in raw.stream_stream(path)(iter([data]))]
        return [one async for one in raw.unary_stream(path)(data)]

    return to_end


async def refuse_undecodable(bench: ServiceBench, method: MethodDescriptor, data: bytes) -> None:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        with refused() as statuses:
            await raw_call(channel, method)(data)
    [status] = statuses
    assert described(status) == (number(grpc.StatusCode.INVALID_ARGUMENT), "INVALID_REQUEST", {})
    assert status.message == "the message cannot be decoded; send it as the contract of the call says"


@pytest.mark.parametrize("method", [*METHODS, *FOREIGN_METHODS], ids=lambda method: str(method.name))
async def test_a_message_that_cannot_be_decoded_is_refused_in_plain_words(
    bench: ServiceBench, method: MethodDescriptor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await refuse_undecodable(bench, method, b"\xff\xff\xff")
    assert caplog.records == [], "a request without sense is no defect of the server"


@pytest.mark.parametrize("name", ["Append", "AppendStream", "Metadata", "CreateTopic", "DescribeLog"])
async def test_a_name_that_is_no_unicode_cannot_be_decoded(bench: ServiceBench, name: str) -> None:
    [method] = [one for one in METHODS if one.name == name]
    await refuse_undecodable(bench, method, b"\x0a\x02\xff\xff")


async def test_the_requests_before_one_that_cannot_be_decoded_are_answered(bench: ServiceBench) -> None:
    await bench.client.admin.create_topic("t", config=LOCAL)
    requests = [
        log_pb2.AppendStreamRequest(topic="t", partition=0, batches=BATCH, sequence=sequence)
        for sequence in (1, 2)
    ]
    answers: list[log_pb2.AppendStreamResponse] = []
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        path = f"/{log_pb2.DESCRIPTOR.services_by_name['LogService'].full_name}/AppendStream"
        messages_end = requests[0].SerializeToString()
        messages = [*(request.SerializeToString() for request in requests), NO_MESSAGE, messages_end]
        with refused() as statuses:
            async for data in cast(Any, channel).stream_stream(path)(iter(messages)):
                answers.append(log_pb2.AppendStreamResponse.FromString(data))  # noqa: PERF401 - the stream fails
    assert [(one.sequence, one.ack.base_offset) for one in answers] == [(1, 0), (2, 1)]
    assert described(statuses[0])[:2] == (number(grpc.StatusCode.INVALID_ARGUMENT), "INVALID_REQUEST")


@pytest.mark.parametrize("has_call", [False, True])
async def test_a_path_that_is_no_unicode_does_not_end_the_server(tmp_path: Path, has_call: bool) -> None:
    """gRPC's accepting loop fails at it. The server ends all connections and listens again, also while a call
    is open, and stops as ever."""
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", config=LOCAL)
        for _ in range(2):
            async with grpc.aio.insecure_channel(bench.client.address) as channel:
                call = log_pb2_grpc.LogServiceStub(channel).FetchStream(FOLLOW) if has_call else None
                if call is not None:
                    await call.initial_metadata()
                await send_bytes(bench.client.address, call_of_path("/\udcaf"), 0.1)
                async with Client(bench.client.address, retry=RetryPolicy(deadline_s=PATIENCE_S)) as client:
                    assert [one.name for one in await client.admin.list_topics()] == ["t"]
                if call is not None:
                    async with asyncio.timeout(PATIENCE_S):
                        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", bench.server.port)) == errno.ECONNREFUSED


# --- requests without sense --------------------------------------------------------------------------------


def statuses_in(message: Message) -> Iterator[Status]:
    """The statuses of an answer with several results."""
    if isinstance(message, Status):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                yield from statuses_in(inner)


async def failures_of(
    channel: grpc.aio.Channel, method: MethodDescriptor, request: Message
) -> list[Status | None]:
    """The statuses of the call and in its first answer; None for a failure without one."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    codec = (type(request).SerializeToString, GetMessageClass(method.output_type).FromString)
    raw = cast(Any, channel)
    try:
        if method.client_streaming:
            call = raw.stream_stream(path, *codec)(iter([request]), timeout=PATIENCE_S)
            answers = [one async for one in call]
        elif method.server_streaming:
            call = raw.unary_stream(path, *codec)(request, timeout=PATIENCE_S)
            first = await call.read()
            call.cancel()
            answers = [] if first is grpc.aio.EOF else [first]
        else:
            answers = [await raw.unary_unary(path, *codec)(request, timeout=PATIENCE_S)]
    except grpc.aio.AioRpcError as error:
        return [status_of_call(error)]
    return [status for answer in answers for status in statuses_in(answer)]


async def test_no_request_without_sense_is_a_defect_or_shows_the_inside_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[str] = []
    unwanted = {number(grpc.StatusCode.INTERNAL), number(grpc.StatusCode.UNKNOWN)}
    inside = re.compile(rf"{re.escape(str(tmp_path))}|{re.escape(os.getcwd())}|Error\b|Exception|Traceback")

    def is_fault(status: Status | None) -> bool:
        if status is None or status.code in unwanted or inside.search(str(status)):
            return True
        return error_info(status).domain != "stratalog"

    async with service_bench(tmp_path) as bench:
        channel = grpc.aio.insecure_channel(bench.client.address)
        for method in METHODS:
            await bench.client.admin.create_topic("t", exists_ok=True)
            await bench.append("t", [b"value"])
            odd = [*odd_requests(method.input_type)]
            sent = (failures_of(channel, method, request) for _, request in odd)
            for (label, _), statuses in zip(odd, await asyncio.gather(*sent), strict=True):
                faults += [f"{method.name}, {label}: {one}" for one in statuses if is_fault(one)]
        await channel.close()
    assert faults == []
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
