"""A shard of the store that another server owns by configuration: this one follows its claims, and names its
owner to clients.
"""

from __future__ import annotations

from uuid import UUID

from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardClaim

_NONE = ShardClaim(epoch=0, owner="", endpoint="", uuid=UUID(int=0), seq=0, time_ms=0)


class ForeignShard:
    """A shard that this server has not claimed. Thread-safe: the metadata log is, and it keeps nothing."""

    is_fenced = True
    """A server without a claim is as one whose claim has ended."""

    def __init__(self, metadata: MetadataLog) -> None:
        self.metadata = metadata

    @property
    def owner(self) -> ShardClaim:
        """The newest claim that a look has found; one without an owner if no server has ever claimed it."""
        claims = self.metadata.state().claims
        return claims[-1] if claims else _NONE

    @property
    def takeover(self) -> ShardClaim:
        return self.owner

    @property
    def claimed(self) -> ClaimedShard:
        """Never there. Raises NotOwnerError."""
        raise self.owner.not_owner()

    def leader_epoch(self) -> int:
        """Raise NotOwnerError, which names the owner."""
        raise self.owner.not_owner()

    def refresh(self) -> None:
        """Read the head. Raises StoreError."""
        self.metadata.refresh()
