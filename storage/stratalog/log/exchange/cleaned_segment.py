"""A segment that a clean has made, before it is part of a log: files named `.cleaned`, and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.segment_seal import SegmentSeal

_CHUNK_BYTES = 256 * 1024
OnRead = Callable[[int], None]
"""Told before so many bytes are read: who throttles waits here, who is to end the clean raises."""


class CleanedSegment(NamedTuple):
    """What whoever made it knows. Its files are synced; their names are not."""

    base_offset: int
    last_offset: int
    """Of its last batch: a segment that nobody could find again by its offsets is never made."""
    checksum: int
    """CRC-32C of all bytes of the data file, as they were handed to it."""
    seal: SegmentSeal

    @property
    def size_bytes(self) -> int:
        """Of the data file."""
        return self.seal.log_size_bytes

    def prove(self, filesystem: FileSystem, directory: str, on_read: OnRead) -> None:
        """Read the data back, and see that it has its indexes. Raises CorruptRecordError where it is not what
        was written, OSError (FileNotFoundError where a file has no name), and what `on_read` does."""
        for suffix in INDEX_SUFFIXES:
            if suffix != TRANSACTION_INDEX_SUFFIX or self.seal.has_aborted:
                filesystem.file_size(segment_path(directory, self.base_offset, suffix) + CLEANED_SUFFIX)
        path = segment_path(directory, self.base_offset, LOG_SUFFIX) + CLEANED_SUFFIX
        file = filesystem.open_read(path)
        try:
            position = checksum = 0
            chunk = memoryview(bytearray(_CHUNK_BYTES))
            while True:
                on_read(min(_CHUNK_BYTES, max(1, self.size_bytes - position)))
                read_bytes = file.read_into(position, chunk)
                if read_bytes == 0:
                    break
                checksum = crc32c(chunk[:read_bytes], checksum)
                position += read_bytes
        finally:
            file.close()
        if (position, checksum) != (self.size_bytes, self.checksum):
            raise CorruptRecordError(
                "a cleaned segment does not hold what was written to it; find out what the disk did",
                path=path,
                size_bytes=position,
                expected_bytes=self.size_bytes,
            )
