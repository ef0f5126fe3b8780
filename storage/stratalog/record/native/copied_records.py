"""What a survivor copy made of the records of a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """The new records section and what its batch header needs.

    Where no record is left, the offset deltas are -1 and the timestamp delta 0.
    """

    payload: bytes
    count: int
    first_delta: int
    last_delta: int
    max_timestamp_delta: int
    """Relative to the new base timestamp: after the shift."""
    tombstone_count: int
    dropped_tombstone_count: int
