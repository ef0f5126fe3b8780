"""Producers and readers of numbered records, who know by a record's place which number it must have.

The records of a topic are numbered from 0 on, and number `n` goes to partition `n % PARTITION_COUNT`. With an
idempotent producer, whatever happens to its server, offset `o` of partition `p` has number
`o * PARTITION_COUNT + p`. A producer that is not idempotent may lose records that were not acknowledged; the
numbers of a partition grow, and each acknowledged one is where its acknowledgement says.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

from stratalog.base.errors import LogStoreError, PrecedingAppendFailedError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.producer import Producer
from stratalog.client.retry import RetryPolicy
from stratalog.record.ack import Ack
from stratalog.record.native.consumer_records import ConsumerRecord

PARTITION_COUNT = 3
PATIENT = RetryPolicy(deadline_s=120.0, max_pause_s=0.5)
COLD_COUNT = 5_000
"""Records of one cold read."""
_UNKNOWN = -1
_PADDING = bytes(100)


class NumberedTopic:
    """One topic, with its producer and its readers. Belongs to the event loop."""

    def __init__(self, name: str, durability: Durability, *, is_idempotent: bool = True) -> None:
        self.name = name
        self.durability = durability
        self.is_idempotent = is_idempotent
        self.sent_count = 0
        self.acknowledged_count = 0
        self.tailed_count = 0
        self.cold_count = 0
        self._offsets = array("q")
        """The offset of each number that was acknowledged, for a producer that is not idempotent."""
        self._is_sent = asyncio.Event()

    async def produce(
        self,
        client: Client,
        is_enough: asyncio.Event,
        *,
        burst_count: int,
        pause_s: float,
        note: Callable[[float, float], None] | None = None,
    ) -> None:
        """Send bursts until it is enough and wait for each burst; at most four are on their way. `note` gets
        the seconds of the begin and the end of each burst that was acknowledged."""
        producer = client.producer(
            durability=self.durability,
            idempotent=self.is_idempotent,
            linger_ms=1,
            batch_bytes=4_000,
            retry=PATIENT if self.is_idempotent else RetryPolicy(deadline_s=0),
        )
        waiting: set[asyncio.Task[None]] = set()
        while not is_enough.is_set():
            waiting.add(asyncio.create_task(self._burst(producer, burst_count, note)))
            await asyncio.sleep(pause_s)
            if len(waiting) >= 4:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.gather(*ended)
        await asyncio.gather(*waiting)
        await producer.close()
        self._is_sent.set()

    async def _burst(
        self, producer: Producer, burst_count: int, note: Callable[[float, float], None] | None
    ) -> None:
        begin_s = time.monotonic()
        first = self.sent_count
        numbers = range(first, first + burst_count)
        self.sent_count += burst_count
        sent = [self._send(producer, number) for number in numbers]
        if not self.is_idempotent:
            self._offsets.extend([_UNKNOWN] * burst_count)
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                if self.is_idempotent or not _may_come(outcome):
                    raise outcome
                continue
            assert outcome.partition == number % PARTITION_COUNT
            assert outcome.durability >= self.durability
            self.acknowledged_count += 1
            if not self.is_idempotent:
                self._offsets[number] = outcome.offset
            # A batch that was stored before its producer asked again has no offset.
            elif outcome.offset != _UNKNOWN:
                assert outcome.offset == number // PARTITION_COUNT
        if note is not None and not any(isinstance(one, BaseException) for one in outcomes):
            note(begin_s, time.monotonic())

    def _send(self, producer: Producer, number: int) -> Awaitable[Ack]:
        value = b"%d %b" % (number, _PADDING)
        return producer.send(self.name, b"%d" % number, value, partition=number % PARTITION_COUNT)

    async def tail(self, client: Client) -> None:
        """Follow the topic from its start, check each record, and end once all records were seen."""
        view = _View(self)
        consumer = client.consume(self.name, retry=PATIENT)
        async with consumer:
            reading = asyncio.create_task(self._read(consumer.batches(), view))
            done = asyncio.create_task(self._is_sent.wait())
            await asyncio.wait({reading, done}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                ends = await client.latest(self.name)
                while not reading.done() and view.record_count < sum(ends.values()):
                    await asyncio.sleep(0.02)
                reading.cancel()
            done.cancel()
            outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        self.require_complete(view)

    async def _read(self, batches: AsyncIterator[list[ConsumerRecord]], view: _View) -> None:
        async for records in batches:
            for record in records:
                view.take(record.partition, record.offset, record.value or b"")
            self.tailed_count += len(records)

    async def read_cold(self, client: Client, random: Random) -> None:
        """Read some records from a random place of a random partition, and check them."""
        partition = random.randrange(PARTITION_COUNT)
        end_offset = (await client.latest(self.name))[TopicPartition(self.name, partition)]
        start = random.randrange(max(1, end_offset))
        consumer = client.consume(
            self.name, start={partition: start}, partitions=[partition], until="latest", retry=PATIENT
        )
        view = _View(self, start)
        count = 0
        async with consumer:
            async for records in consumer.batches():
                for record in records:
                    view.take(record.partition, record.offset, record.value or b"")
                count += len(records)
                if count >= COLD_COUNT:
                    break
        self.cold_count += count

    def require_complete(self, view: _View) -> None:
        """All records that were acknowledged were seen."""
        if self.is_idempotent:
            assert self.acknowledged_count == self.sent_count == view.record_count
            return
        for number, offset in enumerate(self._offsets):
            if offset != _UNKNOWN:
                assert view.numbers[number % PARTITION_COUNT][offset] == number


def _may_come(error: BaseException) -> bool:
    """Whether a restart may end an append so, if its producer does not try again."""
    return isinstance(error, (ServerUnavailableError, PrecedingAppendFailedError)) or (
        isinstance(error, LogStoreError) and error.retriable
    )


class _View:
    """The records that one reader saw. Belongs to the event loop."""

    def __init__(self, topic: NumberedTopic, start: int = 0) -> None:
        self._topic = topic
        self._next_offsets = [start] * PARTITION_COUNT
        self._last_numbers = [-1] * PARTITION_COUNT
        self.record_count = 0
        self.numbers = [array("q") for _ in range(PARTITION_COUNT)]
        """The number at each offset; of topics without idempotent producers."""

    def take(self, partition: int, offset: int, value: bytes) -> None:
        """The next record. Raises AssertionError where it is not the one that must come."""
        where = f"{self._topic.name}-{partition} at offset {offset}"
        number = int(value.partition(b" ")[0])
        assert offset == self._next_offsets[partition], f"{where}: expected {self._next_offsets[partition]}"
        self._next_offsets[partition] += 1
        self.record_count += 1
        if self._topic.is_idempotent:
            expected = offset * PARTITION_COUNT + partition
            assert number == expected, f"{where}: has number {number} instead of {expected}"
            return
        last = self._last_numbers[partition]
        assert number > last, f"{where}: number {number} comes behind {last}"
        assert number % PARTITION_COUNT == partition, where
        self._last_numbers[partition] = number
        self.numbers[partition].append(number)
