"""All shards of the store. Today one process owns them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.remote.store_layout import shard_of
from stratalog.server.partitions.hosted_shard import HostedShard


class ShardSet:
    """All shards of the store. Immutable; the shards themselves are thread-safe."""

    def __init__(self, shards: Sequence[HostedShard]) -> None:
        assert shards
        self._shards = tuple(shards)

    def of(self, tip: TopicIdPartition) -> HostedShard:
        return self._shards[shard_of(tip, len(self._shards))]

    def ensure_owned(self) -> None:
        """Raise NotOwnerError if a look at a head has found another owner."""
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

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def is_fenced(self) -> bool:
        return any(shard.is_fenced for shard in self._shards)
