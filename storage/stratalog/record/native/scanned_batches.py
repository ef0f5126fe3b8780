"""The result of a scan of a row of batches."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.record.header import BatchHeader
from stratalog.record.records_summary import RecordsSummary

PROVED_COLUMNS = (
    "data_crc",
    "record_count",
    "first_offset",
    "last_offset",
    "fingerprint",
    "tombstone_count",
    "marker_count",
    "keyless_count",
)
"""The numbers that are known of a whole slice whose batches were proved. Offsets are -1 without records."""


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

    def summary_of(self, header: BatchHeader) -> RecordsSummary:
        """The summary of the one batch that was scanned, with this header and times of creation."""
        assert self.first_base_offset == self.last_base_offset == header.base_offset
        assert header.append_time_ms is None
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        return RecordsSummary(
            tombstone_count=self.tombstone_count,
            null_key_count=self.null_key_count,
            max_timestamp_delta=self.max_timestamp - base_timestamp,
            # Their deltas ascend from 0 on.
            is_dense=self.records_count == header.last_offset_delta + 1,
            min_timestamp_delta=self.min_timestamp - base_timestamp,
            first_offset_delta=self.first_offset - base_offset,
            last_offset_delta=self.last_offset - base_offset,
            max_timestamp_offset_delta=self.max_timestamp_offset - base_offset,
        )
