"""Converts operations and their results to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.compaction.compaction_progress import CompactionProgress
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.restore.metadata_scrub import FindingKind, VerificationFinding
from stratalog.remote.tier.collector import WaitingFile
from stratalog.remote.tier.orphan_sweep import Orphan, OrphanKind
from stratalog.server.operations.operation import (
    Operation,
    OperationKind,
    OperationProgress,
    OperationState,
    OperationView,
)
from stratalog.server.operations.operation_results import (
    CollectionResult,
    CompactionResult,
    FailedPartition,
    LeftOutShard,
    MoveResult,
    OperationResult,
    RetentionResult,
    UploadResult,
    VerificationResult,
)
from stratalog.server.rpc.access.shown_topics import IsIdShown
from stratalog.server.rpc.admin.admin_convert import UNKNOWN
from stratalog.server.rpc.status import bounded_reason, status_of_defect, status_of_error
from stratalog.v1 import operation_pb2

MAX_LISTED_COUNT = 1_000
"""Items of each list of a result."""

REASON_OF_OTHERS = (
    "nothing changed, because of partitions in the same objects of topics that you may not describe; a later"
    " job tries again, and the server's log has the reason"
)

_Member = TypeVar("_Member")


def operation_message(operation: Operation, is_shown: IsIdShown) -> operation_pb2.Operation:
    """The operation as it is now."""
    return view_message(operation.view, is_shown)


def view_message(view: OperationView, is_shown: IsIdShown) -> operation_pb2.Operation:
    """The operation at one moment. A compaction also touches topics that it does not name; its result names
    those that are shown. Its id is that of a defect, too, which the server's log has."""
    operation_id = str(view.operation_id)
    message = operation_pb2.Operation(
        operation_id=operation_id,
        kind=operation_pb2.OperationKind.Value(f"OPERATION_KIND_{view.kind.name}"),
        state=operation_pb2.OperationState.Value(f"OPERATION_STATE_{view.state.name}"),
        topics=view.topics,
        start_time_ms=view.start_ms,
        end_time_ms=view.end_ms,
        progress=_progress_message(view.progress),
        cancel_requested=view.is_cancel_requested,
    )
    if isinstance(view.error, LogStoreError):
        message.error.CopyFrom(status_of_error(view.error))
    elif view.error is not None:
        message.error.CopyFrom(status_of_defect(operation_id))
    if view.result is not None:
        _put_result(message, view.result, map(_left_out_message, view.left_out), is_shown)
    return message


def _progress_message(progress: OperationProgress) -> operation_pb2.OperationProgress:
    found = progress.compaction
    return operation_pb2.OperationProgress(
        phase=progress.phase,
        done_count=progress.done_count,
        total_count=progress.total_count,
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        compaction=None if found is None else _compaction_progress_message(found),
    )


def _compaction_progress_message(progress: CompactionProgress) -> operation_pb2.CompactionProgress:
    transfer = progress.transfer
    return operation_pb2.CompactionProgress(
        done_job_count=progress.done_job_count,
        job_count=progress.job_count,
        done_partition_count=progress.done_partition_count,
        partition_count=progress.partition_count,
        read_bytes=transfer.read_bytes,
        planned_read_bytes=progress.planned_read_bytes,
        written_bytes=transfer.written_bytes,
        kept_record_count=progress.kept_record_count,
        dropped_record_count=progress.dropped_record_count,
        get_request_count=transfer.get_count,
        resumed_get_request_count=transfer.resumed_get_count,
        put_request_count=transfer.put_count,
        elapsed_ms=progress.elapsed_ms,
        remaining_ms=UNKNOWN if progress.remaining_ms is None else progress.remaining_ms,
    )


_KINDS: dict[int, OperationKind] = {
    operation_pb2.OperationKind.Value(f"OPERATION_KIND_{kind.name}"): kind for kind in OperationKind
}
_ORPHAN_KINDS = {kind: operation_pb2.OrphanKind.Value(f"ORPHAN_KIND_{kind.name}") for kind in OrphanKind}
_FINDING_KINDS = {kind: operation_pb2.FindingKind.Value(f"FINDING_KIND_{kind.name}") for kind in FindingKind}
_STATES: dict[int, OperationState] = {
    operation_pb2.OperationState.Value(f"OPERATION_STATE_{state.name}"): state for state in OperationState
}


def kinds_of(numbers: Iterable[operation_pb2.OperationKind.ValueType]) -> frozenset[OperationKind]:
    """The kinds of a filter; all if it is empty. Raises InvalidRequestError."""
    return _members(_KINDS, numbers, "kind")


def states_of(numbers: Iterable[operation_pb2.OperationState.ValueType]) -> frozenset[OperationState]:
    """The states of a filter; all if it is empty. Raises InvalidRequestError."""
    return _members(_STATES, numbers, "state")


def _members(known: Mapping[int, _Member], numbers: Iterable[int], name: str) -> frozenset[_Member]:
    asked = tuple(numbers)
    for number in asked:
        if number not in known:
            raise InvalidRequestError(
                f"the filter names an unknown {name} of operations; use one of the enum's", **{name: number}
            )
    return frozenset(known[number] for number in asked) or frozenset(known.values())


def _put_result(
    message: operation_pb2.Operation,
    result: OperationResult,
    left_out: Iterable[operation_pb2.LeftOutShard],
    is_shown: IsIdShown,
) -> None:
    match result:
        case UploadResult():
            message.upload.CopyFrom(_upload_message(result))
            message.upload.left_out_shards.extend(left_out)
        case CompactionResult():
            message.compaction.CopyFrom(_compaction_message(result, is_shown))
            message.compaction.left_out_shards.extend(left_out)
        case RetentionResult():
            message.retention.CopyFrom(_retention_message(result))
            message.retention.left_out_shards.extend(left_out)
        case VerificationResult():
            message.verification.CopyFrom(_verification_message(result))
            message.verification.left_out_shards.extend(left_out)
        case CollectionResult():
            message.collection.CopyFrom(_collection_message(result))
            message.collection.left_out_shards.extend(left_out)
        case MoveResult():
            message.move.CopyFrom(_move_message(result))


def _upload_message(result: UploadResult) -> operation_pb2.UploadResult:
    uploaded = result.uploaded
    return operation_pb2.UploadResult(
        object_count=uploaded.object_count,
        slice_count=uploaded.slice_count,
        size_bytes=uploaded.data_bytes,
        deleted_segment_count=uploaded.local_segments_deleted,
        failed_partitions=_failed_messages(result.failed),
        failed_partition_count=len(result.failed),
    )


def _compaction_message(result: CompactionResult, is_shown: IsIdShown) -> operation_pb2.CompactionResult:
    jobs: list[operation_pb2.CompactionJob] = []
    left_count = MAX_LISTED_COUNT
    for report in result.reports[:MAX_LISTED_COUNT]:
        jobs.append(_job_message(report, left_count, is_shown))
        left_count -= len(jobs[-1].refused_partitions)
    return operation_pb2.CompactionResult(jobs=jobs, job_count=len(result.reports))


def _job_message(
    report: CompactionReport, max_refused_count: int, is_shown: IsIdShown
) -> operation_pb2.CompactionJob:
    """The result of a job, and the first of the shown partitions that it left unchanged."""
    refused = [one for one in report.refused_partitions if is_shown(one[0].topic_id)]
    is_reason_shown = all(is_shown(tip.topic_id) for tip in report.named_partitions)
    return operation_pb2.CompactionJob(
        input_count=report.inputs,
        get_request_count=report.get_requests,
        input_bytes=report.input_bytes,
        read_bytes=report.bytes_read,
        input_record_count=report.records_in,
        output_record_count=report.records_out,
        removed_tombstone_count=report.tombstones_removed,
        output_count=report.outputs,
        output_bytes=report.output_bytes,
        partition_count=report.partitions,
        outcome=operation_pb2.COMPACTION_OUTCOME_COMMITTED
        if report.refused is None
        else operation_pb2.COMPACTION_OUTCOME_REFUSED,
        reason=bounded_reason((report.refused or "") if is_reason_shown else REASON_OF_OTHERS),
        refused_partitions=[
            operation_pb2.RefusedPartition(
                topic_id=str(tip.topic_id), partition=tip.partition, reason=bounded_reason(reason)
            )
            for tip, reason in refused[:max_refused_count]
        ],
        refused_partition_count=len(report.refused_partitions),
        resumed_get_request_count=report.resumed_get_count,
        put_request_count=report.put_requests,
        failed_attempt_count=report.failed_attempts,
    )


def _retention_message(result: RetentionResult) -> operation_pb2.RetentionResult:
    return operation_pb2.RetentionResult(
        partitions=[
            operation_pb2.RetainedPartition(
                topic=one.topic_partition.topic,
                partition=one.topic_partition.partition,
                old_log_start_offset=one.old_log_start_offset,
                new_log_start_offset=one.new_log_start_offset,
                dropped_slice_count=one.dropped_slice_count,
                dropped_slice_bytes=one.dropped_slice_bytes,
                deleted_segment_count=one.deleted_segment_count,
                deleted_segment_bytes=one.deleted_segment_bytes,
            )
            for one in result.partitions[:MAX_LISTED_COUNT]
        ],
        failed_partitions=_failed_messages(result.failed),
        partition_count=len(result.partitions),
        failed_partition_count=len(result.failed),
        clock_refused_count=result.clock_refused_count,
        clock_skew_ms=result.clock_skew_ms,
    )


def _verification_message(result: VerificationResult) -> operation_pb2.VerificationResult:
    report = result.report
    return operation_pb2.VerificationResult(
        object_count=report.object_count,
        slice_count=report.slice_count,
        size_bytes=report.data_bytes,
        record_count=report.record_count,
        finding_count=report.finding_count,
        findings=map(_finding_message, report.findings),
        losses=map(_loss_message, report.gaps[:MAX_LISTED_COUNT]),
        loss_count=len(report.gaps),
        unreferenced_count=report.unreferenced.file_count,
        unreferenced_bytes=report.unreferenced.size_bytes,
        waiting_unreferenced_count=report.unreferenced.waiting_count,
        waiting_unreferenced_bytes=report.unreferenced.waiting_bytes,
        unreferenced_due_time_ms=report.unreferenced.due_ms,
        metadata_only=not result.has_read_data,
    )


def _left_out_message(left_out: LeftOutShard) -> operation_pb2.LeftOutShard:
    return operation_pb2.LeftOutShard(shard=left_out.shard, endpoint=left_out.endpoint)


def _finding_message(finding: VerificationFinding) -> operation_pb2.VerificationFinding:
    return operation_pb2.VerificationFinding(
        topic=finding.topic,
        partition=finding.partition,
        object_name=finding.object_name,
        base_offset=finding.base_offset,
        end_offset=finding.end_offset,
        reason=bounded_reason(finding.reason),
        kind=_FINDING_KINDS[finding.kind],
    )


def _loss_message(live: LiveSlice) -> operation_pb2.RecordedLoss:
    assert live.gap is not None
    return operation_pb2.RecordedLoss(
        topic_id=str(live.entry.topic_id),
        partition=live.entry.partition,
        base_offset=live.base_offset,
        end_offset=live.end_offset,
        reason=live.gap.reason,
        time_ms=live.gap.time_ms,
    )


def _collection_message(result: CollectionResult) -> operation_pb2.CollectionResult:
    report = result.report
    return operation_pb2.CollectionResult(
        dry_run=result.is_dry_run,
        deleted_count=report.deleted_count,
        deleted_bytes=report.deleted_bytes,
        waiting_count=report.waiting_count,
        waiting_bytes=report.waiting_bytes,
        reason=bounded_reason(report.refusal),
        deleted_files=map(_file_message, report.deleted),
        waiting_files=map(_file_message, report.waiting),
        pinned_count=report.pinned_count,
        orphans=[
            operation_pb2.OrphanTotal(
                kind=_ORPHAN_KINDS[kind], orphan_count=count, size_bytes=report.orphan_bytes[kind]
            )
            for kind, count in report.orphan_counts.items()
        ],
        orphan_files=map(_orphan_message, report.orphans),
        waiting_orphan_files=map(_orphan_message, report.waiting_orphans),
        trimmed_history_count=report.trimmed_count,
        expired_pin_count=report.expired_pin_count,
        problems=report.failures,
    )


def _orphan_message(orphan: Orphan) -> operation_pb2.OrphanFile:
    return operation_pb2.OrphanFile(
        kind=_ORPHAN_KINDS[orphan.kind],
        name=orphan.key,
        size_bytes=orphan.size_bytes,
        write_time_ms=orphan.modified_ms,
        due_time_ms=orphan.due_ms,
    )


def _file_message(waiting: WaitingFile) -> operation_pb2.DroppedFile:
    return operation_pb2.DroppedFile(
        name=waiting.file.name,
        size_bytes=waiting.file.size_bytes,
        dropped_time_ms=waiting.file.time_ms,
        due_time_ms=waiting.due_ms,
        pinned=waiting.is_pinned,
    )


def _move_message(result: MoveResult) -> operation_pb2.MoveResult:
    return operation_pb2.MoveResult(
        topic=result.topic_partition.topic,
        partition=result.topic_partition.partition,
        source_path=result.source_path,
        target_path=result.target_path,
    )


def _failed_messages(failed: Sequence[FailedPartition]) -> Iterable[operation_pb2.FailedPartition]:
    """The first of these partitions."""
    return [
        operation_pb2.FailedPartition(
            topic=one.topic_partition.topic,
            partition=one.topic_partition.partition,
            reason=bounded_reason(one.reason),
        )
        for one in failed[:MAX_LISTED_COUNT]
    ]
