"""Reads a whole object and verifies every byte of it, for operators and tests.

Header and footer have checksums of their own, the padding is zero, the directory is the committed one, the
data, key stream and index of each slice match their checksums in it, and the parts follow each other without
a gap. A test flips every bit and expects an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.objects.fixed_layout import padding_bytes
from stratalog.remote.objects.key_stream import key_blocks
from stratalog.remote.objects.object_directory import describe_object, read_slice_index
from stratalog.remote.objects.object_format import FOOTER, crc_of
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_layout import StoreLayout

_READ_BYTES = 8 << 20


def verify_object(store: ObjectStore, layout: StoreLayout, ref: ObjectRef) -> None:
    """Verify that an object is the one committed as `ref`, and undamaged. Records are not decoded.

    Raises StoreCorruptError, StoreNotUsableError (a newer format), ObjectNotFoundError.
    """
    description = describe_object(store, layout, ref.name, ref.size_bytes)
    if description.ref != ref:
        raise _corrupt("is not the one that was committed", ref)
    _require_no_gaps(ref, description.entries)
    _verify_padding(store, layout, ref, description.entries)
    for entry in description.entries:
        _verify_data(store, layout, ref, entry)
        _verify_key_stream(store, layout, ref, entry)
        read_slice_index(store, layout, ref.name, entry)


def _require_no_gaps(ref: ObjectRef, entries: Sequence[SliceEntry]) -> None:
    """Raises StoreCorruptError unless slices, key streams and indexes fill their sections without gaps."""
    data_end = ref.data_position
    streams_end = ref.directory_position + ref.directory_bytes
    indexes_end = ref.key_streams_end
    for entry in entries:
        stream, index = entry.key_stream, entry.index
        is_next = entry.data_position == data_end
        data_end = entry.data_end_position
        if stream is not None:
            is_next &= stream.position == streams_end
            streams_end += stream.size_bytes
        if index is not None:
            is_next &= index.position == indexes_end
            indexes_end += index.size_bytes
        if not is_next:
            raise _corrupt("has a gap between two slices", ref)
    ends = (data_end + padding_bytes(data_end), streams_end, indexes_end + FOOTER.size_bytes)
    if ends != (ref.directory_position, ref.key_streams_end, ref.size_bytes):
        raise _corrupt("has bytes that belong to nothing", ref)


def _verify_padding(
    store: ObjectStore, layout: StoreLayout, ref: ObjectRef, entries: Sequence[SliceEntry]
) -> None:
    data_end = entries[-1].data_end_position if entries else ref.data_position
    size_bytes = ref.directory_position - data_end
    if size_bytes > 0 and any(store.get_range(layout.data_key(ref.name), data_end, size_bytes)):
        raise _corrupt("has padding that is not zero", ref)


def _verify_data(store: ObjectStore, layout: StoreLayout, ref: ObjectRef, entry: SliceEntry) -> None:
    crc = 0
    for position in range(entry.data_position, entry.data_end_position, _READ_BYTES):
        size_bytes = min(_READ_BYTES, entry.data_end_position - position)
        crc = crc_of(store.get_range(layout.data_key(ref.name), position, size_bytes), crc)
    if crc != entry.data_crc:
        raise _corrupt(f"has damaged data of {entry.topic}-{entry.partition}", ref)


def _verify_key_stream(store: ObjectStore, layout: StoreLayout, ref: ObjectRef, entry: SliceEntry) -> None:
    stream = entry.key_stream
    if stream is not None and stream.size_bytes > 0:
        data = store.get_range(layout.data_key(ref.name), stream.position, stream.size_bytes)
        for _ in key_blocks(data, stream, entry.record_count):
            pass


def _corrupt(problem: str, ref: ObjectRef) -> StoreCorruptError:
    return StoreCorruptError(f"an object {problem}; restore it from a copy of the bucket", name=ref.name)
