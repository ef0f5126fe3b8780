"""Records as JSON lines, which `produce` reads and `consume` writes.

A line is an object with `key`, `value`, `partition`, `offset`, `timestamp` (milliseconds) and `headers` (a
list of objects with `key` and `value`, because a name may occur twice). Bytes are a string where they are
UTF-8 and ``{"base64": "…"}`` where they are not; null is null, and a null value under a key is a tombstone.
`produce` reads the lines of `consume`, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from stratalog.base.errors import InvalidRequestError
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.record import Record

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

_FIELDS = frozenset({"key", "value", "partition", "offset", "timestamp", "headers", "topic"})


class InputRecord(NamedTuple):
    """A record to produce. `offset` and `topic` of a line are ignored: they describe its origin."""

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def bytes_to_json(data: bytes | None) -> JsonValue:
    """Text where it is UTF-8, ``{"base64": …}`` where it is not."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(value: JsonValue, field: str) -> bytes | None:
    """Decode a field of a JSON record: text, base64 or null. Raises InvalidRequestError."""
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value, field)
    text = value.get("base64") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(text, str):
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequestError(f"the base64 of {field} is malformed") from None
    raise InvalidRequestError(f'{field} must be a string, null, or {{"base64": "…"}}')


def record_fields(record: Record | ConsumerRecord, **place: JsonValue) -> dict[str, JsonValue]:
    """The fields of a record's line; `place` says where it is, such as its partition."""
    return {
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        **place,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "headers": [{"key": name, "value": bytes_to_json(value)} for name, value in record.headers],
    }


def line_of(partition: int, record: Record | ConsumerRecord) -> str:
    """One JSON line, without its end."""
    return json.dumps(record_fields(record, partition=partition), ensure_ascii=False)


def parse_line(line: str) -> InputRecord:
    """Decode a line. Raises InvalidRequestError."""
    try:
        document: JsonValue = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidRequestError(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise InvalidRequestError("the JSON has a number that is too long, or is nested too deep") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("a line must be a JSON object")
    if not _FIELDS.issuperset(document):
        unknown = min(set(document) - _FIELDS)
        raise InvalidRequestError("unknown field, use " + ", ".join(sorted(_FIELDS)), field=unknown)
    if "value" not in document:
        raise InvalidRequestError("a line needs a value; null is a tombstone")
    return InputRecord(
        key=bytes_from_json(document.get("key"), "key"),
        value=bytes_from_json(document["value"], "value"),
        partition=_integer(document, "partition"),
        # Kafka's "no timestamp" is printed as it is stored.
        timestamp_ms=None if document.get("timestamp") == -1 else _integer(document, "timestamp"),
        headers=_headers(document.get("headers")),
    )


def _encoded(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # An escape of half a character, or input bytes that are not UTF-8.
        message = f'{field} holds half of a surrogate pair or is not UTF-8, use {{"base64": "…"}}'
        raise InvalidRequestError(message) from None


def _integer(document: dict[str, JsonValue], field: str) -> int | None:
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise InvalidRequestError(f"{field} must be a whole number that is not negative")
    return value


def _headers(value: JsonValue) -> tuple[tuple[str, bytes | None], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequestError('headers must be a list of {"key": …, "value": …}')
    headers: list[tuple[str, bytes | None]] = []
    for header in value:
        name = header.get("key") if isinstance(header, dict) else None
        if not isinstance(header, dict) or not isinstance(name, str) or set(header) - {"key", "value"}:
            raise InvalidRequestError('headers must be a list of {"key": …, "value": …}')
        _encoded(name, "a header's key")
        headers.append((name, bytes_from_json(header.get("value"), "a header's value")))
    return tuple(headers)
