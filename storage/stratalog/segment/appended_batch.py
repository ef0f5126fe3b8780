"""What a segment notes about a batch that it takes."""

from __future__ import annotations

from typing import NamedTuple


class AppendedBatch(NamedTuple):
    """Its bytes are handed over beside it; where they come to lie is the segment's to know."""

    size_bytes: int
    last_offset: int
    max_timestamp_ms: int
