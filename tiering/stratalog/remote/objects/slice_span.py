"""The most time and bytes that one slice may span: the rule of uploads, merges and retention.

Retention takes slices from the front of a partition, each as a whole. So a record stays until the newest
record of its slice has expired, too, and until as many bytes lie behind the slice as `retention.bytes` keeps.
The wider a slice is, the longer its oldest record stays, and a merge of slices without a bound keeps records
for as long as the partition gets new ones.

The bound is an eighth of the retention, so that merges leave about nine slices of a partition. Of a short
retention it is five minutes and 1 MiB, because each slice of a partition needs another object. It is never
more than a segment (`segment.ms`, `segment.bytes`): so retention holds to within one segment. One batch is
never divided and may exceed the bound. Without `delete` in the cleanup policy, or without that retention,
there is no bound.

The time of a record is that of the newest record up to it: a log loses records from its front only, so none
goes before those in front of it. These *effective* times never run backwards. Records that arrive late or out
of order do not widen a slice, and are cut no more often than others.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.record.header import NO_TIMESTAMP

SPANS_PER_RETENTION = 8
SHORT_SPAN_MS = 5 * 60 * 1000
SHORT_SPAN_BYTES = 1 << 20


class Extent(NamedTuple):
    """The times and the size of a row of records."""

    oldest_ms: int
    newest_ms: int
    """`NO_TIMESTAMP`, as `oldest_ms`, if no record has a time."""
    size_bytes: int


class MeasuredSlice(Protocol):
    """The numbers that the extent of a slice follows from."""

    @property
    def record_count(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def min_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


class SliceSpan(NamedTuple):
    """The most that a slice of a partition may span. Immutable."""

    max_ms: int = LONG_MAX
    max_bytes: int = LONG_MAX

    @staticmethod
    def of(config: LogConfig) -> SliceSpan:
        """The bound of a topic with this configuration."""
        if not config.is_deleted:
            return UNBOUNDED
        return SliceSpan(
            _bound(config.retention_ms, config.segment_ms, SHORT_SPAN_MS),
            _bound(config.retention_bytes, config.segment_bytes, SHORT_SPAN_BYTES),
        )

    @property
    def is_bounded(self) -> bool:
        return self != UNBOUNDED

    @property
    def has_time(self) -> bool:
        """Whether there is a bound of time."""
        return self.max_ms < LONG_MAX

    def holds(self, extent: Extent) -> bool:
        """Whether a slice of this extent is within the bound."""
        return extent.newest_ms - extent.oldest_ms <= self.max_ms and extent.size_bytes <= self.max_bytes

    def divide(self, extents: Iterable[Extent]) -> Sequence[int]:
        """Divide a row of effective extents into parts within the bound, as few as possible from the front.
        Returns how many extents each part has; one that exceeds the bound alone is a part."""
        counts: list[int] = []
        part: Extent | None = None
        for extent in extents:
            grown = extent if part is None else joined(part, extent)
            if part is not None and self.holds(grown):
                counts[-1] += 1
                part = grown
            else:
                counts.append(1)
                part = extent
        return counts


UNBOUNDED = SliceSpan()


def _bound(retention: int, segment: int, least: int) -> int:
    if retention == UNLIMITED:
        return LONG_MAX
    return min(max(retention // SPANS_PER_RETENTION, least), segment)


def joined(earlier: Extent, later: Extent) -> Extent:
    """The extent of two rows of records together, the second one behind the first one."""
    oldest_ms = earlier.oldest_ms if earlier.newest_ms > NO_TIMESTAMP else later.oldest_ms
    return Extent(oldest_ms, max(earlier.newest_ms, later.newest_ms), earlier.size_bytes + later.size_bytes)


def effective_extents(extents: Iterable[Extent], newest_before_ms: int = NO_TIMESTAMP) -> Iterator[Extent]:
    """The same extents with effective times. `newest_before_ms`: the newest time in front of them."""
    newest_ms = newest_before_ms
    for extent in extents:
        oldest_ms = max(extent.oldest_ms, newest_ms)
        newest_ms = max(extent.newest_ms, newest_ms)
        yield Extent(oldest_ms, newest_ms, extent.size_bytes)


def slice_extent(entry: MeasuredSlice, uploaded_ms: int) -> Extent:
    """The extent of a slice by its own times. `uploaded_ms` is the time of a slice whose records have
    none; a slice without records has no time."""
    if entry.max_timestamp > NO_TIMESTAMP:
        oldest_ms = entry.min_timestamp if entry.min_timestamp > NO_TIMESTAMP else entry.max_timestamp
        return Extent(oldest_ms, entry.max_timestamp, entry.data_bytes)
    time_ms = uploaded_ms if entry.record_count else NO_TIMESTAMP
    return Extent(time_ms, time_ms, entry.data_bytes)
