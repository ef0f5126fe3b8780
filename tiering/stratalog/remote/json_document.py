"""JSON objects in the store: readable by people, strict for programs.

On disk: UTF-8 JSON without spaces or newlines, compressed as one zstd frame where the text is longer than 4
KiB. `jq` shows the plain kind, `zstd -dc FILE | jq` the compressed kind. JSON never begins with the magic
number of zstd, so a reader can tell them apart.

Each object names its format and carries two versions: the lowest version whose software may read it, and the
lowest whose software may change it (fold it, or put a commit on top). A new field raises neither version,
because unknown fields are kept on a rewrite (`JsonFields.unknown`). The versions of a head are the metadata
version that is finalized, see `metadata_version`; those of all other objects are `FORMAT_VERSION`.

An object that is replaced, or that nothing refers to, has its own checksum: `crc` is its last field, the
CRC-32C of all bytes of the uncompressed text before the comma that precedes it.

`decode_document` limits how much it decompresses. `JsonFields` returns values of the promised type or raises
StoreCorruptError, whatever the bytes are.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar, cast
from uuid import UUID

import crc32c
import zstandard

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError

JsonObject = Mapping[str, object]
T = TypeVar("T")

FORMAT_VERSION = 1
COMPRESSED_ABOVE_BYTES = 4096
MAX_TEXT_BYTES = 1 << 30
"""A document that claims to be larger when decompressed is refused as damaged."""
MAX_INTEGER = (1 << 63) - 1

_CHECKSUM = re.compile(rb',"crc":(0|[1-9][0-9]{0,9})\}')
"""The end of a text with a checksum."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL = 1
"""Columns of slices become smaller by it than by level 3, in less than half of the time."""


def format_json(value: object) -> str:
    """Canonical text of a JSON value: no white space, fields in their order, non-ASCII text unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode_document(document: JsonObject) -> bytes:
    """Bytes to store for a JSON object."""
    return encode_text(format_json(document))


def encode_text(text: str) -> bytes:
    """Bytes to store for the text of a JSON object."""
    return encode_plain(text.encode())


def encode_plain(data: bytes) -> bytes:
    """Bytes to store for the UTF-8 text of a JSON object."""
    if len(data) <= COMPRESSED_ABOVE_BYTES:
        return data
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def with_checksum(opened: bytes) -> bytes:
    """The UTF-8 text of a JSON object that ends with its checksum, `crc`. `opened`: the text without its
    closing brace."""
    return b'%b,"crc":%d}' % (opened, crc32c.crc32c(opened))


def prove_checksum(plain: bytes) -> bool:
    """Compare the checksum at the end of a text, before any field of it is believed; returns False if it has
    none. Raises StoreCorruptError."""
    end = plain.rfind(b',"crc":')
    found = None if end < 0 else _CHECKSUM.fullmatch(plain, end)
    if found is None:
        return False
    crc, expected_crc = crc32c.crc32c(memoryview(plain)[:end]), int(found[1])
    if crc != expected_crc:
        raise StoreCorruptError("its bytes do not have its checksum", crc=crc, expected_crc=expected_crc)
    return True


def decode_document(
    data: bytes, what: str, *, format_name: str, supported_version: int = FORMAT_VERSION
) -> JsonFields:
    """Parse a stored object of this format. `what` names the object in messages.

    Raises StoreCorruptError, or StoreNotUsableError if only newer software may read it.
    """
    return decode_fields(
        stored_text(data, what), what, format_name=format_name, supported_version=supported_version
    )


def decode_fields(
    text: str, what: str, *, format_name: str, supported_version: int = FORMAT_VERSION
) -> JsonFields:
    """Parse the text of a JSON object that names its format and versions. Raises as `decode_document`."""
    fields = _parse_text(text, what)
    if fields.text("format") != format_name:
        raise fields.fault("format", format_name)
    version = fields.integer("read_version", minimum=1)
    if version > supported_version:
        raise StoreNotUsableError(
            "this was written for newer software; upgrade before reading it",
            what=what,
            read_version=version,
            supported_version=supported_version,
        )
    return fields


def require_writable(write_version: int, what: str, supported_version: int = FORMAT_VERSION) -> None:
    """Raise StoreNotUsableError if only newer software may put a commit on top."""
    if write_version > supported_version:
        raise StoreNotUsableError(
            "only newer software may write here; upgrade, or go on reading",
            what=what,
            write_version=write_version,
            supported_version=supported_version,
        )


def stored_text(data: bytes, what: str) -> str:
    """The text in stored bytes, which may be compressed. Raises StoreCorruptError."""
    return plain_text(plain_bytes(data, what), what)


def plain_bytes(data: bytes, what: str) -> bytes:
    """The bytes of the text in stored bytes, which may be compressed. Raises StoreCorruptError."""
    return _decompress(data, what) if data[: len(_ZSTD_MAGIC)] == _ZSTD_MAGIC else data


def plain_text(data: bytes, what: str) -> str:
    """The text of bytes that are not compressed. Raises StoreCorruptError."""
    try:
        return data.decode()
    except ValueError as error:
        raise StoreCorruptError(
            "this is not text; keep it and investigate", what=what, reason=error
        ) from error


def _parse_text(text: str, what: str) -> JsonFields:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreCorruptError(
            "this is not JSON; keep it and investigate", what=what, reason=error
        ) from error
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
        raise StoreCorruptError(
            "a compressed object cannot be decompressed; keep the object and investigate",
            what=what,
            reason=error,
        ) from error


class JsonFields:
    """The fields of a JSON object, read by type. Immutable. Every method raises StoreCorruptError."""

    __slots__ = ("_what", "values")

    def __init__(self, values: JsonObject, what: str) -> None:
        self.values = values
        self._what = what

    @staticmethod
    def of(value: object, what: str) -> JsonFields:
        if not isinstance(value, dict):
            raise StoreCorruptError(
                "a JSON object is expected here; keep the file and investigate", what=what
            )
        return JsonFields(cast("JsonObject", value), what)

    @property
    def what(self) -> str:
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
        """The fields outside of `known`, which a rewrite keeps."""
        return {name: value for name, value in self.values.items() if name not in known}

    def fault(self, name: str, expected: str) -> StoreCorruptError:
        return _fault(f"{self._what}: {name}", expected, self.values.get(name))


def to_integer(value: object, what: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
    """The value as an integer in [minimum, maximum]; `true` is not an integer. Raises StoreCorruptError."""
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
        shown = "not a number"
    return StoreCorruptError(
        f"{expected} is expected here; keep the file and investigate", what=what, value=shown
    )
