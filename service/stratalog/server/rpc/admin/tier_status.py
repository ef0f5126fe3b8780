"""The answer of TierStatus: the contents of each shard and its contact with the store, the passes, and what
each topic has in the store and waiting for upload.
"""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, OffsetOutOfRangeError
from stratalog.server.background.pass_registry import PassStatus
from stratalog.server.background.upload_tracker import pending_upload_bytes
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.rpc.admin.admin_convert import UNKNOWN, offline_partition_message
from stratalog.server.storage_engine import StorageEngine
from stratalog.v1 import tier_pb2


def tier_status_message(engine: StorageEngine, now_ms: int) -> tier_pb2.TierStatusResponse:
    """The tier status by the metadata in memory, without a request to the store. Any thread may call it.
    Raises DataDirectoryError.
    """
    registry = engine.topics.registry
    return tier_pb2.TierStatusResponse(
        store_url=engine.tier.store.url,
        store_id=str(engine.tier.identity.store_id),
        shards=[_shard_message(number, shard) for number, shard in enumerate(engine.tier.shards)],
        topics=[
            _topic_message(topic, now_ms)
            for topic in registry.topics()
            if topic.config is not None and topic.config.remote_storage_enable
        ],
        offline_partitions=map(offline_partition_message, registry.offline_partitions()),
        passes=map(_pass_message, engine.passes.statuses()),
        time_ms=now_ms,
        store_remarks=engine.tier.upkeep.store_remarks,
    )


def _shard_message(number: int, shard: HostedShard) -> tier_pb2.ShardStatus:
    state, compared = shard.metadata.state(), shard.metadata.compared_clocks
    contact = shard.contact
    live, dropped = tuple(state.objects.values()), state.dropped
    message = tier_pb2.ShardStatus(
        shard=number,
        epoch=shard.claimed.epoch,
        commit_count=state.seq,
        live_object_count=len(live),
        live_bytes=sum(one.ref.size_bytes for one in live),
        live_slice_count=sum(one.live_slices for one in live),
        dropped_object_count=len(dropped),
        dropped_bytes=sum(one.size_bytes for one in dropped),
        clock_skew_ms=compared.skew_ms,
        clock_checked_ms=compared.at_ms,
        deletion_stopped=contact.is_clock_wrong,
        last_answer_ms=contact.last_answer_ms,
        silence_ms=contact.silence_ms,
        disk_appends_refused=contact.is_too_silent,
    )
    takeover = shard.takeover
    if takeover is not None:
        message.takeover.owner = takeover.owner
        message.takeover.epoch = takeover.epoch
        message.takeover.time_ms = takeover.time_ms
        message.takeover.endpoint = takeover.endpoint
    return message


def _pass_message(status: PassStatus) -> tier_pb2.PassStatus:
    outcome = status.last_outcome
    return tier_pb2.PassStatus(
        name=status.name,
        running_since_ms=status.running_since_ms,
        last_begin_ms=status.last_begin_ms,
        last_end_ms=status.last_end_ms,
        last_success_ms=status.last_success_ms,
        last_work_ms=status.last_work_ms,
        turn_count=status.turn_count,
        failed_turn_count=status.failed_turn_count,
        consecutive_failure_count=status.consecutive_failure_count,
        last_outcome="" if outcome is None else outcome.text,
        last_error=status.last_error,
        last_done={} if outcome is None else outcome.done,
        last_refusals={} if outcome is None else outcome.refusals,
        total_done=status.total_done,
        total_refusals=status.total_refusals,
        backlog=tier_pb2.PassBacklog(
            piece_count=status.backlog.count,
            size_bytes=status.backlog.size_bytes,
            record_count=status.backlog.record_count,
            oldest_ms=status.backlog.oldest_ms,
        ),
    )


def _topic_message(topic: HostedTopic, now_ms: int) -> tier_pb2.TieredTopicStatus:
    message = tier_pb2.TieredTopicStatus(topic=topic.name, lag_ms=UNKNOWN)
    for partition in topic.all_partitions:
        state = partition.tier_state()
        if state is not None and state.slices:
            message.tiered_partition_count += 1
            message.slice_count += len(state.slices)
            message.tiered_bytes += state.tiered_bytes
        if isinstance(partition, OfflinePartition) or partition.offline() is not None:
            continue
        if not partition.log.local_log.config.is_copied:
            # As in Kafka: nothing waits for an upload that nothing will begin.
            continue
        message.pending_upload_bytes += pending_upload_bytes(partition)
        try:
            _add_lag(message, partition, now_ms)
        except DataDirectoryError:
            if partition.offline() is None:
                raise
    return message


def _add_lag(message: tier_pb2.TieredTopicStatus, partition: HostedPartition, now_ms: int) -> None:
    pending_offset = max(partition.log_start_offset, partition.tiered_end_offset)
    lag_count = partition.log_end_offset - pending_offset
    if lag_count <= 0:
        return
    message.lag_record_count += lag_count
    message.lag_bytes += sum(
        segment.size_bytes
        for segment in partition.log.reader.segments()
        if segment.end_offset > pending_offset
    )
    try:
        header = partition.log.reader.header_at(pending_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        # Damaged, or uploaded and deleted meanwhile.
        return
    if header is not None and header.max_timestamp >= 0:
        message.lag_ms = max(message.lag_ms, now_ms - header.max_timestamp, 0)
