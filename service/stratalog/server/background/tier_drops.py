"""Ends the tiers of topics that are no longer tiered, where their configuration says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stratalog.base.types import Durability
from stratalog.remote.tier.tier_drop import RefusedDrop
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.topics.topic_manager import TopicManager

SHOWN_BY_OBJECT = "min-durability"
"""Readers see what the object store has: the server's default of `min.durability` contradicts the topic."""


class TierDrops:
    """Drops the tiers of topics over all shards of one server. Thread-safe: its parts are. Methods may take
    the network for long."""

    def __init__(self, registry: PartitionRegistry, topics: TopicManager, tiers: Sequence[ShardTier]) -> None:
        self._registry = registry
        self._topics = topics
        self._tiers = tuple(tiers)

    def run(self) -> PassOutcome:
        """Drop the tiers of the topics whose configuration, as the catalog has it now, says so; their logs
        are logs without tiers when the last partition of the topic is done. Raises NotOwnerError,
        PreconditionFailedError (another commit saw a newer catalog, which the next turn reads), StoreError,
        DataDirectoryError. Asks nothing if there is no such topic.
        """
        if not self._is_needed():
            return PassOutcome()
        followed = self._topics.follow_catalog()
        leaving = [
            one
            for topic in followed.topics
            if topic.drops_tier
            for one in topic.partitions
            if one.offline() is None
        ]
        shown = [one for one in leaving if _is_shown_by_object(one)]
        dropped_count = 0
        refused: list[RefusedDrop] = []
        for tier in self._tiers:
            if tier.shard.is_fenced:
                continue
            partitions = [one for one in leaving if one.shard is tier.shard and one not in shown]
            report = tier.uploads.drop.run(
                [one.log for one in partitions],
                leader_epoch=tier.shard.leader_epoch,
                catalog_seq=followed.seq,
            )
            for one in partitions:
                if one.topic_partition in report.dropped:
                    one.signal.notify()
            dropped_count += len(report.dropped)
            refused += report.refused
        if dropped_count:
            self._topics.follow_catalog()
        reasons = Counter(one.reason.replace("_", "-") for one in refused)
        if shown:
            reasons[SHOWN_BY_OBJECT] = len(shown)
        failures = tuple(_text_of(one) for one in refused if one.damage is not None)
        return PassOutcome({"partitions": dropped_count}, reasons, failures)

    def _is_needed(self) -> bool:
        has_left = any(tier.uploads.drop.has_left for tier in self._tiers)
        return has_left or any(topic.drops_tier for topic in self._registry.topics())

    def backlog(self) -> Backlog:
        """The partitions whose tiers are to be dropped. Looks at the memory only."""
        states = [
            state
            for topic in self._registry.topics()
            if topic.drops_tier
            for one in topic.partitions
            if (state := one.tier_state()) is not None and state.row.pieces
        ]
        return Backlog(len(states), sum(state.tiered_bytes for state in states))


def _is_shown_by_object(partition: HostedPartition) -> bool:
    return partition.log.local_log.config.min_durability is Durability.OBJECT


def _text_of(refused: RefusedDrop) -> str:
    """What a person can do about damage."""
    return (
        f"the tier of {refused.topic_partition} stays, because the local log has damaged records that the"
        " object store has; set remote.storage.enable to true again to keep them, or delete the records up to"
        f" there: {refused.damage}"
    )
