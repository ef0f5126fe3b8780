"""The time of a record as a `datetime`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stratalog.record.header import NO_TIMESTAMP

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_of(timestamp_ms: int) -> datetime | None:
    """The moment in UTC; None without a timestamp, and outside of the years 1 to 9999."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    try:
        return EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
