"""Reads a log file for a clean, in windows of about a mebibyte.

A window begins with a batch and may end inside one; it grows for a first batch that is larger. The headers of
a new window are compared with their neighbours and the segment's end, and at the segment's end with its seal,
because a clean decides by base offsets, which checksums do not cover.
"""

from __future__ import annotations

import struct

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import (
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.batch_kernels import headers_crc, skip_batches
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_seal import contradicts_seal

_LENGTH = struct.Struct(">i")


class BatchWindow:
    """A position in a sealed segment that moves on batch by batch. Not thread-safe: guarded by its user."""

    def __init__(
        self, segment: LogSegment, file: AppendFile, position: int, on_read: OnRead, buffer: bytearray
    ) -> None:
        """`file` is the segment's; a batch begins at `position`. Each window is read into `buffer` and has
        its size; only a larger batch gets memory of its own."""
        self.data: Buffer = b""
        """Valid until the next `has_batch`."""
        self.at = 0
        """The position in `data` where the next batch begins."""
        self.end_offset = segment.base_offset
        """The offset after the last batch that begins in `data`."""
        self.is_new = False
        """`data` was just read. The user sets it to False."""
        self._segment = segment
        self._file = file
        self._data_position = position
        self._next_offset = segment.base_offset
        self._on_read = on_read
        self._buffer = memoryview(buffer)
        # The sum over the headers that were read, and the one in the seal; None if it is not known.
        self._headers_crc = 0
        self._sealed_crc = segment.sealed_headers_crc if position == 0 else None

    @property
    def position(self) -> int:
        return self._data_position + self.at

    def has_batch(self) -> bool:
        """Read on until all of the next batch is in `data`; this may replace `data`. False at the segment's
        end. Raises CorruptRecordError, OSError."""
        while (needed_bytes := self._needed_bytes()) > len(self.data) - self.at:
            left_bytes = self._segment.size_bytes - self.position
            if left_bytes == 0:
                if self._sealed_crc not in (None, self._headers_crc):
                    raise contradicts_seal(self._segment.path)
                return False
            if needed_bytes > left_bytes:
                raise self.damaged("the segment ends inside a batch")
            self._read(min(left_bytes, max(len(self._buffer), needed_bytes)))
        return True

    def _needed_bytes(self) -> int:
        if len(self.data) - self.at < HEADER_SIZE:
            return HEADER_SIZE
        # The headers in `data` were checked when they were read.
        batch_length: int = _LENGTH.unpack_from(self.data, self.at + BATCH_LENGTH_POSITION)[0]
        return LOG_OVERHEAD + batch_length

    def header(self) -> BatchHeader:
        """The header of the next batch. Raises CorruptRecordError."""
        try:
            return parse_header(self.data, self.at)
        except CorruptRecordError as failure:
            raise self.damaged(failure.message) from failure

    def batch(self, header: BatchHeader) -> memoryview:
        return memoryview(self.data)[self.at : self.at + header.size_in_bytes]

    def move_to(self, at: int, next_offset: int) -> None:
        """Move to `at` in `data`, after batches that were cleaned."""
        assert self.at <= at <= len(self.data)
        self.at, self._next_offset = at, next_offset

    def pass_by(self, header: BatchHeader) -> None:
        self.move_to(self.at + header.size_in_bytes, header.next_offset)

    def _read(self, size_bytes: int) -> None:
        begun = memoryview(self.data)[self.at :]
        is_large = size_bytes > len(self._buffer)
        self._on_read(size_bytes if is_large else size_bytes - len(begun))
        position = self.position
        if is_large:
            # This memory need not be filled with zeros first.
            data: Buffer = self._file.read_at(position, size_bytes)
        else:
            self._buffer[: len(begun)] = begun
            missing = self._buffer[len(begun) : size_bytes]
            read_bytes = self._file.read_into(position + len(begun), missing)
            data = self._buffer[: len(begun) + read_bytes]
        self.data, self.at, self._data_position = data, 0, position
        if len(data) < size_bytes:
            raise self.damaged("the file has become shorter")
        limit_offset = self._segment.end_offset
        skipped_bytes, self.end_offset, _ = skip_batches(
            self.data, limit_offset, self._next_offset, NO_LEADER_EPOCH
        )
        if skipped_bytes + HEADER_SIZE <= len(self.data):
            self.at = skipped_bytes
            self.header()
            raise self.damaged("a batch contradicts the one before it, or the segment's end")
        self._headers_crc = headers_crc(self.data, self._headers_crc)
        self.is_new = True

    def damaged(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(
            "a segment is damaged and is not cleaned; restore it, or delete the records before the damage",
            path=self._segment.path,
            position=self.position,
            reason=reason,
        )
