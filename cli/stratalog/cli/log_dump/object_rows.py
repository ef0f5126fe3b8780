"""Codec of object files: header, footer and directory, each as far as it is sound. Slices are not read."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import cast
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.cli.log_dump.dump_rows import CorruptPlace, DumpItem, Row
from stratalog.cli.records.record_json import JsonValue
from stratalog.remote.objects.directory_codec import decode_directory
from stratalog.remote.objects.object_directory import parse_directory
from stratalog.remote.objects.object_format import (
    FOOTER,
    HEADER,
    HEADER_MAGIC,
    ObjectHeader,
    decode_footer,
    decode_header,
    header_size_bytes,
)
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry

Read = Callable[[int, int], bytes]
"""Reads so many bytes from a position on; fewer at the end of the file. Raises StoreError."""
_MAX_DIRECTORY_BYTES = 1 << 30
_DAMAGE = (StoreCorruptError, StoreNotUsableError)


def dump_object(name: str, size_bytes: int, read: Read) -> Iterator[DumpItem]:
    """The rows of an object file of this size. Raises StoreError if it cannot be read."""
    try:
        header = _read_header(size_bytes, read)
        yield Row("object_header", _fields(header))
        name = header.name
    except _DAMAGE as error:
        yield CorruptPlace(0, str(error))
    begin = max(0, size_bytes - FOOTER.size_bytes)
    try:
        ref = decode_footer(read(begin, FOOTER.size_bytes) if size_bytes else b"", name)
    except _DAMAGE as error:
        yield CorruptPlace(begin, str(error))
        return
    yield Row("object_footer", _fields(ref))
    if ref.size_bytes != size_bytes:
        yield CorruptPlace(None, f"it has {size_bytes} bytes, and its footer says {ref.size_bytes}")
    yield from _dump_directory(ref, size_bytes, read)


def _read_header(size_bytes: int, read: Read) -> ObjectHeader:
    """The header. Raises StoreCorruptError, StoreNotUsableError."""
    fixed = read(0, min(size_bytes, HEADER.size_bytes)) if size_bytes else b""
    if len(fixed) < HEADER.size_bytes:
        return decode_header(fixed)
    input_count = HEADER.unpack(fixed)[-1]
    wanted_bytes = min(size_bytes, header_size_bytes(input_count))
    return decode_header(read(0, wanted_bytes))


def _dump_directory(ref: ObjectRef, size_bytes: int, read: Read) -> Iterator[DumpItem]:
    position, wanted_bytes = ref.directory_position, min(ref.directory_bytes, _MAX_DIRECTORY_BYTES)
    data = read(position, wanted_bytes) if position < size_bytes else b""
    fault = ""
    entries: tuple[SliceEntry, ...] = ()
    try:
        entries = parse_directory(data, ref)
    except _DAMAGE as error:
        fault = str(error)
        try:
            entries = decode_directory(data)
        except _DAMAGE as broken:
            fault = str(broken)
    yield from (Row("slice", _fields(entry)) for entry in entries)
    if fault:
        yield CorruptPlace(position, fault, 0 if entries else len(data))


def is_object(beginning: bytes) -> bool:
    """Whether a file that begins like this is an object file."""
    return beginning.startswith(HEADER_MAGIC)


def _fields(value: object) -> dict[str, JsonValue]:
    """The fields of a dataclass or named tuple, as JSON has them."""
    names: Iterable[str] = getattr(value, "_fields", ())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    return {name: _json_of(getattr(value, name)) for name in names}


def _json_of(value: object) -> JsonValue:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "_fields"):
        return _fields(value)
    assert isinstance(value, tuple | list), "an object's fields are numbers, texts and lists of these"
    return [_json_of(item) for item in cast("tuple[object, ...]", value)]
