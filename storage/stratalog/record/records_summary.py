"""Results of the kernels for the records of one batch: a summary, and a copy of some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RecordsSummary(NamedTuple):
    """Facts of a well-framed records section. Timestamp deltas are 0 if there is no record."""

    tombstone_count: int
    null_key_count: int
    max_timestamp_delta: int
    is_dense: bool
    """The offset deltas are 0, 1, 2 and so on up to the batch's last: no record is missing."""
    min_timestamp_delta: int = 0
    first_offset_delta: int = -1
    """-1 if there is no record, like the next two."""
    last_offset_delta: int = -1
    max_timestamp_offset_delta: int = -1
    """The offset delta of the first record with the highest timestamp."""


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """The kept part of a records section, and the values that its batch header needs.

    If no record is left, the offset deltas are -1 and the timestamp delta is 0.
    """

    payload: bytes
    count: int
    first_delta: int
    last_delta: int
    max_timestamp_delta: int
    """Relative to the new base timestamp: after the shift."""
    tombstone_count: int
    dropped_tombstone_count: int
