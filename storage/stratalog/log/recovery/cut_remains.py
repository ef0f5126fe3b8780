"""Keeps the bytes that a recovery cuts off, if a sound batch is among them.

Behind a torn tail there is nothing: the last write did not reach the disk as a whole. But sound batches
behind the damage have one of two causes, which look the same. After a power loss, later pages may be on the
disk and earlier ones not; then no client that waits for `disk` has an acknowledgement for these records. That
is one fault, so the log is cut and goes on. Or fsynced bytes above the last checkpoint of the recovery point
were damaged before a crash; then the sound batches are acknowledged records. So the bytes are kept beside the
log for the operator::

    00000000000000147015.cut      bytes of the log from this offset on, in this segment
    00000000000000150000.cut      a later segment, whole
    00000000000000150000-2.cut    the same, if an earlier recovery has kept other bytes from this offset on

Only the operator removes such a file. A crash or a full disk leaves the log as it was, perhaps with some
copies beside it; the next recovery keeps these, and makes those that are missing. So starts that fail, one
after the other, do not fill the disk.
"""

from __future__ import annotations

from itertools import count

from stratalog.base.errors import CorruptRecordError
from stratalog.base.file_contents import read_pieces, write_file
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.log.recovery.log_recovery import WalkedLog
from stratalog.record.batch import crc_matches
from stratalog.record.header import HEADER_SIZE, MAGIC, MAGIC_POSITION, BatchHeader, parse_header
from stratalog.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_path
from stratalog.segment.open_files import OpenFiles

CUT_SUFFIX = ".cut"
_CHUNK_BYTES = 1024 * 1024


def keep_remains(filesystem: FileSystem, files: OpenFiles, directory: str, found: WalkedLog) -> list[str]:
    """Copy the bytes that will be cut off, if a sound batch is in them; return the paths of the copies.
    Durable when it returns.

    Raises OSError, with nothing cut.
    """
    last = found.walked[-1]
    pieces = [(last.segment, last.valid_bytes, last.end_offset)]
    pieces += [(segment, 0, segment.base_offset) for segment in found.invalid]
    has_batch = False
    for segment, start, _ in pieces:
        with files.use(segment.path) as file:
            has_batch = has_batch or _has_batch(file, start, segment.size_bytes, last.end_offset)
    kept: list[str] = []
    for segment, start, offset in pieces if has_batch else ():
        if start < segment.size_bytes:
            stem = segment_path(directory, offset, "")
            names = (f"{stem}{f'-{number}' if number > 1 else ''}{CUT_SUFFIX}" for number in count(1))
            # Named `.cleaned`, so the next process removes it if this one dies.
            unfinished_path = segment_path(directory, 0, LOG_SUFFIX) + CLEANED_SUFFIX
            with files.use(segment.path) as file:
                path = next(
                    path
                    for path in names
                    if not filesystem.exists(path) or _has_copy(files, path, file, start, segment.size_bytes)
                )
                if not filesystem.exists(path):
                    write_file(filesystem, unfinished_path, read_pieces(file, start, segment.size_bytes))
                    filesystem.rename(unfinished_path, path)
            kept.append(path)
    if kept:
        filesystem.sync_directory(directory)
    return kept


def _has_copy(files: OpenFiles, path: str, file: AppendFile, start: int, end: int) -> bool:
    """Whether the file `path` is a copy of these bytes of the other one."""
    with files.use(path) as copy:
        is_same = copy.size() == end - start and all(
            piece == copied
            for piece, copied in zip(
                read_pieces(file, start, end), read_pieces(copy, 0, end - start), strict=True
            )
        )
    files.forget(path)
    return is_same


def _has_batch(file: AppendFile, start: int, end: int, end_offset: int) -> bool:
    """Whether a sound batch at or above the log's end begins in these bytes of the file. The byte with the
    magic number leads to it."""
    for chunk_position in range(start, end, _CHUNK_BYTES):
        # With room for a header that begins at the chunk's end.
        chunk = file.read_at(chunk_position, min(_CHUNK_BYTES + HEADER_SIZE, end - chunk_position))
        at = chunk.find(MAGIC, MAGIC_POSITION)
        while at >= 0:
            position = chunk_position + at - MAGIC_POSITION
            header = _header_or_none(chunk, at - MAGIC_POSITION)
            if (
                header is not None
                and header.base_offset >= end_offset
                and position + header.size_in_bytes <= end
                and crc_matches(file.read_at(position, header.size_in_bytes), 0, header)
            ):
                return True
            at = chunk.find(MAGIC, at + 1)
    return False


def _header_or_none(chunk: bytes, position: int) -> BatchHeader | None:
    try:
        return parse_header(chunk, position)
    except CorruptRecordError:
        return None
