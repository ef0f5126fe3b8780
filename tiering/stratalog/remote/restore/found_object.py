"""An object file that describes itself: its header, its footer and its directory, without any commit."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectInfo, ObjectStore
from stratalog.remote.objects.object_directory import parse_directory, read_directory
from stratalog.remote.objects.object_format import FOOTER, ObjectHeader, decode_footer, decode_header
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout

_HEAD_BYTES = 64 << 10
"""Enough for the header of a replacement with the most inputs, and for most objects of waiting tails."""


class FoundObject(NamedTuple):
    """An object as it describes itself. Immutable."""

    ref: ObjectRef
    header: ObjectHeader
    entries: tuple[SliceEntry, ...]


def read_object(store: ObjectStore, layout: StoreLayout, info: ObjectInfo) -> FoundObject:
    """Read an object that was listed: a small one in one GET, others in three ranged ones.

    Raises ObjectNotFoundError, StoreCorruptError if it is damaged or under another one's name,
    StoreNotUsableError (a newer format).
    """
    name = info.key.removeprefix(layout.data_prefix)
    if info.size < FOOTER.size_bytes:
        raise StoreCorruptError("an object file is cut off", name=name, size_bytes=info.size)
    head = store.get_range(info.key, 0, min(info.size, _HEAD_BYTES))
    is_whole = len(head) == info.size
    footer_position = info.size - FOOTER.size_bytes
    footer = (
        head[footer_position:] if is_whole else store.get_range(info.key, footer_position, FOOTER.size_bytes)
    )
    ref = decode_footer(footer, name)
    header = decode_header(head)
    if header.name != name or header.shard != layout.shard or ref.size_bytes != info.size:
        raise StoreCorruptError(
            "an object file is under the name, in the shard or of the size of another one",
            name=name,
            own_name=header.name,
            own_shard=header.shard,
            size_bytes=info.size,
            own_size_bytes=ref.size_bytes,
        )
    directory_end = ref.directory_position + ref.directory_bytes
    if directory_end <= len(head):
        return FoundObject(ref, header, parse_directory(head[ref.directory_position : directory_end], ref))
    return FoundObject(ref, header, read_directory(store, layout, ref))
