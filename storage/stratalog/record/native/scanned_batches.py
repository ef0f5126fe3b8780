"""The result of a scan of a row of batches."""

from __future__ import annotations

from typing import NamedTuple


class ScannedBatches(NamedTuple):
    """Facts of consecutive bare batches that a scan has proved."""

    end_position: int
    """The position after the last batch. If it is the position of the call, no batch was taken and the other
    fields mean nothing."""
    fingerprint: int
    records_count: int = 0
    tombstone_count: int = 0
    null_key_count: int = 0
    first_base_offset: int = -1
    """Base offset of the first batch."""
    leader_epoch: int = -1
    """The leader epoch of all batches."""
    last_base_offset: int = -1
    """Base offset of the last batch; `last_crc` and `next_offset` belong to it too."""
    last_crc: int = 0
    next_offset: int = -1
    """Exclusive end of the offsets that the batches cover."""
    first_offset: int = -1
    """Offset of the first record, as `last_offset` is of the last."""
    last_offset: int = -1
    min_timestamp: int = -1
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    """Offset of the first record with the highest timestamp."""
    delete_horizon_ms: int | None = None
    """The earliest delete horizon, if any batch has one."""
    marker_count: int = 0
    """Records of control batches. They are no tombstones, and do not count as records without a key."""
    is_transactional: bool = False
    """Some of the batches are part of a transaction."""
