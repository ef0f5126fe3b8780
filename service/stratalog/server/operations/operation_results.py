"""The results of long work, one class for each kind of operation."""

from __future__ import annotations

import operator
from typing import NamedTuple

from stratalog.base.types import TopicPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.tier_verification import VerificationReport
from stratalog.remote.tier.collector import CollectReport


class FailedPartition(NamedTuple):
    """A partition that failed, or that the work left out."""

    topic_partition: TopicPartition
    reason: str

    @staticmethod
    def offline(topic_partition: TopicPartition, path: str, reason: str) -> FailedPartition:
        return FailedPartition(topic_partition, f"it is offline, path {path}: {reason}")


class Uploaded(NamedTuple):
    """The result of an upload, over all shards."""

    object_count: int = 0
    slice_count: int = 0
    data_bytes: int = 0
    local_segments_deleted: int = 0

    def plus(self, other: Uploaded) -> Uploaded:
        return Uploaded(*map(operator.add, self, other))


class UploadResult(NamedTuple):
    """The result of an upload that was started."""

    uploaded: Uploaded = Uploaded()
    failed: tuple[FailedPartition, ...] = ()


class CompactionResult(NamedTuple):
    """The jobs that a compaction ran."""

    reports: tuple[CompactionReport, ...] = ()


class RetainedPartition(NamedTuple):
    """A partition that retention has shortened."""

    topic_partition: TopicPartition
    old_log_start_offset: int
    new_log_start_offset: int
    dropped_slice_count: int = 0
    dropped_slice_bytes: int = 0
    deleted_segment_count: int = 0
    deleted_segment_bytes: int = 0


class RetentionResult(NamedTuple):
    """The partitions that retention has shortened, and those that it could not."""

    partitions: tuple[RetainedPartition, ...] = ()
    failed: tuple[FailedPartition, ...] = ()
    clock_refused_count: int = 0
    """Partitions of which nothing went by time, because the clock is wrong."""
    clock_skew_ms: int = 0
    """Own clock minus the store's clock, where they differ most."""


class LeftOutShard(NamedTuple):
    """A shard that another server owns, so that the work of this one has left it out."""

    shard: int
    endpoint: str
    """HOST:PORT of the server that owns it; empty if no server has claimed it."""


class VerificationResult(NamedTuple):
    """The slices that a verification has read, and the damage in them, over all shards of this server."""

    report: VerificationReport
    has_read_data: bool = True
    """Without it the contents of objects are not compared."""


class CollectionResult(NamedTuple):
    """The dropped files and orphans that were deleted, or would be, over all shards of this server."""

    report: CollectReport
    is_dry_run: bool


class MoveResult(NamedTuple):
    """A move between two log directories."""

    topic_partition: TopicPartition
    source_path: str
    target_path: str


OperationResult = (
    UploadResult | CompactionResult | RetentionResult | VerificationResult | CollectionResult | MoveResult
)
