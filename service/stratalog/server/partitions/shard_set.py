"""All shards of the store: those that this server owns, and those that it leaves to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.remote.store_layout import shard_of
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.hosted_shard import HostedShard


class ShardSet:
    """All shards of the store; an iteration has those that this server owns. Immutable; the shards themselves
    are thread-safe."""

    def __init__(self, shards: Sequence[HostedShard], foreign: Sequence[ForeignShard] = ()) -> None:
        assert shards
        self._shards = tuple(shards)
        self.foreign = tuple(foreign)
        """The shards of other servers."""
        everything: list[HostedShard | ForeignShard] = [*shards, *foreign]
        self._by_number = {shard.metadata.shard: shard for shard in everything}
        assert set(self._by_number) == set(range(len(self._by_number))), "every shard is here once"

    def of(self, tip: TopicIdPartition) -> HostedShard | ForeignShard:
        return self._by_number[shard_of(tip, len(self._by_number))]

    def foreign_of(self, tip: TopicIdPartition) -> ForeignShard | None:
        """The shard of the partition if another server owns it."""
        shard = self.of(tip)
        return shard if isinstance(shard, ForeignShard) else None

    def owned(self, tip: TopicIdPartition) -> HostedShard:
        """The shard of the partition. Raises NotOwnerError if another server owns it."""
        shard = self.of(tip)
        if isinstance(shard, ForeignShard):
            raise shard.owner.not_owner()
        return shard

    def ensure_owned(self) -> None:
        """Check the claims of this server. Raises NotOwnerError if a look at a head found another owner."""
        for shard in self._shards:
            shard.leader_epoch()

    def confirm_owned(self) -> None:
        """Read every head. Raises NotOwnerError if another owner has claimed a shard, StoreError."""
        for shard in self._shards:
            shard.leader_epoch()
            shard.refresh()
            shard.leader_epoch()

    def __iter__(self) -> Iterator[HostedShard]:
        return iter(self._shards)

    @property
    def is_fenced(self) -> bool:
        return any(shard.is_fenced for shard in self._shards)
