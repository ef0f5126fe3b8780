"""Plain records in plain Python: the reference for the compiled kernel and its replacement.

``plain_records`` documents the functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.base.message_fields import MessageField, fields_of, varint_at
from stratalog.record.key_partition import partition_for_key
from stratalog.record.native.pure_kernels import encode_records
from stratalog.record.plain.plain_section import (
    NEGATIVE_TIMESTAMP,
    NO_NAME,
    NO_RECORDS,
    KeyPlace,
    PlainSection,
    require_plain,
)
from stratalog.record.record import Record

_RECORD = 1
_KEY, _VALUE, _TIMESTAMP, _HEADER = 1, 2, 3, 4
_HEADER_NAME, _HEADER_VALUE = 1, 2
_SIGN = 1 << 63


def encode_plain(message: Buffer, now_ms: int, max_bytes: int) -> PlainSection:
    """The plain-Python form of ``plain_records.encode_plain``."""
    records: list[Record] = []
    for record in _records(bytes(message), now_ms):
        if record.timestamp_ms < 0:
            raise InvalidRequestError(NEGATIVE_TIMESTAMP, timestamp_ms=record.timestamp_ms)
        records.append(record)
    base_timestamp = records[0].timestamp_ms if records else 0
    section = encode_records(records, base_timestamp)
    require_plain(len(records), len(section), max_bytes)
    return PlainSection(section, len(records), base_timestamp, max(one.timestamp_ms for one in records))


def place_plain(message: Buffer, partition_count: int) -> KeyPlace:
    """The plain-Python form of ``plain_records.place_plain``."""
    assert partition_count > 0
    chosen: int | None = None
    for index, record in enumerate(_records(bytes(message), 0)):
        if record.key is None:
            continue
        partition = partition_for_key(record.key, partition_count)
        if chosen is None:
            chosen = partition
        elif partition != chosen:
            return KeyPlace(chosen, index, partition)
    return KeyPlace(chosen)


def _records(message: bytes, now_ms: int) -> Iterator[Record]:
    for field in _fields(message, 0, len(message)):
        if field.number == _RECORD and field.is_sized:
            yield _record(message, field, now_ms)


def _record(message: bytes, place: MessageField, now_ms: int) -> Record:
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms = now_ms
    headers: list[tuple[str, bytes | None]] = []
    for field in _fields(message, place.position, place.end_position):
        if not field.is_sized:
            if field.number == _TIMESTAMP and field.is_varint:
                number = varint_at(message, field)
                timestamp_ms = (number & ~_SIGN) - (number & _SIGN)
        elif field.number == _KEY:
            key = message[field.position : field.end_position]
        elif field.number == _VALUE:
            value = message[field.position : field.end_position]
        elif field.number == _HEADER:
            headers.append(_header(message, field))
    return Record(0, timestamp_ms, key, value, tuple(headers))


def _header(message: bytes, place: MessageField) -> tuple[str, bytes | None]:
    name, value = "", None
    for field in _fields(message, place.position, place.end_position):
        if not field.is_sized:
            continue
        data = message[field.position : field.end_position]
        if field.number == _HEADER_NAME:
            try:
                name = data.decode()
            except UnicodeDecodeError:
                raise InvalidRequestError(NO_NAME) from None
        elif field.number == _HEADER_VALUE:
            value = data
    return name, value


def _fields(message: bytes, position: int, end_position: int) -> Iterator[MessageField]:
    """The fields of a message. Raises InvalidRequestError for another form."""
    for field in fields_of(message, position, end_position):
        if field is None:
            raise InvalidRequestError(NO_RECORDS)
        yield field
