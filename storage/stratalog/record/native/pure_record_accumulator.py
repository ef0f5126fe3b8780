"""The record accumulator in plain Python: the reference for the native one and its replacement.

``record_accumulator`` documents the classes. Batches have the same bytes as the native ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from operator import index as index_of
from typing import Any, Protocol

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.ack import Ack
from stratalog.record.header import HEADER_SIZE
from stratalog.record.native.pure_key_kernels import murmur2
from stratalog.record.native.pure_record_parts import (
    Headers,
    Part,
    encoded_headers,
    encoded_part,
    end_of_record,
    headers_reader,
    number_reader,
    part_reader,
    plain_part,
)
from stratalog.record.record_rows import RecordRows, SentRows
from stratalog.record.varint import append_varint

_POSITIVE_MASK = 0x7FFFFFFF
_MAX_RECORD_BYTES = 2**31 - 1 - HEADER_SIZE - 32

_UNLIMITED_BYTES = 2**31 - 1
"""No batch is larger."""


class Receipt(Protocol):
    """The outcome of a batch."""

    def is_settled(self, index: int, /) -> bool: ...

    async def wait(self, delivery: Delivery, /) -> Ack: ...

    def result(self, delivery: Delivery, timeout_s: float | None, /) -> Ack: ...


class Source(Protocol):
    """A batch, or another place that has the outcome of records."""

    @property
    def receipt(self) -> Any: ...


class Delivery:
    """The plain-Python form of ``record_accumulator.Delivery``. Thread-safe."""

    __slots__ = ("_place", "_timestamp_ms")

    def __init__(self, source: Source, index: int, timestamp_ms: int) -> None:
        self._place = (source, index)
        self._timestamp_ms = timestamp_ms

    @property
    def index(self) -> int:
        """The record's place in its batch."""
        return self._place[1]

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp as it was sent."""
        return self._timestamp_ms

    @property
    def receipt(self) -> Any:
        """The outcome of its batch."""
        return self._place[0].receipt

    @property
    def is_done(self) -> bool:
        """The record is acknowledged or has failed."""
        source, index = self._place
        return bool(source.receipt.is_settled(index))

    def follow(self, other: Delivery) -> None:
        """Become a handle of the record of `other`."""
        # At once, for other threads.
        self._place = other._place

    def result(self, timeout_s: float | None = None) -> Ack:
        """The acknowledgement, for threads without an event loop. Raises the failure, or TimeoutError."""
        receipt: Receipt = self.receipt
        return receipt.result(self, timeout_s)

    def __await__(self) -> Generator[Any, None, Ack]:
        receipt: Receipt = self.receipt
        return receipt.wait(self).__await__()


class OpenBatch:
    """The plain-Python form of ``record_accumulator.OpenBatch``. Guarded by its accumulator."""

    def __init__(
        self,
        known: _KnownTopic,
        partition: int,
        base_timestamp: int,
        make_receipt: Callable[[str, int], Any],
    ) -> None:
        self.topic = known.name
        self.topic_id = known.topic_id
        self.partition = partition
        self.base_timestamp = base_timestamp
        self.max_timestamp = base_timestamp
        self.record_count = 0
        self._make_receipt = make_receipt
        self._made_receipt: Any = None
        self._section = bytearray()
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The size of the records section."""
        return self._size_bytes

    @property
    def receipt(self) -> Any:
        """The outcome of its records."""
        if self._made_receipt is None:
            self._made_receipt = self._make_receipt(self.topic, self.partition)
        return self._made_receipt

    def take_section(self) -> memoryview:
        """Take the records section out of a batch that is complete."""
        section, self._section = self._section, bytearray()
        return memoryview(bytes(section))

    def body(self, parts: bytes, timestamp_ms: int) -> bytes:
        """The record of these parts, with its size, as the next one of the batch."""
        body = bytearray(1)
        append_varint(body, timestamp_ms - self.base_timestamp)
        append_varint(body, self.record_count)
        record = bytearray()
        append_varint(record, len(body) + len(parts))
        return bytes(record + body) + parts

    def add(self, record: bytes, timestamp_ms: int) -> None:
        """Add a record that `body` made."""
        self._section += record
        self._size_bytes += len(record)
        self.record_count += 1
        self.max_timestamp = max(self.max_timestamp, timestamp_ms)


class _KnownTopic:
    """The partitions of a topic and their batches. Guarded by its accumulator."""

    def __init__(self, name: str, topic_id: str, current_partition: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.current_partition = current_partition
        self.batches: list[OpenBatch | None] = []
        self.max_batch_bytes = _UNLIMITED_BYTES
        """No batch of the topic may be larger."""
        self.is_held = True
        """Whether `send` passes its records to `send_early`."""


class RecordAccumulator:
    """The plain-Python form of ``record_accumulator.RecordAccumulator``. Thread-safe: a lock guards it."""

    def __init__(
        self,
        batch_bytes: int,
        max_buffered_bytes: int,
        make_receipt: Callable[[str, int], Any],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._make_receipt = make_receipt
        self._now_ms = now_ms or SystemClock().now_ms
        self._lock = threading.RLock()
        self._buffered_bytes = 0
        self._topics: dict[str, _KnownTopic] = {}
        self._opened: list[OpenBatch] = []
        self._complete: list[OpenBatch] = []

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that were sent and not released."""
        return self._buffered_bytes

    @property
    def max_buffered_bytes(self) -> int:
        """The buffer is full above this."""
        return self._max_buffered_bytes

    def wake(self) -> None:
        """Note that `take_batches` has something new."""

    def refuse_record(self) -> None:
        """Refuse a record because the buffer is full."""
        raise NotImplementedError

    def refuse_size(self, topic: str, size_bytes: int, max_bytes: int) -> None:
        """Refuse a record that is larger than a batch of its topic may be."""
        raise NotImplementedError

    def send_early(
        self,
        topic: str,
        key: Part,
        value: Part,
        partition: int | None,
        timestamp_ms: int,
        headers_count: int,
        headers: bytes | None,
    ) -> Delivery:
        """Take a record whose partition is not known yet."""
        raise NotImplementedError

    def send(
        self,
        topic: str,
        key: Part = None,
        value: Part = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Buffer a record, and return the handle of its delivery."""
        if self._buffered_bytes > self._max_buffered_bytes:
            self.refuse_record()
        key, value = plain_part(key, "a record's key"), plain_part(value, "a record's value")
        # Text that is not Unicode is refused before the record is added.
        _ = encoded_part(key), encoded_part(value)
        count, encoded = (0, None) if headers is None else encoded_headers(headers)
        timestamp_ms = self._time_of(timestamp_ms)
        if partition is not None:
            partition = _as_partition(partition)
        with self._lock:
            if self._max_buffered_bytes < 0:
                # It has ended while the record was converted.
                self.refuse_record()
            known = self._topics.get(topic)
            if (
                known is not None
                and not known.is_held
                and (partition is None or partition < len(known.batches))
            ):
                return self.send_encoded(topic, key, value, partition, timestamp_ms, count, encoded)
        return self.send_early(topic, key, value, partition, timestamp_ms, count, encoded)

    def send_encoded(
        self,
        topic: str,
        key: Part,
        value: Part,
        partition: int | None,
        timestamp_ms: int,
        headers_count: int,
        headers: bytes | None,
    ) -> Delivery:
        """Buffer a record of a known topic."""
        with self._lock:
            known = self._topics[topic]
            key = encoded_part(key)
            number = -1 if partition is None else _as_partition(partition)
            assert number < len(known.batches), "the caller knows the number of partitions"
            parts = end_of_record(key, encoded_part(value), headers_count, headers or b"")
            return self._append(known, number, key, parts, timestamp_ms)[1]

    def send_rows(self, topic: str, rows: RecordRows, first_row: int) -> tuple[int, list[SentRows]]:
        """Buffer rows from `first_row` on while there is room."""
        keys, values = part_reader(rows.key, rows.row_count), part_reader(rows.value, rows.row_count)
        timestamps = number_reader(rows.timestamp_ms, "q", rows.row_count)
        partitions = number_reader(rows.partition, "i", rows.row_count)
        row_headers = headers_reader(rows)
        spans: dict[OpenBatch, tuple[int, int]] = {}
        row, now_ms = first_row, self._now_ms()
        with self._lock:
            known = self._topics[topic]
            while row < rows.row_count and self._buffered_bytes <= self._max_buffered_bytes:
                key, value = keys(row), values(row)
                count, headers = row_headers(row)
                number = partitions(row)
                if number >= len(known.batches):
                    raise InvalidRequestError(
                        "the topic has fewer partitions; choose a lower number",
                        partition=number,
                        partition_count=len(known.batches),
                    )
                timestamp_ms = timestamps(row)
                batch, delivery = self._append(
                    known,
                    number,
                    key,
                    end_of_record(key, value, count, headers),
                    now_ms if timestamp_ms < 0 else timestamp_ms,
                )
                first, _ = spans.get(batch, (delivery.index, 0))
                spans[batch] = (first, delivery.index + 1)
                row += 1
        return row, [SentRows(batch.receipt, first, end) for batch, (first, end) in spans.items()]

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if it is unknown."""
        known = self._topics.get(topic)
        return 0 if known is None else len(known.batches)

    def hold_topic(
        self,
        topic: str,
        partition_count: int,
        first_partition: int,
        *,
        topic_id: str = "",
        max_batch_bytes: int | None = None,
    ) -> None:
        """Make a topic known, and hold it."""
        assert 0 <= first_partition < partition_count
        with self._lock:
            former = self._topics.get(topic)
            if former is not None and former.topic_id != topic_id:
                self.forget_topic(topic)
            known = self._topics.setdefault(topic, _KnownTopic(topic, topic_id, first_partition))
            known.is_held = True
            known.max_batch_bytes = _UNLIMITED_BYTES if max_batch_bytes is None else max_batch_bytes
            for number in range(partition_count, len(known.batches)):
                self._close_at(known, number)
            del known.batches[partition_count:]
            known.batches += [None] * (partition_count - len(known.batches))
            known.current_partition %= partition_count

    def open_topic(self, topic: str) -> None:
        """Take the records of a topic that was held."""
        with self._lock:
            self._topics[topic].is_held = False

    def forget_topic(self, topic: str) -> None:
        """Make a topic unknown."""
        with self._lock:
            known = self._topics.get(topic)
            if known is not None:
                for number in range(len(known.batches)):
                    self._close_at(known, number)
                del self._topics[topic]

    def take_batches(self) -> tuple[list[OpenBatch], list[OpenBatch]]:
        """The batches that were opened, and those that are complete."""
        with self._lock:
            taken = self._opened, self._complete
            self._opened, self._complete = [], []
            return taken

    def close_batch(self, batch: OpenBatch) -> None:
        """Complete a batch, if it is open."""
        with self._lock:
            known = self._topics.get(batch.topic)
            if known is not None and batch in known.batches:
                self._close_at(known, batch.partition)

    def close_all(self) -> None:
        """Complete all batches."""
        with self._lock:
            for known in self._topics.values():
                for number in range(len(known.batches)):
                    self._close_at(known, number)

    def reserve(self, size_bytes: int) -> None:
        """Count bytes that wait elsewhere for a partition."""
        assert size_bytes >= 0
        with self._lock:
            self._buffered_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Make room in the buffer."""
        with self._lock:
            assert 0 <= size_bytes <= self._buffered_bytes
            self._buffered_bytes -= size_bytes

    def end(self) -> None:
        """Refuse all records from now on."""
        with self._lock:
            self._max_buffered_bytes = -1

    def _time_of(self, timestamp_ms: int | None) -> int:
        if timestamp_ms is None:
            return self._now_ms()
        try:
            number = index_of(timestamp_ms)
        except TypeError:
            number = -1
        if not 0 <= number < 2**63:
            raise InvalidRequestError(
                "a timestamp must be a whole number of milliseconds, at least 0 and below 2^63",
                timestamp_ms=timestamp_ms,
            )
        return number

    def _choose(self, known: _KnownTopic, key: Buffer | None) -> int:
        if key is None:
            return known.current_partition
        return (murmur2(key) & _POSITIVE_MASK) % len(known.batches)

    def _append(
        self, known: _KnownTopic, given: int, key: Buffer | None, parts: bytes, timestamp_ms: int
    ) -> tuple[OpenBatch, Delivery]:
        if len(parts) + 1 > _MAX_RECORD_BYTES:
            raise InvalidRequestError(
                "the record is too large for a batch; make it smaller", size_bytes=len(parts) + 1
            )
        first_record = OpenBatch(known, 0, timestamp_ms, self._make_receipt).body(parts, timestamp_ms)
        if HEADER_SIZE + len(first_record) > known.max_batch_bytes:
            self.refuse_size(known.name, HEADER_SIZE + len(first_record), known.max_batch_bytes)
        batch_bytes = min(self._batch_bytes, known.max_batch_bytes)
        was_quiet = not self._opened and not self._complete
        number = given if given >= 0 else self._choose(known, key)
        batch = known.batches[number]
        while batch is not None:
            record = batch.body(parts, timestamp_ms)
            if HEADER_SIZE + batch.size_bytes + len(record) <= batch_bytes:
                break
            self._close_at(known, number)
            if given < 0 and key is None:
                # Records without a key go to the next partition now, and so does this one.
                number = known.current_partition
            batch = known.batches[number]
        if batch is None:
            batch = known.batches[number] = OpenBatch(known, number, timestamp_ms, self._make_receipt)
            self._opened.append(batch)
        record = batch.body(parts, timestamp_ms)
        delivery = Delivery(batch, batch.record_count, timestamp_ms)
        batch.add(record, timestamp_ms)
        self._buffered_bytes += len(record)
        if HEADER_SIZE + batch.size_bytes >= batch_bytes:
            self._close_at(known, number)
        if was_quiet and (self._opened or self._complete):
            self.wake()
        return batch, delivery

    def _close_at(self, known: _KnownTopic, number: int) -> None:
        batch = known.batches[number]
        if batch is not None:
            known.batches[number] = None
            self._complete.append(batch)
            if number == known.current_partition:
                known.current_partition = (number + 1) % len(known.batches)


def _as_partition(partition: int) -> int:
    number = index_of(partition)
    if not 0 <= number < 2**31:
        raise InvalidRequestError("a partition is a number from 0 to 2^31 - 1", partition=partition)
    return number
