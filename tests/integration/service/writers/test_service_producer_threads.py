"""Several threads send to several topics at once: each keeps its order, and each delivery is settled once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.client import Client
from stratalog.client.errors import ClientClosedError
from stratalog.client.producer import Producer
from stratalog.record.native.record_accumulator import Delivery
from stratalog.record.record import Record
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import ServiceBench

THREAD_COUNT = 4
TOPICS = ("a", "b", "c", "d")
FIRST_PARTITION_COUNT, LAST_PARTITION_COUNT = 2, 4
RECORD_COUNT = 400
WAIT_S = 60.0
CONFIG = {"max.message.bytes": "400"}


class Sent(NamedTuple):
    """A record as a thread has sent it."""

    thread: int
    number: int
    topic: str
    delivery: Delivery


@pytest.fixture
def restless_threads() -> Generator[None]:
    """Threads that lose the interpreter all the time."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def send_all(
    producer: Producer, thread: int, seed: int, at_once: threading.Barrier, is_wide: threading.Event
) -> list[Sent]:
    """Send records of one thread. In the second half it uses partitions that the topics had not before."""
    random = Random(seed * THREAD_COUNT + thread)
    sent: list[Sent] = []
    at_once.wait(WAIT_S)
    for number in range(RECORD_COUNT):
        if number == RECORD_COUNT // 2:
            assert is_wide.wait(WAIT_S)
        # All threads send to the same unknown topic at first.
        topic = TOPICS[0] if number == 0 else random.choice(TOPICS)
        last = LAST_PARTITION_COUNT if is_wide.is_set() else FIRST_PARTITION_COUNT
        partition = random.randrange(last) if random.random() < 0.6 else None
        key = None if partition is not None or random.random() < 0.5 else b"%d" % random.randrange(9)
        value = b"%d %d" % (thread, number)
        sent.append(Sent(thread, number, topic, producer.send(topic, key, value, partition=partition)))
    return sent


def require_order(sent: list[Sent], stored: dict[str, list[list[Record]]]) -> None:
    """Each record is where its delivery says, and the records of a thread in a partition are in order."""
    places: set[tuple[str, int, int]] = set()
    last: dict[tuple[int, str, int], int] = {}
    for one in sent:
        ack = one.delivery.result(0)
        assert ack.topic == one.topic
        assert stored[one.topic][ack.partition][ack.offset].value == b"%d %d" % (one.thread, one.number)
        row = (one.thread, one.topic, ack.partition)
        assert ack.offset > last.get(row, -1)
        last[row] = ack.offset
        places.add((one.topic, ack.partition, ack.offset))
    assert len(places) == len(sent)
    assert sum(len(records) for parts in stored.values() for records in parts) == len(sent)


@pytest.mark.usefixtures("restless_threads")
@pytest.mark.parametrize("seed", range(4))
async def test_threads_that_meet_new_topics_keep_their_order(bench: ServiceBench, seed: int) -> None:
    for topic in TOPICS:
        await bench.client.topics.create(topic, partitions=FIRST_PARTITION_COUNT, config=CONFIG)
    at_once, is_wide = threading.Barrier(THREAD_COUNT), threading.Event()
    async with bench.client.producer(batch_bytes=500, linger_ms=seed % 2) as producer:
        sending = asyncio.gather(
            *(
                asyncio.to_thread(send_all, producer, thread, seed, at_once, is_wide)
                for thread in range(THREAD_COUNT)
            )
        )
        for topic in TOPICS:
            await bench.client.topics.add_partitions(topic, LAST_PARTITION_COUNT)
        is_wide.set()
        sent = [one for part in await sending for one in part]
    assert producer.buffered_bytes == 0
    require_order(sent, {topic: await bench.read_all(topic) for topic in TOPICS})


def send_synchronously(client: SyncClient, count: int) -> list[Sent]:
    """Threads that share a synchronous producer."""
    at_once = threading.Barrier(THREAD_COUNT)
    parts: list[list[Sent]] = [[] for _ in range(THREAD_COUNT)]
    with client.producer(batch_bytes=500, linger_ms=0, max_buffered_bytes=2000) as producer:

        def send(thread: int) -> None:
            at_once.wait(WAIT_S)
            for number in range(count):
                topic = TOPICS[number % len(TOPICS)]
                delivery = producer.send(topic, b"%d" % (number % 5), b"%d %d" % (thread, number))
                parts[thread].append(Sent(thread, number, topic, delivery))

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(THREAD_COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    return [one for part in parts for one in part]


@pytest.mark.usefixtures("restless_threads")
async def test_threads_with_a_synchronous_producer_keep_their_order(bench: ServiceBench) -> None:
    for topic in TOPICS:
        await bench.client.topics.create(topic, partitions=3)

    def use() -> list[Sent]:
        with SyncClient(bench.client.address) as client:
            return send_synchronously(client, 100)

    sent = await asyncio.to_thread(use)
    assert len(sent) == THREAD_COUNT * 100
    require_order(sent, {topic: await bench.read_all(topic) for topic in TOPICS})


@pytest.mark.filterwarnings("ignore:a producer that was not closed:ResourceWarning")
async def test_a_close_in_the_midst_of_sending_settles_every_delivery_once(bench: ServiceBench) -> None:
    """The stored records are those that were acknowledged, and perhaps those whose outcome is unknown."""
    await bench.client.topics.create("t", partitions=2)
    client = await asyncio.to_thread(SyncClient, bench.client.address)
    producer = await asyncio.to_thread(
        client.producer, batch_bytes=300, linger_ms=0, max_buffered_bytes=20_000
    )
    some_are_sent = threading.Event()

    def send(thread: int) -> list[Sent]:
        sent: list[Sent] = []
        while True:
            number = len(sent)
            try:
                delivery = producer.send("t", b"%d" % number, b"%d %d" % (thread, number))
            except ClientClosedError:
                return sent
            sent.append(Sent(thread, number, "t", delivery))
            if number == 300:
                some_are_sent.set()

    sending = asyncio.gather(*(asyncio.to_thread(send, thread) for thread in range(THREAD_COUNT)))
    await asyncio.to_thread(some_are_sent.wait, WAIT_S)
    await asyncio.to_thread(client.close)
    stored = [record.value for part in await bench.read_all("t") for record in part]
    outcomes: dict[object, set[bytes | None]] = {"stored": set(), "unknown": set(), "not stored": set()}
    for one in [one for part in await sending for one in part]:
        value = b"%d %d" % (one.thread, one.number)
        try:
            one.delivery.result(0)
        except LogStoreError as error:
            outcomes[error.fields["outcome"]].add(value)
        else:
            outcomes["stored"].add(value)
    assert len(set(stored)) == len(stored)
    assert outcomes["stored"] <= set(stored)
    assert set(stored) <= outcomes["stored"] | outcomes["unknown"]


async def test_the_outcome_of_a_batch_that_was_sent_is_unknown_when_its_client_is_closed(
    tmp_path: Path,
) -> None:
    with ServerProcess(f"{tmp_path}/data") as server:
        async with asyncio.timeout(WAIT_S):
            client = Client(server.address)
            await client.topics.create("t")
            producer = client.producer(linger_ms=0)
            await producer.send("t", None, b"before")
            os.kill(server.pid, signal.SIGSTOP)
            lost = producer.send("t", None, b"unknown")
            # The batch leaves.
            for _ in range(1000):
                await asyncio.sleep(0)
            with pytest.warns(ResourceWarning):
                await client.close()
            with pytest.raises(LogStoreError) as caught:
                await lost
            assert caught.value.fields == {"outcome": "unknown"}
            server.kill()
