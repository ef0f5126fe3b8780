"""An output object that is not what was planned is never stored."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, StoreCorruptError, StoreNotUsableError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.kept_records import CarriedBytes, CarriedTally, KeptRecords, KeptTally
from stratalog.compaction.output.verifier import ObjectProof, PartsReader, PlannedSlice
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import parse_header
from stratalog.record.native.kernels import KeyEntries
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind, crc_of
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import (
    FinishedObject,
    ObjectWriter,
    ObjectWriterSettings,
    SortedKeys,
)
from stratalog.remote.objects.slice_builder import SliceBuilder, SliceEnd
from stratalog.remote.objects.spool import Parts
from stratalog.testing.memory_filesystem import MemoryFileSystem

TOPIC_ID = UUID(int=7)
LEADER_EPOCH_POSITION = 12
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


def prove(
    finished: FinishedObject, planned: dict[TopicIdPartition, PlannedSlice], sizes: Sequence[int] = (1 << 20,)
) -> None:
    """Let the object pass in pieces of these sizes, again and again, while its slices begin and end."""
    whole = b"".join(finished.parts)
    proof, size_of, position = ObjectProof(finished.ref.name), itertools.cycle(sizes), 0

    def pass_up_to(end_position: int) -> int:
        begin = position
        while begin < end_position:
            size = min(next(size_of), end_position - begin)
            proof.add(whole[begin : begin + size])
            begin += size
        return begin

    for number, entry in enumerate(finished.entries):
        plan = planned[entry.topic_id_partition]
        proof.begin_slice(entry.data_position, is_carried=isinstance(plan.kept, CarriedBytes))
        if number % 2:
            # Its data pass before it has ended.
            position = pass_up_to(entry.data_end_position)
        proof.end_slice(entry, plan)
    position = pass_up_to(finished.entries[-1].data_end_position)
    assert proof.crc == crc_of(whole[:position])
    passed: list[Buffer] = []
    proof.finish(finished, PartsReader([whole[position:-9], whole[-9:]], position, passed.append))
    assert b"".join(passed) == whole[position:]


def prove_in_rows(
    finished: FinishedObject, planned: dict[TopicIdPartition, PlannedSlice], sizes: Sequence[int] = (1 << 20,)
) -> None:
    """The same with slices whose plans are known before their data; the first one comes alone."""
    whole, (alone, *row) = b"".join(finished.parts), finished.entries
    proof, size_of, position = ObjectProof(finished.ref.name), itertools.cycle(sizes), 0
    proof.begin_slice(alone.data_position, is_carried=False)
    proof.end_slice(alone, planned[alone.topic_id_partition])
    for entries in (row[:1], row[1:]):
        proof.add_row(entries, [planned[entry.topic_id_partition] for entry in entries])
    end_position = finished.entries[-1].data_end_position
    while position < end_position:
        size = min(next(size_of), end_position - position)
        proof.add(whole[position : position + size])
        position += size
    assert proof.crc == crc_of(whole[:position])
    proof.finish(finished, PartsReader([whole[position:]], position))


def batch_of(base_offset: int, keys: list[bytes], codec: Codec = Codec.NONE) -> bytes:
    records = [Record(0, 1, key, b"value" * 3) for key in keys]
    return encode_batch(records, base_offset=base_offset, codec=codec)


def empty_batch() -> bytes:
    """A header alone, as Kafka's cleaner leaves of a producer's last batch."""
    header = parse_header(batch_of(4, [b"a"]))
    return rebuild_batch(header, b"", records_count=0, max_timestamp=-1)


SLICES = [batch_of(3, [b"a", b"b"]) + batch_of(9, [b"c"], Codec.ZSTD), b"", batch_of(0, [b"d"])]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_what_was_planned_passes_in_any_pieces(sizes: list[int]) -> None:
    finished, planned = object_of([*SLICES, empty_batch(), SLICES[0]])
    prove(finished, planned, sizes)
    tip = TopicIdPartition(TOPIC_ID, 4)
    carried_too = planned[tip]._replace(kept=carried(SLICES[0]), has_one_record_a_key=False)
    prove(finished, planned | {tip: carried_too}, sizes)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=9))
def test_rows_of_slices_pass_in_any_pieces(sizes: list[int]) -> None:
    small, mixed = batch_of(0, [b"d"]), batch_of(0, [b"d"], Codec.ZSTD)
    rows = [mixed, small, small, b"", mixed, b"", small, SLICES[0], empty_batch(), small, b""]
    finished, planned = object_of([SLICES[0], *rows])
    prove_in_rows(finished, planned, sizes)


def test_a_slice_of_a_row_that_is_not_as_planned_is_refused() -> None:
    finished, planned = object_of([*SLICES, SLICES[0], SLICES[2], b""])
    prove_in_rows(finished, planned)
    for partition in range(1, 6):
        tip = TopicIdPartition(TOPIC_ID, partition)
        kept = planned[tip].kept
        assert isinstance(kept, KeptRecords)
        for field in KeptRecords._fields:
            changed = kept._replace(**{field: getattr(kept, field) + 1})
            with pytest.raises(StoreCorruptError) as refused:
                prove_in_rows(finished, planned | {tip: planned[tip]._replace(kept=changed)})
            assert refused.value.fields["partition"] == partition


@given(st.integers(0, 2**32))
def test_a_changed_byte_of_a_row_is_refused(seed: int) -> None:
    random = Random(seed)
    finished, planned = object_of([SLICES[2], b"", SLICES[0], SLICES[2]])
    whole = bytearray(b"".join(finished.parts))
    begin, end = finished.ref.data_position, finished.entries[-1].data_end_position
    whole[random.randrange(begin, end)] ^= 1 << random.randrange(8)
    with pytest.raises((StoreCorruptError, CorruptRecordError)):
        prove_in_rows(finished._replace(parts=Parts([bytes(whole)])), planned, [random.randrange(1, 300)])


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
        prove(finished, planned)
    assert (refused.value.fields["topic"], refused.value.fields["partition"]) == ("topic", 0)


def test_an_object_with_other_slices_than_were_planned_is_refused() -> None:
    finished, planned = object_of(SLICES)
    others, _ = object_of([SLICES[0], b"", batch_of(0, [b"e"])])
    more, _ = object_of([*SLICES, b""])
    for other in (others, more):
        proof = ObjectProof("name")
        whole = b"".join(finished.parts)
        for entry in finished.entries:
            proof.begin_slice(entry.data_position, is_carried=False)
            proof.end_slice(entry, planned[entry.topic_id_partition])
        position = finished.entries[-1].data_end_position
        proof.add(whole[:position])
        rest = b"".join(other.parts)[other.entries[-1].data_end_position :]
        with pytest.raises(StoreCorruptError) as refused:
            proof.finish(other, PartsReader([rest], position))
        assert "other slices" in str(refused.value)


def test_a_slice_that_has_not_ended_is_refused() -> None:
    finished, planned = object_of(SLICES[:1])
    proof, [entry] = ObjectProof("name"), finished.entries
    whole = b"".join(finished.parts)
    proof.begin_slice(entry.data_position, is_carried=False)
    proof.add(whole[: entry.data_end_position])
    with pytest.raises(StoreCorruptError) as refused:
        proof.finish(finished, PartsReader([whole[entry.data_end_position :]], entry.data_end_position))
    assert "do not end where its slices do" in str(refused.value)
    moved = ObjectProof("name")
    moved.begin_slice(entry.data_position + 1, is_carried=False)
    with pytest.raises(StoreCorruptError):
        moved.end_slice(entry, planned[entry.topic_id_partition])


def test_a_record_behind_the_end_of_its_slice_is_refused() -> None:
    """A builder that is right never makes one."""
    finished, planned = object_of([batch_of(9, [b"a", b"b"])])
    ((tip, plan),) = planned.items()
    (entry,) = finished.entries
    for end_offset in (11, 10):
        proof = ObjectProof("name")
        proof.begin_slice(entry.data_position, is_carried=False)
        proof.add(b"".join(finished.parts)[: entry.data_end_position])
        moved = entry._replace(end_offset=end_offset)
        if end_offset == 11:
            proof.end_slice(moved, plan._replace(end_offset=end_offset))
            continue
        with pytest.raises(StoreCorruptError) as refused:
            proof.end_slice(moved, plan._replace(end_offset=end_offset))
        assert "contradicts its records" in str(refused.value)
        assert refused.value.fields["partition"] == tip.partition


def test_a_key_stream_beside_a_record_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that is right never makes one."""
    monkeypatch.setattr(SliceBuilder, "may_have_keys", True)
    hashing = KeyHashing(b"0123456789abcdef")
    entries = KeyEntries()
    entries.hash_high.append(1)
    entries.hash_low.append(0)
    entries.ordinal.append(0)
    entries.tombstone.append(0)
    records = [Record(0, 1, b"a", b"1"), Record(0, 1, None, b"2")]
    finished, planned = object_of([encode_batch(records, base_offset=0)], SortedKeys(hashing, [entries]))
    with pytest.raises(StoreCorruptError) as refused:
        prove(finished, planned)
    assert "records without a key" in str(refused.value)


def test_a_key_that_is_there_twice_is_refused() -> None:
    finished, planned = object_of([batch_of(0, [b"a", b"b", b"a"])])
    with pytest.raises(StoreCorruptError):
        prove(finished, planned)
    ((tip, plan),) = planned.items()
    prove(finished, {tip: plan._replace(has_one_record_a_key=False)})


def carried(data: bytes) -> CarriedBytes:
    tally = CarriedTally()
    tally.add(data)
    return tally.result()


@pytest.mark.parametrize("changes", [{"record_count": 2}, {"size_bytes": 1}, {"crc": 1}])
def test_other_bytes_than_were_carried_are_refused(changes: dict[str, int]) -> None:
    finished, planned = object_of(SLICES)
    tip = TopicIdPartition(TOPIC_ID, 0)
    plan = planned[tip]._replace(kept=carried(SLICES[0]), has_one_record_a_key=False)
    prove(finished, planned | {tip: plan})
    changed = carried(SLICES[0])._replace(**changes)
    with pytest.raises(StoreCorruptError):
        prove(finished, planned | {tip: plan._replace(kept=changed)})


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
        prove(finished, planned)
    entries.ordinal[1] = 1
    finished, planned = object_of([batch_of(0, [b"a", b"b"])], SortedKeys(hashing, [entries]))
    prove(finished, planned)


def test_a_byte_that_no_batch_checksum_covers_is_refused() -> None:
    """The leader epoch of a batch, which the fingerprint leaves out, too."""
    finished, planned = object_of(SLICES)
    whole = bytearray(b"".join(finished.parts))
    whole[finished.ref.data_position + LEADER_EPOCH_POSITION] ^= 1
    with pytest.raises(StoreCorruptError) as refused:
        prove(finished._replace(parts=Parts([bytes(whole)])), planned)
    assert "contradicts its data" in str(refused.value)


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
        prove(finished._replace(parts=Parts([bytes(whole)])), planned)


@given(st.lists(st.binary(max_size=9)), st.lists(st.integers(0, 12), max_size=12))
def test_parts_are_read_as_one_row_of_bytes(parts: list[bytes], sizes: list[int]) -> None:
    whole = b"".join(parts)
    reader = PartsReader(parts)
    position = 0
    for size in sizes:
        assert bytes(reader.read(size)) == whole[position : position + size]
        position = min(position + size, len(whole))
        assert reader.position == position
