"""A shard that another server owns, and that this one only reads.

There is no claim. The epoch is that of the owner by the newest head, so a new owner fences nothing here: its
records appear with the next look at the head, as those of its predecessor did.
"""

from __future__ import annotations

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreNotUsableError
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardClaim
from stratalog.server.partitions.hosted_shard import HostedShard


class FollowedShard(HostedShard):
    """A shard of another owner. Thread-safe, as `HostedShard`."""

    def __init__(self, clock: Clock, metadata: MetadataLog) -> None:
        """Follow the shard of the metadata. Raises StoreNotUsableError if no server has ever owned it."""
        if not metadata.state().claims:
            raise StoreNotUsableError(
                "no server has ever owned this store, so there is nothing to read; start the owner first",
                shard=metadata.layout.shard,
            )
        super().__init__(clock, metadata, ClaimedShard(metadata.state().epoch, 0), lambda: None, 0)

    @property
    def claimed(self) -> ClaimedShard:
        """The epoch of the owner, as of the newest head."""
        return ClaimedShard(self.metadata.state().epoch, 0)

    @property
    def takeover(self) -> ShardClaim:
        """The claim of the owner, as of the newest head."""
        return self.owner

    @property
    def is_followed(self) -> bool:
        return True
