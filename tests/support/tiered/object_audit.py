"""Reads a whole object without a commit, and verifies every byte of it.

Header and footer have checksums of their own, the padding is zero, the directory is the committed one, the
data, key stream and index of each slice match their checksums in it, and the parts follow each other without
a gap. A test flips every bit and expects an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.fixed_layout import padding_bytes
from stratalog.remote.objects.key_stream import key_blocks
from stratalog.remote.objects.object_directory import read_directory, read_slice_index
from stratalog.remote.objects.object_format import FOOTER, ObjectHeader, crc_of, decode_footer, decode_header
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout


class ObjectDescription(NamedTuple):
    """An object as it describes itself: its writer, reference and slices."""

    header: ObjectHeader
    ref: ObjectRef
    entries: tuple[SliceEntry, ...]


def describe_object(store: ObjectStore, layout: StoreLayout, name: str) -> ObjectDescription:
    """An object's description of itself: its footer leads to all of it. Raises StoreCorruptError."""
    data = store.get(layout.data_key(name)).data
    ref = decode_footer(data[-FOOTER.size_bytes :], name)
    header = decode_header(data)
    if header.name != name or ref.size_bytes != len(data):
        raise _corrupt("has another name or size than it says", ref)
    return ObjectDescription(header, ref, read_directory(store, layout, ref))


def audit_object(store: ObjectStore, layout: StoreLayout, ref: ObjectRef) -> None:
    """Verify that an object is the one committed as `ref`, and undamaged. Records are not decoded.

    Raises StoreCorruptError, StoreNotUsableError (a newer format), ObjectNotFoundError.
    """
    description = describe_object(store, layout, ref.name)
    if description.ref != ref:
        raise _corrupt("is not the one that was committed", ref)
    _require_no_gaps(ref, description.entries)
    data = store.get(layout.data_key(ref.name)).data
    if any(data[max(entry.data_end_position for entry in description.entries) : ref.directory_position]):
        raise _corrupt("has padding that is not zero", ref)
    for entry in description.entries:
        if crc_of(data[entry.data_position : entry.data_end_position]) != entry.data_crc:
            raise _corrupt(f"has damaged data of {entry.topic}-{entry.partition}", ref)
        stream = entry.key_stream
        if stream is not None:
            for _ in key_blocks(data[stream.position :][: stream.size_bytes], stream, entry.record_count):
                pass
        read_slice_index(store, layout, ref.name, entry)


def _require_no_gaps(ref: ObjectRef, entries: Sequence[SliceEntry]) -> None:
    """Check that slices, key streams and indexes fill their sections without gaps. Raises
    StoreCorruptError."""
    data_end = ref.data_position
    streams_end = ref.directory_position + ref.directory_bytes
    indexes_end = ref.key_streams_end
    for entry in entries:
        stream, index = entry.key_stream, entry.index
        is_next = (entry.data_position, index.position) == (data_end, indexes_end)
        data_end = entry.data_end_position
        indexes_end += index.size_bytes
        if stream is not None:
            is_next &= stream.position == streams_end
            streams_end += stream.size_bytes
        if not is_next:
            raise _corrupt("has a gap between two slices", ref)
    ends = (data_end + padding_bytes(data_end), streams_end, indexes_end + FOOTER.size_bytes)
    if ends != (ref.directory_position, ref.key_streams_end, ref.size_bytes):
        raise _corrupt("has bytes that belong to nothing", ref)


def _corrupt(problem: str, ref: ObjectRef) -> StoreCorruptError:
    return StoreCorruptError(f"an object {problem}; restore it from a copy of the bucket", name=ref.name)
