"""The components that work on the objects of one shard."""

from __future__ import annotations

import dataclasses

from stratalog.compaction.compactor import Compactor
from stratalog.compaction.tier_verification import TierVerification
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.retention.remote_retention import RemoteRetention
from stratalog.remote.tier.collector import Collector
from stratalog.remote.tier.uploader import Uploader
from stratalog.server.partitions.hosted_shard import HostedShard


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTier:
    """The components that work on one shard's objects."""

    shard: HostedShard
    uploader: Uploader
    retention: RemoteRetention
    collector: Collector
    compactor: Compactor
    reader: RemoteReader
    verification: TierVerification
