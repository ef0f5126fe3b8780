"""Calls have spans, which continue the trace of the caller and have the requests to the store below them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stratalog.base.errors import InvalidConfigError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.server.tracing.call_tracing import CallTracing, tracing_of_environment
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench, service_bench

pytest.importorskip("opentelemetry.instrumentation.grpc")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

TRACE_ID, PARENT_ID = 0xAB, 0xCD
CALLER = (("traceparent", f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"), ("authorization", "Bearer secret"))
LOG = "/stratalog.v1.LogService/"


class Traced:
    """A server with traces in memory. Belongs to the event loop."""

    def __init__(self, bench: ServiceBench, exporter: InMemorySpanExporter) -> None:
        self.bench = bench
        self.exporter = exporter

    def spans(self, name: str) -> list[ReadableSpan]:
        """The spans that have ended, by their name."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    async def span(self, name: str) -> ReadableSpan:
        """The one span of this name, once it has ended: a client may have its answer before."""
        async with asyncio.timeout(60):
            while not self.spans(name):
                await asyncio.sleep(0.001)
        [span] = self.spans(name)
        return span


@asynccontextmanager
async def traced(folder: Path) -> AsyncGenerator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with service_bench(folder, tracing=CallTracing(provider)) as bench:
        await bench.client.admin.create_topic("t", 1, {"segment.bytes": "1024"})
        yield Traced(bench, exporter)


def append(topic: str) -> log_pb2.AppendRequest:
    records = log_pb2.Records(records=[log_pb2.Record(value=b"secret value")])
    return log_pb2.AppendRequest(topic=topic, partition=0, records=records)


async def test_a_call_continues_the_trace_of_its_caller(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        await one.bench.client.log.Append(append("t"), metadata=CALLER)
        span = await one.span(f"{LOG}Append")
        assert span.context is not None
        assert span.parent is not None
        assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, PARENT_ID)
        assert span.status.status_code is StatusCode.UNSET
        text = span.to_json()
        assert '"rpc.method": "Append"' in text
        assert "secret" not in text


async def test_a_failed_call_has_its_status(tmp_path: Path) -> None:
    """A refusal of a wrong request is no error of the server's span, by OpenTelemetry's conventions."""
    async with traced(tmp_path) as one:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await one.bench.client.log.Append(append("unknown"))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
        span = await one.span(f"{LOG}Append")
        attributes: Any = span.attributes
        assert attributes["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_call_that_was_cancelled_or_came_too_late_has_that_status(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        log, request = one.bench.client.log, log_pb2.FetchRequest(max_wait_ms=60_000, min_bytes=1)
        request.partitions.add(topic="t", partition=0)

        async def code(name: str) -> Any:
            attributes: Any = (await one.span(f"{LOG}{name}")).attributes
            return attributes["rpc.grpc.status_code"]

        with pytest.raises(grpc.aio.AioRpcError):
            await log.Fetch(request, timeout=0.2)
        assert await code("Fetch") == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        for name, call in (("FetchStream", log.FetchStream(request)), ("AppendStream", log.AppendStream())):
            await call.initial_metadata()
            call.cancel()
            assert await code(name) == grpc.StatusCode.CANCELLED.value[0]


async def test_a_stream_is_one_span_of_its_whole_length(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        call: Any = one.bench.client.log.AppendStream()
        for sequence in range(3):
            sent = append("t")
            await call.write(
                log_pb2.AppendStreamRequest(sequence=sequence, topic=sent.topic, records=sent.records)
            )
            assert (await call.read()).sequence == sequence
        assert one.spans(f"{LOG}AppendStream") == []
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await one.span(f"{LOG}AppendStream")
        stream: Any = one.bench.fetch_stream({TopicPartition("t", 0): 0})
        assert (await anext(stream)).partitions
        await stream.aclose()
        await one.span(f"{LOG}FetchStream")
        with pytest.raises(UnknownTopicOrPartitionError):
            async for _ in one.bench.client.consume("unknown").batches():
                pass


async def test_requests_to_the_store_are_below_the_call_that_waits_for_them(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        created = await one.span("/stratalog.v1.AdminService/CreateTopic")
        assert created.context is not None
        puts = [
            span
            for span in one.spans("object store PUT")
            if span.parent is not None and span.parent.span_id == created.context.span_id
        ]
        assert puts, "the commit of the catalog"
        for _ in range(4):
            await one.bench.append("t", [bytes(600)])
        await one.bench.client.admin.upload(["t"], delete_local=True)
        one.exporter.clear()
        await one.bench.client.fetch({TopicPartition("t", 0): 0}, max_wait_ms=0)
        fetch = await one.span(f"{LOG}Fetch")
        assert fetch.context is not None
        gets = one.spans("object store GET")
        assert {span.context.trace_id for span in gets if span.context} == {fetch.context.trace_id}
        one.exporter.clear()
        await one.bench.refresh()
        assert one.exporter.get_finished_spans() == (), "background work has no spans"


async def test_health_checks_have_no_spans(tmp_path: Path) -> None:
    async with traced(tmp_path) as one:
        channel: Any = grpc.aio.insecure_channel(one.bench.client.address)
        stub: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call,unused-ignore]  # generated
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
        await channel.close()
        assert [span.name for span in one.exporter.get_finished_spans() if "ealth" in span.name] == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
)
def test_traces_are_off_unless_the_environment_asks_for_them(environment: dict[str, str]) -> None:
    assert tracing_of_environment(environment) is None


def test_an_exporter_that_is_not_installed_is_refused() -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        tracing_of_environment({"OTEL_TRACES_EXPORTER": "nothing"})
    assert refusal.value.fields["value"] == "nothing"


def test_the_environment_chooses_the_exporter() -> None:
    # A collector that does not answer holds up nothing: there are no spans to send.
    for environment in (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "console"},
    ):
        tracing = tracing_of_environment(environment)
        assert tracing is not None
        tracing.close()
