"""The offsets that a query reads of each partition: its bounds, as the state of the partitions has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from stratalog.base.clock import SystemClock
from stratalog.base.types import TopicIdPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.pipeline.source.data_loss import report_gaps, report_loss
from stratalog.pipeline.source.read_options import EARLIEST, LATEST, OffsetBound, ReadOptions
from stratalog.pipeline.source.store_view import StoreReader, TopicPartitionView, by_partition
from stratalog.remote.read.object_reads import ObjectReads, ReadThreads
from stratalog.remote.read.slice_source import SliceSource
from stratalog.remote.read.tiered_time_lookup import TieredTimeLookup
from stratalog.remote.store_layout import StoreLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets [first, end) of a partition, within its log start and its readable end. Immutable."""

    view: TopicPartitionView
    first_offset: int
    end_offset: int
    tail_offset: int
    """The end of what is read from the objects; the service has what lies behind it."""


def tiered_end(view: TopicPartitionView, isolation: IsolationLevel) -> int:
    """The exclusive end of the records that a reader of this level gets from the objects."""
    tiered = view.tiered
    is_committed = isolation is IsolationLevel.READ_COMMITTED
    return tiered.stable_end_offset if is_committed else tiered.tiered_end_offset


def readable_end(view: TopicPartitionView, isolation: IsolationLevel) -> int:
    """The exclusive end of the records that a reader of this level gets, from objects and the service."""
    end_offset = tiered_end(view, isolation)
    return end_offset if view.served is None else max(end_offset, view.served.readable_end(isolation))


def offsets_of(
    reader: StoreReader, views: Sequence[TopicPartitionView], bound: OffsetBound, options: ReadOptions
) -> dict[TopicIdPartition, int]:
    """The offset of a bound in each partition, which may lie outside of what can be read.

    Where no record is as new as the bound's time, that is the end. Raises UnknownTopicOrPartitionError,
    StoreError.
    """
    if bound.offsets is not None:
        offsets = by_partition(bound.offsets, views)
    elif bound.timestamp_ms is not None:
        offsets = _offsets_at(reader, views, bound.timestamp_ms, options.isolation)
    else:
        offsets = {view.tip: bound.default for view in views}
    for view in views:
        ends = {EARLIEST: view.log_start_offset, LATEST: readable_end(view, options.isolation)}
        offsets[view.tip] = ends.get(offsets[view.tip], offsets[view.tip])
    return offsets


def ranges_of(
    reader: StoreReader, views: Sequence[TopicPartitionView], options: ReadOptions
) -> list[PartitionRange]:
    """The range of each partition that the options ask for, without empty ones. Raises as `all_ranges_of`."""
    return [one for one in all_ranges_of(reader, views, options) if one.first_offset < one.end_offset]


def all_ranges_of(
    reader: StoreReader, views: Sequence[TopicPartitionView], options: ReadOptions
) -> list[PartitionRange]:
    """The range of each partition that the options ask for; the end of an empty one may lie below its
    beginning.

    Raises OffsetOutOfRangeError for a bound outside of the log, and for lost records inside of a range,
    unless the options take that.
    """
    starts = offsets_of(reader, views, options.starting, options)
    ends = offsets_of(reader, views, options.ending, options)
    ranges: list[PartitionRange] = []
    for view in views:
        for offset in (starts[view.tip], ends[view.tip]):
            require_in_log(view, offset, fails=options.fails_on_data_loss)
        one = clipped_range(view, starts[view.tip], ends[view.tip], options.isolation)
        require_no_gap(one, fails=options.fails_on_data_loss)
        ranges.append(one)
    return ranges


def clipped_range(
    view: TopicPartitionView, first_offset: int, end_offset: int, isolation: IsolationLevel
) -> PartitionRange:
    """The part of a range that can be read; its end is not above its first offset if there is none."""
    return PartitionRange(
        view=view,
        first_offset=max(first_offset, view.log_start_offset),
        end_offset=min(end_offset, readable_end(view, isolation)),
        tail_offset=tiered_end(view, isolation),
    )


def require_no_gap(one: PartitionRange, *, fails: bool) -> None:
    """Report a loss if the metadata records offsets of the range as lost. Raises OffsetOutOfRangeError if the
    loss fails the query."""
    place = one.view.error_fields
    report_gaps(one.view.tiered, one.first_offset, one.end_offset, fails=fails, place=place)


def require_in_log(view: TopicPartitionView, offset: int, *, fails: bool) -> None:
    """Report a loss if an offset lies outside of what is known of a partition's log. Raises
    OffsetOutOfRangeError if the loss fails the query."""
    if view.log_start_offset <= offset <= view.log_end_offset:
        return
    ends = {"tiered_end_offset": view.tiered.tiered_end_offset}
    if view.served is not None:
        ends["log_end_offset"] = view.log_end_offset
    report_loss(
        "the store does not have these offsets: they were deleted, or are not tiered yet"
        if view.served is None
        else "the log does not have these offsets: they were deleted, or are not written yet",
        fails=fails,
        **view.error_fields,
        offset=offset,
        log_start_offset=view.log_start_offset,
        **ends,
    )


def _offsets_at(
    reader: StoreReader,
    views: Sequence[TopicPartitionView],
    timestamp_ms: int,
    isolation: IsolationLevel,
) -> dict[TopicIdPartition, int]:
    """The first offset in each partition with that time or a later one; `LATEST` where no record has."""
    reads = ObjectReads(reader.store, SystemClock(), ReadThreads.none())
    lookups = {view.shard: TieredTimeLookup(SliceSource(reads, StoreLayout(view.shard))) for view in views}

    def look_up(view: TopicPartitionView) -> int:
        found = lookups[view.shard].first_at_or_after(view.state, view.tiered, timestamp_ms)
        if found is not None:
            return found.offset
        offset = None
        if reader.served is not None and readable_end(view, isolation) > tiered_end(view, isolation):
            offset = reader.served.offset_at(view.topic, view.tip.partition, timestamp_ms, isolation)
        return LATEST if offset is None else offset

    offsets = cast("Sequence[int]", reader.run_all([partial(look_up, view) for view in views]))
    return {view.tip: offset for view, offset in zip(views, offsets, strict=True)}
