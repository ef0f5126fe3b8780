"""Reads the header of an object, which the software only writes."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.objects.fixed_layout import Buffer
from stratalog.remote.objects.object_format import (
    FORMAT_VERSION,
    HEADER,
    HEADER_END,
    HEADER_MAGIC,
    INPUT,
    ObjectHeader,
    ObjectKind,
    crc_of,
    header_size_bytes,
)
from stratalog.remote.objects.object_ref import format_object_name


def decode_header(data: Buffer) -> ObjectHeader:
    """The header at the start of `data`. Raises StoreCorruptError."""
    if len(data) < header_size_bytes(0):
        raise StoreCorruptError("the header is cut off")
    fields = HEADER.unpack(data)
    magic, version, reader_version, size_bytes, store_id, uuid, birth, epoch, shard, kind, flags, count = (
        fields
    )
    view = memoryview(data)[:size_bytes]
    is_sound = (
        magic == HEADER_MAGIC
        and version == reader_version == FORMAT_VERSION
        and flags == 0
        and len(view) == size_bytes == header_size_bytes(count)
        and crc_of(view[:-4]) == int.from_bytes(view[-4:], "little")
        and kind in tuple(ObjectKind)
        and (kind == ObjectKind.REPLACEMENT) == bool(count)
    )
    if not is_sound:
        raise StoreCorruptError("the header is damaged")
    positions = range(HEADER.size_bytes, header_size_bytes(count) - HEADER_END.size_bytes, INPUT.size_bytes)
    inputs = [INPUT.unpack(view, position) for position in positions]
    return ObjectHeader(
        store_id=UUID(bytes=store_id),
        shard=shard,
        epoch=epoch,
        kind=ObjectKind(kind),
        name=format_object_name(birth, UUID(bytes=uuid)),
        inputs=tuple(format_object_name(birth, UUID(bytes=uuid)) for birth, uuid in inputs),
    )
