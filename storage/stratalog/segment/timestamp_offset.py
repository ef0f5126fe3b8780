"""A timestamp and the offset that belongs to it."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.record.header import NO_TIMESTAMP


class TimestampOffset(NamedTuple):
    """Milliseconds since 1970 UTC, and the offset of a record or batch that has this timestamp."""

    timestamp_ms: int
    offset: int


NO_TIMESTAMP_OFFSET = TimestampOffset(NO_TIMESTAMP, -1)
"""The value for a segment whose batches have no timestamp."""
