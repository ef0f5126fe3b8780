"""Counts the records that stay of a partition: while they are chosen, and again in the written object. Bytes
that are carried unchanged are summed up instead."""

from __future__ import annotations

import struct
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.batch import records_payload
from stratalog.record.header import BatchHeader
from stratalog.record.native.batch_filter import CompactedSlices, FilteredBatches
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.record.native.kernels import joined_crc, scan_records
from stratalog.record.native.scanned_batches import ScannedBatches
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import SliceEntry

_BATCH_MARK = struct.Struct("<qIi")


class KeptRecords(NamedTuple):
    """The facts of one slice in which both counts must agree."""

    record_count: int
    first_offset: int
    """The offset of the first record; -1 if there is none, like `last_offset`."""
    last_offset: int
    fingerprint: int
    """CRC-32C over base offset, checksum and record count of every batch. A batch's checksum covers its
    records, so two slices with the same fingerprint hold the same records.
    """

    @staticmethod
    def of_compacted(compacted: CompactedSlices) -> list[KeptRecords]:
        """Those of each slice that a kernel has counted while it chose them."""
        return list(map(KeptRecords._make, zip(*map(compacted.column, KeptRecords._fields), strict=True)))


class CarriedBytes(NamedTuple):
    """The facts of a slice that is the concatenation of others, byte for byte. Their checksums prove it, so
    no record is looked at."""

    record_count: int
    size_bytes: int
    crc: int
    """CRC-32C of all the bytes."""


class CarriedTally:
    """Sums up whole batches in their order. Not thread-safe: guarded by the job."""

    def __init__(self) -> None:
        self._record_count = self._size_bytes = self._crc = 0

    def add(self, row: Buffer) -> None:
        """Add whole batches; looks at their headers only."""
        self._record_count += whole_batches(row)[1]
        self._size_bytes += len(row)
        self._crc = crc_of(row, self._crc)

    def add_slice(self, entry: SliceEntry) -> None:
        """Add all of a slice by its entry: the reader of its data proves that."""
        self._record_count += entry.record_count
        self._size_bytes += entry.data_bytes
        self._crc = joined_crc(self._crc, entry.data_crc, entry.data_bytes)

    def result(self) -> CarriedBytes:
        """Return the sums so far."""
        return CarriedBytes(self._record_count, self._size_bytes, self._crc)


class KeptTally:
    """Counts batches in their order. Not thread-safe: guarded by the job."""

    def __init__(self) -> None:
        self._record_count = 0
        self.fingerprint = 0
        """The fingerprint of the batches so far."""
        self._first_offset = -1
        self._last_offset = -1
        self._unseen: tuple[memoryview, BatchHeader] | None = None
        """The last batch, until the offset of its last record is known."""

    def add(
        self,
        buffer: Buffer,
        position: int,
        header: BatchHeader,
        record_count: int,
        offset_deltas: tuple[int, int] | None = None,
    ) -> None:
        """Add a whole batch with that many records; `offset_deltas`: of the first and the last record, if
        known. Raises CorruptRecordError.
        """
        if offset_deltas is None and header.records_count == header.last_offset_delta + 1:
            offset_deltas = 0, header.last_offset_delta
        self._unseen = None
        if offset_deltas is not None:
            self._last_offset = header.base_offset + offset_deltas[1]
        else:
            self._unseen = memoryview(buffer)[position : position + header.size_in_bytes], header
        if self._record_count == 0:
            self._first_offset = (
                header.base_offset + (offset_deltas or _offset_deltas(buffer, position, header))[0]
            )
        self._record_count += record_count
        mark = _BATCH_MARK.pack(header.base_offset, header.crc, header.records_count)
        self.fingerprint = crc_of(mark, self.fingerprint)

    def add_proved(self, kept: ScannedBatches | FilteredBatches) -> None:
        """Add batches with at least one record; their fingerprint continues this one."""
        if self._record_count == 0:
            self._first_offset = kept.first_offset
        self._unseen = None
        self._record_count += kept.records_count
        self._last_offset = kept.last_offset
        self.fingerprint = kept.fingerprint

    def keep(self) -> None:
        """Release the buffers of the caller, at the end of a slice."""
        if self._unseen is not None:
            (batch, header), self._unseen = self._unseen, None
            self._last_offset = header.base_offset + _offset_deltas(batch, 0, header)[1]

    def result(self) -> KeptRecords:
        """Return the records counted so far. Raises CorruptRecordError."""
        self.keep()
        return KeptRecords(self._record_count, self._first_offset, self._last_offset, self.fingerprint)


def _offset_deltas(buffer: Buffer, position: int, header: BatchHeader) -> tuple[int, int]:
    payload = records_payload(buffer, position, header)
    summary = scan_records(payload, header.records_count, header.last_offset_delta)
    return summary.first_offset_delta, summary.last_offset_delta
