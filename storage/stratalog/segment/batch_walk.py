"""Walks over the batches of a log file, header by header, and holds no more than a chunk of it in memory.

The walks differ in what they trust:

* `walk` trusts the file, whose bytes were validated when they were appended. It looks at headers only, and
  does not read the body of a batch that is larger than a chunk. `seek` finds the position at which such a
  walk reaches an offset; a kernel does the walking.
* `valid_rows` trusts nothing. It stops before the first batch that is incomplete, not a batch, out of order
  or different from its checksum. So it finds the end of the sound data after a crash. There may be gigabytes
  to check, so a kernel walks, and a header becomes an object only if it says more than an index needs.
* `summed_headers` sums up the fields that the checksums of batches leave out, for a comparison with the seal.
* `fetchable_batches` serves fetches. It measures and checks batches in bytes that were just read, and makes
  no object for any of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.batch import crc_matches
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAX_OFFSET,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.batch_kernels import (
    headers_crc,
    skip_batches,
    sound_batches,
    walk_batches,
    whole_batches,
)
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.batch_headers import crc_with

_HEADER_CHUNK_BYTES = 16 * 1024
_SUMMED_CHUNK_BYTES = 256 * 1024
_BODY_CHUNK_BYTES = 1024 * 1024
# base_offset, batch_length, leader_epoch, magic, crc, attributes, last_offset_delta: all fields that a fetch
# needs.
_FETCH_FIELDS = struct.Struct(">qiibIhi")
assert _FETCH_FIELDS.size <= HEADER_SIZE
RESTORE_FILE = "restore the file from a copy and restart the server"
"""The end of an error about a damaged batch in a log."""


class LocatedBatch(NamedTuple):
    """A batch's header, and the position in its file where the batch begins."""

    position: int
    header: BatchHeader


class ValidRows(NamedTuple):
    """Consecutive batches, and the headers of those that carry more than an index needs."""

    rows: list[BatchRow]
    noted: list[LocatedBatch]


def walk(
    file: AppendFile,
    position: int,
    end_position: int,
    first_offset: int = 0,
    limit_offset: int = MAX_OFFSET,
    *,
    epochs_ascend: bool = True,
) -> Iterator[LocatedBatch]:
    """Yield the batches of a validated file from `position`, where a batch begins, to `end_position`. If
    `epochs_ascend`, a leader epoch below the one before it is an error; a broker's log may have some.

    Raises CorruptRecordError if a header is invalid all the same, contradicts the one before it, or lies
    outside [first_offset, limit_offset); OSError.
    """
    chunk, chunk_position = b"", position
    next_offset, leader_epoch = first_offset, NO_LEADER_EPOCH
    while position < end_position:
        if position + HEADER_SIZE > chunk_position + len(chunk):
            chunk = file.read_at(position, min(_HEADER_CHUNK_BYTES, end_position - position))
            chunk_position = position
        header = parse_header(chunk, position - chunk_position)
        if (
            header.base_offset < next_offset
            or header.last_offset >= limit_offset
            or (epochs_ascend and header.leader_epoch < leader_epoch)
        ):
            raise _contradiction(file, position, header, next_offset, limit_offset)
        yield LocatedBatch(position, header)
        position += header.size_in_bytes
        next_offset, leader_epoch = header.next_offset, header.leader_epoch
    if position > end_position:
        raise CorruptRecordError("the last batch ends beyond its file", path=file.path, position=position)


def _contradiction(
    file: AppendFile, position: int, header: BatchHeader, expected_offset: int, limit_offset: int
) -> CorruptRecordError:
    return CorruptRecordError(
        "a stored batch contradicts the one before it, or lies outside its segment",
        path=file.path,
        position=position,
        base_offset=header.base_offset,
        expected_offset=expected_offset,
        limit_offset=limit_offset,
        leader_epoch=header.leader_epoch,
    )


def seek(
    file: AppendFile,
    position: int,
    end_position: int,
    offset: int,
    *,
    indexed_offset: int | None = None,
    first_offset: int = 0,
    limit_offset: int = MAX_OFFSET,
    proves_hole: bool = False,
) -> int | None:
    """The position of the first batch that ends at or above `offset`; None if there is none below
    `end_position`. `indexed_offset` is the last offset that an index gives for the batch at `position`. If
    `proves_hole` and the offset lies in a hole, the checksum of the batch before the hole is compared too,
    because it covers that batch's last offset.

    Raises CorruptRecordError if the index is wrong, or as `walk` does; OSError.
    """
    begin_position, next_offset, leader_epoch = position, first_offset, NO_LEADER_EPOCH
    while position < end_position:
        chunk = file.read_at(position, min(_HEADER_CHUNK_BYTES, end_position - position))
        if indexed_offset is not None and _last_offset(chunk) != indexed_offset:
            raise CorruptRecordError(
                "an offset index points at another batch",
                path=file.path,
                position=position,
                indexed_offset=indexed_offset,
            )
        indexed_offset = None
        skipped_bytes, next_offset, leader_epoch = skip_batches(
            chunk, min(offset, limit_offset), next_offset, leader_epoch
        )
        position += skipped_bytes
        if skipped_bytes == 0 or skipped_bytes + HEADER_SIZE <= len(chunk):
            # This is the wanted batch, or the kernel stopped before it because its header is invalid.
            header = parse_header(chunk, skipped_bytes)
            if (
                header.base_offset < next_offset
                or header.last_offset >= limit_offset
                or header.leader_epoch < leader_epoch
            ):
                raise _contradiction(file, position, header, next_offset, limit_offset)
            if proves_hole and header.base_offset > offset:
                _require_sound_before(file, begin_position, position, next_offset - 1)
            return position
    if position > end_position:
        raise CorruptRecordError("the last batch ends beyond its file", path=file.path, position=position)
    if proves_hole:
        _require_sound_before(file, begin_position, position, next_offset - 1)
    return None


def _require_sound_before(file: AppendFile, begin_position: int, end_position: int, last_offset: int) -> None:
    """Prove the checksum of the batch that ends at `end_position` and with `last_offset`. A seek from
    `begin_position` has passed it. Raises CorruptRecordError."""
    if begin_position == end_position:
        return
    position = seek(file, begin_position, end_position, last_offset)
    assert position is not None, "it was passed"
    data = file.read_at(position, end_position - position)
    header = parse_header(data)
    if header.size_in_bytes > len(data) or not crc_matches(data, 0, header):
        raise damaged_batch(file.path, position)


def damaged_batch(path: str, position: int) -> CorruptRecordError:
    """The error for a damaged batch that decides the result of a look-up."""
    return CorruptRecordError(
        f"a stored batch that a look-up needs does not match its checksum; {RESTORE_FILE}",
        path=path,
        position=position,
    )


def _last_offset(chunk: bytes) -> int | None:
    """The last offset of the batch at the beginning of `chunk`; None if the chunk has no whole header."""
    if len(chunk) < HEADER_SIZE:
        return None
    fields: tuple[int, ...] = _FETCH_FIELDS.unpack_from(chunk)
    return fields[0] + fields[-1]


def _header_or_none(chunk: bytes, position: int) -> BatchHeader | None:
    try:
        return parse_header(chunk, position)
    except CorruptRecordError:
        return None


def summed_headers(file: AppendFile, end_position: int, check: Callable[[], None]) -> int:
    """The sum over the headers of the batches below `end_position`, as a seal has it; see `batch_headers`.
    Calls `check` before each read.

    Small batches are read in large pieces, and a kernel does the walking. The body of a batch of more than
    16 KiB is passed by, and behind such a batch only the header of the next one is read. Raises
    CorruptRecordError if a header is invalid or the last batch ends elsewhere; what `check` raises; OSError.
    """
    position = crc = 0
    chunk_bytes = HEADER_SIZE
    while position < end_position:
        check()
        chunk = file.read_at(position, min(chunk_bytes, end_position - position))
        crc = headers_crc(chunk, crc)
        passed_bytes, _ = whole_batches(chunk)
        chunk_bytes = _SUMMED_CHUNK_BYTES
        if passed_bytes == 0 or passed_bytes + HEADER_SIZE <= len(chunk):
            # The body of this batch ends beyond the chunk, or its header is invalid.
            header = parse_header(chunk, passed_bytes)
            crc = crc_with(header.base_offset, header.leader_epoch, crc)
            passed_bytes += header.size_in_bytes
            if header.size_in_bytes > _HEADER_CHUNK_BYTES:
                chunk_bytes = HEADER_SIZE
        position += passed_bytes
    if position > end_position:
        raise CorruptRecordError("the last batch ends beyond its file", path=file.path, position=position)
    return crc


def valid_rows(
    file: AppendFile,
    end_position: int,
    first_offset: int,
    leader_epoch: int,
    position: int = 0,
    *,
    is_search: bool = False,
) -> Iterator[ValidRows]:
    """Yield the batches from `position` up to the first invalid one: torn, not a batch, altered, or with an
    offset or leader epoch below that of the batch before it. `leader_epoch` is the log's newest before
    `position`. `is_search` says that the caller may need only a few batches, so the first reads are small.

    Raises OSError if the file cannot be read; that says nothing about its contents.
    """
    chunk, chunk_position = b"", position
    next_offset = first_offset
    chunk_bytes = _HEADER_CHUNK_BYTES if is_search else _BODY_CHUNK_BYTES
    while True:
        rows = walk_batches(chunk, position - chunk_position, chunk_position, next_offset, leader_epoch)
        if rows:
            noted = [
                LocatedBatch(row.position, parse_header(chunk, row.position - chunk_position))
                for row in rows
                if row.is_noted
            ]
            yield ValidRows(rows, noted)
            position, next_offset = rows[-1].end_position, rows[-1].last_offset + 1
            leader_epoch = rows[-1].leader_epoch
            continue
        # The walk has reached the end of the chunk or of the valid batches; in the latter case there is no
        # more to read.
        needed_bytes = _bytes_of_batch(chunk, position - chunk_position)
        if needed_bytes <= chunk_position + len(chunk) - position or position + needed_bytes > end_position:
            return
        size = min(max(chunk_bytes, needed_bytes), end_position - position)
        chunk, chunk_position = file.read_at(position, size), position
        chunk_bytes = min(4 * chunk_bytes, _BODY_CHUNK_BYTES)
        if len(chunk) < needed_bytes:
            return


def _bytes_of_batch(chunk: bytes, position: int) -> int:
    """The number of bytes from `position` on that the batch there needs; 0 if its header is invalid."""
    if len(chunk) - position < HEADER_SIZE:
        return HEADER_SIZE
    header = _header_or_none(chunk, position)
    return 0 if header is None else header.size_in_bytes


def fetchable_batches(
    data: Buffer, end_offset: int, first_offset: int = 0, leader_epoch: int = NO_LEADER_EPOCH
) -> tuple[int, int]:
    """The size of the whole, sound batches at the beginning of `data` that end at or below `end_offset`, and
    the offset after them, -1 if there are none. Stops before a damaged batch.

    Raises CorruptRecordError if the first batch does not match its checksum, begins below `first_offset`, or
    has another leader epoch than `leader_epoch` (NO_LEADER_EPOCH allows any).
    """
    position, next_offset = sound_batches(data, end_offset, first_offset, leader_epoch)
    if position:
        # The read that begins with a torn or damaged batch raises the error.
        return position, next_offset
    if len(data) < _FETCH_FIELDS.size:
        return 0, -1
    # The kernel has refused the first batch: find out why.
    base_offset, batch_length, epoch, magic, crc, _, last_offset_delta = _FETCH_FIELDS.unpack_from(data)
    size_bytes, next_offset = LOG_OVERHEAD + batch_length, base_offset + last_offset_delta + 1
    if magic != MAGIC or batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecordError(
            f"a stored batch has no valid header; {RESTORE_FILE}", base_offset=base_offset
        )
    if base_offset < first_offset:
        raise CorruptRecordError(
            f"a stored batch begins below the end of the one before it; {RESTORE_FILE}",
            base_offset=base_offset,
            expected_offset=first_offset,
        )
    if size_bytes > len(data) or next_offset > end_offset:
        return 0, -1
    if crc32c(memoryview(data)[ATTRIBUTES_POSITION:size_bytes]) != crc:
        raise CorruptRecordError(
            f"a stored batch does not match its checksum; {RESTORE_FILE}", base_offset=base_offset
        )
    if leader_epoch not in (NO_LEADER_EPOCH, epoch):
        raise CorruptRecordError(
            f"a stored batch has another leader epoch than the log at this offset; {RESTORE_FILE}",
            base_offset=base_offset,
            leader_epoch=epoch,
            expected_epoch=leader_epoch,
        )
    return size_bytes, next_offset
