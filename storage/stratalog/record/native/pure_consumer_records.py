"""The records of consumers in plain Python: the reference for the native forms and their replacement.

``consumer_records`` documents the functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.native.pure_kernels import decode_records
from stratalog.record.record_time import moment_of

Decoder = str | Callable[[bytes], Any] | None
"""Makes a key or a value of bytes: "utf-8", a function, or None, which leaves the bytes."""


def decoded_part(part: bytes | None, decode: Decoder) -> Any:
    """A key or a value as the decoder makes it. Null stays None. Raises the decoder's errors."""
    if part is None or decode is None:
        return part
    return part.decode() if isinstance(decode, str) else decode(part)


class Reading(Protocol):
    """The records of a partition that a reader wants, and their form: ``RecordReading``."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def decode_key(self) -> Decoder: ...

    @property
    def decode_value(self) -> Decoder: ...


class ConsumerRecord:
    """A record with its place, as consumers get it. Immutable, so thread-safe.

    Keys and values are bytes, or what the consumer's decoder made of them; None is null.
    """

    __slots__ = ("headers", "key", "offset", "partition", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: Any,
        value: Any,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers: tuple[tuple[str, bytes | None], ...] = tuple(headers)

    @property
    def timestamp(self) -> datetime | None:
        """The moment in UTC; None without a timestamp, and outside of the years 1 to 9999."""
        return moment_of(self.timestamp_ms)

    @property
    def is_tombstone(self) -> bool:
        """The record has no value: under compaction it deletes its key."""
        return self.value is None

    def __eq__(self, other: object) -> bool:
        if type(other) is not ConsumerRecord:
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self) -> tuple[type[ConsumerRecord], tuple[Any, ...]]:
        return ConsumerRecord, _fields(self)

    def __repr__(self) -> str:
        return record_text(self)


def record_text(record: ConsumerRecord) -> str:
    """The constructor call that makes the record, for both forms."""
    headers = f", headers={record.headers!r}" if record.headers else ""
    return (
        f"ConsumerRecord(topic={record.topic!r}, partition={record.partition}, offset={record.offset},"
        f" timestamp_ms={record.timestamp_ms}, key={record.key!r}, value={record.value!r}{headers})"
    )


def _fields(record: ConsumerRecord) -> tuple[Any, ...]:
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    )


def decode_consumer_records(
    payload: Buffer, records_count: int, header: BatchHeader, reading: Reading
) -> list[ConsumerRecord]:
    """The plain-Python form of ``consumer_records.decode_consumer_records``."""
    decoded = decode_records(
        payload, records_count, header.base_offset, header.base_timestamp, header.append_time_ms
    )
    return [
        ConsumerRecord(
            reading.topic,
            reading.partition,
            record.offset,
            record.timestamp_ms,
            decoded_part(record.key, reading.decode_key),
            decoded_part(record.value, reading.decode_value),
            record.headers,
        )
        for record in decoded
        if reading.first_offset <= record.offset < reading.end_offset
    ]


def decode_consumer_batches(
    data: Buffer,
    position: int,
    max_count: int,
    max_bytes: int,
    reading: Reading,
    records: list[ConsumerRecord],
) -> tuple[int, int, int]:
    """The plain-Python form of ``consumer_records.decode_consumer_batches``, which takes no batch."""
    del data, max_count, max_bytes, reading, records
    return position, 0, -1


class RecordCursor:
    """Hands out records one by one from lists, which `next_list` fetches. It raises StopAsyncIteration at the
    end. Belongs to one event loop.
    """

    def __init__(self, next_list: Callable[[], Awaitable[list[ConsumerRecord]]]) -> None:
        self._records: list[ConsumerRecord] = []
        self._index = 0
        self._next_list = next_list

    def peek(self) -> ConsumerRecord | None:
        """The next record of the list at hand; None at its end."""
        return self._records[self._index] if self._index < len(self._records) else None

    def take_rest(self) -> list[ConsumerRecord]:
        """Take the records of the list at hand that were not handed out."""
        rest = self._records[self._index :]
        self._records, self._index = [], 0
        return rest

    def __aiter__(self) -> RecordCursor:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while self._index >= len(self._records):
            self._records = await self._next_list()
            self._index = 0
        self._index += 1
        return self._records[self._index - 1]
