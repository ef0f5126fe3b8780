"""Ends the tiers of topics that are no longer tiered, where their configuration says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stratalog.base.types import Durability
from stratalog.remote.tier.tier_drop import DropReport, LeavingLogs, RefusedDrop
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.pass_rounds import PassRounds, unless_fenced
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.topics.topic_manager import TopicManager

SHOWN_BY_OBJECT = "min-durability"
"""Readers see what the object store has: the server's default of `min.durability` contradicts the topic."""


class TierDrops:
    """Drops the tiers of topics over all shards of one server. Thread-safe: its parts are. Methods may take
    the network for long."""

    def __init__(
        self,
        registry: PartitionRegistry,
        topics: TopicManager,
        tiers: Sequence[ShardTier],
        rounds: PassRounds[int],
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._tiers = tuple(tiers)
        self._rounds = rounds

    def run(self) -> PassOutcome:
        """Drop the tiers of the topics whose configuration, as the catalog has it now, says so; their logs
        are logs without tiers when the last partition of the topic is done. Raises PreconditionFailedError
        (a topic is to stay, or another commit saw a newer catalog, which the next turn reads), StoreError,
        DataDirectoryError. Asks nothing if there is no such topic.
        """
        if not self._is_needed():
            return PassOutcome()
        works = {
            tier.shard.metadata.shard: unless_fenced(tier, self._drop_in)
            for tier in self._tiers
            if not tier.shard.is_fenced
        }
        done = self._rounds.run("tier-drop", works)
        reports = [report for report in done.results.values() if report is not None]
        dropped_count = sum(len(report.dropped) for report in reports)
        if dropped_count:
            self._topics.follow_catalog()
        refused = [one for report in reports for one in report.refused]
        return PassOutcome(
            {"partitions": dropped_count},
            Counter(one.reason.replace("_", "-") for one in refused),
            tuple(_text_of(one) for one in refused if one.damage is not None),
            failed_shards=done.failures,
        )

    def _drop_in(self, tier: ShardTier) -> DropReport:
        """Drop the tiers of one shard, and wake their readers."""

        def leaving() -> LeavingLogs:
            followed = self._topics.follow_catalog()
            partitions = self._leaving_in(tier, followed.topics)
            return LeavingLogs(followed.seq, [one.log for one in partitions if not _is_shown_by_object(one)])

        report = tier.uploads.drop.run(leaving, leader_epoch=tier.shard.leader_epoch)
        dropped = {*report.dropped}
        for one in self._registry.partitions():
            if one.topic_partition in dropped:
                one.signal.notify()
        shown = [
            RefusedDrop(one.topic_partition, SHOWN_BY_OBJECT)
            for one in self._leaving_in(tier, self._topics.followed_last().topics)
            if _is_shown_by_object(one)
        ]
        return report._replace(refused=(*report.refused, *shown))

    @staticmethod
    def _leaving_in(tier: ShardTier, topics: Iterable[HostedTopic]) -> list[HostedPartition]:
        """The partitions of the shard whose tiers are to be dropped, on disks that work."""
        return [
            one
            for topic in topics
            if topic.drops_tier
            for one in topic.partitions
            if one.shard is tier.shard and one.offline() is None
        ]

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
    """The damage, and a person's ways out of it."""
    return (
        f"the tier of {refused.topic_partition} stays, because the local log has damaged records that the"
        " object store has; set remote.storage.enable to true again to keep them, or delete the records up to"
        f" there: {refused.damage}"
    )
