"""Each call, message and end is counted once, under its method, for all four forms of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from grpc_status import rpc_status

from stratalog.base.errors import OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.server.meters.call_meter import CallMeter, MethodName, note_wait
from stratalog.server.meters.method_counts import CallEnd, MethodCounts
from stratalog.server.rpc.status import status_of_error
from stratalog.testing.manual_clock import ManualClock

SERVICE = "a.package.Things"
REFUSAL = status_of_error(OverloadedError("too much; send it again"), TopicPartition("t", 0))


class Bench:
    """A server of one service, whose calls take the seconds that they are sent as bytes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.meter = CallMeter(self.clock)
        self.is_begun = asyncio.Event()
        make: dict[str, tuple[Any, Any]] = {
            "Single": (grpc.unary_unary_rpc_method_handler, self.single),
            "Answers": (grpc.unary_stream_rpc_method_handler, self.answers),
            "Both": (grpc.stream_stream_rpc_method_handler, self.both),
            "Refused": (grpc.unary_unary_rpc_method_handler, self.refused),
            "Failing": (grpc.unary_unary_rpc_method_handler, self.failing),
            "Hanging": (grpc.unary_unary_rpc_method_handler, self.hanging),
        }
        handlers: dict[str, Any] = {
            name: maker(handler, BytesValue.FromString, BytesValue.SerializeToString)
            for name, (maker, handler) in make.items()
        }
        # As the refusals of `CallLimits`, and as a handler that encodes its answers itself.
        handlers["Bare"] = grpc.unary_unary_rpc_method_handler(self.bare, BytesValue.FromString, None)
        self.server = grpc.aio.server()
        inner = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self.server.add_generic_rpc_handlers((self.meter.metering(inner),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def single(self, request: BytesValue, _context: object) -> BytesValue:
        self.clock.advance(len(request.value) * 1000)
        return request

    async def answers(self, request: BytesValue, context: Any) -> None:
        for _ in range(3):
            await context.write(request)

    async def both(self, requests: AsyncIterator[BytesValue], context: Any) -> None:
        async for request in requests:
            await context.write(request)
            await context.write(request)

    async def refused(self, _request: BytesValue, context: Any) -> None:
        rich: Any = rpc_status.to_status(REFUSAL)  # type: ignore[no-untyped-call,unused-ignore]  # has no types
        await context.abort(rich.code, rich.details, tuple(rich.trailing_metadata))

    async def failing(self, _request: BytesValue, _context: object) -> BytesValue:
        raise ValueError

    async def hanging(self, _request: BytesValue, _context: object) -> BytesValue:
        self.is_begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def bare(self, request: BytesValue, _context: object) -> bytes:
        return request.value

    def of(self, method: str) -> MethodCounts:
        return self.meter.counts()[MethodName("Things", method)]

    async def ended(self, method: str) -> MethodCounts:
        """The counts once no call is open: a client has the status of an aborted one before it ends."""
        async with asyncio.timeout(60):
            while self.of(method).open_count:
                await asyncio.sleep(0.001)
        return self.of(method)


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[Bench, Any]]:
    """The server and a channel to it."""
    bench = Bench()
    await bench.server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{bench.port}") as channel:
            yield bench, channel
    finally:
        await bench.server.stop(None)


def encoded(size: int) -> bytes:
    return BytesValue(value=bytes(size)).SerializeToString()


async def test_a_single_call_counts_with_its_bytes_and_its_duration() -> None:
    async with serving() as (bench, channel):
        call = channel.unary_unary(f"/{SERVICE}/Single")
        for size in (2, 40):
            assert await call(encoded(size)) == encoded(size)
        counts = bench.of("Single")
        assert (counts.started_count, counts.open_count) == (2, 0)
        assert counts.ends == {CallEnd("OK"): 2}
        size_bytes = len(encoded(2)) + len(encoded(40))
        assert (counts.received_count, counts.received_bytes) == (2, size_bytes)
        assert (counts.sent_count, counts.sent_bytes) == (2, size_bytes)
        durations = counts.durations.counts()
        assert durations.total == 42
        found = [bound for bound, count in zip(durations.bounds, durations.counts, strict=False) if count]
        assert found == [2.5, 60.0]


async def test_a_stream_is_one_call_of_many_messages() -> None:
    async with serving() as (bench, channel):
        stream = channel.unary_stream(f"/{SERVICE}/Answers")
        assert [one async for one in stream(encoded(5))] == [encoded(5)] * 3
        counts = bench.of("Answers")
        assert (counts.started_count, counts.received_count, counts.sent_count) == (1, 1, 3)
        assert counts.sent_bytes == 3 * len(encoded(5))
        requests = [encoded(1), encoded(2)]
        stream = channel.stream_stream(f"/{SERVICE}/Both")
        assert len([one async for one in stream(iter(requests))]) == 4
        counts = bench.of("Both")
        assert (counts.started_count, counts.received_count, counts.sent_count) == (1, 2, 4)
        assert counts.received_bytes == len(encoded(1)) + len(encoded(2))
        assert counts.ends == {CallEnd("OK"): 1}


async def test_the_duration_of_a_call_with_one_request_begins_with_that() -> None:
    bench = Bench()
    make: Any = grpc.stream_unary_rpc_method_handler

    async def slow_line(_requests: object, _context: object) -> None:
        bench.clock.advance(60_000)
        note_wait(bench.clock.monotonic_s())
        bench.clock.advance(2_000)

    metered: Any = bench.meter.metered(f"/{SERVICE}/Single", make(slow_line))
    await asyncio.create_task(metered.stream_unary(None, None))
    [counts] = bench.meter.counts().values()
    assert counts.durations.counts().total == 2.0
    # It has no effect on the next call.
    other: Any = bench.meter.metered(f"/{SERVICE}/Single", make(bench.single))
    await asyncio.create_task(other.stream_unary(BytesValue(value=b"x"), None))
    assert counts.durations.counts().total == 3.0


async def test_methods_that_share_a_handler_are_counted_each_by_itself() -> None:
    meter = CallMeter(ManualClock())
    make: Any = grpc.unary_unary_rpc_method_handler
    shared = make(Bench().single)

    class Inner(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return shared

    class Details(grpc.HandlerCallDetails):
        def __init__(self, name: str) -> None:
            self.method = f"/{SERVICE}/{name}"
            self.invocation_metadata = cast(Any, ())

    service = meter.metering(Inner())
    for name in ("One", "Other", "Other"):
        handler: Any = service.service(Details(name))
        await handler.unary_unary(BytesValue(), None)
    counted = {name.method: counts.started_count for name, counts in meter.counts().items()}
    assert counted == {"One": 1, "Other": 2}


async def test_a_refusal_counts_with_its_code_and_reason() -> None:
    async with serving() as (bench, channel):
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(f"/{SERVICE}/Refused")(encoded(1))
        assert (await bench.ended("Refused")).ends == {CallEnd("RESOURCE_EXHAUSTED", OverloadedError.code): 1}
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(f"/{SERVICE}/Failing")(encoded(1))
        assert (await bench.ended("Failing")).ends == {CallEnd("UNKNOWN"): 1}


async def test_a_call_is_open_until_its_client_has_gone() -> None:
    async with serving() as (bench, channel):
        call = channel.unary_unary(f"/{SERVICE}/Hanging")(encoded(1))
        await bench.is_begun.wait()
        counts = bench.of("Hanging")
        assert (counts.open_count, counts.ends) == (1, {})
        call.cancel()
        await bench.ended("Hanging")
        assert counts.ends == {CallEnd("CANCELLED"): 1}


async def test_an_answer_that_is_encoded_already_counts() -> None:
    async with serving() as (bench, channel):
        assert await channel.unary_unary(f"/{SERVICE}/Bare")(encoded(7)) == bytes(7)
        assert bench.of("Bare").sent_bytes == 7


async def test_an_unknown_method_counts_nowhere() -> None:
    async with serving() as (bench, channel):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary(f"/{SERVICE}/Nothing")(b"")
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert bench.meter.counts() == {}


async def test_a_handler_is_wrapped_once() -> None:
    async with serving() as (bench, _):

        class Details:
            method = f"/{SERVICE}/Single"

        inner = grpc.method_handlers_generic_handler(
            SERVICE,
            {"Single": grpc.unary_unary_rpc_method_handler(bench.single)},
        )
        metered = bench.meter.metering(inner)
        found: list[Any] = [metered.service(Details()) for _ in range(2)]  # type: ignore[arg-type]  # it has a method
        assert found[0] is found[1]
