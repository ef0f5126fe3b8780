"""Divides the tails of a query over tasks: the records behind the objects, which servers send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stratalog.pipeline.source.partition_range import PartitionRange
from stratalog.pipeline.source.read_options import ReadOptions
from stratalog.pipeline.source.scan_plan import NO_BOUNDS, RowBounds, group_spans
from stratalog.pipeline.source.tail_span import TailSpan

MAX_GROUP_COUNT = 256
"""Tails of a task. It asks for them together, so that many small ones cost few requests."""


def plan_tails(
    ranges: Sequence[PartitionRange], options: ReadOptions, bounds: RowBounds = NO_BOUNDS
) -> list[list[TailSpan]]:
    """The tails of each task, of about `max_partition_bytes` a task; none without a service. Bounds of time
    leave nothing out: no index tells the times of a tail."""
    spans = [
        span
        for one in map(bounds.clip, ranges)
        for span in _tails_of(one, max_bytes=options.max_partition_bytes)
    ]
    groups = group_spans(spans, options.max_partition_bytes)
    return [
        group[first : first + MAX_GROUP_COUNT]
        for group in groups
        for first in range(0, len(group), MAX_GROUP_COUNT)
    ]


def _tails_of(one: PartitionRange, *, max_bytes: int) -> Iterator[TailSpan]:
    """The tail of a range, divided into parts of about `max_bytes`."""
    served = one.view.served
    first_offset = max(one.first_offset, one.tail_offset)
    count = one.end_offset - first_offset
    if served is None or count <= 0:
        return
    part_count = min(count, int(count * served.bytes_per_offset) // max_bytes + 1)
    edges = [first_offset + count * number // part_count for number in range(part_count + 1)]
    for begin, end in pairwise(edges):
        yield TailSpan(
            topic=one.view.topic,
            topic_id=str(one.view.tip.topic_id),
            partition=one.view.tip.partition,
            first_offset=begin,
            end_offset=end,
            local_start_offset=served.local_start_offset,
            size_bytes=int((end - begin) * served.bytes_per_offset),
        )
