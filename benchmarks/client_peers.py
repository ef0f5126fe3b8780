"""The Python client against our server, beside Kafka's clients against a broker.

The broker is Apache Kafka on one node, in a process of its own with the options of Kafka's own scripts; its
jars come from Maven. The peers:

* `Producer` of confluent-kafka, which is librdkafka under Python, in this process as ours is. Both producers
  are idempotent, keep five batches in flight, linger for 5 ms, and wait for no fsync: `durability=os` here,
  `acks=all` without replicas and with Kafka's flush settings there.
* `Consumer` of confluent-kafka, record by record and in lists;
* `ConsumerPerformance`, Kafka's own measure of its Java consumer (`kafka-consumer-perf-test.sh`), by its rate
  without the start of the group.

Records have keys of 16 bytes, and there is one partition. All take turns, round by round, and a row is the
round whose ratio is the median. Each round of producers has topics of its own, which are deleted after it:
the page cache then takes the same memory again, because memory that a virtual machine has never used costs
more than the work that is measured. Every consumer adds up the sizes of the values, which ConsumerPerformance
does for keys and values.

Needs Kafka's jars with Java, and confluent-kafka.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import report
from kafka_peers import confluent_kafka_or_none, kafka_or_none
from producer import CHUNK_COUNT, KEY_BYTES, MB, keys_of, produce
from server_process import ServerProcess, memory_row, processor_row, running, stratalog_command
from stratalog.base.process_tuning import keep_freed_memory
from stratalog.client.client import Client
from tests.support.kafka.kafka_broker import KafkaBroker
from tests.support.kafka.kafka_distribution import KafkaDistribution

WARM_UP_COUNT = 3
"""Rounds of producers that do not count, in which Java compiles the broker."""
PRODUCED_BYTES = 120 * MB
CONSUMED_COUNT = 3_000_000
VALUE_BYTES = (100, 1024)
CONSUMED_VALUE_BYTES = VALUE_BYTES[0]
LIST_COUNT = 500
"""The records in a list of confluent-kafka, as many as Kafka's consumers return at most."""
WARM_UP_TOPIC = "warm-up"
DELETE_AT_ONCE = "log.segment.delete.delay.ms"


@dataclasses.dataclass(frozen=True, slots=True)
class Peers:
    """Both servers, and the clients of Kafka. Belongs to one thread."""

    runner: asyncio.Runner
    """The event loop of our client."""
    client: Client
    ours: ServerProcess
    broker: KafkaBroker
    broker_process: ServerProcess
    kafka: KafkaDistribution
    confluent: Any
    """The package `confluent_kafka`."""


class Costs:
    """The processor time of both servers in the parts of a run that count. Belongs to one thread."""

    def __init__(self, peers: Peers) -> None:
        self._servers = (peers.ours, peers.broker_process)
        self._taken_s = [0.0, 0.0]
        self.size_bytes = [0, 0]

    def of(self, place: int, size_bytes: int, work: Callable[[], float]) -> float:
        """Seconds of `work` by our server (0) or the broker (1)."""
        before_s = self._servers[place].processor_s()
        seconds = work()
        self._taken_s[place] += self._servers[place].processor_s() - before_s
        self.size_bytes[place] += size_bytes
        return seconds

    def row(self, work: str, target: float) -> report.Row:
        ours_s, broker_s = (
            taken_s / size_bytes for taken_s, size_bytes in zip(self._taken_s, self.size_bytes, strict=True)
        )
        return processor_row(f"{work} / Kafka", 1, ours_s, broker_s, target)


# --- producers ----------------------------------------------------------------------------------------------


def produce_confluent(confluent: Any, address: str, topic: str, count: int, value: bytes) -> float:
    """Seconds to send records and have all acknowledged."""
    settings = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
    }
    producer: Any = confluent.Producer(settings)
    # The first id of a producer takes the broker half a second: that is no rate.
    producer.produce(WARM_UP_TOPIC, b"", partition=0)
    producer.flush()
    producer.list_topics(topic, 10.0)
    keys = keys_of(CHUNK_COUNT)
    start_s = time.perf_counter()
    for _ in range(count // CHUNK_COUNT):
        for key in keys:
            while True:
                try:
                    producer.produce(topic, value, key, partition=0)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    left_count = producer.flush()
    assert left_count == 0
    return time.perf_counter() - start_s


def replace_topic(peers: Peers, old: str | None, new: str) -> None:
    """Create a topic of one partition on both servers, and delete another one."""
    peers.runner.run(peers.client.topics.create(new, partitions=1))
    peers.broker.create_topic(new)
    if old is not None:
        peers.runner.run(peers.client.topics.delete(old))
        peers.broker.delete_topic(old)


def producer_rounds(peers: Peers, value_bytes: int, quick: bool, costs: Costs) -> tuple[float, float]:
    """Seconds of ours and of theirs in the round of the median ratio, after the warm-up."""
    value = bytes(value_bytes)
    count = record_count(value_bytes, quick)
    pairs: list[tuple[float, float]] = []
    topic = old = None
    for number in range(WARM_UP_COUNT + (3 if quick else 9)):
        topic, old = f"values-of-{value_bytes}-{number}", topic
        replace_topic(peers, old, topic)

        def ours(topic: str = topic) -> float:
            return peers.runner.run(produce(peers.client, topic, count, value))

        def theirs(topic: str = topic) -> float:
            return produce_confluent(peers.confluent, peers.broker.address, topic, count, value)

        if number >= WARM_UP_COUNT:
            size_bytes = count * (KEY_BYTES + value_bytes)
            pairs.append((costs.of(0, size_bytes, ours), costs.of(1, size_bytes, theirs)))
        else:
            ours()
            theirs()
    return report.pair_of_median_ratio(pairs)


def record_count(value_bytes: int, quick: bool) -> int:
    """The records of a round of producers."""
    count = PRODUCED_BYTES // (3 if quick else 1) // (KEY_BYTES + value_bytes)
    return count - count % CHUNK_COUNT


def producer_rows(peers: Peers, quick: bool) -> Iterator[report.Row]:
    costs = Costs(peers)
    for value_bytes in VALUE_BYTES:
        ours_s, theirs_s = producer_rounds(peers, value_bytes, quick, costs)
        count = record_count(value_bytes, quick)
        unit, amount = ("records/s", count) if value_bytes < 1000 else ("MB/s", count * value_bytes / MB)
        yield report.Row(
            work=f"producer, {value_bytes} B values / confluent-kafka",
            unit=unit,
            ours=amount / ours_s,
            reference=amount / theirs_s,
            target=1.0,
        )
    yield costs.row("appends", 1.0)


# --- consumers ----------------------------------------------------------------------------------------------


async def consume_objects(client: Client, topic: str) -> int:
    """The bytes of the values, record by record."""
    size_bytes = 0
    async for record in client.consume(topic, until="latest"):
        size_bytes += len(record.value or b"")
    return size_bytes


async def consume_lists(client: Client, topic: str) -> int:
    """The bytes of the values, from lists of records."""
    size_bytes = 0
    async for records in client.consume(topic, until="latest").batches():
        for record in records:
            size_bytes += len(record.value or b"")
    return size_bytes


async def consume_arrow(client: Client, topic: str) -> int:
    """The bytes of the values, from columns."""
    import pyarrow.compute

    table = await client.read_arrow(topic)
    return int(pyarrow.compute.sum(pyarrow.compute.binary_length(table.column("value"))).as_py())


OURS = {"objects": consume_objects, "lists": consume_lists, "Arrow": consume_arrow}


def consume_ours(peers: Peers, way: str, topic: str, count: int) -> float:
    """Seconds to read all records of a topic."""
    start_s = time.perf_counter()
    size_bytes = peers.runner.run(OURS[way](peers.client, topic))
    took_s = time.perf_counter() - start_s
    assert size_bytes == count * CONSUMED_VALUE_BYTES
    return took_s


def consume_confluent(confluent: Any, address: str, topic: str, count: int, list_count: int) -> float:
    """Seconds to read all records of a topic, one by one or in lists of `list_count`."""
    settings = {
        "bootstrap.servers": address,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer: Any = confluent.Consumer(settings)
    start_s = time.perf_counter()
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    found_count = size_bytes = 0
    while found_count < count:
        if list_count == 1:
            record = consumer.poll(10.0)
            assert record is not None
            found_count += 1
            size_bytes += len(record.value())
        else:
            records = consumer.consume(list_count, 10.0)
            assert records
            found_count += len(records)
            for record in records:
                size_bytes += len(record.value())
    took_s = time.perf_counter() - start_s
    consumer.close()
    assert size_bytes == count * CONSUMED_VALUE_BYTES
    return took_s


def consume_java(peers: Peers, topic: str, count: int) -> float:
    """Seconds in which Kafka's ConsumerPerformance has read all records."""
    command = peers.kafka.command(
        "org.apache.kafka.tools.ConsumerPerformance",
        "--bootstrap-server",
        peers.broker.address,
        "--topic",
        topic,
        "--messages",
        str(count),
        heap_mib=512,
        is_measured=True,
    )
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    heading, values = (
        [field.strip() for field in line.split(",")] for line in ended.stdout.splitlines() if "," in line
    )
    found = dict(zip(heading, values, strict=True))
    assert int(found["data.consumed.in.nMsg"]) >= count, ended.stdout
    return count / float(found["fetch.nMsg.sec"])


def consumer_rows(peers: Peers, quick: bool) -> Iterator[report.Row]:
    """Each of our consumers beside each of theirs, of the same rounds."""
    topic, count = "consumed", CONSUMED_COUNT // (4 if quick else 1)
    value = bytes(CONSUMED_VALUE_BYTES)
    replace_topic(peers, None, topic)
    peers.runner.run(produce(peers.client, topic, count, value))
    costs, confluent, address = Costs(peers), peers.confluent, peers.broker.address
    produce_confluent(confluent, address, topic, count, value)
    works: dict[str, tuple[int, Callable[[], float]]] = {
        way: (0, functools.partial(consume_ours, peers, way, topic, count)) for way in OURS
    }
    works["ConsumerPerformance"] = (1, functools.partial(consume_java, peers, topic, count))
    for name, list_count in (("poll", 1), ("consume", LIST_COUNT)):
        theirs = functools.partial(consume_confluent, confluent, address, topic, count, list_count)
        works[name] = (1, theirs)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    size_bytes = count * (KEY_BYTES + CONSUMED_VALUE_BYTES)
    for _ in range(3 if quick else 7):
        for name, (place, work) in works.items():
            seconds[name].append(costs.of(place, size_bytes, work))

    def row(ours: str, theirs: str, title: str, target: float) -> report.Row:
        ours_s, theirs_s = report.pair_of_median_ratio(zip(seconds[ours], seconds[theirs], strict=True))
        return report.Row(
            work=f"consumer, {ours} / {title}",
            unit="records/s",
            ours=count / ours_s,
            reference=count / theirs_s,
            target=target,
        )

    for way, target in (("objects", 1.0), ("lists", 1.0), ("Arrow", 3.0)):
        yield row(way, "ConsumerPerformance", "ConsumerPerformance", target)
    yield row("objects", "poll", "confluent-kafka, poll", 1.0)
    yield row("lists", "consume", "confluent-kafka, consume", 1.0)
    yield costs.row("fetches", 1.0)


def rows(peers: Peers, quick: bool) -> Iterator[report.Row]:
    peers.runner.run(peers.client.admin.alter_configs({DELETE_AT_ONCE: "0"}))
    peers.broker.create_topic(WARM_UP_TOPIC)
    yield from producer_rows(peers, quick)
    yield from consumer_rows(peers, quick)
    yield memory_row("after all of it / Kafka", peers.ours, peers.broker_process, 1.0)


async def connected(address: str) -> Client:
    return Client(address)


def measure(quick: bool) -> Iterable[report.Row]:
    """The Python client, beside Kafka's clients against a broker."""
    kafka, confluent = kafka_or_none(), confluent_kafka_or_none()
    if kafka is None or confluent is None:
        return
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as folder, asyncio.Runner() as runner:
        broker = KafkaBroker(kafka, Path(folder), properties=[f"{DELETE_AT_ONCE}=0"], is_measured=True)
        with running(*stratalog_command(f"{folder}/stratalog")) as ours, broker.running() as pid:
            peers = Peers(
                runner=runner,
                client=runner.run(connected(ours.address)),
                ours=ours,
                broker=broker,
                broker_process=ServerProcess(broker.address, pid),
                kafka=kafka,
                confluent=confluent,
            )
            yield from rows(peers, quick)
            runner.run(peers.client.close())


if __name__ == "__main__":
    sys.exit(report.run(measure))
