"""A producer leaves a server that answers no appends, and gives up where none takes them."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    OverloadedError,
    StoppingError,
)
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError, unreachable
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sending import append_sender
from stratalog.v1 import log_pb2
from tests.support.service.scripted_service import ScriptedService, scripted
from tests.support.service.service_bench import PATIENCE_S, ServiceBench
from tests.support.slow_time import SlowTime

PATIENT = RetryPolicy(deadline_s=PATIENCE_S, first_pause_s=0.001, max_pause_s=0.01)
TEN_SECONDS = RetryPolicy(deadline_s=10.0, first_pause_s=0.0001, max_pause_s=0.0002)


@pytest.mark.parametrize("ends_streams", [False, True], ids=["hangs", "ends_streams"])
async def test_a_producer_leaves_a_server_that_answers_no_appends(
    bench: ServiceBench, monkeypatch: pytest.MonkeyPatch, ends_streams: bool
) -> None:
    monkeypatch.setattr(append_sender, "ANSWER_TIMEOUT_S", 1.0)
    await bench.client.topics.create("t")
    service = ScriptedService([])
    service.ends_append_streams = ends_streams
    # Both are servers of one store.
    [topic] = (await bench.client.metadata(["t"])).topics
    service.topic_id = topic.topic_id
    request = log_pb2.InitProducerRequest()
    service.producer_id = (await bench.client.log.InitProducer(request)).producer_id
    async with (
        scripted(service) as silent,
        Client(f"{silent},{bench.client.address}", retry=PATIENT) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        producer = client.producer(linger_ms=0)
        assert (await producer.send("t", None, b"x")).offset == 0
        assert client.address == bench.client.address
        assert service.append_stream_count == 1
        await producer.close()


@pytest.mark.parametrize("refusal", [NotOwnerError, OverloadedError])
async def test_the_deadline_of_refusals_is_that_of_all_queued_batches(refusal: type[LogStoreError]) -> None:
    services = [ScriptedService([]), ScriptedService([])]
    async with (
        scripted(services[0]) as one,
        scripted(services[1]) as other,
        Client(one, retry=RetryPolicy(deadline_s=0.2)) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        for service, endpoint in zip(services, (other, one), strict=True):
            service.append_refusal = refusal("not here", endpoint=endpoint)
        producer = client.producer(linger_ms=0, batch_bytes=200)
        deliveries = [producer.send("t", None, bytes(150)) for _ in range(2000)]
        for outcome in await asyncio.gather(*deliveries, return_exceptions=True):
            assert isinstance(outcome, refusal)
        await producer.close()


@pytest.mark.parametrize("end", [OverloadedError, StoppingError])
async def test_a_batch_is_sent_again_if_its_stream_ends_without_an_effect(end: type[LogStoreError]) -> None:
    service = ScriptedService([])
    service.append_failure = end("come again")
    service.append_refusal = InvalidRequestError("seen")
    async with (
        scripted(service) as there,
        Client(there, retry=PATIENT) as client,
        asyncio.timeout(PATIENCE_S),
    ):
        # Without numbers a server would not recognise it.
        producer = client.producer(linger_ms=0, idempotent=False)
        with pytest.raises(InvalidRequestError):
            await producer.send("t", None, b"x")
        await producer.close()
    assert (len(service.appends), service.append_stream_count) == (2, 2)


async def test_a_stream_that_needs_another_owner_does_not_wait_for_its_end() -> None:
    # These servers do not end a stream of appends by themselves.
    services = [ScriptedService([]), ScriptedService([])]
    async with (
        scripted(services[0]) as one,
        scripted(services[1]) as other,
        Client(one, retry=RetryPolicy(deadline_s=append_sender.ANSWER_TIMEOUT_S / 2)) as client,
        asyncio.timeout(append_sender.ANSWER_TIMEOUT_S / 2),
    ):
        services[0].append_refusal = NotOwnerError("not here", endpoint=other)
        services[1].append_refusal = InvalidRequestError("no such batch")
        producer = client.producer(linger_ms=0)
        with pytest.raises(InvalidRequestError):
            await producer.send("t", None, b"x")
        await producer.close()
    assert [service.append_stream_count for service in services] == [1, 1]


@pytest.mark.parametrize("refusal", [NotOwnerError, OverloadedError])
async def test_refusals_of_a_producer_id_have_one_budget(
    monkeypatch: pytest.MonkeyPatch, refusal: type[LogStoreError]
) -> None:
    time = SlowTime(monkeypatch)
    services = [ScriptedService([]), ScriptedService([])]
    async with (
        scripted(services[0]) as one,
        scripted(services[1]) as other,
        Client(one, retry=TEN_SECONDS) as client,
    ):
        for service, endpoint in zip(services, (other, one), strict=True):
            service.on_id_request = time.pass_s(4.0)
            service.id_refusal = refusal("not here", endpoint=endpoint)
        producer = client.producer(linger_ms=0)
        with pytest.raises(refusal):
            await producer.send("t", None, b"x")
        await producer.close()
    request_count = sum(service.id_request_count for service in services)
    assert request_count == 4, "requests fail after 4, 8 and 12 seconds, and the last one after 16"


async def test_records_outlast_a_restart_of_the_server_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SlowTime(monkeypatch)
    service = ScriptedService([])
    service.id_refusal = OverloadedError("not yet")
    service.append_refusal = InvalidRequestError("no such batch")

    def pass_20_s() -> None:
        time.passed_s += 20.0
        if service.id_request_count == 4:
            service.id_refusal = None

    service.on_id_request = pass_20_s
    async with scripted(service) as there, Client(there) as client:
        producer = client.producer(linger_ms=0)
        with pytest.raises(InvalidRequestError):
            await producer.send("t", None, b"x")
        await producer.close()


async def test_a_producer_may_have_more_patience_than_its_client() -> None:
    service = ScriptedService([])
    service.id_refusal = OverloadedError("not yet")
    service.append_refusal = InvalidRequestError("no such batch")

    def give_in() -> None:
        if service.id_request_count == 3:
            service.id_refusal = None

    service.on_id_request = give_in
    async with scripted(service) as there, Client(there, retry=RetryPolicy(deadline_s=0)) as client:
        hasty, patient = client.producer(linger_ms=0), client.producer(linger_ms=0, retry=PATIENT)
        with pytest.raises(OverloadedError):
            await hasty.send("t", None, b"x")
        with pytest.raises(InvalidRequestError):
            await patient.send("t", None, b"x")
        for producer in (hasty, patient):
            await producer.close()


async def test_connections_of_a_producer_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    time = SlowTime(monkeypatch)
    starts_s: list[float] = []

    async def connect(patience: Patience) -> None:
        starts_s.append(patience.start_s(-1.0))
        time.passed_s += 4.0
        raise unreachable("there")

    async with scripted(ScriptedService([])) as there, Client(there, retry=TEN_SECONDS) as client:
        monkeypatch.setattr(client.channel, "connect", connect)
        producer = client.producer(linger_ms=0)
        with pytest.raises(ServerUnavailableError):
            await producer.send("t", None, b"x")
        await producer.close()
    assert len(starts_s) == 3, "attempts begin after 0, 4 and 8 seconds, and none after 12"
    assert len(set(starts_s[1:])) == 1, "later attempts have what is left"
