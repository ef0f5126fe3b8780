"""Divides the slices of a query over tasks, and leaves out what it does not want of them.

A slice costs no request. Its index costs one, and is read where it saves more than that: to divide a slice
that is larger than a task, and to leave out the ends of one of which only a part is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar, cast

from stratalog.client.isolation_level import IsolationLevel
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.source.partition_range import PartitionRange
from stratalog.pipeline.source.read_options import ReadOptions
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.pipeline.source.store_view import StoreReader
from stratalog.pipeline.source.tail_span import TailSpan
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.store_layout import StoreLayout

MAX_OFFSET = (1 << 63) - 1
INDEXED_BYTES = 256 << 10
"""A smaller slice is read whole rather than by its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """Rows that the filters of a query can be true for. Immutable."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = MAX_OFFSET
    first_ms: int = -MAX_OFFSET
    last_ms: int = MAX_OFFSET

    def clip(self, one: PartitionRange) -> PartitionRange:
        """The part of a range inside the bounds; an empty one if there is none."""
        is_topic = self.topics is None or one.view.topic in self.topics
        is_partition = self.partitions is None or one.view.tip.partition in self.partitions
        if not (is_topic and is_partition):
            return replace(one, end_offset=one.first_offset)
        return replace(
            one,
            first_offset=max(one.first_offset, self.first_offset),
            end_offset=min(one.end_offset, self.end_offset),
        )

    def has_time_of(self, live: LiveSlice) -> bool:
        """Whether a record of the slice can have a time inside the bounds."""
        return live.entry.max_timestamp >= self.first_ms and live.entry.min_timestamp <= self.last_ms


class _Wanted(NamedTuple):
    """A slice of a range, as a whole span, and its live slice for the index."""

    span: SliceSpan
    live: LiveSlice


NO_BOUNDS = RowBounds()

_SpanT = TypeVar("_SpanT", SliceSpan, TailSpan)


def plan_tasks(
    reader: StoreReader,
    ranges: Sequence[PartitionRange],
    options: ReadOptions,
    bounds: RowBounds = NO_BOUNDS,
) -> list[list[SliceSpan]]:
    """The spans of each task, of about `max_partition_bytes` a task. Spans of an object follow each other.
    Raises StoreError."""
    is_committed = options.isolation is IsolationLevel.READ_COMMITTED
    wanted = [
        one
        for range_ in map(bounds.clip, ranges)
        for one in _slices_of(range_, is_committed=is_committed)
        if bounds.has_time_of(one.live)
    ]
    max_bytes = options.max_partition_bytes
    divided = [one for one in wanted if _needs_index(one, max_bytes, bounds)]
    parts = reader.run_all([partial(_divided, reader.store, one, max_bytes, bounds) for one in divided])
    spans_of = dict(zip(map(id, divided), cast("Sequence[list[SliceSpan]]", parts), strict=True))
    spans = [span for one in wanted for span in spans_of.get(id(one), [one.span])]
    spans.sort(key=lambda span: (span.shard, span.object_key, span.position))
    return group_spans(spans, max_bytes)


def group_spans(spans: Sequence[_SpanT], max_bytes: int) -> list[list[_SpanT]]:
    """Divide spans into groups of about `max_bytes`, in order; a larger span is a group of its own."""
    groups: list[list[_SpanT]] = []
    size = 0
    for span in spans:
        if not groups or size + span.size_bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += span.size_bytes
    return groups


def _slices_of(one: PartitionRange, *, is_committed: bool) -> Iterator[_Wanted]:
    """The slices with data in the range, each whole."""
    range_end = min(one.end_offset, one.tail_offset)
    if one.first_offset >= range_end:
        return
    view, layout = one.view, StoreLayout(one.view.shard)
    tiered = view.tiered
    for live in tiered.slices_from(one.first_offset):
        if live.base_offset >= range_end:
            return
        first_offset = max(live.base_offset, one.first_offset)
        end_offset = min(live.end_offset, range_end)
        if live.entry.data_bytes == 0:
            continue
        deciding: tuple[LiveSlice, ...] = ()
        if is_committed:
            deciding = tuple(
                each
                for each in tiered.deciding_slices(first_offset, end_offset)
                if each.base_offset == live.base_offset or each.has_markers
            )
        span = SliceSpan(
            topic=view.topic,
            partition=view.tip.partition,
            shard=view.shard,
            object_key=layout.data_key(live.object_name),
            position=live.entry.data_position,
            size_bytes=live.entry.data_bytes,
            first_offset=first_offset,
            end_offset=end_offset,
            slice_base_offset=live.base_offset,
            slice_end_offset=live.end_offset,
            deciding=deciding,
        )
        yield _Wanted(span, live)


def _needs_index(one: _Wanted, max_bytes: int, bounds: RowBounds) -> bool:
    span, entry = one.span, one.live.entry
    if span.size_bytes <= min(INDEXED_BYTES, max_bytes):
        return False
    is_clipped = span.first_offset > entry.base_offset or span.end_offset < entry.end_offset
    return span.size_bytes > max_bytes or is_clipped or entry.min_timestamp < bounds.first_ms


def _divided(store: ObjectStore, one: _Wanted, max_bytes: int, bounds: RowBounds) -> list[SliceSpan]:
    """The parts of a slice that are wanted, of about `max_bytes`, divided at the entries of its index."""
    live = one.live
    index = read_slice_index(store, StoreLayout(one.span.shard), live.object_name, live.entry)
    parts: list[SliceSpan] = []
    for part in _interval_spans(index, one.span, bounds):
        last = parts[-1] if parts else None
        if last is not None and last.end_position == part.position:
            size_bytes = last.size_bytes + part.size_bytes
            if size_bytes <= max_bytes:
                parts[-1] = replace(last, size_bytes=size_bytes, end_offset=part.end_offset)
                continue
        parts.append(part)
    return parts


def _interval_spans(index: SliceIndex, span: SliceSpan, bounds: RowBounds) -> Iterator[SliceSpan]:
    """The intervals of an index with records that are wanted, each as a span."""
    count = index.interval_count
    for number in range(index.index_for_offset(span.first_offset), count):
        interval = index.interval(number)
        if interval.base_offset >= span.end_offset:
            return
        if index.max_timestamps[number] < bounds.first_ms:
            continue
        end_offset = span.end_offset
        if number + 1 < count:
            end_offset = min(end_offset, index.base_offsets[number + 1])
        yield replace(
            span,
            position=span.position + interval.position,
            size_bytes=interval.end_position - interval.position,
            first_offset=max(span.first_offset, interval.base_offset),
            end_offset=end_offset,
        )
