"""A producer settles each delivery once, and keeps the order of each thread, without any server."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from stratalog.base.errors import (
    LogStoreError,
    OverloadedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.client.channel import ServerChannel
from stratalog.client.client import Client
from stratalog.client.errors import ClientClosedError, ServerUnavailableError
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.producer import Producer
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.values import Topic
from stratalog.record.native.record_accumulator import Delivery

NOWHERE = "127.0.0.1:1"
WAIT_S = 60.0
PATIENT = RetryPolicy(deadline_s=3600, first_pause_s=0.01, max_pause_s=0.01)
LONG_MS = 3_600_000


def in_thread(work: Callable[[], Delivery]) -> Delivery:
    """The result of `work` in a thread of its own, while this one waits."""
    results: list[Delivery] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(WAIT_S)
    [result] = results
    return result


async def for_ever(_topic: str) -> Topic:
    await asyncio.Event().wait()
    raise AssertionError("it waits for ever")


def topic_of(name: str, config: Mapping[str, str], partition_count: int = 1) -> Topic:
    return Topic(
        name=name,
        topic_id="id",
        partition_count=partition_count,
        config_overrides=config,
        config=config,
        offline_partitions=(),
        offline_partition_count=0,
    )


def producer_of(
    describe: Callable[[str], Awaitable[Topic]], linger_ms: int = LONG_MS, batch_bytes: int = 1000
) -> Producer:
    settings = ProducerSettings(linger_ms=linger_ms, batch_bytes=batch_bytes)
    return Producer(OwnerChannels(ServerChannel(NOWHERE)), describe, settings, PATIENT)


async def outcome_of(delivery: Delivery) -> object:
    with pytest.raises(LogStoreError) as caught:
        await asyncio.wait_for(delivery, WAIT_S)
    return caught.value.fields.get("outcome")


async def test_an_early_record_of_a_thread_stays_before_its_later_ones() -> None:
    early: list[Delivery] = []

    async def describe(topic: str) -> Topic:
        # The loop is busy until the topic is known.
        early.append(in_thread(lambda: producer.send(topic, "k", "first")))
        return topic_of(topic, {})

    producer = producer_of(describe)
    await producer.learn("t")
    later = in_thread(lambda: producer.send("t", "k", "second"))
    await asyncio.sleep(0)
    assert [early[0].index, later.index] == [0, 1]
    assert early[0].receipt is later.receipt
    producer.abandon()


async def test_a_topic_is_described_again_while_its_server_is_away() -> None:
    failures = [ServerUnavailableError("away"), OverloadedError("no room")]

    async def describe(topic: str) -> Topic:
        if failures:
            raise failures.pop()
        return topic_of(topic, {})

    producer = producer_of(describe)
    delivery = producer.send("t", "k", "v")
    await producer.learn("t")
    assert not failures
    assert not delivery.is_done
    producer.abandon()


async def test_a_topic_that_is_no_text_is_refused_at_once() -> None:
    producer = producer_of(for_ever)
    with pytest.raises(TypeError):
        producer.send(cast(Any, 123), "k", "v")
    with pytest.raises(TypeError):
        await producer.learn(cast(Any, 123))
    assert producer.buffered_bytes == 0


async def test_a_record_that_is_early_no_more_is_placed_at_once() -> None:
    """The description comes between the accumulator's look and the turn of the record."""

    class Slow(Producer):
        def __getattribute__(self, name: str) -> object:
            if name == "send_early":
                self.hold_topic("t", 1, 0)
                self.open_topic("t")
            return super().__getattribute__(name)

    producer = Slow(
        OwnerChannels(ServerChannel(NOWHERE)), for_ever, ProducerSettings(linger_ms=LONG_MS), PATIENT
    )
    first, second = (in_thread(lambda: producer.send("t", "k", "v")) for _ in range(2))
    assert [first.index, second.index] == [0, 1]
    assert first.receipt is second.receipt
    producer.abandon()


async def test_a_close_that_is_cancelled_settles_every_delivery() -> None:
    producer = producer_of(for_ever)
    producer.hold_topic("known", 1, 0)
    producer.open_topic("known")
    deliveries = [producer.send(topic, None, b"x") for topic in ("unknown", "known")]
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    with pytest.raises(ClientClosedError):
        producer.send("known", None, b"x")
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [await outcome_of(delivery) for delivery in deliveries] == ["not stored"] * 2
    assert producer.buffered_bytes == 0


async def test_a_client_that_is_closed_settles_the_deliveries_of_its_producers() -> None:
    client = Client(NOWHERE, retry=PATIENT)
    waiting, describing = client.producer(linger_ms=0), client.producer()
    waiting.hold_topic("known", 1, 0)
    waiting.open_topic("known")
    deliveries = [waiting.send("known", None, b"x"), describing.send("unknown", None, b"x")]
    await asyncio.sleep(0)
    with pytest.warns(ResourceWarning):
        await client.close()
    assert [await outcome_of(delivery) for delivery in deliveries] == ["not stored"] * 2
    for producer in (waiting, describing):
        assert producer.buffered_bytes == 0
        with pytest.raises(ClientClosedError):
            producer.send("known", None, b"x")


async def test_the_end_of_the_tasks_of_a_loop_settles_the_deliveries() -> None:
    def use() -> list[Delivery]:
        async def send() -> list[Delivery]:
            waiting, describing = producer_of(for_ever, linger_ms=0), producer_of(for_ever)
            waiting.hold_topic("known", 1, 0)
            waiting.open_topic("known")
            sent = [waiting.send("known", None, b"x"), describing.send("unknown", None, b"x")]
            # The batch has left the accumulator.
            for _ in range(3):
                await asyncio.sleep(0)
            return sent

        # It cancels the tasks that are left.
        return asyncio.run(send())

    with pytest.warns(ResourceWarning):
        sent = await asyncio.to_thread(use)
    for delivery in sent:
        assert delivery.is_done
        assert await outcome_of(delivery) == "not stored"


async def test_a_producer_whose_loop_has_ended_refuses_records_and_forgets_none() -> None:
    async def begin() -> tuple[Producer, Delivery]:
        producer = producer_of(for_ever)
        for topic in ("known", "other"):
            producer.hold_topic(topic, 1, 0)
            producer.open_topic(topic)
        return producer, producer.send("known", None, b"x")

    for topic in ("unknown", "other"):
        producer, lingering = await asyncio.to_thread(lambda: asyncio.run(begin()))
        # The loop is asked for a description, or to take a new batch.
        producer.take_batches()
        with pytest.warns(ResourceWarning), pytest.raises(ClientClosedError):
            producer.send(topic, None, b"x")
        for again in ("unknown", "known"):
            with pytest.raises(ClientClosedError):
                producer.send(again, None, b"x")
        assert producer.buffered_bytes == 0
        assert await outcome_of(lingering) == "not stored"


async def test_a_record_that_never_fits_is_refused_at_once() -> None:
    described = 0
    limit = {"max.message.bytes": "500"}

    async def describe(topic: str) -> Topic:
        nonlocal described
        described += 1
        return topic_of(topic, limit)

    producer = producer_of(describe)
    early = [producer.send("t", None, bytes(size_bytes)) for size_bytes in (100, 600)]
    with pytest.raises(RecordTooLargeError):
        await early[1]
    with pytest.raises(RecordTooLargeError) as caught:
        producer.send("t", None, bytes(500))
    assert caught.value.fields == {
        "topic": "t",
        "size_bytes": 61 + 2 + 7 + 500,
        "max_bytes": 500,
        "name": "max.message.bytes",
    }
    # The server is asked whether the limit is another one by now.
    limit = {"max.message.bytes": "5000"}
    while described < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = producer.send("t", None, bytes(600))
    assert late.receipt is early[0].receipt
    producer.abandon()
    for delivery in (early[0], late):
        assert await outcome_of(delivery) == "not stored"


async def test_a_limit_of_the_topic_bounds_its_batches_alone() -> None:
    async def describe(topic: str) -> Topic:
        limits = {"max.message.bytes": "300"} if topic == "narrow" else {}
        return topic_of(topic, limits)

    producer = producer_of(describe)
    for topic in ("narrow", "wide"):
        await producer.learn(topic)
    counts: dict[str, list[int]] = {}
    for topic in ("narrow", "wide"):
        for number in range(20):
            producer.send(topic, None, b"%02d" % number + bytes(60))
    producer.close_all()
    for batch in producer.take_batches()[1]:
        counts.setdefault(batch.topic, []).append(batch.record_count)
        assert 61 + batch.size_bytes <= (300 if batch.topic == "narrow" else 1000)
        producer.release(batch.size_bytes)
    assert [len(counts["narrow"]), len(counts["wide"])] == [7, 2]


@pytest.mark.parametrize("is_new", [False, True], ids=["new_partitions", "new_topic"])
async def test_a_description_that_began_before_a_record_fails_it_not(is_new: bool) -> None:
    described = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def describe(topic: str) -> Topic:
        nonlocal described
        described += 1
        if described == 2:
            # The answer is on its way while the topic changes.
            begun.set()
            await go_on.wait()
        if described < 3 and is_new:
            raise UnknownTopicOrPartitionError("no such topic", topic=topic)
        return topic_of(topic, {}, 1 if described < 3 else 3)

    producer = producer_of(describe, linger_ms=0)
    if is_new:
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send("t", None, b"x")
    else:
        await producer.learn("t")
    before = producer.send("t", None, b"x", partition=2)
    await begun.wait()
    after = [producer.send("t", None, value, partition=2) for value in (b"1", b"2")]
    missing = producer.send("t", None, b"x", partition=3)
    waiting = [asyncio.create_task(outcome_of(delivery)) for delivery in after]
    go_on.set()
    for refused in (before, missing):
        with pytest.raises(UnknownTopicOrPartitionError):
            await asyncio.wait_for(refused, WAIT_S)
    assert described == 3
    assert [delivery.index for delivery in after] == [0, 1]
    assert after[0].receipt.partition == 2
    producer.abandon()
    # Those who waited for a record without a partition hear of its end.
    assert await asyncio.gather(*waiting) == ["not stored"] * 2
    assert producer.buffered_bytes == 0


async def test_a_producer_that_was_dropped_is_collected() -> None:
    async def describe(topic: str) -> Topic:
        return topic_of(topic, {})

    async def use() -> weakref.ref[Producer]:
        producer = producer_of(describe)
        # It is to be described again, minutes later.
        await producer.learn("t")
        await asyncio.sleep(0)
        return weakref.ref(producer)

    dropped = await use()
    gc.collect()
    assert dropped() is None


async def test_a_closed_producer_takes_no_record_and_may_be_closed_again() -> None:
    producer = producer_of(for_ever)
    await producer.close()
    await producer.close()
    for topic in ("t", "u"):
        with pytest.raises(ClientClosedError):
            producer.send(topic, None, b"x")
    with pytest.raises(ClientClosedError):
        await producer.ready()


async def test_a_producer_that_is_collected_with_records_warns_of_them_and_settles_them() -> None:
    async def begin() -> list[Delivery]:
        producer = producer_of(for_ever)
        producer.hold_topic("known", 1, 0)
        producer.open_topic("known")
        return [producer.send("known", None, b"x") for _ in range(3)]

    def use() -> list[Delivery]:
        deliveries = asyncio.run(begin())
        gc.collect()
        return deliveries

    with pytest.warns(ResourceWarning) as warned:
        deliveries = await asyncio.to_thread(use)
    assert len(warned) == 1
    assert [await outcome_of(delivery) for delivery in deliveries] == ["not stored"] * 3
