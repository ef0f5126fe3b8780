"""What one walk over a row of batches tells."""

from __future__ import annotations

from typing import NamedTuple


class ScannedBatches(NamedTuple):
    """Facts of consecutive plain batches that were proved."""

    end_position: int
    """Behind the last of them. Where it is the position that was asked for, there was none, and nothing else
    means anything.
    """
    records_count: int
    tombstone_count: int
    null_key_count: int
    first_base_offset: int
    """Of the first batch, as `leader_epoch`, which is the same in all of them."""
    leader_epoch: int
    last_base_offset: int
    """Of the last batch, as `last_crc` and `next_offset`."""
    last_crc: int
    next_offset: int
    """Exclusive end of the offsets that they cover."""
    first_offset: int
    """Of a record, as is the next."""
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    """Of the first record with the highest timestamp."""
    delete_horizon_ms: int | None
    """The earliest of those that have one."""
    fingerprint: int
