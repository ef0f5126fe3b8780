"""Between what local disks and their cleaner say and messages of the wire."""

from __future__ import annotations

from stratalog.cleaner.cleaner_failures import CleaningFailure
from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.manager.moves.log_move import MoveProgress
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.server.partitions.log_directory_manager import DescribedDirectory
from stratalog.v1 import admin_pb2


def log_dir_message(described: DescribedDirectory) -> admin_pb2.LogDir:
    """How a log directory is."""
    status = described.status
    return admin_pb2.LogDir(
        path=status.path,
        directory_id=status.directory_id,
        state=status.state.value,
        reason=status.reason,
        partition_count=status.partition_count,
        size_bytes=described.size_bytes,
        remaining_logs=status.remaining_log_count,
        set_aside=described.set_aside,
    )


def move_message(progress: MoveProgress) -> admin_pb2.PartitionMove:
    """How far a move is."""
    return admin_pb2.PartitionMove(
        topic=progress.partition.topic,
        partition=progress.partition.partition,
        source_path=progress.source_path,
        target_path=progress.target_path,
        state=progress.state.value,
        copied_bytes=progress.copied_bytes,
        remaining_bytes=progress.remaining_bytes,
        reason=progress.reason,
    )


def cleaner_status_message(stats: CleanerStats) -> admin_pb2.CleanerStatusResponse:
    """What the cleaner has done, and cannot do."""
    return admin_pb2.CleanerStatusResponse(
        workers=stats.worker_count,
        running=stats.running_count,
        dead_workers=stats.dead_worker_count,
        ms_since_last_run=stats.ms_since_last_run,
        max_clean_ms=stats.max_clean_ms,
        max_compaction_delay_ms=stats.max_compaction_delay_ms,
        max_cleanable_ratio=stats.max_cleanable_ratio,
        cleans=stats.clean_count,
        aborted=stats.aborted_count,
        cleaned_records=stats.cleaned_record_count,
        dropped_records=stats.dropped_record_count,
        records_without_key=stats.null_key_count,
        cleaned_bytes=stats.cleaned_bytes,
        reclaimed_bytes=stats.reclaimed_bytes,
        uncleanable=map(_uncleanable_message, stats.failures),
        next_horizon_ms=stats.next_horizon_ms if stats.next_horizon_ms < NO_HORIZON else 0,
    )


def _uncleanable_message(failure: CleaningFailure) -> admin_pb2.UncleanablePartition:
    return admin_pb2.UncleanablePartition(
        topic=failure.partition.topic,
        partition=failure.partition.partition,
        log_dir=failure.directory,
        kind=failure.kind.value,
        reason=failure.reason,
        since_ms=failure.since_ms,
        failures=failure.failure_count,
        next_try_ms=failure.next_try_ms,
        dirty_bytes=failure.dirty_bytes,
        alarm=failure.is_alarm,
    )
