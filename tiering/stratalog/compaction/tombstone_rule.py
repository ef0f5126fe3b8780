"""When tombstones may go: after every consumer had `delete.retention.ms` to see them, and nothing older is
left.

A tombstone's clock starts when a job covers its partition from the first live slice: such a job leaves
nothing older than its run, so once the horizon that it stamps has passed, the tombstone hides nothing and
nobody waits for it. Any job keeps a horizon that is there. Only a job that covers from the first live slice,
too, removes the tombstone: another could not know what older records are still hidden (KIP-534 for the form:
attribute bit 6, base timestamp = horizon).
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.record.header import BatchHeader
from stratalog.record.native.batch_filter import BatchFilter
from stratalog.remote.metadata.shard.tiered_partition import LiveSlice

MAX_DELETE_HORIZON_MS = 1 << 62
"""Later than anybody will wait, and far enough from the end of the numbers that timestamp deltas can be taken
from it.
"""


class TombstoneRule(NamedTuple):
    """The rule for one run. Immutable."""

    is_settling: bool
    """Whether this run stamps and removes."""
    may_drop: bool
    """False where the clocks cannot be trusted."""
    now_ms: int
    new_horizon_ms: int

    @staticmethod
    def of(run: PartitionRun, now_ms: int, *, may_drop: bool) -> TombstoneRule:
        horizon_ms = min(now_ms + run.topic.delete_retention_ms, MAX_DELETE_HORIZON_MS)
        return TombstoneRule(run.settles_tombstones, may_drop, now_ms, horizon_ms)

    def drops(self, header: BatchHeader) -> bool:
        """Whether the batch's tombstones go now."""
        horizon_ms = header.delete_horizon_ms
        return self.is_settling and self.may_drop and horizon_ms is not None and horizon_ms <= self.now_ms

    def stamps(self, header: BatchHeader) -> bool:
        """Whether the batch's tombstones, if it has any, get their horizon now."""
        return self.is_settling and header.delete_horizon_ms is None

    def batch_filter(self, live: LiveSlice, log_start_offset: int) -> BatchFilter:
        """The rule for the batches of one slice of the run."""
        return BatchFilter(
            first_offset=max(live.base_offset, log_start_offset),
            end_offset=live.end_offset,
            has_tombstones=live.entry.tombstone_count > 0,
            drop_until_ms=self.now_ms if self.is_settling and self.may_drop else None,
            stamp_ms=self.new_horizon_ms if self.is_settling else None,
        )
