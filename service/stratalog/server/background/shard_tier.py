"""The components that work on the objects of one shard."""

from __future__ import annotations

import dataclasses

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import Compactor
from stratalog.compaction.tier_verification import TierVerification
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.retention.remote_retention import RemoteRetention
from stratalog.remote.tier.collector import Collector
from stratalog.remote.tier.tier_drop import TierDrop
from stratalog.remote.tier.uploader import Uploader
from stratalog.server.background.tail_commits import TailCommits
from stratalog.server.partitions.hosted_shard import HostedShard


@dataclasses.dataclass(frozen=True, slots=True)
class ShardUploads:
    """The uploads of one shard, and the drop of what they have brought."""

    segments: Uploader
    tails: TailCommits
    drop: TierDrop

    def last_success_ms(self, tip: TopicIdPartition) -> int:
        """Wall time of the last commit with records of the partition since the start; -1 without one."""
        return max(self.segments.last_success_ms(tip), self.tails.last_success_ms(tip))

    def failure_of(self, tip: TopicIdPartition) -> LogStoreError | None:
        """Why the last try to upload the partition failed; None if it did not. Never waits."""
        return self.segments.failure_of(tip) or self.tails.failure_of(tip)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTier:
    """The components that work on one shard's objects."""

    shard: HostedShard
    uploads: ShardUploads
    retention: RemoteRetention
    collector: Collector
    compactor: Compactor
    reader: RemoteReader
    verification: TierVerification
