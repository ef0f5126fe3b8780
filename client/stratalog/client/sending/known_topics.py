"""The topics of a producer: their numbers of partitions, their ids, and the size of their batches.

A topic is described when its first record is sent, then every few minutes, and when the server or the
accumulator refuses records because of the topic's state: it may have changed. A record whose partition cannot
be chosen yet waits here: its topic is unknown, or its partition is above the number that was known last.

Any thread may send such a record, so a lock guards them. While the loop places those of a topic, the
accumulator holds the topic: records that other threads send come here, too, and wait for the lock. Then their
topic is known, and they are placed behind all earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from stratalog.base.errors import LogStoreError, UnknownTopicOrPartitionError
from stratalog.client.errors import ClientClosedError
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.sending.batch_receipt import BatchReceipt, running_loop
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.record_accumulator import Delivery, RecordAccumulator

if TYPE_CHECKING:
    from stratalog.client.values import Topic

logger = logging.getLogger(__name__)

MAX_BATCH_KEY = "max.message.bytes"
"""The topic's limit of the size of a batch."""

UNLIMITED_BYTES = 2**31 - 1
"""No batch is larger."""


class KnownTopic(NamedTuple):
    """The facts about a topic on which its batches depend."""

    topic_id: str = ""
    """Empty if it is unknown."""
    max_batch_bytes: int | None = None
    """Bytes of the largest batch that the topic takes, as it is sent; None if it is unknown."""


UNKNOWN_TOPIC = KnownTopic()


class EarlyRecord(NamedTuple):
    """A record that waits for the description of its topic."""

    delivery: Delivery
    key: str | bytes | None
    value: str | bytes | None
    partition: int | None
    headers_count: int
    headers: bytes | None

    @property
    def receipt(self) -> BatchReceipt:
        """The outcome, until the record has a batch."""
        receipt = self.delivery.receipt
        assert isinstance(receipt, BatchReceipt)
        return receipt

    @property
    def size_bytes(self) -> int:
        """Its approximate size in the buffer."""
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or b"") + 64


class TopicEvents(Protocol):
    """The user of known topics. Called on its event loop."""

    def on_described(self, topic: str, *, is_changed: bool) -> None:
        """A topic was described, and its early records are placed. `is_changed`: its configuration is another
        one than before.
        """
        ...

    def on_refused(self, receipt: BatchReceipt, error: LogStoreError) -> None:
        """An early record has failed."""
        ...

    def on_cancelled(self) -> None:
        """No topic can be described any more: the event loop ends, or the client was closed."""
        ...


class KnownTopics:
    """The described topics of a producer, and its early records. Belongs to one event loop; `hold` and
    `ask_again` may be called by any thread.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        describe: Callable[[str], Awaitable[Topic]],
        random: Random,
        settings: ProducerSettings,
        events: TopicEvents,
    ) -> None:
        self._accumulator = accumulator
        self._describe = describe
        self._random = random
        self._settings = settings
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, KnownTopic] = {}
        self._configs: dict[str, Mapping[str, str]] = {}
        """The configurations of the known topics."""
        self._lock = threading.RLock()
        """Guards the early records, and the places that the accumulator gives them."""
        self._early: dict[str, list[EarlyRecord]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_early_records(self) -> bool:
        return bool(self._early)

    def is_early(self, topic: str) -> bool:
        """Whether records of a topic wait for its description, or it is unknown."""
        return topic in self._early or topic not in self._known

    def known(self, topic: str) -> KnownTopic:
        """The facts about a topic, without any if it is unknown."""
        return self._known.get(topic, UNKNOWN_TOPIC)

    def hold(self, topic: str, record: EarlyRecord) -> Delivery:
        """Keep a record until its topic is described, behind all earlier ones of its thread. Returns its
        handle. Raises LogStoreError if the topic is known meanwhile and does not take the record.
        """
        with self._lock:
            if topic not in self._early and self._is_placeable(topic, record):
                return self._send(topic, record)
            if self._accumulator.max_buffered_bytes < 0:
                # The producer has ended since the accumulator looked.
                self._accumulator.refuse_record()
            self._early.setdefault(topic, []).append(record)
            self._accumulator.reserve(record.size_bytes)
        self.ask_again(topic)
        return record.delivery

    def ask_again(self, topic: str) -> None:
        """Describe a topic soon, unless that is under way, for any thread."""
        if running_loop() is self._loop:
            self.refresh(topic)
        else:
            self._loop.call_soon_threadsafe(self.refresh, topic)

    def refresh(self, topic: str) -> None:
        """Describe a topic soon, unless that is under way."""
        if topic not in self._tasks:
            self._tasks[topic] = self._loop.create_task(self._learn(topic))
        if self._timer is None:
            self._timer = self._loop.call_later(self._settings.topics_max_age_s, self._refresh_all)

    async def learn(self, topic: str) -> None:
        """Describe a topic now. Raises its failure."""
        self._place(topic, await self._describe(topic))

    def rest(self) -> None:
        """Describe no topic any more, unless records wait for it."""
        for topic, task in list(self._tasks.items()):
            if topic not in self._early:
                del self._tasks[topic]
                task.cancel()
        if self._timer is not None and not self._early:
            self._timer.cancel()
            self._timer = None

    def abandon(self) -> list[EarlyRecord]:
        """Describe no topic any more. Returns the records that still wait."""
        with self._lock:
            left = [record for records in self._early.values() for record in records]
            self._early.clear()
            for record in left:
                self._accumulator.release(record.size_bytes)
        if not self._loop.is_closed():
            self.rest()
        return left

    def _refresh_all(self) -> None:
        self._timer = None
        for topic in self._known:
            self.refresh(topic)

    async def _learn(self, topic: str) -> None:
        task = asyncio.current_task()
        try:
            await self.learn(topic)
        except (asyncio.CancelledError, ClientClosedError):
            if self._tasks.get(topic) is task:
                # By the end of the loop or of the channel.
                self._events.on_cancelled()
        except LogStoreError as error:
            if isinstance(error, UnknownTopicOrPartitionError):
                self._accumulator.forget_topic(topic)
                self._known.pop(topic, None)
                self._configs.pop(topic, None)
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
            if self._tasks.get(topic) is task:
                del self._tasks[topic]

    def _place(self, topic: str, description: Topic) -> None:
        count = description.partition_count
        is_changed = self._configs.get(topic) != description.config
        known = KnownTopic(description.topic_id, _max_batch_bytes(description.config))
        self._known[topic], self._configs[topic] = known, description.config
        is_plain = self._settings.codec is Codec.NONE
        limit_bytes = known.max_batch_bytes if is_plain else None
        failed: list[tuple[EarlyRecord, LogStoreError]] = []
        with self._lock:
            self._accumulator.set_partition_count(
                topic,
                count,
                self._random.randrange(count),
                max_batch_bytes=UNLIMITED_BYTES if limit_bytes is None else limit_bytes,
                is_held=True,
            )
            try:
                for record in self._early.pop(topic, ()):
                    self._accumulator.release(record.size_bytes)
                    try:
                        self._require_partition(topic, record, count)
                        placed = self._send(topic, record)
                    except LogStoreError as error:
                        failed.append((record, error))
                        continue
                    receipt = record.receipt
                    record.delivery.follow(placed)
                    receipt.wake_all()
            finally:
                self._accumulator.open_topic(topic)
        for record, refusal in failed:
            self._fail(record, refusal)
        self._events.on_described(topic, is_changed=is_changed)

    def _send(self, topic: str, record: EarlyRecord) -> Delivery:
        return self._accumulator.send_encoded(
            topic,
            record.key,
            record.value,
            record.partition,
            record.delivery.timestamp_ms,
            record.headers_count,
            record.headers,
        )

    def _is_placeable(self, topic: str, record: EarlyRecord) -> bool:
        return self._accumulator.partition_count(topic) > (record.partition or 0)

    def _require_partition(self, topic: str, record: EarlyRecord, count: int) -> None:
        if record.partition is not None and record.partition >= count:
            raise UnknownTopicOrPartitionError(
                "the topic has fewer partitions; choose a lower number",
                topic=topic,
                partition=record.partition,
                partition_count=count,
            )

    def _fail_early(self, topic: str, error: LogStoreError) -> None:
        with self._lock:
            records = self._early.pop(topic, [])
            for record in records:
                self._accumulator.release(record.size_bytes)
        for record in records:
            self._fail(record, error)

    def _fail(self, record: EarlyRecord, error: LogStoreError) -> None:
        record.receipt.settle(0, 1, error=error)
        self._events.on_refused(record.receipt, error)


def _max_batch_bytes(config: Mapping[str, str]) -> int | None:
    value = config.get(MAX_BATCH_KEY)
    return None if value is None else int(value)
