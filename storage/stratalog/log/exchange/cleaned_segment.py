"""A segment that a clean has made, before it is part of a log: files named `.cleaned`, and their contents."""

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
"""Called before so many bytes are read. May wait, to throttle, or raise, to end the clean."""


class CleanedSegment(NamedTuple):
    """The segment as its writer made it. Its files are synced; their names are not."""

    base_offset: int
    last_offset: int
    """Last offset of its last batch. There is always one, because recovery finds segments by their
    offsets."""
    checksum: int
    """CRC-32C of all bytes that were written to the data file."""
    seal: SegmentSeal

    @property
    def size_bytes(self) -> int:
        """Size of the data file."""
        return self.seal.log_size_bytes

    def prove(self, filesystem: FileSystem, directory: str, on_read: OnRead) -> None:
        """Read the data back, and check that the index files exist. Raises CorruptRecordError if the data
        differ from the written bytes, OSError (FileNotFoundError for a missing file), and what `on_read`
        raises."""
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
                "a cleaned segment differs from the bytes that were written to it; check the disk",
                path=path,
                size_bytes=position,
                expected_bytes=self.size_bytes,
            )
