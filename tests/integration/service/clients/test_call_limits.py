"""Each kind of call has a cap of its own: where one is full, the others, health checks and metrics answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stratalog.base.errors import OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import error_of_call
from stratalog.client.retry import RetryPolicy
from stratalog.record.record import Record
from stratalog.server.call_counts import CallCounts, CallKind
from stratalog.server.configuration.settings import MAX_CONNECTION_WATCH_COUNT
from stratalog.server.operations.operation import Operation, OperationKind
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2, operation_pb2, operation_pb2_grpc
from tests.support.service.health_check import require_health_over
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

CAPS: dict[str, Any] = {"max_append_call_count": 2, "max_read_call_count": 2, "max_admin_call_count": 2}
LISTEN = "127.0.0.1:0"
OWN = (("grpc.use_local_subchannel_pool", 1),)
APPEND = log_pb2.AppendRequest(
    topic="t", partition=0, records=log_pb2.Records(records=[log_pb2.Record(value=b"x")])
)
FETCH = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="t")], max_wait_ms=60_000, min_bytes=1)


def counts(bench: ServiceBench, kind: CallKind) -> CallCounts:
    return bench.server.calls[kind]


async def until_open(bench: ServiceBench, kind: CallKind, count: int) -> None:
    await until(lambda: counts(bench, kind).open_count == count)


@asynccontextmanager
async def capped(folder: Path) -> AsyncGenerator[ServiceBench, None]:
    async with service_bench(folder, metrics_listen=LISTEN, **CAPS) as bench:
        await bench.client.admin.create_topic("t")
        yield bench


async def append(bench: ServiceBench) -> None:
    await bench.append("t", [b"x"])


async def fetch(bench: ServiceBench) -> None:
    await bench.client.fetch({TopicPartition("t", 0): 0})


async def administer(bench: ServiceBench) -> None:
    await bench.client.admin.list_topics()


CALLS = {CallKind.APPEND: append, CallKind.READ: fetch, CallKind.ADMIN: administer}


async def health(channel: grpc.aio.Channel) -> int:
    """The status in the answer to a health check."""
    check: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer: health_pb2.HealthCheckResponse = await check(health_pb2.HealthCheckRequest())
    return answer.status


async def describe(channel: grpc.aio.Channel) -> object:
    """A call that has no queue of its own."""
    return await admin_pb2_grpc.AdminServiceStub(channel).ListTopics(admin_pb2.ListTopicsRequest())


async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
    await asyncio.Event().wait()
    yield log_pb2.AppendStreamRequest()


@contextmanager
def long_operation(bench: ServiceBench) -> Generator[str]:
    """The id of an operation that goes on until the block ends."""
    ended = threading.Event()

    def work(_operation: Operation) -> None:
        assert ended.wait(PATIENCE_S)

    try:
        operation = bench.server.engine.operations.start(OperationKind.VERIFICATION, (), work)
        yield str(operation.view.operation_id)
    finally:
        ended.set()


def watch_of_health(channel: grpc.aio.Channel) -> Any:
    """A stream of the server's health."""
    # The stubs lack the method.
    stub: Any = health_pb2_grpc.HealthStub(cast(Any, channel))
    return stub.Watch(health_pb2.HealthCheckRequest())


@asynccontextmanager
async def filled(bench: ServiceBench, kind: CallKind) -> AsyncGenerator[Sequence[grpc.aio.Call], None]:
    """Keeps as many calls of the kind open as its cap allows."""
    with long_operation(bench) as operation_id:
        async with grpc.aio.insecure_channel(bench.client.address) as channel:
            watch = operation_pb2.WatchOperationRequest(operation_id=operation_id)
            open_calls: list[Any] = []
            for _ in range(counts(bench, kind).limit):
                match kind:
                    case CallKind.APPEND:
                        one: Any = bench.client.log.AppendStream(endless())
                    case CallKind.READ:
                        one = bench.client.log.FetchStream(FETCH)
                    case _:
                        one = operation_pb2_grpc.OperationServiceStub(channel).WatchOperation(watch)
                open_calls.append(one)
            await until_open(bench, kind, len(open_calls))
            yield open_calls
            for one in open_calls:
                one.cancel()
            await until_open(bench, kind, 0)


@pytest.mark.parametrize("kind", CALLS)
async def test_a_full_kind_leaves_room_for_the_others_and_for_health(tmp_path: Path, kind: CallKind) -> None:
    async with (
        capped(tmp_path) as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
        filled(bench, kind) as open_calls,
    ):
        for other, call in CALLS.items():
            if other is not kind:
                await call(bench)
        with pytest.raises(OverloadedError) as caught:
            await CALLS[kind](bench)
        assert caught.value.retriable
        assert caught.value.fields["kind"] == kind.value
        await require_health_over(channel)
        assert counts(bench, kind).refused_count == 1
        # A call that ends makes room, also for a client that waits.
        accepted_count = counts(bench, kind).accepted_count
        open_calls[0].cancel()
        await until_open(bench, kind, 1)
        await CALLS[kind](bench)
        assert counts(bench, kind).accepted_count == accepted_count + 1


async def test_watches_of_the_health_take_no_room_from_other_calls_and_connections(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(capped(tmp_path))
        counted = counts(bench, CallKind.WATCH)
        channel, *others = [
            await stack.enter_async_context(grpc.aio.insecure_channel(bench.client.address, options=OWN))
            for _ in range(30)
        ]
        watches: list[Any] = []
        for number, one in enumerate((channel, *others), 1):
            watches += [watch_of_health(one) for _ in range(MAX_CONNECTION_WATCH_COUNT)]
            await until_open(bench, CallKind.WATCH, number * MAX_CONNECTION_WATCH_COUNT)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await watch_of_health(one).read()
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            error = error_of_call(refusal.value, "")
            assert error.fields == {"kind": "connection", "limit": MAX_CONNECTION_WATCH_COUNT}
            assert counted.refused_count == number
        for call in CALLS.values():
            await call(bench)
        await require_health_over(channel)
        # Each of them sees the health.
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watches[0].cancel()
        await until_open(bench, CallKind.WATCH, len(watches) - 1)
        assert (await watch_of_health(channel).read()).status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_is_counted_as_other_calls_are(tmp_path: Path) -> None:
    async with capped(tmp_path) as bench, grpc.aio.insecure_channel(bench.client.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast(Any, channel))
        streams = [stub.ServerReflectionInfo() for _ in range(2)]
        for one in streams:
            await one.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            assert (await one.read()).HasField("list_services_response")
        with pytest.raises(OverloadedError):
            await administer(bench)
        for one in streams:
            one.cancel()


async def test_a_client_tries_again_until_there_is_room(tmp_path: Path) -> None:
    async with (
        capped(tmp_path) as bench,
        filled(bench, CallKind.APPEND) as open_calls,
        Client(bench.client.address, retry=RetryPolicy(deadline_s=PATIENCE_S)) as patient,
    ):
        waiting = asyncio.create_task(patient.append("t", 0, [Record(0, 0, None, b"x")]))
        await until(lambda: counts(bench, CallKind.APPEND).refused_count > 0)
        open_calls[0].cancel()
        assert (await waiting).base_offset == 0


def raw_append(channel: grpc.aio.Channel) -> grpc.aio.StreamUnaryCall[Any, Any]:
    """An `Append` whose message is not sent yet."""
    call: grpc.aio.StreamUnaryMultiCallable[Any, Any] = channel.stream_unary(
        "/stratalog.v1.LogService/Append", log_pb2.AppendRequest.SerializeToString
    )
    return call()


async def test_a_call_too_many_is_refused_before_its_message_is_read(tmp_path: Path) -> None:
    async with (
        capped(tmp_path) as bench,
        grpc.aio.insecure_channel(bench.client.address) as channel,
        filled(bench, CallKind.APPEND),
    ):
        call = raw_append(channel)
        async with asyncio.timeout(PATIENCE_S):
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = dict(await call.trailing_metadata())["grpc-status-details-bin"]
        assert isinstance(details, bytes)
        status, info, retry = Status.FromString(details), ErrorInfo(), RetryInfo()
        assert status.details[0].Unpack(info)
        assert status.details[1].Unpack(retry)
        assert (info.reason, dict(info.metadata)) == ("OVERLOADED", {"kind": "append", "limit": "2"})
        assert retry.retry_delay.ToNanoseconds() > 0


async def test_a_call_has_its_place_before_its_message_comes(tmp_path: Path) -> None:
    async with capped(tmp_path) as bench, grpc.aio.insecure_channel(bench.client.address) as channel:
        early = [raw_append(channel) for _ in range(CAPS["max_append_call_count"])]
        await until_open(bench, CallKind.APPEND, len(early))
        with pytest.raises(OverloadedError):
            await append(bench)
        # The others go on.
        await fetch(bench)
        await administer(bench)
        await require_health_over(channel)
        early[0].cancel()
        await until_open(bench, CallKind.APPEND, 1)
        await early[1].write(APPEND)
        await early[1].done_writing()
        assert await early[1].code() is grpc.StatusCode.OK
        await until_open(bench, CallKind.APPEND, 0)
        await append(bench)


async def test_a_failed_call_makes_room(tmp_path: Path) -> None:
    async with capped(tmp_path) as bench:
        for _ in range(2 * CAPS["max_append_call_count"] + 1):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await bench.client.log.Append(log_pb2.AppendRequest(topic="nope", partition=0))
            assert caught.value.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
        await append(bench)


async def test_a_rush_of_calls_is_refused_in_words(tmp_path: Path) -> None:
    """The transport would cancel those beyond a thousand that it has not looked at."""
    async with capped(tmp_path) as bench:
        rush = [bench.client.log.FetchStream(FETCH) for _ in range(1100)]
        await until(lambda: sum(call.done() for call in rush) == len(rush) - CAPS["max_read_call_count"])
        codes = {await call.code() for call in rush if call.done()}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for call in rush:
            call.cancel()
        await until_open(bench, CallKind.READ, 0)


@pytest.mark.parametrize("asks", [health, describe])
async def test_a_rush_of_appends_holds_up_no_other_call(
    tmp_path: Path, asks: Callable[[grpc.aio.Channel], Awaitable[object]]
) -> None:
    """Appends have a queue of their own, so a call that comes behind them is answered before most of them."""
    async with service_bench(tmp_path) as bench, grpc.aio.insecure_channel(bench.client.address) as channel:
        await bench.client.admin.create_topic("t")
        await asks(channel)
        rush = [asyncio.ensure_future(bench.client.log.Append(APPEND)) for _ in range(400)]
        # The client's loop sends all of them before it sends the next call.
        await asyncio.sleep(0)
        await asks(channel)
        answered_count = sum(call.done() for call in rush)
        assert answered_count < len(rush) // 2
        await asyncio.gather(*rush)
