"""What is left of a partition: counted while it is decided, and counted again from what was written."""

from __future__ import annotations

import struct
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.batch import decode
from stratalog.record.header import BatchHeader
from stratalog.remote.object_format import crc_of

_BATCH_MARK = struct.Struct("<qIi")


class KeptRecords(NamedTuple):
    """The records of one slice, as far as two countings can be compared."""

    record_count: int
    first_offset: int
    """Of a record; -1 where there is none, as is the next."""
    last_offset: int
    fingerprint: int
    """CRC-32C over base offset, checksum and record count of every batch. A batch's checksum covers its
    records, so two slices with the same fingerprint hold the same records.
    """


class KeptTally:
    """Counts batches in their order. Not thread-safe: guarded by the job."""

    def __init__(self) -> None:
        self._record_count = 0
        self._fingerprint = 0
        self._first: bytes | None = None
        self._last: bytes | None = None
        self._last_view: memoryview | None = None

    def add(self, buffer: Buffer, position: int, header: BatchHeader, record_count: int) -> None:
        """A whole batch with that many records, as far as the caller knows."""
        batch = memoryview(buffer)[position : position + header.size_in_bytes]
        if self._first is None:
            self._first = bytes(batch)
        self._last_view = batch
        self._record_count += record_count
        mark = _BATCH_MARK.pack(header.base_offset, header.crc, header.records_count)
        self._fingerprint = crc_of(mark, self._fingerprint)

    def keep(self) -> None:
        """Let go of the buffers that were handed over: a slice has been read to its end."""
        if self._last_view is not None:
            self._last, self._last_view = bytes(self._last_view), None

    def result(self) -> KeptRecords:
        """Decodes the first and the last batch. Raises CorruptRecordError."""
        self.keep()
        if self._first is None or self._last is None:
            return KeptRecords(0, -1, -1, 0)
        first_offset = decode(self._first)[0].offset
        last_offset = decode(self._last)[-1].offset
        return KeptRecords(self._record_count, first_offset, last_offset, self._fingerprint)
