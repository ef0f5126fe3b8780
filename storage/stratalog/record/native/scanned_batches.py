"""What a scan of a row of batches finds."""

from __future__ import annotations

from typing import NamedTuple


class ScannedBatches(NamedTuple):
    """Facts of consecutive plain batches, which were proved."""

    end_position: int
    """Behind the last of them. If it is the position of the call, no batch was taken and the other fields
    mean nothing."""
    fingerprint: int
    records_count: int = 0
    tombstone_count: int = 0
    null_key_count: int = 0
    first_base_offset: int = -1
    """Of the first batch."""
    leader_epoch: int = -1
    """Of all batches."""
    last_base_offset: int = -1
    """Of the last batch, like `last_crc` and `next_offset`."""
    last_crc: int = 0
    next_offset: int = -1
    """Exclusive end of the offsets that the batches cover."""
    first_offset: int = -1
    """Of a record, like `last_offset`."""
    last_offset: int = -1
    min_timestamp: int = -1
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    """Of the first record with the highest timestamp."""
    delete_horizon_ms: int | None = None
    """The earliest, if any batch has one."""
