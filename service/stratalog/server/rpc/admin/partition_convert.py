"""Converts partitions, and their segments, slices and producers, to messages of the control plane."""

from __future__ import annotations

from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.rpc.admin.admin_convert import UNKNOWN, offline_partition_message
from stratalog.v1 import admin_pb2, partition_pb2


def partition_log_message(
    partition: HostedPartition | OfflinePartition, cleaner: CleanerManager
) -> admin_pb2.PartitionLog:
    """Offsets and sizes of a partition. Touches no disk."""
    offline = partition if isinstance(partition, OfflinePartition) else partition.offline()
    if offline is not None:
        return _offline_log_message(offline)
    assert isinstance(partition, HostedPartition)
    return _log_message(partition, cleaner)


def _log_message(partition: HostedPartition, cleaner: CleanerManager) -> admin_pb2.PartitionLog:
    log = partition.log
    state = partition.tier_state()
    marks = partition.watermarks()
    message = admin_pb2.PartitionLog(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        log_start_offset=marks.log_start_offset,
        local_log_start_offset=marks.local_log_start_offset,
        tiered_end_offset=partition.tiered_end_offset,
        earliest_pending_upload_offset=UNKNOWN,
        compacted_upto=0 if state is None else state.compacted_upto,
        high_watermark=marks.high_watermark,
        last_stable_offset=marks.last_stable_offset,
        log_end_offset=log.offsets.log_end_offset,
        recovery_point=log.offsets.recovery_point,
        leader_epoch=partition.shard.claimed.epoch,
        local_size_bytes=log.local_log.segments.size_bytes,
        tiered_size_bytes=0 if state is None else state.tiered_bytes,
        segment_count=len(log.local_log.segments),
        slice_count=0 if state is None else len(state.slices),
        pending_upload_record_count=UNKNOWN,
        pending_upload_bytes=UNKNOWN,
    )
    if partition.is_tiered:
        _add_pending_upload(message, log)
    else:
        log_dir = log.local_log.log_dir
        message.compacted_upto = cleaner.cleaned_offset(partition.topic_partition, log_dir)
    return message


def _add_pending_upload(message: admin_pb2.PartitionLog, log: UnifiedLog) -> None:
    """Fill in the part of the log that is not in the object store; a segment counts whole."""
    pending_offset = log.offsets.earliest_pending_upload_offset
    message.earliest_pending_upload_offset = pending_offset
    message.pending_upload_record_count = max(0, message.log_end_offset - pending_offset)
    message.pending_upload_bytes = sum(
        segment.size_bytes for segment in log.local_log.segments if segment.end_offset > pending_offset
    )


def _offline_log_message(partition: OfflinePartition) -> admin_pb2.PartitionLog:
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
        leader_epoch=partition.shard.owner.epoch,
        local_size_bytes=UNKNOWN,
        tiered_size_bytes=state.tiered_bytes,
        segment_count=UNKNOWN,
        slice_count=len(state.slices),
        pending_upload_record_count=UNKNOWN,
        pending_upload_bytes=UNKNOWN,
        offline=offline_partition_message(partition),
    )


def segment_message(segment: SegmentInfo) -> partition_pb2.Segment:
    """A local segment."""
    return partition_pb2.Segment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        active=segment.is_active,
    )


def slice_message(live: LiveSlice) -> partition_pb2.Slice:
    """A slice in the object store."""
    return partition_pb2.Slice(
        object_name=live.object_name,
        base_offset=live.base_offset,
        end_offset=live.end_offset,
        size_bytes=live.entry.data_bytes,
        record_count=live.entry.record_count,
        max_timestamp_ms=live.entry.max_timestamp,
        gap_reason="" if live.gap is None else live.gap.reason,
    )


def producer_message(producer: ProducerStateEntry) -> partition_pb2.ProducerState:
    """The state of a producer."""
    first_offset = producer.current_txn_first_offset
    return partition_pb2.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_offset=producer.batches[-1].last_offset if producer.batches else UNKNOWN,
        last_timestamp_ms=producer.last_timestamp_ms,
        current_txn_first_offset=UNKNOWN if first_offset is None else first_offset,
    )
