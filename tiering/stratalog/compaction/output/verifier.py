"""Proves an output object while it is sent: its bytes are those that the job planned.

The bytes pass here right before they are sent, in the order and in the buffers that the store gets, as a
reader of the store would see them. The proof uses nothing that was in memory while the object was made.
Batches are checked by their checksums and record by record, counted, and compared per partition with the plan
(record count, first and last offset, fingerprint of the batches) as soon as the slice has passed; slices, key
streams, directory and footer are compared with each other. After compaction a slice has as many keys as keyed
records: phase 1 and phase 2 agree on the records. Slices that were carried byte for byte are proved by the
checksum over all their bytes instead.

A batch that reaches into the next part is proved with that one. An object appears only when all was proved.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.compaction.kept_records import CarriedBytes, KeptRecords, KeptTally
from stratalog.record.batch import verify
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.native.batch_kernels import batches_crc, prove_slices, scan_batches, whole_batches
from stratalog.record.native.kernels import joined_crc
from stratalog.record.native.scanned_batches import PROVED_COLUMNS
from stratalog.remote.objects.key_stream import verify_key_stream
from stratalog.remote.objects.object_directory import parse_directory
from stratalog.remote.objects.object_format import FOOTER, crc_of, decode_footer
from stratalog.remote.objects.object_writer import FinishedObject
from stratalog.remote.objects.slice_entry import SliceEntry


class PlannedSlice(NamedTuple):
    """The contents that an output slice must have."""

    kept: KeptRecords | CarriedBytes
    base_offset: int
    end_offset: int
    has_one_record_a_key: bool


class PartsReader:
    """Moves forward over consecutive parts of an object. Not thread-safe: guarded by the job."""

    def __init__(
        self,
        parts: Sequence[Buffer],
        position: int = 0,
        on_passed: Callable[[Buffer], None] = lambda _: None,
    ) -> None:
        """The first part begins at `position` of the object. `on_passed` gets each part once all of it was
        read and more is asked for."""
        self.position = position
        self._parts = parts
        self._index = 0
        self._part: memoryview = memoryview(b"")
        self._on_passed = on_passed
        self._whole: Buffer = b""

    def read(self, size: int) -> Buffer:
        """`size` bytes; fewer only at the end. One part's bytes are not copied."""
        pieces: list[memoryview] = []
        left_bytes = size
        while left_bytes > 0 and self._has_bytes():
            piece, self._part = self._part[:left_bytes], self._part[left_bytes:]
            pieces.append(piece)
            left_bytes -= len(piece)
        self.position += size - left_bytes
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def skip_to(self, position: int) -> None:
        """Move on without looking."""
        assert self.position <= position
        self.read(position - self.position)

    def _has_bytes(self) -> bool:
        """Whether bytes are left; takes the next part where one was read."""
        while not len(self._part):
            whole, self._whole = self._whole, b""
            self._on_passed(whole)
            if self._index == len(self._parts):
                return False
            self._whole = self._parts[self._index]
            self._part = memoryview(self._whole)
            self._index += 1
        return True


class _FoundSlice(NamedTuple):
    """The facts about the data of a slice, as they were found."""

    kept: KeptRecords | CarriedBytes
    data_bytes: int
    data_crc: int
    record_count: int
    tombstone_count: int
    marker_count: int
    keyless_count: int

    @staticmethod
    def of_proved(size_bytes: int, *proved: int) -> _FoundSlice:
        """Those of a plain slice, from `PROVED_COLUMNS`."""
        crc, *kept, tombstone_count, marker_count, keyless_count = proved
        return _FoundSlice(
            kept=KeptRecords._make(kept),
            data_bytes=size_bytes,
            data_crc=crc,
            record_count=kept[0],
            tombstone_count=tombstone_count,
            marker_count=marker_count,
            keyless_count=keyless_count,
        )


class _SliceProof:
    """Proves the data of one slice while they pass. Not thread-safe: guarded by the job."""

    def __init__(self, *, is_carried: bool) -> None:
        self._is_carried = is_carried
        self._tally = KeptTally()
        self._data_bytes = self._crc = 0
        self._record_count = self._tombstone_count = self._marker_count = self._keyless_count = 0
        self._begin: list[Buffer] = []
        """The beginning of a batch whose end has not come yet."""
        self._begin_bytes = 0

    def add(self, data: memoryview) -> int:
        """The next bytes, cut anywhere; returns their CRC-32C. Raises CorruptRecordError for a damaged
        batch."""
        rest = data
        while self._begin and len(rest):
            rest = self._take_rest(rest)
        size_bytes, records_count = whole_batches(rest)
        if size_bytes > 0:
            self._prove(rest[:size_bytes], records_count)
        if size_bytes < len(rest):
            self._keep(rest[size_bytes:])
        if self._is_carried or size_bytes == 0:
            crc = crc_of(data)
        else:
            # Of the batches that lie here as a whole, the records were summed just now.
            begin = len(data) - len(rest)
            crc = batches_crc(data[begin:], crc_of(data[:begin]))
        self._crc = joined_crc(self._crc, crc, len(data))
        self._data_bytes += len(data)
        return crc

    def found(self) -> _FoundSlice | None:
        """The facts once all data have come; None if they end inside a batch."""
        if self._begin:
            return None
        kept = (
            CarriedBytes(self._record_count, self._data_bytes, self._crc)
            if self._is_carried
            else self._tally.result()
        )
        return _FoundSlice(
            kept=kept,
            data_bytes=self._data_bytes,
            data_crc=self._crc,
            record_count=self._record_count,
            tombstone_count=self._tombstone_count,
            marker_count=self._marker_count,
            keyless_count=self._keyless_count,
        )

    def _keep(self, data: memoryview) -> None:
        # A copy: the part that it lies in must not stay in memory.
        self._begin.append(bytes(data))
        self._begin_bytes += len(data)

    def _keep_up_to(self, size: int, data: memoryview) -> memoryview:
        """Let the batch that has begun have that size, if there are so many bytes; returns the rest."""
        missing_bytes = size - self._begin_bytes
        self._keep(data[:missing_bytes])
        return data[missing_bytes:]

    def _take_rest(self, data: memoryview) -> memoryview:
        """Take bytes of the batch that has begun, whose header may not be whole; returns those behind
        them."""
        if self._begin_bytes < HEADER_SIZE:
            data = self._keep_up_to(HEADER_SIZE, data)
            if self._begin_bytes < HEADER_SIZE:
                return data
        if len(self._begin[0]) < HEADER_SIZE:
            self._begin = [b"".join(self._begin)]
        header = parse_header(self._begin[0])
        assert header.size_in_bytes >= self._begin_bytes, "a whole batch was taken before"
        data = self._keep_up_to(header.size_in_bytes, data)
        if self._begin_bytes == header.size_in_bytes:
            batch = b"".join(self._begin)
            self._begin, self._begin_bytes = [], 0
            self._prove(batch, header.records_count)
        return data

    def _prove(self, row: Buffer, records_count: int) -> None:
        """Whole batches. Those of a slice that is carried were proved where they come from; here they must be
        the same bytes."""
        self._record_count += records_count
        if self._is_carried:
            return
        tally, position = self._tally, 0
        while position < len(row):
            scanned = scan_batches(row, position, len(row), tally.fingerprint)
            if scanned.end_position > position:
                self._tombstone_count += scanned.tombstone_count
                self._marker_count += scanned.marker_count
                self._keyless_count += scanned.null_key_count
                tally.add_proved(scanned)
                position = scanned.end_position
                continue
            header = parse_header(row, position)
            summary = verify(row, position, header)
            if header.is_control:
                self._marker_count += header.records_count
            else:
                self._tombstone_count += summary.tombstone_count
                self._keyless_count += summary.null_key_count
            offset_deltas = summary.first_offset_delta, summary.last_offset_delta
            tally.add(row, position, header, header.records_count, offset_deltas)
            position += header.size_in_bytes


class _PassingSlice:
    """A slice whose data have begun. Guarded by its `ObjectProof`."""

    __slots__ = ("_proof", "entry", "plan", "position")

    def __init__(self, position: int, *, is_carried: bool) -> None:
        self.position = position
        self.entry: SliceEntry | None = None
        """Known once the slice has ended, like its plan."""
        self.plan: PlannedSlice | None = None
        self._proof = _SliceProof(is_carried=is_carried)

    @property
    def end_position(self) -> int | None:
        """The position behind its data; None until it has ended."""
        return None if self.entry is None else self.entry.data_end_position

    def add(self, data: memoryview) -> int:
        """The next bytes, cut anywhere; returns their CRC-32C. Raises CorruptRecordError for a damaged
        batch."""
        return self._proof.add(data)

    def proved(self, name: str) -> Iterator[_ProvedSlice]:
        """The slice once all its data have passed. Raises StoreCorruptError if it is not as planned."""
        entry, plan = self.entry, self.plan
        assert entry is not None and plan is not None, "it has ended"  # noqa: PT018
        keyed_count = _require_planned(self._proof.found(), entry, plan, name)
        yield _ProvedSlice(entry, keyed_count, plan.has_one_record_a_key)


class _PassingRow:
    """Small slices, one behind the other, whose plans were known before their data. Guarded by its
    `ObjectProof`.

    A kernel proves those that pass as a whole, and takes many at a time. The others, and those that it
    refuses, are proved one by one.
    """

    __slots__ = (
        "_entries",
        "_found",
        "_left_bytes",
        "_plans",
        "_proof",
        "_sizes",
        "end_position",
        "position",
    )

    def __init__(self, entries: Sequence[SliceEntry], plans: Sequence[PlannedSlice]) -> None:
        self.position = entries[0].data_position
        self.end_position = entries[-1].data_end_position
        self._entries, self._plans = entries, plans
        self._sizes = array("q", [entry.data_bytes for entry in entries])
        self._found: list[_FoundSlice | None] = []
        """The facts about the slices that have passed."""
        self._proof: _SliceProof | None = None
        """That of the next slice, if it is proved alone."""
        self._left_bytes = 0
        """The part of that slice that has not passed."""

    def add(self, data: memoryview) -> int:
        """The next bytes; returns and raises as `_PassingSlice.add`."""
        crc = 0
        while data:
            size_bytes, piece_crc = self._add_alone(data) if self._proof else self._add_whole(data)
            crc = joined_crc(crc, piece_crc, size_bytes)
            data = data[size_bytes:]
        return crc

    def _add_whole(self, data: memoryview) -> tuple[int, int]:
        """Take whole slices; returns their bytes and the CRC-32C. The slice behind them is proved alone."""
        sizes = self._sizes[len(self._found) :]
        count = bisect_right(list(itertools.accumulate(sizes)), len(data))
        numbers, crc = prove_slices(data, sizes[:count])
        rows = zip(*[iter(numbers)] * len(PROVED_COLUMNS), strict=True)
        taken_bytes = 0
        for size_bytes, row in zip(sizes, rows, strict=False):
            self._found.append(_FoundSlice.of_proved(size_bytes, *row))
            taken_bytes += size_bytes
        if taken_bytes < len(data):
            self._proof, self._left_bytes = _SliceProof(is_carried=False), self._sizes[len(self._found)]
        return taken_bytes, crc

    def _add_alone(self, data: memoryview) -> tuple[int, int]:
        """Take bytes of the slice that is proved alone; returns as `_add_whole`."""
        assert self._proof is not None, "a slice has begun"
        piece = data[: self._left_bytes]
        crc = self._proof.add(piece)
        self._left_bytes -= len(piece)
        if self._left_bytes == 0:
            self._found.append(self._proof.found())
            self._proof = None
        return len(piece), crc

    def proved(self, name: str) -> Iterator[_ProvedSlice]:
        """The slices once all their data have passed. Raises as `_PassingSlice.proved`."""
        # At the end there may be slices without data.
        none = itertools.repeat(_SliceProof(is_carried=False).found(), len(self._entries) - len(self._found))
        for found, entry, plan in zip([*self._found, *none], self._entries, self._plans, strict=True):
            keyed_count = _require_planned(found, entry, plan, name)
            yield _ProvedSlice(entry, keyed_count, plan.has_one_record_a_key)


class _ProvedSlice(NamedTuple):
    """A slice whose data are as planned."""

    entry: SliceEntry
    """The entry before key streams and indexes had their places."""
    keyed_count: int
    has_one_record_a_key: bool


class ObjectProof:
    """Proves an object while its bytes pass. Not thread-safe: guarded by the job.

    Bytes may pass long after the end of their slice is known, or before: what is left to be compared is
    compared then. All methods raise StoreCorruptError for an object that is not as planned.
    """

    def __init__(self, name: str) -> None:
        self.crc = 0
        """CRC-32C of all bytes that have passed."""
        self._name = name
        self._position = 0
        """The position of the next byte that passes."""
        self._passing: deque[_PassingSlice | _PassingRow] = deque()
        self._proved: list[_ProvedSlice] = []

    def begin_slice(self, position: int, *, is_carried: bool) -> None:
        """The data of a slice begin at that position of the object."""
        self._passing.append(_PassingSlice(position, is_carried=is_carried))

    def end_slice(self, entry: SliceEntry, plan: PlannedSlice) -> None:
        """The last slice that has begun has this entry, and must be as planned."""
        slice_ = self._passing[-1]
        assert isinstance(slice_, _PassingSlice), "a row ends by itself"
        assert slice_.entry is None, "a slice ends once"
        if slice_.position != entry.data_position:
            raise _unplanned("its slices do not follow one another", self._name, entry)
        slice_.entry, slice_.plan = entry, plan
        self._settle()

    def add_row(self, entries: Sequence[SliceEntry], plans: Sequence[PlannedSlice]) -> None:
        """The data of these slices follow, one behind the other, and must be as planned."""
        self._passing.append(_PassingRow(entries, plans))

    def add(self, data: Buffer) -> None:
        """The next bytes of header and data. Raises CorruptRecordError, too."""
        rest = memoryview(data)
        while rest:
            slice_ = self._passing[0] if self._passing else None
            if slice_ is None or self._position < slice_.position:
                assert not self._proved, "only the header is in no slice"
                piece = rest if slice_ is None else rest[: slice_.position - self._position]
                crc = crc_of(piece)
            else:
                end = slice_.end_position
                piece = rest if end is None else rest[: end - self._position]
                crc = slice_.add(piece)
            self.crc = joined_crc(self.crc, crc, len(piece))
            self._position += len(piece)
            rest = rest[len(piece) :]
            self._settle()

    def finish(self, finished: FinishedObject, reader: PartsReader) -> None:
        """Prove what follows the data; `reader` begins there."""
        ref, name = finished.ref, self._name
        if self._passing or self._position != reader.position:
            raise _unplanned("its data do not end where its slices do", name)
        reader.skip_to(ref.directory_position)
        if parse_directory(reader.read(ref.directory_bytes), ref) != finished.entries:
            raise _unplanned("its directory was written differently", name)
        proved_entries = [proved.entry for proved in self._proved]
        if list(map(_FACTS, finished.entries)) != list(map(_FACTS, proved_entries)):
            raise _unplanned("its directory has other slices than were planned", name)
        for entry, proved in zip(finished.entries, self._proved, strict=True):
            _verify_key_stream(reader, entry, proved, name)
        reader.skip_to(ref.size_bytes - FOOTER.size_bytes)
        if decode_footer(reader.read(FOOTER.size_bytes), ref.name) != ref or reader.read(1):
            raise _unplanned("its footer does not end it", name)

    def _settle(self) -> None:
        """Compare the slices that have passed whole, and have ended."""
        while self._passing:
            end_position = self._passing[0].end_position
            if end_position is None or self._position < end_position:
                return
            self._proved += self._passing.popleft().proved(self._name)


_FACT_FIELDS = (
    "topic_id",
    "partition",
    "base_offset",
    "end_offset",
    "data_position",
    "data_bytes",
    "data_crc",
    "record_count",
    "tombstone_count",
    "marker_count",
)
# An entry is a tuple, and its places are found in half the time of its names.
_FACTS = operator.itemgetter(*map(SliceEntry._fields.index, _FACT_FIELDS))
"""The facts that a directory must have of a slice whose data were proved."""


def _require_planned(found: _FoundSlice | None, entry: SliceEntry, plan: PlannedSlice, name: str) -> int:
    """Compare a slice with its plan and its entry; returns the number of records with a key, where the slice
    was not carried."""
    if found is None:
        raise _unplanned("a slice ends inside a batch", name, entry)
    if found.kept != plan.kept:
        raise _unplanned(
            "its records are not those that were to be kept",
            name,
            entry,
            planned=plan.kept,
            kept=found.kept,
        )
    if (entry.base_offset, entry.end_offset) != (plan.base_offset, plan.end_offset):
        raise _unplanned("it covers other offsets than its inputs", name, entry)
    facts = found.data_bytes, found.data_crc, found.record_count
    if facts != (entry.data_bytes, entry.data_crc, entry.record_count):
        raise _unplanned("its directory entry contradicts its data", name, entry)
    if isinstance(found.kept, CarriedBytes):
        return found.record_count - entry.marker_count
    counts = found.tombstone_count, found.marker_count
    if found.kept.last_offset >= entry.end_offset or counts != (entry.tombstone_count, entry.marker_count):
        raise _unplanned("its directory entry contradicts its records", name, entry)
    return found.record_count - found.keyless_count - found.marker_count


def _verify_key_stream(reader: PartsReader, entry: SliceEntry, proved: _ProvedSlice, name: str) -> None:
    stream = entry.key_stream
    if stream is None:
        return
    if reader.position != stream.position:
        raise _unplanned("its key streams do not follow one another", name, entry)
    numbered_count = verify_key_stream(reader.read, stream, entry.record_count)
    if numbered_count != stream.entry_count:
        raise _unplanned("its key stream refers to a record twice", name, entry)
    if proved.keyed_count < entry.record_count - entry.marker_count:
        raise _unplanned("its key stream does not speak for its records without a key", name, entry)
    if proved.has_one_record_a_key and stream.entry_count != proved.keyed_count:
        raise _unplanned("it holds a key twice", name, entry)


def _unplanned(
    problem: str, name: str, entry: SliceEntry | None = None, **fields: object
) -> StoreCorruptError:
    if entry is not None:
        fields |= {"topic": entry.topic, "partition": entry.partition}
    return StoreCorruptError(
        f"a rewritten object differs from its plan: {problem}; its inputs are unchanged, so try again",
        name=name,
        **fields,
    )
