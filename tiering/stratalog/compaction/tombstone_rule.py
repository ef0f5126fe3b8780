"""When a compaction job stamps and drops tombstones and markers.

Only a job that covers its partition from the first live slice may do so: it sees all older records of its
keys, and all data of its transactions, and leaves none of the former. Any other job keeps the horizons that
it finds, and all markers. ``keep_rules`` has the rules.

Readers see what a tombstone hides until the commit of the job that stamps it, and have the time of the topic
from then on. So the horizon counts from the latest time of that commit, not from the beginning of the job.

No marker has to hold the epoch of its producer, as in a local log: the index of the last slice has that.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.compaction.plan.slice_table import column_places
from stratalog.record.header import BatchHeader
from stratalog.record.keep_rules import MarkerFate, marker_fate, new_horizon_ms
from stratalog.record.native.batch_filter import BatchFilter
from stratalog.remote.metadata.shard.live_slice import LiveSlice

_STABLE_END = column_places("stable_end_offset")


class TombstoneRule(NamedTuple):
    """The rule for one partition of a job. Immutable."""

    drop_until_ms: int | None
    """Tombstones and markers with a horizon up to this time go; None if the job may drop none."""
    stamp_ms: int | None
    """The new horizon of those without one; None if the job stamps none."""
    settled_end_offset: int
    """Tombstones at or above this offset are left alone: an older record of the key may be undecided."""

    @staticmethod
    def of(run: PartitionRun, now_ms: int, *, may_drop: bool) -> TombstoneRule:
        """`now_ms`: the time when the job begins. `may_drop`: the clocks can be trusted."""
        if not run.settles_tombstones:
            return TombstoneRule(None, None, 0)
        retention_ms = run.topic.delete_retention_ms
        # Without a time, readers are promised nothing.
        commit_ms = now_ms + MAX_JOB_MS if retention_ms else now_ms
        (settled_end_offset,) = run.slices.last(_STABLE_END)
        return TombstoneRule(
            now_ms if may_drop else None, new_horizon_ms(commit_ms, retention_ms), settled_end_offset
        )

    def marker_fate(self, header: BatchHeader, *, is_data_kept: bool | None) -> MarkerFate:
        """The fate of the marker in that batch. `is_data_kept`: data of its transaction stays; None if the
        job has met none."""
        if self.stamp_ms is None:
            return MarkerFate.STAYS
        return marker_fate(
            is_data_kept=is_data_kept,
            holds_epoch=False,
            horizon_ms=header.delete_horizon_ms,
            now_ms=self.drop_until_ms,
        )

    def batch_filter(self, live: LiveSlice, log_start_offset: int) -> BatchFilter:
        return BatchFilter(
            max(live.base_offset, log_start_offset), live.end_offset, live.entry.tombstone_count > 0, *self
        )
