"""All shards of the store: those that this server owns, and those that it leaves to others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.remote.store_layout import shard_of
from stratalog.server.operations.operation_results import LeftOutShard
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

    def lost_of(self, tip: TopicIdPartition) -> HostedShard | ForeignShard | None:
        """The shard of the partition if another server owns it, by configuration or by a takeover."""
        shard = self.of(tip)
        return shard if shard.is_fenced else None

    @property
    def of_others(self) -> list[HostedShard | ForeignShard]:
        """The shards that other servers own, by configuration or by a takeover, or that have no owner; by
        number."""
        return [shard for _, shard in sorted(self._by_number.items()) if shard.is_fenced]

    def left_out(self, tips: Iterable[TopicIdPartition] | None) -> tuple[LeftOutShard, ...]:
        """Those of others that have some of these partitions (None: all), with their owners as of the last
        look: what this server does is not done there."""
        numbers = None if tips is None else {self.of(tip).metadata.shard for tip in tips}
        return tuple(
            LeftOutShard(shard.metadata.shard, shard.owner.endpoint)
            for shard in self.of_others
            if numbers is None or shard.metadata.shard in numbers
        )

    def owned(self, tip: TopicIdPartition) -> HostedShard:
        """The shard of the partition. Raises NotOwnerError if another server owns it."""
        shard = self.of(tip)
        if isinstance(shard, ForeignShard):
            raise shard.owner.not_owner()
        return shard

    def ensure_owned(self) -> None:
        """Check the claims of this server. Raises NotOwnerError if looks at the heads found other owners of
        all its shards: then it does not follow the catalog any more."""
        if self.is_replaced:
            self._shards[0].leader_epoch()

    def confirm_owned(self) -> None:
        """Read heads until one says that this server still owns a shard. Raises NotOwnerError if it does not,
        StoreError."""
        for shard in self._shards:
            if not shard.is_fenced:
                shard.refresh()
            if not shard.is_fenced:
                return
        self.ensure_owned()

    def confirm_owner_of(self, tip: TopicIdPartition) -> None:
        """Read the head of the partition's shard. Raises NotOwnerError if another server owns it,
        StoreError."""
        shard = self.of(tip)
        shard.leader_epoch()
        shard.refresh()
        shard.leader_epoch()

    def __iter__(self) -> Iterator[HostedShard]:
        return iter(self._shards)

    @property
    def is_replaced(self) -> bool:
        """Whether other servers have taken over all shards that this one had claimed."""
        return bool(self._shards) and all(shard.is_fenced for shard in self._shards)
