"""The answer of TierStatus: what the object store holds and what waits for upload, over all shards."""

from __future__ import annotations

from stratalog.base.errors import DataDirectoryError
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.rpc.admin_convert import offline_partition_message
from stratalog.server.storage_engine import StorageEngine
from stratalog.v1 import admin_pb2


def tier_status_message(engine: StorageEngine) -> admin_pb2.TierStatusResponse:
    """The tier status by the metadata in memory, without a request to the store.

    If there are several shards, the message has the highest epoch and the sum of the commits. Any thread may
    call it. Raises DataDirectoryError.
    """
    status = admin_pb2.TierStatusResponse(
        store_url=engine.tier.store.url,
        store_id=str(engine.tier.identity.store_id),
        shard_count=engine.tier.identity.shard_count,
    )
    for shard in engine.tier.shards:
        state = shard.metadata.state()
        status.epoch = max(status.epoch, shard.claimed.epoch)
        status.commit_count += state.seq
        for live in state.objects.values():
            status.live_object_count += 1
            status.live_bytes += live.ref.size_bytes
            status.live_slice_count += live.live_slices
        for dropped in state.dropped:
            status.dropped_object_count += 1
            status.dropped_bytes += dropped.size_bytes
    for partition in engine.topics.registry.partitions():
        status.pending_upload_bytes += _pending_upload_bytes(partition)
    status.offline_partitions.extend(
        map(offline_partition_message, engine.topics.registry.offline_partitions())
    )
    takeover = _takeover(engine.tier.shards)
    if takeover is not None:
        status.takeover.owner = takeover.owner
        status.takeover.epoch = takeover.epoch
        status.takeover.time_ms = takeover.time_ms
    upload = engine.tier.manager.upload_status
    status.last_successful_upload_ms = upload.last_success_ms
    status.last_upload_error = upload.last_error
    return status


def _pending_upload_bytes(partition: HostedPartition) -> int:
    """Bytes of rolled segments that are not in the object store; 0 if the partition's disk has failed."""
    if not partition.is_tiered or partition.offline() is not None:
        return 0
    try:
        segments = partition.log.reader.segments()
    except DataDirectoryError:
        if partition.offline() is None:
            raise
        return 0
    return sum(
        segment.size_bytes
        for segment in segments
        if not segment.is_active and segment.end_offset > partition.tiered_end_offset
    )


def _takeover(shards: ShardSet) -> ShardClaim | None:
    """The earliest claim by which another server took over a shard; None if there is none."""
    claims = (shard.takeover for shard in shards)
    return min(
        (claim for claim in claims if claim is not None), key=lambda claim: claim.time_ms, default=None
    )
