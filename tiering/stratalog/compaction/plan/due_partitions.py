"""Knows which partitions are due for compaction, and since when: a compaction that never comes, for whatever
reason, shows as a partition that is due for long.

A partition is due while a job over it would pay. It makes progress when `compacted_upto` moves, or, behind a
gap, where that stands still, when less of it is dirty. Then it waits anew: a busy partition may be due at
each look, and is none the worse for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.partition_outlook import NEVER_MS, PartitionOutlook
from stratalog.remote.metadata.shard.shard_state import ShardState


class CompactionBacklog(NamedTuple):
    """The data of a shard that is not compacted, as of one look. Times are in milliseconds since 1970 UTC,
    -1 for none. Immutable."""

    dirty_bytes: int = 0
    """Bytes of compacted topics that are not compacted yet, of those that a job could read next."""
    due_count: int = 0
    """Partitions that are due, those that are left alone after they were due among them."""
    due_since_ms: int = NEVER_MS
    """Since when one of them waits, the longest, by the clock of the looks. A restart forgets it."""
    overdue_since_ms: int = NEVER_MS
    """Since when a record that is not compacted is older than `max.compaction.lag.ms`, the oldest."""


class _Due(NamedTuple):
    compacted_upto: int
    dirty_bytes: int
    since_ms: int


class DuePartitions:
    """The partitions of a shard that are due. Not thread-safe: the lock of the compactor guards it."""

    def __init__(self) -> None:
        self._due: dict[TopicIdPartition, _Due] = {}

    def look(
        self, state: ShardState, outlooks: Iterable[PartitionOutlook | None], now_ms: int
    ) -> CompactionBacklog:
        """Take note of a whole plan's outlooks. A partition without one is left alone: it stays due, if it
        was. Linear in partitions."""
        dirty_bytes, overdue_ms = 0, list[int]()
        before, due = self._due, dict[TopicIdPartition, _Due]()
        for outlook in outlooks:
            if outlook is None:
                continue
            section = outlook.section
            if outlook.topic.is_compacted:
                dirty_bytes += section.dirty_bytes
            if section.overdue_since_ms != NEVER_MS:
                overdue_ms.append(section.overdue_since_ms)
            tip = outlook.topic_id_partition
            former = before.pop(tip, None) if before else None
            if outlook.pays:
                due[tip] = _noted(outlook, former, now_ms)
        for tip, one in before.items():
            row = state.partitions.get(tip)
            if row is not None and row.slice_count:
                due[tip] = one
        self._due = due
        return CompactionBacklog(
            dirty_bytes=dirty_bytes,
            due_count=len(due),
            due_since_ms=min((one.since_ms for one in due.values()), default=NEVER_MS),
            overdue_since_ms=min(overdue_ms, default=NEVER_MS),
        )


def _noted(outlook: PartitionOutlook, former: _Due | None, now_ms: int) -> _Due:
    """A partition that is due by its outlook, and was as `former` says."""
    dirty_bytes, upto = outlook.section.dirty_bytes, outlook.compacted_upto
    waits = (
        former is not None
        and former.compacted_upto == upto
        and not (outlook.has_gaps and dirty_bytes < former.dirty_bytes)
    )
    return _Due(upto, dirty_bytes, former.since_ms if waits and former else now_ms)
