"""The topics of a producer: their numbers of partitions and their ids.

A topic is described when its first record is sent, then every few minutes, and when the server refuses a
batch because it knows another state of the topic. A record whose partition cannot be chosen yet waits here:
its topic is unknown, or its partition is above the number that was known last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import LogStoreError, UnknownTopicOrPartitionError
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.record.native.record_accumulator import Delivery, RecordAccumulator

if TYPE_CHECKING:
    from stratalog.client.values import Topic

logger = logging.getLogger(__name__)


class EarlyRecord(NamedTuple):
    """A record that waits for the description of its topic."""

    delivery: Delivery
    key: str | bytes | None
    value: str | bytes | None
    partition: int | None
    headers_count: int
    headers: bytes | None

    @property
    def size_bytes(self) -> int:
        """Its approximate size in the buffer."""
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or b"") + 64


class KnownTopics:
    """The described topics of a producer, and its early records. Belongs to one event loop."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        describe: Callable[[str], Awaitable[Topic]],
        random: Random,
        max_age_s: float,
        on_described: Callable[[str], None],
        on_failed: Callable[[BatchReceipt, LogStoreError], None],
    ) -> None:
        """`on_described` is called for each description, before records of it are placed; `on_failed` for
        the receipt of a record that gets no partition.
        """
        self._accumulator = accumulator
        self._describe = describe
        self._random = random
        self._max_age_s = max_age_s
        self._on_described = on_described
        self._on_failed = on_failed
        self._topic_ids: dict[str, str] = {}
        self._early: dict[str, list[EarlyRecord]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_early_records(self) -> bool:
        return bool(self._early)

    def topic_id(self, topic: str) -> str:
        """The id of a topic; empty if it is unknown."""
        return self._topic_ids.get(topic, "")

    def hold(self, topic: str, record: EarlyRecord) -> None:
        """Keep a record until its topic is described."""
        self._early.setdefault(topic, []).append(record)
        self._accumulator.reserve(record.size_bytes)
        self.refresh(topic)

    def refresh(self, topic: str) -> None:
        """Describe a topic soon, unless that is under way."""
        if topic not in self._tasks:
            self._tasks[topic] = asyncio.create_task(self._learn(topic))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_age_s, self._refresh_all)

    async def learn(self, topic: str) -> None:
        """Describe a topic now. Raises its failure."""
        self._place(topic, await self._describe(topic))

    def abandon(self) -> list[EarlyRecord]:
        """Describe no topic any more. Returns the records that still wait."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = [record for records in self._early.values() for record in records]
        self._early.clear()
        for record in left:
            self._accumulator.release(record.size_bytes)
        return left

    def _refresh_all(self) -> None:
        self._timer = None
        for topic in self._topic_ids:
            self.refresh(topic)

    async def _learn(self, topic: str) -> None:
        try:
            await self.learn(topic)
        except LogStoreError as error:
            if isinstance(error, UnknownTopicOrPartitionError):
                self._accumulator.forget_topic(topic)
                self._topic_ids.pop(topic, None)
            self._fail_early(topic, error)
        except Exception as failure:
            # Unexpected. Waiting callers must not wait for ever.
            logger.exception("describing the topic %s failed", topic)
            self._fail_early(
                topic,
                LogStoreError(
                    "the client failed; report the traceback in the process's log", reason=repr(failure)
                ),
            )
        finally:
            if self._tasks.get(topic) is asyncio.current_task():
                del self._tasks[topic]

    def _place(self, topic: str, description: Topic) -> None:
        count = description.partition_count
        self._topic_ids[topic] = description.topic_id
        self._on_described(topic)
        # From here on records are not early, unless their partition is too high.
        self._accumulator.set_partition_count(topic, count, self._random.randrange(count))
        for record in self._early.pop(topic, ()):
            if record.partition is not None and record.partition >= count:
                error = UnknownTopicOrPartitionError(
                    "the topic has fewer partitions; choose a lower number",
                    topic=topic,
                    partition=record.partition,
                    partition_count=count,
                )
                self._fail(record, error)
                continue
            receipt = record.delivery.receipt
            try:
                placed = self._accumulator.send_encoded(
                    topic,
                    record.key,
                    record.value,
                    record.partition,
                    record.delivery.timestamp_ms,
                    record.headers_count,
                    record.headers,
                )
            except LogStoreError as error:
                self._fail(record, error)
                continue
            self._accumulator.release(record.size_bytes)
            record.delivery.follow(placed)
            assert isinstance(receipt, BatchReceipt)
            receipt.wake(0, 1)

    def _fail_early(self, topic: str, error: LogStoreError) -> None:
        for record in self._early.pop(topic, ()):
            self._fail(record, error)

    def _fail(self, record: EarlyRecord, error: LogStoreError) -> None:
        receipt = record.delivery.receipt
        assert isinstance(receipt, BatchReceipt)
        self._accumulator.release(record.size_bytes)
        receipt.settle(0, 1, error=error)
        self._on_failed(receipt, error)
