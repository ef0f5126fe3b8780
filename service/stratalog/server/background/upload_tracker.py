"""The progress of an upload, as its operation shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stratalog.remote.tier.upload_report import UploadReport
from stratalog.server.operations.operation import Operation, OperationProgress
from stratalog.server.operations.operation_results import FailedPartition, Uploaded, UploadResult
from stratalog.server.partitions.hosted_partition import HostedPartition


class UploadTracker:
    """Reports an upload to its operation, if it has one. Belongs to the thread of the upload."""

    def __init__(self, operation: Operation | None, left_out: Sequence[FailedPartition]) -> None:
        self._operation = operation
        self._failed = list(left_out)
        self._before = Uploaded()
        self._now = Uploaded()
        self._total_bytes = 0
        self.stop = None if operation is None else operation.stop

    def check(self) -> None:
        if self.stop is not None:
            self.stop.check()

    def begin(self, partitions: Collection[HostedPartition]) -> None:
        """Measure what is to be uploaded."""
        if self._operation is not None:
            self._total_bytes = self._before.data_bytes + sum(map(pending_upload_bytes, partitions))
            self._tell()

    def note_objects(self, report: UploadReport) -> None:
        """Note the objects of a shard up to now."""
        self._now = Uploaded(report.object_count, report.slice_count, report.data_bytes)
        self._tell()

    def end_report(self, report: UploadReport) -> None:
        """Note that a shard is done."""
        self._before = self._before.plus(Uploaded(report.object_count, report.slice_count, report.data_bytes))
        self._now = Uploaded()
        self._failed += [FailedPartition(one.topic_partition, str(one.error)) for one in report.failed]
        self._tell()

    def note_deleted(self, segment_count: int) -> None:
        self._before = self._before._replace(local_segments_deleted=segment_count)
        self._tell("deletes local segments")

    def _tell(self, phase: str = "uploads") -> None:
        if self._operation is None:
            return
        done = self._before.plus(self._now)
        self._operation.set_result(UploadResult(done, tuple(self._failed)))
        self._operation.report(
            OperationProgress(
                phase=phase,
                done_count=done.slice_count,
                done_bytes=done.data_bytes,
                total_bytes=max(self._total_bytes, done.data_bytes),
            )
        )


def pending_upload_bytes(partition: HostedPartition) -> int:
    """Bytes of rolled segments that are not in the object store, by what is in memory; 0 if the partition's
    disk has failed."""
    if not partition.is_tiered or partition.offline() is not None:
        return 0
    tiered_end_offset, held = partition.tiered_end_offset, partition.log.local_log.segments
    # A policy may have dropped segments that are behind the tiered end.
    return sum(
        segment.size_bytes
        for segment in held.since(max(tiered_end_offset, held.start_offset))
        if not segment.is_active and segment.end_offset > tiered_end_offset
    )
