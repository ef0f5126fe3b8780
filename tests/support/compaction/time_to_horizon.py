"""How long a tombstone stays after the job that stamps it."""

from __future__ import annotations

from stratalog.compaction.plan.job_time import MAX_JOB_MS


def time_to_horizon_ms(delete_retention_ms: int) -> int:
    """The time from the beginning of a job to the horizon that it gives: `delete.retention.ms` from the
    latest time of its commit on, or nothing."""
    return MAX_JOB_MS + delete_retention_ms if delete_retention_ms else 0
