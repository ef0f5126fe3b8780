"""The checksum of a segment's transaction index, in a file beside it.

Kafka's format has none, and only a walk over all of the log could show that an entry lets its transaction
begin too late, or the search end too early: then aborted records would be read as committed. The file is
eight hexadecimal digits, CRC-32C of the index, and a line feed.

It is written behind the index. So a crash leaves one that is older, or none, and a broker's log has none
either. What does not match is no more than a reason to make the index again from the batches; where there is
none, what entries say is compared with the batches that they name (`aborted_evidence`).
"""

from __future__ import annotations

from crc32c import crc32c

from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.segment.file_names import TRANSACTION_CHECKSUM_SUFFIX, segment_path


def checksum_line(index: Buffer) -> bytes:
    """The contents of the file."""
    return f"{crc32c(index):08x}\n".encode()


def is_proven(filesystem: FileSystem, directory: str, base_offset: int, index: Buffer) -> bool | None:
    """The index of that segment is what it was when it was written; None where no file says. Raises
    OSError."""
    try:
        found = filesystem.read_file(segment_path(directory, base_offset, TRANSACTION_CHECKSUM_SUFFIX))
    except FileNotFoundError:
        return None
    # Of a file that was being made when the power went, nothing may have come to the disk.
    return found == checksum_line(index) if found else None


def write_checksum(filesystem: FileSystem, directory: str, base_offset: int, index: Buffer) -> None:
    """For an index that has none. Not synced. Raises OSError."""
    path = segment_path(directory, base_offset, TRANSACTION_CHECKSUM_SUFFIX)
    file = filesystem.open_append(path)
    try:
        file.truncate(0)
        file.append([checksum_line(index)])
    finally:
        file.close()
