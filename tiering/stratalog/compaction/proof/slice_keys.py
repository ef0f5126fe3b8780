"""Hashes the keys of a slice from its data, and finds the offsets of its records again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.slice_reader import SliceReader
from stratalog.record.batch import batches, decode, records_payload, require_crc, verify_records
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native.batch_kernels import hash_batches, scan_batches
from stratalog.record.native.kernels import KeyEntries, hash_keys
from stratalog.record.native.scanned_batches import ScannedBatches
from stratalog.remote.objects.key_stream import KeyHashing


class OffsetBounds(NamedTuple):
    """Offsets in [first_offset, end_offset)."""

    first_offset: int
    end_offset: int

    def hold(self, first_offset: int, last_offset: int) -> bool:
        """Whether they have all from the first one to the last one."""
        return self.first_offset <= first_offset and last_offset < self.end_offset


class SliceKeys:
    """Hashes the records of one slice that count and lie within bounds. Not thread-safe: one use."""

    def __init__(
        self, hashing: KeyHashing, fates: RecordFates, bounds: OffsetBounds, parts: KeyParts
    ) -> None:
        self.keyless_count = 0
        """Records that count and have no key."""
        self._hashing = hashing
        self._fates = fates
        self._bounds = bounds
        self._parts = parts

    def read(self, reader: SliceReader) -> None:
        """Read the slice to its end. Raises what `SliceReader` and the store raise, and CorruptRecordError
        for a batch that is not sound."""
        ordinal = 0
        for row in reader.rows():
            ordinal = self._add_row(row, ordinal)
            self._parts.added()

    def _add_row(self, row: Buffer, ordinal: int) -> int:
        """Add whole batches, of which the first record has this ordinal; returns that behind the last."""
        position = slow_end = 0
        is_within = True
        while position < len(row):
            is_slow = not is_within or position < slow_end
            scanned = None if is_slow else scan_batches(row, position, len(row), 0)
            if scanned is not None and scanned.is_transactional:
                slow_end = scanned.end_position
            elif scanned is not None and scanned.end_position > position:
                is_within = self._bounds.hold(scanned.first_offset, scanned.last_offset)
                if is_within:
                    self._add_scanned(row, position, ordinal, scanned)
                    position = scanned.end_position
                    ordinal += scanned.records_count
                    continue
            header = parse_header(row, position)
            self._add_batch(row, position, ordinal, header)
            position += header.size_in_bytes
            ordinal += header.records_count
        return ordinal

    def _add_scanned(self, row: Buffer, position: int, ordinal: int, scanned: ScannedBatches) -> None:
        self.keyless_count += scanned.null_key_count
        plain = memoryview(row)[position : scanned.end_position]
        hashing = self._hashing
        hash_batches(plain, hashing.hash_key, ordinal, self._parts.entries, hashing.version_rule)

    def _add_batch(self, row: Buffer, position: int, ordinal: int, header: BatchHeader) -> None:
        require_crc(row, position, header)
        payload = records_payload(row, position, header)
        summary = verify_records(payload, header)
        if not header.records_count or not self._fates.counts(header):
            return
        first_offset = header.base_offset + summary.first_offset_delta
        last_offset = header.base_offset + summary.last_offset_delta
        if self._bounds.hold(first_offset, last_offset):
            self.keyless_count += summary.null_key_count
            self._hash(payload, header, ordinal, self._parts.entries)
            return
        wanted = {
            number
            for number, record in enumerate(decode(row, position), ordinal)
            if self._bounds.hold(record.offset, record.offset)
        }
        entries = self._hashing.new_entries()
        self._hash(payload, header, ordinal, entries)
        self.keyless_count += len(wanted - set(entries.ordinal))
        self._parts.entries.extend(entries.of_ordinals(wanted))

    def _hash(self, payload: Buffer, header: BatchHeader, ordinal: int, entries: KeyEntries) -> None:
        hashing = self._hashing
        versions = hashing.versions_of(header)
        hash_keys(payload, header.records_count, hashing.hash_key, ordinal, entries, versions)


def offsets_of(reader: SliceReader, ordinals: Collection[int]) -> dict[int, int]:
    """The offsets of the records of a slice with these ordinals. Raises what `SliceReader` raises."""
    wanted = sorted(ordinals)
    found: dict[int, int] = {}
    first = place = 0
    for row in reader.rows():
        for position, header in batches(row):
            end = first + header.records_count
            if place < len(wanted) and wanted[place] < end:
                records = decode(row, position)
                while place < len(wanted) and wanted[place] < end:
                    found[wanted[place]] = records[wanted[place] - first].offset
                    place += 1
            first = end
    return found
