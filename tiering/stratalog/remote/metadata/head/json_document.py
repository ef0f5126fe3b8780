"""JSON objects in the store, readable by people and strict for programs.

On disk: UTF-8 JSON without spaces or newlines, compressed as one zstd frame where the text is longer than 4
KiB. `zstd -dc FILE | jq` shows the one kind and `jq` the other. JSON never begins with a zstd magic number,
so a reader can tell them apart.

`decode_document` bounds what it decompresses, and `JsonFields` hands out values with the type that the format
promises or raises StoreCorruptError: nothing else leaves this module, whatever the bytes are. A field that
this version does not know stays available (`JsonFields.unknown`), so that a rewrite can keep it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar, cast
from uuid import UUID

import zstandard

from stratalog.base.errors import StoreCorruptError

JsonObject = Mapping[str, object]
T = TypeVar("T")

COMPRESSED_ABOVE_BYTES = 4096
MAX_TEXT_BYTES = 1 << 30
"""A decompressed document that claims to be larger is taken for garbage."""
MAX_INTEGER = (1 << 63) - 1

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL = 3


def format_json(value: object) -> str:
    """Canonical text of a JSON value: no white space, fields in their order, text beyond ASCII as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_document(document: JsonObject) -> bytes:
    """Bytes to store for a JSON object."""
    return encode_text(format_json(document))


def encode_text(text: str) -> bytes:
    """Bytes to store for the text of a JSON object."""
    data = text.encode()
    if len(data) <= COMPRESSED_ABOVE_BYTES:
        return data
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def decode_document(data: bytes, what: str) -> JsonFields:
    """Parse stored bytes. `what` names the object in messages. Raises StoreCorruptError."""
    if data[: len(_ZSTD_MAGIC)] == _ZSTD_MAGIC:
        data = _decompress(data, what)
    try:
        value: object = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(f"this is not JSON ({error}); keep it and investigate", what=what) from error
    return JsonFields.of(value, what)


def _decompress(data: bytes, what: str) -> bytes:
    try:
        size_bytes = zstandard.frame_content_size(data)
        if not 0 <= size_bytes <= MAX_TEXT_BYTES:
            raise StoreCorruptError(
                "a compressed object gives no usable size; keep it and investigate", what=what
            )
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise StoreCorruptError(f"zstd: {error}; keep the object and investigate", what=what) from error


class JsonFields:
    """A JSON object whose fields are asked for by type. Immutable. Every method raises StoreCorruptError."""

    __slots__ = ("_what", "values")

    def __init__(self, values: JsonObject, what: str) -> None:
        self.values = values
        self._what = what

    @staticmethod
    def of(value: object, what: str) -> JsonFields:
        if not isinstance(value, dict):
            raise StoreCorruptError(
                "a JSON object is expected here; keep what is there and investigate", what=what
            )
        return JsonFields(cast("JsonObject", value), what)

    @property
    def what(self) -> str:
        """What these fields belong to, for messages."""
        return self._what

    def integer(self, name: str, *, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
        value = self.values.get(name)
        # Inline, because a checkpoint has millions of these.
        if type(value) is int and minimum <= value <= maximum:
            return value
        raise self.fault(name, f"an integer from {minimum} to {maximum}")

    def optional_integer(self, name: str, *, minimum: int = 0) -> int | None:
        return None if self.values.get(name) is None else self.integer(name, minimum=minimum)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.fault(name, "text")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.fault(name, "true or false")
        return value

    def uuid(self, name: str) -> UUID:
        return to_uuid(self.values.get(name), f"{self._what}: {name}")

    def fields(self, name: str) -> JsonFields:
        return JsonFields.of(self.values.get(name), f"{self._what}: {name}")

    def optional_fields(self, name: str) -> JsonFields | None:
        return None if self.values.get(name) is None else self.fields(name)

    def items(self, name: str) -> list[object]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self.fault(name, "a list")
        return cast("list[object]", value)

    def each(self, name: str, parse: Callable[[object, str], T]) -> tuple[T, ...]:
        """The list `name`, with every item parsed by `parse(item, what)`. A missing list is an empty one."""
        if name not in self.values:
            return ()
        items = self.items(name)
        if not items:
            return ()
        what = f"{self._what}: {name}"
        return tuple([parse(item, what) for item in items])

    def unknown(self, known: Collection[str]) -> JsonObject:
        """The fields that are not among `known`, for keeping on a rewrite."""
        return {name: value for name, value in self.values.items() if name not in known}

    def fault(self, name: str, expected: str) -> StoreCorruptError:
        return _fault(f"{self._what}: {name}", expected, self.values.get(name))


def to_integer(value: object, what: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
    """The value as an integer in [minimum, maximum]; `true` is none. Raises StoreCorruptError."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise _fault(what, f"an integer from {minimum} to {maximum}", value)
    return value


def to_text(value: object, what: str) -> str:
    """The value as text. Raises StoreCorruptError."""
    if not isinstance(value, str):
        raise _fault(what, "text", value)
    return value


def to_uuid(value: object, what: str) -> UUID:
    """The value as a UUID; only its usual lower-case form, so that a rewrite cannot change it."""
    uuid = _parse_uuid(value) if isinstance(value, str) else None
    if uuid is None:
        raise _fault(what, "a UUID", value)
    return uuid


@functools.lru_cache(maxsize=4096)
def _parse_uuid(text: str) -> UUID | None:
    """Cached: the rows of a topic all have its id."""
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return uuid if str(uuid) == text else None


def to_items(value: object, what: str) -> list[object]:
    """The value as a list. Raises StoreCorruptError."""
    if not isinstance(value, list):
        raise _fault(what, "a list", value)
    return cast("list[object]", value)


def to_row(value: object, what: str, size: int) -> list[object]:
    """The value as a list of exactly `size` items. Raises StoreCorruptError."""
    items = to_items(value, what)
    if len(items) != size:
        raise _fault(what, f"a list of {size}", items)
    return items


def _fault(what: str, expected: str, value: object) -> StoreCorruptError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    if isinstance(value, float) and not math.isfinite(value):
        shown = "a number that is none"
    return StoreCorruptError(
        f"{expected} is expected here; keep what is there and investigate", what=what, value=shown
    )
