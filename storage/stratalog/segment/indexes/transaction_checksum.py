"""The checksum of a segment's transaction index, in a file beside it.

Kafka's format has none, and only a walk over all of the log could show that an entry lets its transaction
begin too late, or the search end too early: then aborted records would be read as committed. The file is
eight hexadecimal digits and a line feed: CRC-32C of the index, followed by the size of the segment's data
file as an int64, big-endian. So an index that came back from another time does not pass because its checksum
came back with it.

It is written behind the index. So a crash leaves one that is older, or none, or zeros, and a broker's log has
none either. What does not match is no more than a reason to make the index again from the batches; where
there is none, what entries say is compared with the batches that they name (`aborted_evidence`).
"""

from __future__ import annotations

import re
import struct

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.file_contents import write_file
from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.segment.file_names import TRANSACTION_CHECKSUM_SUFFIX, segment_path

_SIZE = struct.Struct(">q")
_LINE = re.compile(rb"[0-9a-f]{8}\n")


def checksum_line(index_checksum: int, log_size_bytes: int) -> bytes:
    """The contents of the file, by the CRC-32C of the index."""
    return f"{crc32c(_SIZE.pack(log_size_bytes), index_checksum):08x}\n".encode()


def parse_line(found: bytes) -> int:
    """CRC-32C of the index and the size. Raises CorruptRecordError where the contents are not those of such a
    file."""
    if _LINE.fullmatch(found) is None:
        raise CorruptRecordError("not eight hexadecimal digits and a line feed")
    return int(found, 16)


def says_nothing(found: bytes) -> bool:
    """Of a file that was being made when the power went, nothing may have come to the disk but its size."""
    return not found.strip(b"\0")


def matches(found: bytes, index_checksum: int, log_size_bytes: int) -> bool | None:
    """The index is what it was when the file was written that has these contents; None where they say
    nothing."""
    return None if says_nothing(found) else found == checksum_line(index_checksum, log_size_bytes)


def is_proven(
    filesystem: FileSystem, directory: str, base_offset: int, index: Buffer, log_size_bytes: int
) -> bool | None:
    """The index of that segment is what it was when it was written; None where no file says. Raises
    OSError."""
    try:
        found = filesystem.read_file(segment_path(directory, base_offset, TRANSACTION_CHECKSUM_SUFFIX))
    except FileNotFoundError:
        return None
    return matches(found, crc32c(index), log_size_bytes)


def write_checksum(
    filesystem: FileSystem, directory: str, base_offset: int, index: Buffer, log_size_bytes: int
) -> None:
    """For an index that has none. Not synced. Raises OSError."""
    path = segment_path(directory, base_offset, TRANSACTION_CHECKSUM_SUFFIX)
    write_file(filesystem, path, [checksum_line(crc32c(index), log_size_bytes)], durable=False)
