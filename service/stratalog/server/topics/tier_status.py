"""Sums up what the object store holds and how far the uploader is, over all shards."""

from __future__ import annotations

from stratalog.base.errors import DataDirectoryError
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.remote.store_identity import StoreIdentity
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.rpc.admin_convert import offline_partition_message
from stratalog.server.topics.tier_manager import TierManager
from stratalog.v1 import admin_pb2


class TierStatusReporter:
    """Thread-safe: reads snapshots only."""

    def __init__(
        self,
        store_url: str,
        identity: StoreIdentity,
        catalog: Catalog,
        shards: ShardSet,
        registry: PartitionRegistry,
        tiers: TierManager,
    ) -> None:
        self._store_url = store_url
        self._identity = identity
        self._catalog = catalog
        self._shards = shards
        self._registry = registry
        self._tiers = tiers

    def report(self) -> admin_pb2.TierStatusResponse:
        """Counts of now, without asking the store. With several shards, the highest epoch and the sum of
        commits.
        """
        status = admin_pb2.TierStatusResponse(
            store=self._store_url,
            store_id=str(self._identity.store_id),
            shard_count=self._identity.shard_count,
        )
        for shard in self._shards:
            state = shard.metadata.state()
            status.epoch = max(status.epoch, shard.claimed.epoch)
            status.metadata_seq += state.seq
            for live in state.objects.values():
                status.live_objects += 1
                status.live_bytes += live.ref.size_bytes
                status.live_slices += live.live_slices
            for dropped in state.dropped:
                status.dropped_objects += 1
                status.dropped_bytes += dropped.size_bytes
        for partition in self._registry.partitions():
            status.pending_upload_bytes += _pending_upload_bytes(partition)
        status.offline_partitions.extend(map(offline_partition_message, self._registry.offline_partitions()))
        takeover = _takeover(self._shards)
        if takeover is not None:
            status.takeover.owner = takeover.owner
            status.takeover.epoch = takeover.epoch
            status.takeover.time_ms = takeover.time_ms
        upload = self._tiers.upload_status
        status.last_successful_upload_ms = upload.last_success_ms
        status.last_upload_error = upload.last_error
        return status


def _pending_upload_bytes(partition: HostedPartition) -> int:
    """Of a partition whose disk has failed nobody can tell."""
    if not partition.is_tiered or partition.offline() is not None:
        return 0
    try:
        segments = partition.log.segments()
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
    """The claim by which another server has taken the store over; None where none has. Of several shards, the
    first that was taken.
    """
    claims = (shard.takeover for shard in shards)
    return min(
        (claim for claim in claims if claim is not None), key=lambda claim: claim.time_ms, default=None
    )
