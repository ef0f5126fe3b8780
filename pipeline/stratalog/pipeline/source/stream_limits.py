"""How far one batch of a stream reads: its limits, shared by the partitions in proportion to their backlog.

The shares are those of Spark's Kafka source: each partition with a backlog gets at least one offset, so a
batch may exceed its limit by as many offsets as there are partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition


class Backlog(NamedTuple):
    """The offsets [first, end) of a partition that a stream has not read yet, at least one."""

    tip: TopicIdPartition
    tiered: TieredPartition
    first_offset: int
    end_offset: int
    tail_offset: int
    """The end of what is read from the slices."""
    tail_bytes_per_offset: float


def limited_by_offsets(backlogs: Sequence[Backlog], max_offsets: int) -> dict[TopicIdPartition, int]:
    """The end offset of each partition, so that a batch has about `max_offsets` offsets."""
    sizes = [one.end_offset - one.first_offset for one in backlogs]
    total = sum(sizes)
    if total <= max_offsets:
        return {one.tip: one.end_offset for one in backlogs}
    return {
        one.tip: one.first_offset + max(max_offsets * size // total, 1)
        for one, size in zip(backlogs, sizes, strict=True)
    }


def limited_by_bytes(backlogs: Sequence[Backlog], max_bytes: int) -> dict[TopicIdPartition, int]:
    """The end offset of each partition, so that a batch reads about `max_bytes` of the log. Looks at no more
    slices than that many bytes lie in. May load pages of the metadata. Raises StoreError."""
    sizes = [_bytes_upto(one, max_bytes) for one in backlogs]
    total = sum(sizes)
    if total < max_bytes:
        return {one.tip: one.end_offset for one in backlogs}
    return {
        one.tip: _offset_behind(one, max_bytes * size / total)
        for one, size in zip(backlogs, sizes, strict=True)
    }


def _bytes_upto(one: Backlog, max_bytes: int) -> float:
    """The bytes of a backlog, counted until they pass the limit."""
    found = 0.0
    for _, _, size_bytes in _parts(one):
        found += size_bytes
        if found >= max_bytes:
            return max_bytes
    return found


def _offset_behind(one: Backlog, wanted_bytes: float) -> int:
    """The offset at which about so many bytes of a backlog end: at least one offset is before it."""
    left_bytes = wanted_bytes
    for first_offset, end_offset, size_bytes in _parts(one):
        if size_bytes > left_bytes:
            # The offsets of a slice are taken as equally large.
            offset = first_offset + int((end_offset - first_offset) * left_bytes / size_bytes)
            return max(offset, one.first_offset + 1)
        left_bytes -= size_bytes
    return one.end_offset


def _parts(one: Backlog) -> Iterator[tuple[int, int, float]]:
    """The slices of a backlog, and its tail: the offsets [first, end) of it in each, and about their
    bytes."""
    tiered_end = min(one.end_offset, one.tail_offset)
    for live in one.tiered.slices_from(one.first_offset):
        first_offset = max(live.base_offset, one.first_offset)
        end_offset = min(live.end_offset, tiered_end)
        if first_offset >= end_offset:
            break
        share = (end_offset - first_offset) / (live.end_offset - live.base_offset)
        yield first_offset, end_offset, share * live.entry.data_bytes
    tail_first = max(one.first_offset, one.tail_offset)
    if tail_first < one.end_offset:
        yield tail_first, one.end_offset, (one.end_offset - tail_first) * one.tail_bytes_per_offset
