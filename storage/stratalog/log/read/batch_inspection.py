"""A walk over a log file for people who want to see what is wrong with it.

It checks everything, as `valid_rows` of `stratalog.segment.batch_walk` does, but goes on behind damage:

* it yields each complete batch with a readable header, together with its problems: a wrong checksum, or a
base
  offset or leader epoch (neither of which the checksum covers) that does not follow from the batch before it;
* where no batch can begin, the walk has lost its way, because only a header leads to the next one. It yields
  the gap, and goes on at the first position that the caller knows (from an offset index, say) with a batch
  whose checksum is right. Without such a position, it does not reach the rest.

At most a chunk of the file is in memory, whatever the size of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.record.batch import records_payload, verify_records
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.record import Record
from stratalog.record.record_frame import header_frames, header_name, record_frames
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET

_CHUNK_BYTES = 256 * 1024


class InspectedBatch(NamedTuple):
    """A complete batch, and its problems."""

    position: int
    header: BatchHeader
    crc_matches: bool
    problems: tuple[str, ...]
    """Clauses; none for a batch in order."""


class UnreachedBytes(NamedTuple):
    """Bytes from `position` to `end_position` in which the walk found no batches."""

    position: int
    end_position: int
    reason: str
    zeros_from_offset: int | None = None
    """The offset behind the last batch, if the bytes are zeros up to the file's end; else None."""


_ZEROS = "zeros up to the end of the file: reserved space, or data that a crash has taken"


def inspect_batches(
    file: AppendFile,
    end_position: int,
    first_offset: int,
    *,
    from_offset: int = 0,
    resume_positions: Callable[[], Iterable[int]] = lambda: (),
) -> Iterator[InspectedBatch | UnreachedBytes]:
    """The batches with offsets from `from_offset` on, of a segment that begins at `first_offset`.

    Reads only the headers of the batches below. `resume_positions`: positions at which batches may begin,
    ascending. Raises OSError.
    """
    inspection = _Inspection(file, end_position, first_offset)
    position = 0
    while position < end_position:
        try:
            header = inspection.header_at(position)
        except CorruptRecordError as failure:
            resume_position = inspection.first_sound(position + 1, resume_positions())
            if inspection.is_zero_from(position):
                yield UnreachedBytes(position, resume_position, _ZEROS, inspection.next_offset)
            else:
                fields = {name: value for name, value in failure.fields.items() if name != "position"}
                reason = str(CorruptRecordError(failure.message, **fields))
                yield UnreachedBytes(position, resume_position, reason)
            position = resume_position
            continue
        problems = inspection.problems_of(header)
        if header.last_offset >= from_offset:
            crc_matches = inspection.crc_matches(position, header)
            if not crc_matches:
                problems.insert(0, "its checksum does not match its bytes")
            yield InspectedBatch(position, header, crc_matches, tuple(problems))
        position += header.size_in_bytes


def inspect_records(batch: bytes, header: BatchHeader, max_bytes: int) -> Iterator[Record]:
    """The records of a batch whose checksum is right, one by one, up to the first damage.

    Raises CorruptRecordError there, or at the end for a problem that only all records show.
    """
    data = bytes(records_payload(batch, 0, header, max_bytes=max_bytes))
    append_time_ms = header.append_time_ms
    for frame in record_frames(data, header.records_count):
        yield Record(
            header.base_offset + frame.offset_delta,
            header.base_timestamp + frame.timestamp_delta if append_time_ms is None else append_time_ms,
            _part(data, frame.key_position, frame.key_size),
            _part(data, frame.value_position, frame.value_size),
            tuple(
                (header_name(data, name_position, name_size), _part(data, value_position, value_size))
                for name_position, name_size, value_position, value_size in header_frames(data, frame)
            ),
        )
    verify_records(data, header)


def _part(data: bytes, position: int, size: int) -> bytes | None:
    return None if size < 0 else data[position : position + size]


class _Inspection:
    """The state of one walk: a chunk of the file, and the last batch. Not thread-safe."""

    def __init__(self, file: AppendFile, end_position: int, first_offset: int) -> None:
        self._file = file
        self._end_position = end_position
        self._first_offset = first_offset
        self._last: BatchHeader | None = None
        self._chunk = b""
        self._chunk_position = 0

    def header_at(self, position: int) -> BatchHeader:
        """The header of the complete batch at `position`. Raises CorruptRecordError."""
        header = parse_header(self._bytes_at(position, HEADER_SIZE))
        missing_bytes = position + header.size_in_bytes - self._end_position
        if missing_bytes > 0:
            raise CorruptRecordError(
                "the file ends inside this batch, or the length of the batch is wrong",
                base_offset=header.base_offset,
                size_bytes=header.size_in_bytes,
                missing_bytes=missing_bytes,
            )
        return header

    def problems_of(self, header: BatchHeader) -> list[str]:
        """The contradictions between the batch and the one before it. The batch becomes the last one."""
        last, self._last = self._last, header
        problems: list[str] = []
        if last is None and header.base_offset < self._first_offset:
            problems.append("its base offset is below that of the file's name")
        if last is not None and header.base_offset < last.next_offset:
            problems.append(f"its base offset is below {last.next_offset}, where the batch before it ends")
        if last is not None and header.leader_epoch < last.leader_epoch:
            problems.append(f"its leader epoch is below {last.leader_epoch}, that of the batch before it")
        if header.last_offset - self._first_offset > MAX_RELATIVE_OFFSET:
            problems.append("its last offset is too far from that of the file's name for an index")
        return problems

    def crc_matches(self, position: int, header: BatchHeader) -> bool:
        end = position + header.size_in_bytes
        crc = 0
        for piece in range(position + ATTRIBUTES_POSITION, end, _CHUNK_BYTES):
            crc = crc32c(self._bytes_at(piece, min(_CHUNK_BYTES, end - piece)), crc)
        return crc == header.crc

    def first_sound(self, start_position: int, positions: Iterable[int]) -> int:
        """The first of `positions` from the start on with a batch whose checksum is right, else the file's
        end."""
        for position in positions:
            try:
                if position >= start_position and self.crc_matches(position, self.header_at(position)):
                    return position
            except CorruptRecordError:
                continue
        return self._end_position

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch."""
        return self._first_offset if self._last is None else self._last.next_offset

    def is_zero_from(self, position: int) -> bool:
        """Whether the rest of the file is zeros."""
        return not any(
            bytes(self._bytes_at(piece, min(_CHUNK_BYTES, self._end_position - piece))).strip(b"\0")
            for piece in range(position, self._end_position, _CHUNK_BYTES)
        )

    def _bytes_at(self, position: int, size: int) -> memoryview:
        """The bytes at `position`; fewer if the file ends before, for example after a truncation."""
        start = position - self._chunk_position
        if start < 0 or start + size > len(self._chunk):
            self._chunk = self._file.read_at(position, _CHUNK_BYTES)
            self._chunk_position, start = position, 0
        return memoryview(self._chunk)[start : start + size]
