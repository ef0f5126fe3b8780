"""Keeps the bytes that a recovery cuts off, if sound batches are among them.

Behind a torn tail there is nothing: the last write did not reach the disk as a whole. But sound batches
behind the damage have one of two causes, which look the same. After a power loss, later pages may be on the
disk and earlier ones not; then no client that waits for `disk` has an acknowledgement for these records. Or
fsynced bytes above the last checkpoint of the recovery point, which lags behind, were damaged; then the sound
batches are acknowledged records. In both cases the log ends before the damage, as in Kafka, because a log has
no holes. But the bytes may be the only copy of these records, so they are kept beside the log for the
operator::

    00000000000000147015.cut      bytes of the log from this offset on, in this segment
    00000000000000150000.cut      a later segment, whole
    00000000000000150000-2.cut    the same, if an earlier recovery has kept bytes from this offset on

Only the operator removes such a file. A crash leaves the log as it was, perhaps with a copy beside it; the
next recovery makes another one.
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
_MAGIC_BYTE = bytes([MAGIC])


def keep_remains(filesystem: FileSystem, files: OpenFiles, directory: str, found: WalkedLog) -> list[str]:
    """Copy the bytes that will be cut off, if a sound batch is in them; return the paths of the copies.
    Durable when it returns.

    Raises OSError, with nothing cut.
    """
    last = found.walked[-1]
    pieces = [(last.segment.path, last.valid_bytes, last.segment.size_bytes, last.end_offset)]
    pieces += [(segment.path, 0, segment.size_bytes, segment.base_offset) for segment in found.invalid]
    pieces = [piece for piece in pieces if piece[1] < piece[2]]
    if not any(_has_batch(files, path, start, end, last.end_offset) for path, start, end, _ in pieces):
        return []
    kept: list[str] = []
    for path, start, end, offset in pieces:
        kept.append(_free_path(filesystem, directory, offset))
        with files.use(path) as file:
            _copy(filesystem, file, start, end, kept[-1])
    filesystem.sync_directory(directory)
    return kept


def _has_batch(files: OpenFiles, path: str, start: int, end: int, end_offset: int) -> bool:
    """Whether a sound batch at or above the log's end begins in these bytes of the file."""
    with files.use(path) as file:
        for chunk_position in range(start, end, _CHUNK_BYTES):
            # With room for a header that begins at the chunk's end.
            chunk = file.read_at(chunk_position, min(_CHUNK_BYTES + HEADER_SIZE, end - chunk_position))
            at = chunk.find(_MAGIC_BYTE, MAGIC_POSITION)
            while at >= 0:
                header = _header(chunk, at - MAGIC_POSITION)
                position = chunk_position + at - MAGIC_POSITION
                if (
                    header is not None
                    and header.base_offset >= end_offset
                    and position + header.size_in_bytes <= end
                    and crc_matches(file.read_at(position, header.size_in_bytes), 0, header)
                ):
                    return True
                at = chunk.find(_MAGIC_BYTE, at + 1)
    return False


def _header(chunk: bytes, position: int) -> BatchHeader | None:
    try:
        return parse_header(chunk, position)
    except CorruptRecordError:
        return None


def _free_path(filesystem: FileSystem, directory: str, offset: int) -> str:
    stem = segment_path(directory, offset, "")
    names = (f"{stem}{f'-{number}' if number > 1 else ''}{CUT_SUFFIX}" for number in count(1))
    return next(path for path in names if not filesystem.exists(path))


def _copy(filesystem: FileSystem, source: AppendFile, start: int, end: int, path: str) -> None:
    # Named `.cleaned`, so the next process removes it if this one dies.
    unfinished_path = segment_path(path.rpartition("/")[0], 0, LOG_SUFFIX) + CLEANED_SUFFIX
    write_file(filesystem, unfinished_path, read_pieces(source, start, end))
    filesystem.rename(unfinished_path, path)
