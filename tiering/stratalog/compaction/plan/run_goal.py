"""The goal of a run of the compactor: the partitions that were due when it began, each to its end then.

A plan uses each object once, and the objects of uploads have slices of many partitions. So one plan may
compact few of those that are due. A run plans again while that brings one of them forward, and not for the
records that came meanwhile, which a busy topic has without end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.partition_outlook import PartitionOutlook
from stratalog.remote.metadata.shard.partition_row import PartitionRow


class PlanAgain(NamedTuple):
    """The conditions under which a run plans again. Immutable."""

    work_of_plan: float = 0.0
    """The jobs of the last plan took at least so many times as long as it, so that plans do not take all the
    time."""
    within_s: float = math.inf
    """The run began no longer ago, so that what waits for its end does not wait for a whole backlog."""

    def is_met(self, plan_s: float, work_s: float, run_s: float) -> bool:
        """Whether they are met after a plan and its jobs, which took so long, of a run that began so long
        ago."""
        return work_s >= self.work_of_plan * plan_s and run_s <= self.within_s


class _Due(NamedTuple):
    compacted_upto: int
    """The end of what is compacted, at the last look."""
    end_offset: int
    """The end of its slices when the run began."""


class RunGoal:
    """The partitions that are still to be compacted. Not thread-safe: one run uses it."""

    def __init__(
        self,
        outlooks: Iterable[PartitionOutlook | None],
        rows: Mapping[TopicIdPartition, PartitionRow],
        names: Collection[str] | None,
    ) -> None:
        """`outlooks` are those of the first plan; `names` are the topics of the run, None for all."""
        self._due = {
            outlook.topic_id_partition: _Due(outlook.compacted_upto, row.tiered_end_offset)
            for outlook in outlooks
            if outlook is not None
            and outlook.pays
            and (names is None or outlook.topic.name in names)
            # Its topic may be deleted since the plan.
            and (row := rows.get(outlook.topic_id_partition)) is not None
        }

    def comes_closer(self, rows: Mapping[TopicIdPartition, PartitionRow]) -> bool:
        """Look at the rows: whether a partition has advanced since the last look, and one is still due."""
        has_advanced = False
        for tip, due in list(self._due.items()):
            row = rows.get(tip)
            if row is None or row.compacted_upto >= due.end_offset:
                del self._due[tip]
                has_advanced = True
            elif row.compacted_upto > due.compacted_upto:
                self._due[tip] = due._replace(compacted_upto=row.compacted_upto)
                has_advanced = True
        return has_advanced and bool(self._due)
