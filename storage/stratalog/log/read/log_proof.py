"""Proves that the records of a log are sound, before the only other copy of them goes."""

from __future__ import annotations

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.log.isolation import Isolation
from stratalog.log.log_offsets import LogOffsets
from stratalog.log.read.log_reader import LogReader

_PORTION_BYTES = 4 * 1024 * 1024


class LogProof:
    """Reads a log once from its beginning on, as a reader does, a part with each call. Not thread-safe: its
    owner guards it; the log may change meanwhile."""

    def __init__(self, reader: LogReader, offsets: LogOffsets) -> None:
        self._reader = reader
        self._offsets = offsets
        # Readers get sound records from the log's beginning up to here.
        self._proven_end_offset = 0

    def reaches(self, end_offset: int) -> bool:
        """Whether all that the log has below `end_offset` is proven."""
        return self._next_offset() >= end_offset

    def prove(self, end_offset: int, max_bytes: int) -> int:
        """Go on up to `end_offset`, which the log has, or until `max_bytes` are read; returns the bytes read,
        which may be a few more.

        Raises CorruptRecordError, and so does the next call, until the log begins behind the damage;
        DataDirectoryError.
        """
        read_bytes = 0
        while read_bytes < max_bytes and (offset := self._next_offset()) < end_offset:
            try:
                data = self._reader.read(offset, _PORTION_BYTES, Isolation.LOG_END)
                self._reader.aborted_transactions(offset, min(data.next_offset, end_offset))
            except OffsetOutOfRangeError:
                # Retention has deleted what came next.
                if self._next_offset() == offset:
                    raise
                continue
            assert data.next_offset > offset, "a read goes on"
            self._proven_end_offset = data.next_offset
            read_bytes += len(data.batches)
        return read_bytes

    def _next_offset(self) -> int:
        return max(
            self._proven_end_offset, self._offsets.local_log_start_offset, self._offsets.log_start_offset
        )
