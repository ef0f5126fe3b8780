"""The outcomes of the passes over the tiers, made from the reports of their components, and the backlog of
collection by what is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from stratalog.base.errors import (
    LogStoreError,
    PreconditionFailedError,
    UnknownTopicOrPartitionError,
)
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compactor import CONFIG_CHANGED, INPUTS_GONE
from stratalog.remote.metadata.head.head_state import WaitingFiles
from stratalog.remote.metadata.shard.shard_judge import CLOCK, NOT_FINALIZED, TOPIC_DELETED
from stratalog.remote.retention.remote_retention import RetentionReport
from stratalog.remote.tier.collector import CollectReport
from stratalog.remote.tier.orphan_sweep import OrphanKind
from stratalog.remote.tier.upload_report import RefusedUpload
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.operations.operation_results import Uploaded
from stratalog.server.partitions.hosted_shard import HostedShard


class DroppingLog(Protocol):
    """A log of commits with dropped files."""

    @property
    def waiting_files(self) -> WaitingFiles: ...


FUTURE = "future-timestamps"
_JOB_REASONS = {CONFIG_CHANGED: "stale-configuration", INPUTS_GONE: "inputs-gone"}


def upload_outcome(
    uploaded: Uploaded, failures: Iterable[object] = (), refused: Iterable[str] = ()
) -> PassOutcome:
    """The outcome of an upload. `refused` has the reason of each slice that the metadata refused."""
    done = {
        "objects": uploaded.object_count,
        "slices": uploaded.slice_count,
        "bytes": uploaded.data_bytes,
        "local-segments": uploaded.local_segments_deleted,
    }
    return PassOutcome(done, Counter(map(_word, refused)), tuple(map(str, failures)))


def refused_error(refused: RefusedUpload) -> LogStoreError:
    """The error of an upload that the metadata refused."""
    fields = refused.topic_partition.error_fields
    if refused.reason == TOPIC_DELETED:
        return UnknownTopicOrPartitionError(
            "the topic was deleted before its records were committed in the object store; create it again or"
            " correct the name",
            **fields,
        )
    if refused.reason == CLOCK:
        return PreconditionFailedError(
            "records are lost that never reached the object store, and a loss is recorded only while the"
            " clocks of this server and of the store agree; set the clock",
            **fields,
        )
    if refused.reason == NOT_FINALIZED:
        return PreconditionFailedError(
            "records are lost that never reached the object store, and the finalized metadata version cannot"
            " say so: nothing of the partition is uploaded before `stratalog tier finalize`",
            **fields,
        )
    return PreconditionFailedError(
        "the metadata refused an uploaded slice, the next pass tries again: " + refused.reason,
        **fields,
        object=refused.object_name,
    )


def refused_append(refused: RefusedUpload) -> LogStoreError | None:
    """The error of appends that wait for a refused upload; None if the next turn tries again: the metadata
    had moved, as by a deletion of records that has overtaken the object."""
    return refused_error(refused) if refused.reason in (TOPIC_DELETED, CLOCK, NOT_FINALIZED) else None


def _word(reason: str) -> str:
    """The reason of a refusal as a label of metrics."""
    return reason.replace("_", "-")


def retention_outcome(reports: Sequence[RetentionReport]) -> PassOutcome:
    """The outcome of retention over tiers, from a report for each shard."""
    return PassOutcome(
        {"partitions": sum(len(report.advanced) for report in reports)},
        {
            CLOCK: sum(report.clock_refused_count for report in reports),
            FUTURE: sum(report.future_count for report in reports),
        },
        tuple(f"{one.topic_partition}: {one.error}" for report in reports for one in report.failed),
    )


def collection_outcome(report: CollectReport) -> PassOutcome:
    """The outcome of a collection over all shards."""
    multipart_count = report.orphan_counts.get(OrphanKind.UPLOAD, 0)
    return PassOutcome(
        {
            "files": report.deleted_count,
            "orphans": sum(report.orphan_counts.values()) - multipart_count,
            "multipart-uploads": multipart_count,
            "history-files": report.trimmed_count,
            "pins": report.expired_pin_count,
            "bytes": report.all_deleted_bytes,
        },
        # A wrong clock refuses even if no file waits: orphans are not looked for.
        {
            CLOCK: max(report.waiting_count, 1) if report.is_refused else 0,
            "pinned": report.pinned_count,
            _word(NOT_FINALIZED): report.unfinalized_count,
            "kept-by-store": report.kept_count,
        },
        report.failures,
    )


def compaction_outcome(reports: Sequence[CompactionReport], shards: Iterable[HostedShard]) -> PassOutcome:
    """The outcome of a compaction. A job that was given up because the metadata had moved is refused,
    any other one failed, unless the same run has planned smaller jobs in its place. A partition that a commit
    left out counts by its own reason. While a clock is wrong, the tombstones of its shard count as one
    refusal."""
    committed = [report for report in reports if report.refused is None]
    failed = [
        report
        for report in reports
        if report.refused is not None
        and report.refused not in _JOB_REASONS
        and report.inputs
        and not report.is_planned_again
    ]
    refusals = Counter(_JOB_REASONS[report.refused] for report in reports if report.refused in _JOB_REASONS)
    refusals["left-alone"] = sum(
        len(report.refused_partitions)
        for report in reports
        if report.refused is not None and not report.inputs
    )
    refusals.update(_word(reason) for report in committed for _, reason in report.refused_partitions)
    refusals["no-progress"] = sum(report.makes_no_progress for report in reports)
    refusals[CLOCK] = sum(shard.contact.is_clock_wrong for shard in shards)
    return PassOutcome(
        {
            "jobs": len(committed),
            "partitions": sum(report.partitions for report in committed),
            "objects": sum(report.outputs for report in committed),
            "bytes": sum(report.output_bytes for report in committed),
            "tombstones": sum(report.tombstones_removed for report in committed),
        },
        refusals,
        tuple(str(report.refused) for report in failed),
        Backlog(len(failed), sum(report.input_bytes for report in failed)),
    )


def collection_backlog(logs: Iterable[DroppingLog]) -> Backlog:
    """The dropped files; the oldest by the time when it was dropped."""
    waiting = [log.waiting_files for log in logs]
    return Backlog(
        sum(one.file_count for one in waiting),
        sum(one.size_bytes for one in waiting),
        oldest_ms=min((one.oldest_ms for one in waiting if one.file_count), default=-1),
    )
