"""An object file that describes itself: its header, its footer and its directory, without any commit."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectInfo, ObjectStore
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_format import FOOTER, ObjectHeader, decode_footer, decode_header
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout

_HEADER_BYTES = 16 << 10
"""Enough for the header of a replacement with the most inputs."""


class FoundObject(NamedTuple):
    """An object as it describes itself. Immutable."""

    ref: ObjectRef
    header: ObjectHeader
    entries: tuple[SliceEntry, ...]


def read_object(store: ObjectStore, layout: StoreLayout, info: ObjectInfo) -> FoundObject:
    """Read an object that was listed, in three ranged GETs.

    Raises ObjectNotFoundError, StoreCorruptError if it is damaged or under another one's name,
    StoreNotUsableError (a newer format).
    """
    name = info.key.removeprefix(layout.data_prefix)
    if info.size < FOOTER.size_bytes:
        raise StoreCorruptError("an object file is cut off", name=name, size_bytes=info.size)
    footer = store.get_range(info.key, info.size - FOOTER.size_bytes, FOOTER.size_bytes)
    ref = decode_footer(footer, name)
    header = decode_header(store.get_range(info.key, 0, min(info.size, _HEADER_BYTES)))
    if header.name != name or header.shard != layout.shard or ref.size_bytes != info.size:
        raise StoreCorruptError(
            "an object file is under the name, in the shard or of the size of another one",
            name=name,
            own_name=header.name,
            own_shard=header.shard,
            size_bytes=info.size,
            own_size_bytes=ref.size_bytes,
        )
    return FoundObject(ref, header, read_directory(store, layout, ref))
