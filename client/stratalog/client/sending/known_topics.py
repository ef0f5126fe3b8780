"""The topics of a producer: their numbers of partitions, their ids, and the size of their batches.

A topic is described when its first record is sent, then every few minutes, and when the server or the
accumulator refuses records because of the topic's state: it may have changed. A record whose partition cannot
be chosen yet waits here: its topic is unknown, or its partition is above the number that was known last.

A topic is described once at a time. The answer places all records that it can, and fails those only that
waited before the question: the topic may have changed since. The others wait for another description.

Any thread may send such a record, so a lock guards them. While the loop places those of a topic, the
accumulator holds the topic: records that other threads send come here, too, and wait for the lock. Then their
topic is known, and they are placed behind all earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from stratalog.base.errors import LogStoreError, UnknownTopicOrPartitionError
from stratalog.client.errors import ClientClosedError
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sending.batch_receipt import BatchReceipt, running_loop
from stratalog.client.sending.sealed_batch import abandonment, failure_of
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.record_accumulator import Delivery, RecordAccumulator

if TYPE_CHECKING:
    from stratalog.client.values import Topic

logger = logging.getLogger(__name__)

MAX_BATCH_KEY = "max.message.bytes"
"""The topic's limit of the size of a batch."""

NO_PARTITION = -1
"""The partition in the receipt of a record that has none yet, or never gets one."""

EARLY_RECORD_BYTES = 64
"""The part of an early record's size in the buffer that does not depend on its contents."""

RecordParts = tuple[str, str | bytes | None, str | bytes | None, int | None, int, int, bytes | None]
"""The arguments of the accumulator's `send_early` and `send_encoded`."""


class EarlyRecord(NamedTuple):
    """A record that waits for the description of its topic."""

    delivery: Delivery
    """Its index is the number of the record."""
    partition: int
    """The least number of a partition that the topic must have."""
    size_bytes: int
    """Its approximate size in the buffer."""
    parts: RecordParts


class EarlyRecords:
    """The early records of a topic, in order. Guarded by the lock of their `KnownTopics`."""

    __slots__ = ("receipt", "records")

    def __init__(self, topic: str) -> None:
        self.records: deque[EarlyRecord] = deque()
        self.receipt = BatchReceipt(topic, NO_PARTITION)
        """The receipt of all of them. It is never settled: a record gets another one with its outcome."""


class TopicEvents(Protocol):
    """The user of known topics. Called on its event loop, except for `call_soon`."""

    def call_soon(self, work: Callable[[str], None], topic: str) -> None:
        """Let the event loop do the work. Called by any thread. Raises ClientClosedError."""
        ...

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
    """The described topics of a producer, and its early records. Belongs to one event loop; `hold` and `ask`
    may be called by any thread.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        describe: Callable[[str], Awaitable[Topic]],
        random: Random,
        settings: ProducerSettings,
        retry: RetryPolicy,
        events: TopicEvents,
    ) -> None:
        """`retry`: how long a topic is described again while the server is away."""
        self._accumulator = accumulator
        self._describe = describe
        self._random = random
        self._settings = settings
        self._retry = retry
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._configs: dict[str, Mapping[str, str]] = {}
        """The configurations of the known topics."""
        self._lock = threading.RLock()
        """Guards the early records, and the places that the accumulator gives them."""
        self._early: dict[str, EarlyRecords] = {}
        """Those that wait, by topic. Each of these topics is being described, or is going to be."""
        self._held_count = 0
        """The number of all records that have ever waited."""
        self._callers: dict[str, list[asyncio.Future[None]]] = {}
        """The calls of `learn` that wait, by topic."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The descriptions that are under way."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_early_records(self) -> bool:
        return bool(self._early)

    def is_early(self, topic: str) -> bool:
        """Whether records of a topic wait for its description, or it is unknown."""
        return topic in self._early or topic not in self._configs

    def max_batch_bytes(self, topic: str) -> int | None:
        """Bytes of the largest batch that a topic takes, as it is sent; None if it is unknown."""
        value = self._configs.get(topic, {}).get(MAX_BATCH_KEY)
        return None if value is None else int(value)

    def hold(self, parts: RecordParts) -> Delivery:
        """Keep a record until its topic is described, behind all earlier ones of its thread. Returns its
        handle. Raises LogStoreError if the topic is known meanwhile and does not take the record,
        ClientClosedError, and TypeError for a topic whose name is no text.
        """
        topic, key, value, partition, timestamp_ms, _, headers = parts
        _require_name(topic)
        least_partition = partition or 0
        with self._lock:
            if self._accumulator.max_buffered_bytes < 0:
                # The producer has ended since the accumulator looked.
                self._accumulator.refuse_record()
            early = self._early.get(topic)
            if early is None and self._accumulator.partition_count(topic) > least_partition:
                return self._accumulator.send_encoded(*parts)
            if early is None or self._loop.is_closed():
                self.ask(topic)
            if early is None:
                early = self._early[topic] = EarlyRecords(topic)
            delivery = Delivery(early.receipt, self._held_count, timestamp_ms)
            self._held_count += 1
            size_bytes = len(key or b"") + len(value or b"") + len(headers or b"") + EARLY_RECORD_BYTES
            early.records.append(EarlyRecord(delivery, least_partition, size_bytes, parts))
            self._accumulator.reserve(size_bytes)
        return delivery

    def ask(self, topic: str) -> None:
        """Describe a topic soon, unless that is under way, for any thread. Raises ClientClosedError."""
        if running_loop() is self._loop:
            self.refresh(topic)
        else:
            self._events.call_soon(self.refresh, topic)

    def refresh(self, topic: str) -> None:
        """Describe a topic soon, unless that is under way."""
        if topic not in self._tasks:
            self._tasks[topic] = self._loop.create_task(self._learn(topic))
        if self._timer is None:
            topics: weakref.ref[KnownTopics] = weakref.ref(self)
            self._timer = self._loop.call_later(self._settings.topics_max_age_s, _refresh_all_of, topics)

    async def learn(self, topic: str) -> None:
        """Describe a topic now. Raises its failure, and TypeError for a name that is no text."""
        _require_name(topic)
        caller = self._loop.create_future()
        self._callers.setdefault(topic, []).append(caller)
        self.refresh(topic)
        await caller

    def rest(self) -> None:
        """Describe no topic any more, unless records or callers wait for it."""
        for topic, task in list(self._tasks.items()):
            if not self._is_awaited(topic):
                del self._tasks[topic]
                task.cancel()
        if self._timer is not None and not self._tasks:
            self._timer.cancel()
            self._timer = None

    def abandon(self) -> int:
        """Fail the records that still wait, and describe no topic any more. Returns their number."""
        with self._lock:
            error = failure_of(abandonment(is_in_doubt=False), is_in_doubt=False)
            count = sum(len(self._fail_early(topic, error, self._held_count)) for topic in list(self._early))
        if not self._loop.is_closed():
            self.rest()
        return count

    def refresh_all(self) -> None:
        """Describe all known topics soon."""
        self._timer = None
        for topic in self._configs:
            self.refresh(topic)

    def _is_awaited(self, topic: str) -> bool:
        return topic in self._early or topic in self._callers

    async def _learn(self, topic: str) -> None:
        task = asyncio.current_task()
        asked_count = self._held_count
        caller_count = len(self._callers.get(topic, ()))
        outcome: BaseException | None = None
        try:
            self._place(topic, await self._described(topic), asked_count)
        except (asyncio.CancelledError, ClientClosedError) as error:
            outcome = error
            if self._tasks.get(topic) is task:
                # By the end of the loop or of the channel: no call gets an answer.
                caller_count = len(self._callers.get(topic, ()))
                self._events.on_cancelled()
        except LogStoreError as error:
            outcome = error
            if isinstance(error, UnknownTopicOrPartitionError):
                self._accumulator.forget_topic(topic)
                self._configs.pop(topic, None)
            self._refuse_early(topic, error, asked_count)
        except Exception as failure:
            # Unexpected. Waiting callers must not wait for ever.
            logger.exception("describing the topic %s failed", topic)
            outcome = LogStoreError(
                "the client failed; report the traceback in the process's log", reason=repr(failure)
            )
            self._refuse_early(topic, outcome, asked_count)
        finally:
            # Otherwise `rest` has ended it, because neither records nor callers waited for it.
            if self._tasks.get(topic) is task:
                del self._tasks[topic]
                self._answer(topic, caller_count, outcome)
                if self._is_awaited(topic):
                    self.refresh(topic)

    async def _described(self, topic: str) -> Topic:
        """The description, by attempts until the deadline of the retry policy. Raises LogStoreError."""
        patience = Patience(self._retry)
        start_s = self._loop.time()
        while True:
            try:
                return await self._describe(topic)
            except LogStoreError as error:
                failure = error
            await patience.bear(failure, start_s)

    def _answer(self, topic: str, caller_count: int, outcome: BaseException | None) -> None:
        """Answer the first callers of `learn`."""
        callers = self._callers.pop(topic, [])
        for caller in callers[:caller_count]:
            if caller.done():
                # Its task was cancelled.
                continue
            if outcome is None:
                caller.set_result(None)
            elif isinstance(outcome, asyncio.CancelledError):
                caller.cancel()
            else:
                caller.set_exception(outcome)
        if len(callers) > caller_count:
            self._callers[topic] = callers[caller_count:]

    def _place(self, topic: str, description: Topic, asked_count: int) -> None:
        count = description.partition_count
        is_changed = self._configs.get(topic) != description.config
        self._configs[topic] = description.config
        is_plain = self._settings.codec is Codec.NONE
        with self._lock:
            self._accumulator.hold_topic(
                topic,
                count,
                self._random.randrange(count),
                topic_id=description.topic_id,
                max_batch_bytes=self.max_batch_bytes(topic) if is_plain else None,
            )
            try:
                failed = self._place_early(topic, count, asked_count)
            finally:
                self._accumulator.open_topic(topic)
        for receipt, error in failed:
            self._events.on_refused(receipt, error)
        self._events.on_described(topic, is_changed=is_changed)

    def _place_early(
        self, topic: str, partition_count: int, asked_count: int
    ) -> list[tuple[BatchReceipt, LogStoreError]]:
        """Place the early records, and fail those of partitions that the topic does not have; but those that
        came after the question may have a partition by now, and wait on.
        """
        early = self._early.get(topic)
        if early is None:
            return []
        left: list[EarlyRecord] = []
        failed: list[tuple[BatchReceipt, LogStoreError]] = []
        while early.records:
            record = early.records.popleft()
            is_missing = record.partition >= partition_count
            if is_missing and record.delivery.index >= asked_count:
                left.append(record)
                continue
            self._accumulator.release(record.size_bytes)
            try:
                if is_missing:
                    raise UnknownTopicOrPartitionError(
                        "the topic has fewer partitions; choose a lower number",
                        topic=topic,
                        partition=record.partition,
                        partition_count=partition_count,
                    )
                record.delivery.follow(self._accumulator.send_encoded(*record.parts))
            except LogStoreError as cause:
                error = failure_of(cause, is_in_doubt=False)
                failed.append((_fail(early, record, error), error))
        early.records.extend(left)
        self._wake(topic, early)
        return failed

    def _refuse_early(self, topic: str, cause: LogStoreError, asked_count: int) -> None:
        """Fail the early records that came before a question whose answer is an error."""
        error = failure_of(cause, is_in_doubt=False)
        with self._lock:
            receipts = self._fail_early(topic, error, asked_count)
        for receipt in receipts:
            self._events.on_refused(receipt, error)

    def _fail_early(self, topic: str, error: LogStoreError, end_number: int) -> list[BatchReceipt]:
        """Fail the early records below this number."""
        early = self._early.get(topic)
        if early is None:
            return []
        receipts: list[BatchReceipt] = []
        while early.records and early.records[0].delivery.index < end_number:
            record = early.records.popleft()
            self._accumulator.release(record.size_bytes)
            receipts.append(_fail(early, record, error))
        self._wake(topic, early)
        return receipts

    def _wake(self, topic: str, early: EarlyRecords) -> None:
        if not early.records:
            del self._early[topic]
        early.receipt.wake_all()


def _require_name(topic: object) -> None:
    """Raise TypeError for a name of a topic that is no text. A caller may have ignored the annotation."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic's name must be a str, not {type(topic).__name__}")


def _refresh_all_of(topics: weakref.ref[KnownTopics]) -> None:
    """Let a timer describe all topics, unless the program has dropped the producer, which no timer keeps."""
    known_topics = topics()
    if known_topics is not None:
        known_topics.refresh_all()


def _fail(early: EarlyRecords, record: EarlyRecord, error: LogStoreError) -> BatchReceipt:
    """Give a record a receipt of its failure."""
    delivery = record.delivery
    number = delivery.index
    receipt = BatchReceipt(early.receipt.topic, NO_PARTITION)
    receipt.settle(0, 1, error=error)
    delivery.follow(Delivery(receipt, 0, delivery.timestamp_ms))
    if early.receipt.is_claimed(number, number + 1):
        receipt.claim(0)
    return receipt
