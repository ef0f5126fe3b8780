"""Walking over the batches of a log file, header by header, without holding more of it than a chunk.

The walks, by what they may assume:

* `walk` trusts the file (its bytes were validated when they were appended) and looks at headers only; the
  bodies of batches that are larger than a chunk are not even read. `seek` goes where a walk would have found
  an offset: a kernel walks.
* `valid_rows` trusts nothing: it stops before the first batch that is not whole, not a batch, not in order or
  not what its checksum says, and so finds the end of what a crash left. There may be gigabytes to look at: a
  kernel walks, and a header becomes an object only where it says more than an index asks.
* `whole_batches` is the fetch path: it measures and checks batches in bytes that were just read, with no
  object made for any of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
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
from stratalog.record.native.batch_kernels import skip_batches, sound_batches, walk_batches
from stratalog.record.native.batch_row import BatchRow

_HEADER_CHUNK_BYTES = 16 * 1024
_BODY_CHUNK_BYTES = 1024 * 1024
# base_offset, batch_length, leader_epoch, magic, crc, attributes, last_offset_delta: all that a fetch looks
# at.
_FETCH_FIELDS = struct.Struct(">qiibIhi")
assert _FETCH_FIELDS.size <= HEADER_SIZE


class LocatedBatch(NamedTuple):
    """A batch's header and where the batch begins in its file."""

    position: int
    header: BatchHeader


class ValidRows(NamedTuple):
    """Batches one after the other, and the headers of those among them that are noted."""

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
    """The batches of a validated file from `position`, which is a batch's beginning, to `end_position`.
    `epochs_ascend`: leader epochs that go back are a contradiction, too; in a broker's log they may.

    Raises CorruptRecordError where a header is wrong all the same, or contradicts the one before it, or lies
    outside of [first_offset, limit_offset); OSError where the file cannot be read.
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
        raise CorruptRecordError("the last batch ends behind its file", path=file.path, position=position)


def _contradiction(
    file: AppendFile, position: int, header: BatchHeader, expected_offset: int, limit_offset: int
) -> CorruptRecordError:
    return CorruptRecordError(
        "a stored batch contradicts the one before it, or lies outside of its segment",
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
    """Where a walk finds the first batch that ends at or above `offset`; None where it ends without.
    `indexed_offset` is the last offset of the batch at `position`, if an index says so. `proves_hole`: where
    the offset lies in a hole behind a batch, that one's checksum is compared, which covers how far it goes.

    Raises CorruptRecordError where the index is wrong, or where `walk` does, OSError.
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
            # It is the one, or the kernel has stopped before it because it cannot be.
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
        raise CorruptRecordError("the last batch ends behind its file", path=file.path, position=position)
    if proves_hole:
        _require_sound_before(file, begin_position, position, next_offset - 1)
    return None


def _require_sound_before(file: AppendFile, begin_position: int, end_position: int, last_offset: int) -> None:
    """The batch before `end_position`, which a seek from `begin_position` has passed and which ends with
    `last_offset`, is what its checksum says. Raises CorruptRecordError."""
    if begin_position == end_position:
        return
    position = seek(file, begin_position, end_position, last_offset)
    assert position is not None, "it was passed"
    data = file.read_at(position, end_position - position)
    header = parse_header(data)
    if header.size_in_bytes > len(data) or not crc_matches(data, 0, header):
        raise damaged_batch(file.path, position)


def damaged_batch(path: str, position: int) -> CorruptRecordError:
    """The error of whoever cannot go by a batch that lies there."""
    return CorruptRecordError(
        "a stored batch that decides what is found does not match its checksum; restore the file from a copy"
        " and restart the server",
        path=path,
        position=position,
    )


def _last_offset(chunk: bytes) -> int | None:
    """Of the batch that `chunk` begins with; None where there is no header."""
    if len(chunk) < HEADER_SIZE:
        return None
    fields: tuple[int, ...] = _FETCH_FIELDS.unpack_from(chunk)
    return fields[0] + fields[-1]


def _header_or_none(chunk: bytes, position: int) -> BatchHeader | None:
    try:
        return parse_header(chunk, position)
    except CorruptRecordError:
        return None


def valid_rows(
    file: AppendFile,
    end_position: int,
    first_offset: int,
    leader_epoch: int,
    position: int = 0,
    *,
    is_search: bool = False,
) -> Iterator[ValidRows]:
    """The batches from `position` up to the first that is not valid: torn, nonsense, altered, or with an
    offset or leader epoch below that of the batch before it; `leader_epoch` is that of the log so far.
    `is_search`: the first ones may be enough, so no more than a few are read at once.

    Raises OSError where the file cannot be read: that is no statement about its contents.
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
            leader_epoch = noted[-1].header.leader_epoch if noted else leader_epoch
            continue
        # It stands before the end of the chunk or of what is valid; in the latter case there is no more to
        # read.
        needed_bytes = _bytes_of_batch(chunk, position - chunk_position)
        if needed_bytes <= chunk_position + len(chunk) - position or position + needed_bytes > end_position:
            return
        size = min(max(chunk_bytes, needed_bytes), end_position - position)
        chunk, chunk_position = file.read_at(position, size), position
        chunk_bytes = min(4 * chunk_bytes, _BODY_CHUNK_BYTES)
        if len(chunk) < needed_bytes:
            return


def _bytes_of_batch(chunk: bytes, position: int) -> int:
    """How many bytes have to be there, so that there can be a batch at `position`."""
    if len(chunk) - position < HEADER_SIZE:
        return HEADER_SIZE
    header = _header_or_none(chunk, position)
    return 0 if header is None else header.size_in_bytes


def whole_batches(
    data: bytes, end_offset: int, first_offset: int = 0, leader_epoch: int = NO_LEADER_EPOCH
) -> tuple[int, int]:
    """How much of `data`, which begins with a batch, is whole batches that end below `end_offset`, up to one
    that is damaged; the offset behind them, -1 where there is none.

    Raises CorruptRecordError where the first one is not what its checksum says, or does not ascend from
    `first_offset` on, or has another leader epoch than that one (NO_LEADER_EPOCH: any).
    """
    position, next_offset = sound_batches(data, end_offset, first_offset, leader_epoch)
    if position:
        # What is torn, beyond the end or damaged is told to whoever asks for that one.
        return position, next_offset
    if len(data) < _FETCH_FIELDS.size:
        return 0, -1
    # What is sound is a kernel's; what it leaves gets a name here.
    base_offset, batch_length, epoch, magic, crc, _, last_offset_delta = _FETCH_FIELDS.unpack_from(data)
    size_bytes, next_offset = LOG_OVERHEAD + batch_length, base_offset + last_offset_delta + 1
    if magic != MAGIC or batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecordError("a stored batch has no valid header", base_offset=base_offset)
    if base_offset < first_offset:
        raise CorruptRecordError(
            "a stored batch begins below the end of the one before it",
            base_offset=base_offset,
            expected_offset=first_offset,
        )
    if size_bytes > len(data) or next_offset > end_offset:
        return 0, -1
    if crc32c(memoryview(data)[ATTRIBUTES_POSITION:size_bytes]) != crc:
        raise CorruptRecordError("a stored batch does not match its checksum", base_offset=base_offset)
    if leader_epoch not in (NO_LEADER_EPOCH, epoch):
        raise CorruptRecordError(
            "a stored batch has another leader epoch than the log has there",
            base_offset=base_offset,
            leader_epoch=epoch,
            expected_epoch=leader_epoch,
        )
    return size_bytes, next_offset
