"""An output object that is not what was planned is never stored."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, StoreCorruptError, StoreNotUsableError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.kept_records import CarriedBytes, CarriedTally, KeptRecords, KeptTally
from stratalog.compaction.verifier import PartsReader, PlannedSlice, verify_object
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.native.kernels import KeyEntries
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import (
    FinishedObject,
    ObjectWriter,
    ObjectWriterSettings,
    SortedKeys,
)
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.spool import Parts
from stratalog.testing.memory_filesystem import MemoryFileSystem

TOPIC_ID = UUID(int=7)
INPUT = format_object_name(1, UUID(int=8))


def tally_of(data: bytes) -> KeptRecords:
    tally = KeptTally()
    for position, header in batches(data):
        tally.add(data, position, header, header.records_count)
    return tally.result()


def object_of(
    slices: list[bytes], keys: SortedKeys | None = None
) -> tuple[FinishedObject, dict[TopicIdPartition, PlannedSlice]]:
    """An object, and the plan that it fits. `keys`: of all slices, in place of their own."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/spool")
    header = ObjectHeader(
        store_id=UUID(int=1),
        shard=0,
        epoch=0,
        kind=ObjectKind.REPLACEMENT,
        name=format_object_name(2, UUID(int=9)),
        inputs=(INPUT,),
    )
    planned: dict[TopicIdPartition, PlannedSlice] = {}
    with ObjectWriter(filesystem, header, ObjectWriterSettings(spool_directory="/spool")) as writer:
        for partition, data in enumerate(slices):
            hashing = KeyHashing(b"0123456789abcdef") if keys is None else None
            writer.begin_slice(TOPIC_ID, "topic", partition, base_offset=0, key_hashing=hashing)
            if data:
                writer.append(data)
            writer.end_slice(SliceEnd(100), keys)
            planned[TopicIdPartition(TOPIC_ID, partition)] = PlannedSlice(tally_of(data), 0, 100, True)
        finished = writer.finish()
        # Memory only, so the parts outlive their writer.
        return finished._replace(parts=Parts(list(finished.parts))), planned


def batch_of(base_offset: int, keys: list[bytes], codec: Codec = Codec.NONE) -> bytes:
    records = [Record(0, 1, key, b"value" * 3) for key in keys]
    return encode_batch(records, base_offset=base_offset, codec=codec)


SLICES = [batch_of(3, [b"a", b"b"]) + batch_of(9, [b"c"], Codec.ZSTD), b"", batch_of(0, [b"d"])]


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 20])
def test_what_was_planned_passes(chunk_bytes: int) -> None:
    finished, planned = object_of(SLICES)
    verify_object(finished, planned, chunk_bytes)


@pytest.mark.parametrize(
    "changes",
    [
        {"kept": {"record_count": 4}},
        {"kept": {"record_count": 2}},
        {"kept": {"first_offset": 4}},
        {"kept": {"last_offset": 8}},
        {"kept": {"fingerprint": 1}},
        {"end_offset": 99},
        {"base_offset": 1},
    ],
)
def test_other_records_or_ranges_than_planned_are_refused(changes: dict[str, Any]) -> None:
    finished, planned = object_of(SLICES)
    tip = TopicIdPartition(TOPIC_ID, 0)
    kept = planned[tip].kept._replace(**changes.get("kept", {}))
    planned[tip] = planned[tip]._replace(**(changes | {"kept": kept}))
    with pytest.raises(StoreCorruptError) as refused:
        verify_object(finished, planned, 1 << 20)
    assert (refused.value.fields["topic"], refused.value.fields["partition"]) == ("topic", 0)


def test_other_partitions_than_planned_are_refused() -> None:
    finished, planned = object_of(SLICES)
    planned.popitem()
    with pytest.raises(StoreCorruptError) as refused:
        verify_object(finished, planned, 1 << 20)
    assert "partition" not in refused.value.fields


def test_a_key_that_is_there_twice_is_refused() -> None:
    finished, planned = object_of([batch_of(0, [b"a", b"b", b"a"])])
    with pytest.raises(StoreCorruptError):
        verify_object(finished, planned, 1 << 20)
    ((tip, plan),) = planned.items()
    verify_object(finished, {tip: plan._replace(has_one_record_a_key=False)}, 1 << 20)


def carried(data: bytes) -> CarriedBytes:
    tally = CarriedTally()
    tally.add(data)
    return tally.result()


@pytest.mark.parametrize("changes", [{"record_count": 2}, {"size_bytes": 1}, {"crc": 1}])
def test_other_bytes_than_were_carried_are_refused(changes: dict[str, int]) -> None:
    finished, planned = object_of(SLICES)
    tip = TopicIdPartition(TOPIC_ID, 0)
    plan = planned[tip]._replace(kept=carried(SLICES[0]), has_one_record_a_key=False)
    verify_object(finished, planned | {tip: plan}, 1 << 20)
    changed = carried(SLICES[0])._replace(**changes)
    with pytest.raises(StoreCorruptError):
        verify_object(finished, planned | {tip: plan._replace(kept=changed)}, 1 << 20)


def test_two_keys_of_one_record_are_refused() -> None:
    hashing = KeyHashing(b"0123456789abcdef")
    entries = KeyEntries()
    for number in range(2):
        entries.hash_high.append(number)
        entries.hash_low.append(0)
        entries.ordinal.append(0)
        entries.tombstone.append(0)
    finished, planned = object_of([batch_of(0, [b"a", b"b"])], SortedKeys(hashing, [entries]))
    with pytest.raises(StoreCorruptError):
        verify_object(finished, planned, 1 << 20)
    entries.ordinal[1] = 1
    finished, planned = object_of([batch_of(0, [b"a", b"b"])], SortedKeys(hashing, [entries]))
    verify_object(finished, planned, 1 << 20)


@given(st.integers(0, 2**32))
def test_a_changed_byte_is_refused(seed: int) -> None:
    """Anywhere but in the header and the indexes, which no plan speaks of; readers check those."""
    random = Random(seed)
    finished, planned = object_of(SLICES)
    whole = bytearray(b"".join(finished.parts))
    last_index = max(entry.index.position + entry.index.size_bytes for entry in finished.entries)
    checked = [
        *range(finished.ref.data_position, finished.entries[-1].data_end_position),
        *range(finished.ref.directory_position, finished.ref.key_streams_end),
        *range(last_index, len(whole)),
    ]
    whole[random.choice(checked)] ^= 1 << random.randrange(8)
    # A flag that is set is taken for one of newer software.
    with pytest.raises((StoreCorruptError, CorruptRecordError, StoreNotUsableError)):
        verify_object(finished._replace(parts=Parts([bytes(whole)])), planned, 1 << 20)


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(0, 12), max_size=12))
def test_parts_are_read_as_one_row_of_bytes(parts: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(parts)
    reader = PartsReader(parts)
    position = 0
    for size in sizes:
        assert bytes(reader.read(size)) == whole[position : position + size]
        position = min(position + size, len(whole))
        assert reader.position == position
