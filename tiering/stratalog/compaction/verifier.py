"""Proves an output object before it is stored: the bytes in its spool are those that the job planned.

The object is read once, forward, from the parts that will be sent, as a reader of the store would see it. The
proof uses nothing that was in memory while the object was made. Batches are checked by their checksums and
record by record, counted, and compared per partition with the plan (record count, first and last offset,
fingerprint of the batches); slices, key streams, directory and footer are compared with each other. After
compaction a slice has as many keys as keyed records: phase 1 and phase 2 agree on the records. Slices that
were carried byte for byte are proved by the checksum over all their bytes instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.kept_records import CarriedBytes, KeptRecords, KeptTally
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import verify
from stratalog.record.header import parse_header
from stratalog.record.native.batch_kernels import scan_batches
from stratalog.remote.objects.key_stream import verify_key_stream
from stratalog.remote.objects.object_directory import parse_directory
from stratalog.remote.objects.object_format import FOOTER, decode_footer
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.object_writer import FinishedObject
from stratalog.remote.objects.slice_entry import SliceEntry


class PlannedSlice(NamedTuple):
    """The contents that an output slice must have."""

    kept: KeptRecords | CarriedBytes
    base_offset: int
    end_offset: int
    has_one_record_a_key: bool


class PartsReader:
    """Moves forward over the parts of an object. Not thread-safe: guarded by the job."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.position = 0
        self._parts = parts
        self._index = 0
        self._part: memoryview = memoryview(b"")

    def read(self, size: int) -> Buffer:
        """`size` bytes; fewer only at the end. One part's bytes are not copied."""
        pieces: list[memoryview] = []
        left_bytes = size
        while left_bytes > 0:
            if not len(self._part):
                if self._index == len(self._parts):
                    break
                self._part = memoryview(self._parts[self._index])
                self._index += 1
                continue
            piece, self._part = self._part[:left_bytes], self._part[left_bytes:]
            pieces.append(piece)
            left_bytes -= len(piece)
        self.position += size - left_bytes
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_some(self, size: int) -> Buffer:
        """At least one byte and at most `size`, in one piece; none only at the end."""
        while not len(self._part) and self._index < len(self._parts):
            self._part = memoryview(self._parts[self._index])
            self._index += 1
        return self.read(min(size, len(self._part)))

    def skip_to(self, position: int) -> None:
        """Move on without looking."""
        assert self.position <= position
        self.read(position - self.position)


def verify_object(
    finished: FinishedObject, planned: Mapping[TopicIdPartition, PlannedSlice], chunk_bytes: int
) -> None:
    """Read a finished object back and compare it with the plan. Raises StoreCorruptError or
    CorruptRecordError if the object differs from the plan."""
    ref = finished.ref
    reader = PartsReader(finished.parts)
    if [entry.topic_id_partition for entry in finished.entries] != sorted(planned):
        raise _unplanned("its partitions are not those of the plan", ref)
    reader.skip_to(ref.data_position)
    keyed_counts: list[int] = []
    for entry in finished.entries:
        if reader.position != entry.data_position:
            raise _unplanned("its slices do not follow one another", ref, entry)
        plan = planned[entry.topic_id_partition]
        keyed_counts.append(_verify_slice(reader, entry, plan, ref, chunk_bytes))
    reader.skip_to(ref.directory_position)
    if parse_directory(reader.read(ref.directory_bytes), ref) != finished.entries:
        raise _unplanned("its directory was written differently", ref)
    for entry, keyed_count in zip(finished.entries, keyed_counts, strict=True):
        _verify_key_stream(reader, entry, planned[entry.topic_id_partition], keyed_count, ref)
    reader.skip_to(ref.size_bytes - FOOTER.size_bytes)
    if decode_footer(reader.read(FOOTER.size_bytes), ref.name) != ref or reader.read(1):
        raise _unplanned("its footer does not end it", ref)


def _verify_slice(
    reader: PartsReader, entry: SliceEntry, plan: PlannedSlice, ref: ObjectRef, chunk_bytes: int
) -> int:
    """Returns the number of records with a key."""
    if isinstance(plan.kept, CarriedBytes):
        return _verify_carried(reader, entry, plan, plan.kept, ref, chunk_bytes)
    tally = KeptTally()
    tombstone_count = keyless_count = marker_count = 0
    for row in SliceReader(entry, reader.read_some, chunk_bytes).rows():
        position = 0
        while position < len(row):
            scanned = scan_batches(row, position, len(row), tally.fingerprint)
            if scanned.end_position > position:
                tombstone_count += scanned.tombstone_count
                keyless_count += scanned.null_key_count
                marker_count += scanned.marker_count
                tally.add_proved(scanned)
                position = scanned.end_position
                continue
            header = parse_header(row, position)
            summary = verify(row, position, header)
            if header.is_control:
                marker_count += header.records_count
            else:
                tombstone_count += summary.tombstone_count
                keyless_count += summary.null_key_count
            offset_deltas = summary.first_offset_delta, summary.last_offset_delta
            tally.add(row, position, header, header.records_count, offset_deltas)
            position += header.size_in_bytes
    kept = tally.result()
    if kept != plan.kept:
        raise _unplanned(
            "its records are not those that were to be kept", ref, entry, planned=plan.kept, kept=kept
        )
    _require_range(entry, plan, ref)
    counts = tombstone_count, marker_count
    if kept.last_offset >= entry.end_offset or counts != (entry.tombstone_count, entry.marker_count):
        raise _unplanned("its directory entry contradicts its records", ref, entry)
    return kept.record_count - keyless_count - marker_count


def _verify_carried(
    reader: PartsReader,
    entry: SliceEntry,
    plan: PlannedSlice,
    carried: CarriedBytes,
    ref: ObjectRef,
    chunk_bytes: int,
) -> int:
    """Returns the number of records with a key, like `_verify_slice`. The bytes were proved where they come
    from; here they must be the same."""
    for _ in SliceReader(entry, reader.read_some, chunk_bytes).rows():
        pass
    found = CarriedBytes(entry.record_count, entry.data_bytes, entry.data_crc)
    if found != carried:
        raise _unplanned("its bytes are not those of its inputs", ref, entry, planned=carried, found=found)
    _require_range(entry, plan, ref)
    return entry.record_count - entry.marker_count


def _require_range(entry: SliceEntry, plan: PlannedSlice, ref: ObjectRef) -> None:
    if (entry.base_offset, entry.end_offset) != (plan.base_offset, plan.end_offset):
        raise _unplanned("it covers other offsets than its inputs", ref, entry)


def _verify_key_stream(
    reader: PartsReader, entry: SliceEntry, plan: PlannedSlice, keyed_count: int, ref: ObjectRef
) -> None:
    stream = entry.key_stream
    if stream is None:
        return
    if reader.position != stream.position:
        raise _unplanned("its key streams do not follow one another", ref, entry)
    numbered_count = verify_key_stream(reader.read, stream, entry.record_count)
    if numbered_count != stream.entry_count:
        raise _unplanned("its key stream refers to a record twice", ref, entry)
    if keyed_count < entry.record_count - entry.marker_count:
        raise _unplanned("its key stream does not speak for its records without a key", ref, entry)
    if plan.has_one_record_a_key and stream.entry_count != keyed_count:
        raise _unplanned("it holds a key twice", ref, entry)


def _unplanned(
    problem: str, ref: ObjectRef, entry: SliceEntry | None = None, **fields: object
) -> StoreCorruptError:
    if entry is not None:
        fields |= {"topic": entry.topic, "partition": entry.partition}
    return StoreCorruptError(
        f"a rewritten object differs from its plan: {problem}; its inputs are unchanged, so try again",
        name=ref.name,
        **fields,
    )
