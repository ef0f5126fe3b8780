"""The result of one compaction job."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import CompactionJob, Refusal
from stratalog.compaction.plan.job_assembly import FAILURES_TO_SHRINK

LOST_RACES_TO_ALARM = 3
"""So many jobs in a row that lose the same partition to other commits are an alarm."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """One job, committed or refused. Immutable."""

    inputs: int = 0
    """Objects that were read."""
    get_requests: int = 0
    """At most two an input: the data of one without survivors is not asked for."""
    put_requests: int = 0
    """Outputs that were sent, each part of a large one, and those that were sent again."""
    resumed_get_count: int = 0
    """Further requests for the rest of a stream whose connection broke."""
    input_bytes: int = 0
    """Sizes of the inputs in the store."""
    bytes_read: int = 0
    """Bytes that have arrived; less than `input_bytes` without footers and dead slices."""
    records_in: int = 0
    records_out: int = 0
    tombstones_removed: int = 0
    """Tombstones that were dropped after their horizon; a tombstone with a later record of its key counts as
    a record.
    """
    outputs: int = 0
    output_bytes: int = 0
    partitions: int = 0
    """Partitions whose slices were replaced."""
    refused: str | None = None
    """The reason if the job was not committed, else None. Its inputs are unchanged then."""
    named_partitions: frozenset[TopicIdPartition] = frozenset()
    """Partitions of which `refused` tells something. A job has partitions of several topics, and who may see
    one of these may not see the others."""
    refused_partitions: tuple[tuple[TopicIdPartition, str], ...] = ()
    """Partitions that the commit left unchanged, with reasons."""
    failed_attempts: int = 0
    """How many jobs over the same inputs have failed in a row, with this one. 0 if it was committed, or
    given up because the metadata had moved."""
    is_resting: bool = False
    """Whether the job was not tried, because former ones over its inputs have failed; `refused` says until
    when."""
    is_planned_again: bool = False
    """Whether a job without room, or without time, was refused, and the same run has planned smaller ones in
    its place. They have reports of their own; what they do not reach is due in the next run, as always."""
    lost_races: int = 0
    """How many jobs in a row have lost the same partition to other commits, with this one."""

    @property
    def loses_each_race(self) -> bool:
        """Whether other commits have come first so often that it is no chance any more."""
        return self.lost_races >= LOST_RACES_TO_ALARM

    @property
    def makes_no_progress(self) -> bool:
        """Whether jobs have ended in this way so often that it is an alarm."""
        return self.failed_attempts >= FAILURES_TO_SHRINK or self.loses_each_race

    @staticmethod
    def of_resting(job: CompactionJob, attempts: int, wait_ms: int) -> CompactionReport:
        """The report of a job that is not tried again yet."""
        return CompactionReport(
            inputs=len(job.inputs),
            input_bytes=sum(live.ref.size_bytes for live in job.inputs),
            refused=f"{attempts} jobs with one of its objects have failed in a row; it is tried again in"
            f" {-(-wait_ms // 1000)} s, or at once if the topic is named",
            failed_attempts=attempts,
            is_resting=True,
        )

    @staticmethod
    def of_refusals(refusals: Collection[Refusal]) -> CompactionReport:
        """The report of partitions that no job takes."""
        partitions = tuple((refusal.topic_id_partition, refusal.reason) for refusal in refusals)
        reasons = "; ".join(sorted({reason for _, reason in partitions}))
        left = (
            "1 partition stays as it is"
            if len(partitions) == 1
            else f"{len(partitions)} partitions stay as they are"
        )
        return CompactionReport(
            refused=f"{left}: {reasons}",
            named_partitions=frozenset(tip for tip, _ in partitions),
            refused_partitions=partitions,
        )
