"""When a compaction job stamps and drops tombstones.

Only a job that covers its partition from the first live slice may do so: it sees all older records of its
keys, and leaves none of them. Any other job keeps the horizons that it finds. ``keep_rules`` has the rules.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.record.keep_rules import new_horizon_ms
from stratalog.record.native.batch_filter import BatchFilter
from stratalog.remote.metadata.shard.live_slice import LiveSlice


class TombstoneRule(NamedTuple):
    """The rule for one partition of a job. Immutable."""

    drop_until_ms: int | None
    """Tombstones with a horizon up to this time go; None if the job may drop none."""
    stamp_ms: int | None
    """The new horizon of tombstones without one; None if the job stamps none."""

    @staticmethod
    def of(run: PartitionRun, now_ms: int, *, may_drop: bool) -> TombstoneRule:
        """`may_drop`: the clocks can be trusted."""
        if not run.settles_tombstones:
            return TombstoneRule(None, None)
        return TombstoneRule(
            drop_until_ms=now_ms if may_drop else None,
            stamp_ms=new_horizon_ms(now_ms, run.topic.delete_retention_ms),
        )

    def batch_filter(self, live: LiveSlice, log_start_offset: int) -> BatchFilter:
        return BatchFilter(
            first_offset=max(live.base_offset, log_start_offset),
            end_offset=live.end_offset,
            has_tombstones=live.entry.tombstone_count > 0,
            drop_until_ms=self.drop_until_ms,
            stamp_ms=self.stamp_ms,
        )
