"""Reads the directory of an object (the list of its slices) and the index of a slice, in one ranged GET each.

An object is immutable, so these parts never become stale. Thread-safe.
"""

from __future__ import annotations

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.directory_codec import decode_directory
from stratalog.remote.objects.fixed_layout import Buffer
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.objects.slice_index import SliceIndex, decode_slice_index
from stratalog.remote.store_layout import StoreLayout


def read_directory(store: ObjectStore, layout: StoreLayout, ref: ObjectRef) -> tuple[SliceEntry, ...]:
    """The slices of a committed object, in one GET, sorted by (topic id, partition).

    Raises ObjectNotFoundError if the object is gone, StoreCorruptError if it is not what was committed.
    """
    data = store.get_range(layout.data_key(ref.name), ref.directory_position, ref.directory_bytes)
    return parse_directory(data, ref)


def parse_directory(data: Buffer, ref: ObjectRef) -> tuple[SliceEntry, ...]:
    """The slices in a directory that was read along with other parts. Raises StoreCorruptError."""
    if crc_of(data) != ref.directory_crc or len(data) != ref.directory_bytes:
        raise StoreCorruptError(
            "the directory of an object differs from the committed one; restore the object or drop it",
            name=ref.name,
        )
    entries = decode_directory(data)
    for entry in entries:
        _require_places(entry, ref)
    return entries


def read_slice_index(store: ObjectStore, layout: StoreLayout, name: str, entry: SliceEntry) -> SliceIndex:
    """A slice's index, in one GET. Raises ObjectNotFoundError, StoreCorruptError, StoreNotUsableError."""
    part = entry.index
    data = store.get_range(layout.data_key(name), part.position, part.size_bytes)
    return parse_slice_index(data, name, entry)


def parse_slice_index(data: Buffer, name: str, entry: SliceEntry) -> SliceIndex:
    """The index of a slice from its bytes. Raises StoreCorruptError, StoreNotUsableError."""
    if crc_of(data) != entry.index.crc:
        raise StoreCorruptError("the index of a slice fails its checksum; restore the object", name=name)
    return decode_slice_index(data, entry.data_bytes)


def _require_places(entry: SliceEntry, ref: ObjectRef) -> None:
    """Check the places of a slice's parts. Raises StoreCorruptError unless each part lies in its section, so
    that one read covers a section."""
    in_data = ref.data_position <= entry.data_position <= entry.data_end_position <= ref.directory_position
    stream, index = entry.key_stream, entry.index
    directory_end = ref.directory_position + ref.directory_bytes
    in_streams = stream is None or (
        directory_end <= stream.position <= stream.position + stream.size_bytes <= ref.key_streams_end
    )
    in_indexes = ref.key_streams_end <= index.position <= index.position + index.size_bytes <= ref.size_bytes
    if not (in_data and in_streams and in_indexes):
        raise StoreCorruptError(
            "the directory of an object refers to places outside its parts; restore the object or drop it",
            name=ref.name,
            **entry.topic_id_partition.error_fields,
        )
