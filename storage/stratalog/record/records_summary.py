"""What one walk over the records of a batch tells."""

from __future__ import annotations

from typing import NamedTuple


class RecordsSummary(NamedTuple):
    """Facts of a well-framed records section. Timestamp deltas are 0 where there is no record."""

    tombstone_count: int
    null_key_count: int
    max_timestamp_delta: int
    is_dense: bool
    """The offset deltas are 0, 1, 2 and so on up to the batch's last: no record is missing."""
    min_timestamp_delta: int = 0
    first_offset_delta: int = -1
    """-1 where there is no record, as are the next two."""
    last_offset_delta: int = -1
    max_timestamp_offset_delta: int = -1
    """Of the first record with the highest timestamp."""
