"""Between values of the engine and messages of the wire, for the control plane."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.base.errors import DataDirectoryError
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.v1 import admin_pb2

UNKNOWN = -1
"""For an offset or a size of a local log that cannot be opened."""


def topic_message(topic: HostedTopic) -> admin_pb2.Topic:
    """A topic with its configuration in force. The hash key stays in the catalog."""
    return admin_pb2.Topic(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partition_count=len(topic.all_partitions),
        config_overrides=topic.config_overrides,
        config={} if topic.config is None else topic.config.as_mapping(),
        offline_partitions=map(offline_partition_message, topic.unserved_partitions),
    )


def offline_partition_message(partition: OfflinePartition) -> admin_pb2.OfflinePartition:
    """Which one it is, and why."""
    return admin_pb2.OfflinePartition(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        path=partition.path,
        reason=partition.reason,
    )


def partition_log_message(partition: HostedPartition | OfflinePartition) -> admin_pb2.PartitionLog:
    """Offsets, segments and slices of a partition, each consistent in itself."""
    offline = partition if isinstance(partition, OfflinePartition) else partition.offline()
    if offline is not None:
        return _offline_log_message(offline)
    assert isinstance(partition, HostedPartition)
    try:
        return _log_message(partition, partition.log.segments())
    except DataDirectoryError:
        offline = partition.offline()
        if offline is None:
            raise
        return _offline_log_message(offline)


def _log_message(partition: HostedPartition, segments: Iterable[SegmentInfo]) -> admin_pb2.PartitionLog:
    log = partition.log
    state = partition.tier_state()
    marks = partition.watermarks()
    return admin_pb2.PartitionLog(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        log_start_offset=marks.log_start_offset,
        local_log_start_offset=marks.local_log_start_offset,
        tiered_end_offset=partition.tiered_end_offset,
        earliest_pending_upload_offset=log.earliest_pending_upload_offset if partition.is_tiered else -1,
        compacted_upto=partition.compacted_upto,
        high_watermark=marks.high_watermark,
        last_stable_offset=marks.last_stable_offset,
        log_end_offset=log.log_end_offset,
        recovery_point=log.recovery_point,
        leader_epoch=partition.shard.claimed.epoch,
        local_size_bytes=log.size_bytes,
        tiered_size_bytes=0 if state is None else state.tiered_bytes,
        segments=[
            admin_pb2.Segment(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                max_timestamp_ms=segment.max_timestamp_ms,
                active=segment.is_active,
            )
            for segment in segments
        ],
        slices=_slice_messages(state),
    )


def _offline_log_message(partition: OfflinePartition) -> admin_pb2.PartitionLog:
    """What the object store has of it; of the local log nobody can tell."""
    state = partition.tier_state()
    return admin_pb2.PartitionLog(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        log_start_offset=state.log_start_offset,
        local_log_start_offset=UNKNOWN,
        tiered_end_offset=state.tiered_end_offset,
        earliest_pending_upload_offset=UNKNOWN,
        compacted_upto=state.compacted_upto,
        high_watermark=UNKNOWN,
        last_stable_offset=UNKNOWN,
        log_end_offset=UNKNOWN,
        recovery_point=UNKNOWN,
        leader_epoch=partition.shard.claimed.epoch,
        local_size_bytes=UNKNOWN,
        tiered_size_bytes=state.tiered_bytes,
        slices=_slice_messages(state),
        offline=offline_partition_message(partition),
    )


def _slice_messages(state: TieredPartition | None) -> list[admin_pb2.Slice]:
    return [
        admin_pb2.Slice(
            object=live.object_name,
            base_offset=live.base_offset,
            end_offset=live.end_offset,
            size_bytes=live.entry.data_bytes,
            record_count=live.entry.record_count,
            max_timestamp_ms=live.entry.max_timestamp,
        )
        for live in (() if state is None else state.slices)
    ]


def compaction_job_message(report: CompactionReport) -> admin_pb2.CompactionJob:
    """What a job did; `refused` also names partitions that were left out of a job that went on."""
    refused = report.refused or "; ".join(f"{tip}: {reason}" for tip, reason in report.refused_partitions)
    return admin_pb2.CompactionJob(
        inputs=report.inputs,
        get_requests=report.get_requests,
        input_bytes=report.input_bytes,
        bytes_read=report.bytes_read,
        records_in=report.records_in,
        records_out=report.records_out,
        tombstones_removed=report.tombstones_removed,
        outputs=report.outputs,
        output_bytes=report.output_bytes,
        partitions=report.partitions,
        refused=refused,
    )
