"""The bounds of the times of a producer's records: `message.timestamp.before.max.ms` and `.after.max.ms`.

A time far in the future keeps its segment from retention and attracts every look-up by time. A time far in
the past can make retention drop a segment as soon as it is rolled. A record without a time (-1) is exempt.
Under `LogAppendTime` the producer's times do not count, so they have no bounds.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import InvalidTimestampError
from stratalog.base.filesystem import Buffer
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.record.header import NO_TIMESTAMP, BatchHeader, TimestampType
from stratalog.record.record import Record
from stratalog.record.record_search import first_record
from stratalog.record.records_summary import RecordsSummary


class TimestampBounds(NamedTuple):
    """The earliest and the latest time of a record, both inclusive."""

    earliest_ms: int
    latest_ms: int

    @staticmethod
    def at(now_ms: int, config: LogConfig) -> TimestampBounds | None:
        """The bounds for an append at `now_ms`; None if the topic takes the times of appends."""
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            return None
        # Negative times are no times.
        earliest_ms = max(0, now_ms - config.message_timestamp_before_max_ms)
        latest_ms = min(now_ms + config.message_timestamp_after_max_ms, LONG_MAX)
        return TimestampBounds(earliest_ms, latest_ms)

    def require_inside(
        self, payload: Buffer, header: BatchHeader, summary: RecordsSummary, batch_index: int
    ) -> None:
        """Raise InvalidTimestampError for the first record whose time lies outside.

        `payload` and `summary`: the batch's records and their summary; the batch has no holes. `batch_index`:
        the batch's place in its request, for the error.
        """
        base_timestamp = header.base_timestamp

        def may_be_outside(part: RecordsSummary) -> bool:
            return (
                base_timestamp + part.min_timestamp_delta < self.earliest_ms
                or base_timestamp + part.max_timestamp_delta > self.latest_ms
            )

        def is_outside(record: Record) -> bool:
            timestamp_ms = record.timestamp_ms
            return timestamp_ms != NO_TIMESTAMP and not self.earliest_ms <= timestamp_ms <= self.latest_ms

        is_without_times = (
            header.max_timestamp == NO_TIMESTAMP == base_timestamp + summary.min_timestamp_delta
        )
        if is_without_times or not may_be_outside(summary):
            return
        record = first_record(
            payload, header.records_count, base_timestamp, may_match=may_be_outside, matches=is_outside
        )
        if record is not None:
            raise InvalidTimestampError(
                "a record's timestamp is out of the topic's bounds; correct the producer's clock, or"
                " message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
                batch_index=batch_index,
                record_index=record.offset,
                timestamp_ms=record.timestamp_ms,
                earliest_ms=self.earliest_ms,
                latest_ms=self.latest_ms,
            )


ANY_TIME = TimestampBounds(-LONG_MAX - 1, LONG_MAX)
"""Bounds that every time is inside."""
