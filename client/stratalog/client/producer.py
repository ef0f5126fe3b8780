"""Producers collect records into batches for each partition, send them in order, and report each outcome.

Records of a partition are stored in the order in which they were sent. A batch is sent when it is full or
when its first record has waited for `linger_ms`, and in parts if its topic accepts no batch of that size.
Records with keys go to the partition of Kafka's murmur2, so Kafka's clients and ours place a key alike.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Sequence
from itertools import chain
from types import TracebackType
from typing import NamedTuple, Self, SupportsIndex

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import InvalidRequestError, LogStoreError, UnknownTopicOrPartitionError
from stratalog.base.randomness import system_random
from stratalog.base.types import TopicPartition
from stratalog.client.admin import Admin
from stratalog.client.append_sender import AppendSender
from stratalog.client.channel import ServerChannel
from stratalog.client.partition_chooser import PartitionChooser
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.record.builder import RecordBatchBuilder

logger = logging.getLogger(__name__)


class BatchOutcome(NamedTuple):
    """The outcome of the records of one batch: all of them are stored, or none."""

    topic_partition: TopicPartition
    record_count: int
    first_tag: int
    """The `tag` of the first record."""
    error: LogStoreError | None
    """The reason why none is known to be stored; None if all are."""


class _OpenBatch:
    """The batch that collects a partition's records now. Guarded by its producer."""

    __slots__ = ("builder", "futures", "tags", "timer")

    def __init__(self, builder: RecordBatchBuilder, timer: asyncio.TimerHandle) -> None:
        self.builder = builder
        self.tags: list[int] = []
        self.futures: list[tuple[int, asyncio.Future[Acknowledged]]] = []
        self.timer = timer


class Producer:
    """Batches records and sends them in order. Belongs to one event loop. Use `async with`: its end waits for
    all records."""

    def __init__(
        self,
        channel: ServerChannel,
        admin: Admin,
        settings: ProducerSettings,
        retry: RetryPolicy,
        on_outcome: Callable[[BatchOutcome], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`retry`: how long batches are sent again after the server had no room.

        `on_outcome` is called on the event loop for each batch that is acknowledged or fails; its errors are
        logged.
        """
        self._admin = admin
        self._settings = settings
        self._on_outcome = on_outcome
        self._clock = clock or SystemClock()
        self._random = system_random()
        self._topics: dict[str, PartitionChooser] = {}
        self._open: dict[TopicPartition, _OpenBatch] = {}
        self._sender = AppendSender(channel, settings.durability, retry, self._on_settled, self._on_split)
        self._unsettled: set[SealedBatch] = set()
        self._buffered_bytes = 0
        self._settled = asyncio.Event()
        self._failure: LogStoreError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Approximate bytes of records that are not acknowledged yet."""
        return self._buffered_bytes

    async def post(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        tag: int = 0,
    ) -> None:
        """Queue a record. Waits only while the buffer is full. A key with a null value is a tombstone. A
        `BatchOutcome` repeats the `tag`.

        Raises UnknownTopicOrPartitionError and InvalidRequestError at once; a later failure is raised by
        `flush` and `close`.
        """
        topic_partition = await self._admit(topic, key, partition, timestamp_ms)
        self._add(topic_partition, key, value, timestamp_ms, headers, tag, None)

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[Acknowledged]:
        """Queue a record as `post` does; the future has its offset or failure."""
        topic_partition = await self._admit(topic, key, partition, timestamp_ms)
        future: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()
        self._add(topic_partition, key, value, timestamp_ms, headers, 0, future)
        return future

    async def flush(self) -> None:
        """Send all records now and wait until each is acknowledged or failed. Raises the first failure of a
        record that was posted since the last flush; records of `send` report through their futures.
        """
        for topic_partition in list(self._open):
            self._seal(topic_partition)
        while self._unsettled:
            self._settled.clear()
            await self._settled.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush. The client's connection stays open."""
        await self.flush()

    def abandon(self) -> None:
        """Discard unacknowledged records; some of them may be stored."""
        self._sender.abandon()
        waiting = [batch.futures for batch in self._unsettled]
        for open_batch in self._open.values():
            open_batch.timer.cancel()
            waiting.append(open_batch.futures)
        for _, future in chain.from_iterable(waiting):
            future.cancel()
        self._open.clear()
        self._unsettled.clear()
        self._buffered_bytes = 0
        self._settled.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()

    async def _admit(
        self, topic: str, key: bytes | None, partition: int | None, timestamp_ms: int | None
    ) -> TopicPartition:
        """Wait for room, and choose the partition of a record."""
        known = self._topics.get(topic) or await self._learn(topic)
        if partition is None:
            partition = known.for_key(key)
        elif not 0 <= partition < known.partition_count:
            raise UnknownTopicOrPartitionError(
                "the topic has fewer partitions; choose a lower number",
                topic=topic,
                partition=partition,
                partition_count=known.partition_count,
            )
        if timestamp_ms is not None and not _is_timestamp(timestamp_ms):
            raise InvalidRequestError(
                "a timestamp must be a whole number of milliseconds, at least 0 and below 2^63",
                timestamp_ms=timestamp_ms,
            )
        while self._buffered_bytes > self._settings.max_buffered_bytes:
            self._settled.clear()
            await self._settled.wait()
        return TopicPartition(topic, partition)

    async def _learn(self, topic: str) -> PartitionChooser:
        [description] = await self._admin.describe_topics([topic])
        chooser = PartitionChooser(self._random, description.partition_count)
        return self._topics.setdefault(topic, chooser)

    def _add(
        self,
        topic_partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None,
        headers: Sequence[tuple[str, bytes | None]],
        tag: int,
        future: asyncio.Future[Acknowledged] | None,
    ) -> None:
        batch = self._open.get(topic_partition)
        record_bytes = len(key or b"") + len(value or b"")
        if batch is not None and batch.builder.size_bytes + record_bytes > self._settings.batch_bytes:
            # Only a batch of one record may be larger than the setting, so only that record can be too large.
            self._seal(topic_partition)
            batch = None
        builder = RecordBatchBuilder() if batch is None else batch.builder
        before_bytes = builder.size_bytes if builder.count else 0
        place = builder.count
        builder.append(key, value, self._clock.now_ms() if timestamp_ms is None else timestamp_ms, headers)
        # The builder has accepted the record: now there is a batch to seal.
        if batch is None:
            linger_s = self._settings.linger_ms / 1000
            timer = asyncio.get_running_loop().call_later(linger_s, self._seal, topic_partition)
            batch = self._open[topic_partition] = _OpenBatch(builder, timer)
        batch.tags.append(tag)
        if future is not None:
            batch.futures.append((place, future))
        self._buffered_bytes += builder.size_bytes - before_bytes
        if builder.size_bytes >= self._settings.batch_bytes:
            self._seal(topic_partition)

    def _seal(self, topic_partition: TopicPartition) -> None:
        batch = self._open.pop(topic_partition)
        batch.timer.cancel()
        sealed = SealedBatch(topic_partition, b"", batch.tags, batch.futures, batch.builder.size_bytes)
        self._unsettled.add(sealed)
        try:
            sealed.batch = batch.builder.build(codec=self._settings.codec)
        except LogStoreError as error:
            # A record that no batch can hold.
            sealed.fail(error)
            self._on_settled(sealed, error)
            return
        self._topics[topic_partition.topic].batch_sealed(topic_partition.partition)
        self._sender.send(sealed)

    def _on_settled(self, batch: SealedBatch, error: LogStoreError | None) -> None:
        self._unsettled.discard(batch)
        self._buffered_bytes -= batch.size_bytes
        assert self._buffered_bytes >= 0
        if error is not None and len(batch.futures) < batch.record_count:
            # Posted records have no future; `flush` reports their failure.
            self._failure = self._failure or error
        self._settled.set()
        if self._on_outcome is not None:
            try:
                self._on_outcome(
                    BatchOutcome(batch.topic_partition, batch.record_count, batch.tags[0], error)
                )
            except Exception:
                # Other waiting callers do not depend on it.
                logger.exception("`on_outcome` of a producer failed for a batch of %s", batch.topic_partition)

    def _on_split(self, batch: SealedBatch, parts: Sequence[SealedBatch]) -> None:
        assert sum(part.size_bytes for part in parts) == batch.size_bytes
        self._unsettled.discard(batch)
        self._unsettled.update(parts)


def _is_timestamp(given: SupportsIndex) -> bool:
    try:
        return 0 <= operator.index(given) < 2**63
    except TypeError:
        return False
