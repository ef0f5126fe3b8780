"""No byte of an object can change without being noticed: by a check while reading, or by `audit_object` at
the latest.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.store_layout import StoreLayout
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.tiered.object_audit import audit_object

LAYOUT = StoreLayout(0)
NAME = format_object_name(8, UUID(int=2))
INPUTS = tuple(format_object_name(number, UUID(int=number)) for number in (3, 4))


def small_object() -> tuple[ObjectRef, bytes]:
    """A replacement with every kind of part: key streams, no key stream, aborted transactions, padding."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/spool")
    header = ObjectHeader(
        store_id=UUID(int=1), shard=0, epoch=3, kind=ObjectKind.REPLACEMENT, name=NAME, inputs=INPUTS
    )
    settings = ObjectWriterSettings(spool_directory="/spool", index_interval_bytes=1)
    with ObjectWriter(filesystem, header, settings) as writer:
        for partition, codec in ((0, Codec.NONE), (1, Codec.ZSTD)):
            hashing = KeyHashing(b"sixteen secret b") if partition == 0 else None
            writer.begin_slice(UUID(int=9), "topic", partition, base_offset=0, key_hashing=hashing)
            for offset in (0, 2):
                found = [Record(0, offset, b"a", b"x"), Record(0, 1, b"b", None)]
                writer.append(encode_batch(found, codec=codec, base_offset=offset, leader_epoch=offset))
            aborted = (AbortedTransaction(1, 2, 3, 4),) if partition else ()
            writer.end_slice(SliceEnd(4, aborted=aborted, producer_snapshot=b"snap" * partition))
        finished = writer.finish()
        return finished.ref, b"".join(bytes(part) for part in finished.parts)


REF, DATA = small_object()


def stored(data: bytes) -> MemoryObjectStore:
    store = MemoryObjectStore(ManualClock())
    store.put(LAYOUT.data_key(NAME), data)
    return store


def test_the_object_is_sound_as_it_is_and_has_padding_to_look_at() -> None:
    audit_object(stored(DATA), LAYOUT, REF)
    entries = read_directory(stored(DATA), LAYOUT, REF)
    assert entries[-1].data_end_position < REF.directory_position


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_changed_byte_is_noticed(mask: int) -> None:
    unnoticed: list[int] = []
    for position in range(len(DATA)):
        changed = bytearray(DATA)
        changed[position] ^= mask
        try:
            audit_object(stored(bytes(changed)), LAYOUT, REF)
        except (StoreCorruptError, StoreNotUsableError):
            continue
        unnoticed.append(position)
    assert unnoticed == []


def test_every_shortened_object_is_noticed() -> None:
    for size in range(len(DATA)):
        with pytest.raises(StoreCorruptError):
            audit_object(stored(DATA[:size]), LAYOUT, REF)


def test_an_object_under_another_name_is_noticed() -> None:
    other = format_object_name(8, UUID(int=3))
    store = MemoryObjectStore(ManualClock())
    store.put(LAYOUT.data_key(other), DATA)
    with pytest.raises(StoreCorruptError):
        audit_object(store, LAYOUT, REF._replace(name=other))


def test_an_object_that_is_not_the_committed_one_is_noticed() -> None:
    other = REF._replace(directory_crc=REF.directory_crc ^ 1)
    with pytest.raises(StoreCorruptError):
        audit_object(stored(DATA), LAYOUT, other)
    with pytest.raises(StoreCorruptError):
        read_directory(stored(DATA), LAYOUT, other)
