"""The result of compacting a small run of plain slices with one call."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from stratalog.base.filesystem import Buffer
from stratalog.record.native.batch_filter import BatchFilter

SliceInput: TypeAlias = tuple[Buffer, int, int, Buffer, bytearray, BatchFilter]
"""A slice of which records stay: its data, their CRC-32C, the number of records, the key stream, which was
proved before, a bit for each record that stays, and the rest of the rule."""


class CompactedSlices(NamedTuple):
    """The slice that replaces others, and all that its entry, index and key stream say of it."""

    data: bytes
    """The batches that stay; none if no record stays, and the statistics mean nothing then."""
    crc: int
    fingerprint: int
    """The fingerprint of the batches, as `filter_batches` makes it."""
    records_count: int
    first_offset: int
    """The offset of the first record; -1 if there is none, like `last_offset`."""
    last_offset: int
    dropped_tombstone_count: int
    tombstone_count: int
    """Tombstones that stay."""
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    delete_horizon_ms: int | None
    """The earliest one."""
    next_offset: int
    """Exclusive end of the offsets of the last batch."""
    last_base_offset: int
    leader_epoch: int
    """That of the last batch."""
    last_crc: int
    positions: bytes
    """A column of the index, as little-endian 64-bit numbers, like the next two."""
    base_offsets: bytes
    max_timestamps: bytes
    keys: bytes
    """The key stream."""
    key_count: int
    keys_crc: int
