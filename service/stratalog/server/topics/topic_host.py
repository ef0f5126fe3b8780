"""Hosts topics: opens, reconfigures, publishes and deletes the local logs of an entry of the catalog.

Data in the object store stays a part of its topic: a topic with slices stays tiered, whatever its
configuration says of `remote.storage.enable`. Where it says that these are to be dropped, too, nothing is
uploaded meanwhile, and the topic is tiered until the last one is gone.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from uuid import UUID

from stratalog.base.errors import InvalidConfigError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.cleaner.log_to_clean import is_cleaned_here
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import ForeignPartition, OfflinePartition
from stratalog.server.partitions.opening.partition_opener import PartitionOpener, WantedPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet

logger = logging.getLogger(__name__)

SomePartition = HostedPartition | OfflinePartition


class TopicHost:
    """Opens, publishes and deletes the topics of one server. Thread-safe for different topics, because it
    keeps nothing: a topic has one caller at a time, the one that has its turn, see `TopicManager`.
    `is_in_store`, `is_as` and `config_overridden` only read. Methods may take disk and network for long.
    """

    def __init__(
        self,
        logs: LogManager,
        shards: ShardSet,
        registry: PartitionRegistry,
        opener: PartitionOpener,
        runtime: RuntimeConfig,
    ) -> None:
        self.registry = registry
        self._logs = logs
        self._shards = shards
        self._opener = opener
        self._runtime = runtime

    def open_all(self, entries: Iterable[TopicEntry]) -> None:
        """Open and publish all of them. A partition whose log cannot be opened stays offline, and so does a
        topic whose configuration this version refuses. Raises DataDirectoryError if the disk refuses all.
        """
        understood: list[tuple[TopicEntry, LogConfig]] = []
        for entry in entries:
            try:
                understood.append((entry, self._config_of(entry)))
            except InvalidConfigError as refusal:
                self._publish_offline(entry, refusal)
        wanted = chain.from_iterable(self._wanted(entry, config) for entry, config in understood)
        opened = _by_tip(self._opener.open_what_can_be([*wanted]))
        for entry, config in understood:
            self.registry.publish(_hosted(entry, config, tuple(self._with_foreign(entry, opened))))

    def publish(self, entry: TopicEntry, *, is_new: bool = False) -> HostedTopic:
        """Open the topic whole and publish it. `is_new`: its partitions have never had a log. Raises
        InvalidConfigError, DataDirectoryError.
        """
        config = self._config_of(entry)
        opened = _by_tip(self._opener.open(self._wanted(entry, config, is_new=is_new)))
        topic = _hosted(entry, config, tuple(self._with_foreign(entry, opened)))
        self.registry.publish(topic)
        return topic

    def follow(self, entry: TopicEntry) -> None:
        """Publish a topic that another server, or an import, created; offline if this version refuses its
        configuration. Raises DataDirectoryError, StoreError.
        """
        # An import commits slices before it creates the topic: the logs begin behind them.
        for shard in {self._shards.of(tip) for tip in _tips(entry)}:
            shard.refresh()
        try:
            self.publish(entry)
        except InvalidConfigError as refusal:
            self._publish_offline(entry, refusal)

    def alter(self, topic: HostedTopic, entry: TopicEntry) -> None:
        """Apply the entry's configuration to the topic's logs, and open the partitions that it adds. Raises
        LogStoreError; some logs may have the new configuration then, and the published topic the old one.
        """
        if topic.config is None:
            self.registry.withdraw(topic.name)
            self.follow(entry)
            return
        config = self._config_of(entry)
        for partition in topic.partitions:
            self._reconfigure(partition, config)
        first = len(topic.all_partitions)
        opened = _by_tip(self._opener.open(self._wanted(entry, config, first, is_new=True)))
        added = tuple(self._with_foreign(entry, opened, first))
        self.registry.replace(_hosted(entry, config, (*topic.all_partitions, *added)))
        if added:
            # Reads of the whole topic wait for new partitions at the old ones.
            for partition in topic.partitions:
                partition.signal.notify()

    def is_as(self, topic: HostedTopic, entry: TopicEntry) -> bool:
        return (
            topic.config_overrides == entry.config
            and (topic.config is None or self.is_in_force(topic.config, entry))
            and len(topic.all_partitions) == entry.partition_count
        )

    def is_in_store(self, entry: TopicEntry) -> bool:
        return any(self._shards.of(tip).metadata.state().partition(tip).slices for tip in _tips(entry))

    def config_overridden(self, overrides: Mapping[str, str]) -> LogConfig:
        """The configuration of a topic that sets these keys. Raises InvalidConfigError."""
        return LogConfig.from_overrides(overrides, self._runtime.topic_defaults)

    def withdraw(self, topic: HostedTopic, entry: TopicEntry) -> tuple[str, ...]:
        """Hide a topic that the catalog marks as deleted, wake its waiting calls, and delete its local logs,
        also those of partitions of `entry` that could not be opened all. Returns the directories that stay
        until the next start, because a disk refuses or the partition is offline.
        """
        self.registry.withdraw(topic.name)
        for partition in topic.partitions:
            partition.withdraw()
        left_over = [
            partition.path
            for partition in topic.offline_partitions
            if not self._logs.forget_lost(partition.topic_partition)
        ]
        added = (
            TopicPartition(entry.name, number)
            for number in range(len(topic.all_partitions), entry.partition_count)
        )
        wanted = [*(one.topic_partition for one in topic.partitions), *added]
        paths = {one: self._logs.path_of(one) for one in wanted}
        for topic_partition, error in self._logs.delete_logs(wanted, topic.topic_id).items():
            path = paths[topic_partition]
            logger.warning("%s of a deleted topic stays until the next start: %s", path, error)
            left_over.append(path)
        return tuple(left_over)

    def delete_new_logs(self, entry: TopicEntry) -> None:
        """Delete the logs of a topic that could not be created. A log that cannot be deleted stays until the
        next start.
        """
        partitions = [TopicPartition(entry.name, number) for number in range(entry.partition_count)]
        for topic_partition, error in self._logs.delete_logs(partitions, entry.topic_id).items():
            logger.warning(
                "topic %s could not be created; the log of partition %d stays until the next start: %s",
                entry.name,
                topic_partition.partition,
                error,
            )

    def delete_leftover_logs(self, state: CatalogState) -> None:
        """Delete local logs of topics that the catalog marks as deleted. Logs of topics that the catalog does
        not know stay.
        """
        left: dict[UUID, dict[TopicPartition, None]] = {}
        for topic_partition, topic_id in self._logs.found.with_topics():
            entry = state.entries.get(topic_id)
            if entry is not None and entry.is_deleted:
                left.setdefault(topic_id, {})[topic_partition] = None
        for topic_id, partitions in left.items():
            for topic_partition, error in self._logs.delete_logs(partitions, topic_id).items():
                logger.warning(
                    "the local log of the deleted partition %s could not be removed: %s",
                    topic_partition,
                    error,
                )

    def _wanted(
        self, entry: TopicEntry, config: LogConfig, first: int = 0, *, is_new: bool = False
    ) -> list[WantedPartition]:
        """The partitions from number `first` on that this server hosts."""
        return [
            WantedPartition(TopicPartition(entry.name, tip.partition), tip, config, is_new)
            for tip in _tips(entry, first)
            if self._shards.lost_of(tip) is None
        ]

    def _with_foreign(
        self, entry: TopicEntry, opened: Mapping[TopicIdPartition, SomePartition], first: int = 0
    ) -> Iterator[SomePartition]:
        """All partitions from number `first` on: the opened ones, and between them those of other servers."""
        for tip in _tips(entry, first):
            yield opened.get(tip) or ForeignPartition(
                TopicPartition(entry.name, tip.partition), tip, self._shards.of(tip)
            )

    def _reconfigure(self, partition: HostedPartition, config: LogConfig) -> None:
        """The cleaner of local logs is paused while it gains or loses the log. Raises DataDirectoryError. A
        log that waits for a disk that does not answer may be reconfigured later; each look at the catalog
        tries again."""

        def reconfigure() -> None:
            if is_cleaned_here(partition.log.local_log.config) == is_cleaned_here(config):
                partition.reconfigure(config)
                return
            with self._logs.cleaner.paused(partition.topic_partition):
                partition.reconfigure(config)

        self._logs.directories.disk_calls.run(partition.log_dir, reconfigure)

    def _config_of(self, entry: TopicEntry) -> LogConfig:
        """The configuration that the topic's logs get. Raises InvalidConfigError."""
        config = LogConfig.in_force(entry.config, self._runtime.topic_defaults)
        if config.remote_storage_enable or not self.is_in_store(entry):
            return config
        stops_copies = config.remote_log_copy_disable or config.drops_tier
        return dataclasses.replace(config, remote_storage_enable=True, remote_log_copy_disable=stops_copies)

    def is_in_force(self, config: LogConfig, entry: TopicEntry) -> bool:
        """Whether `config` is the entry's. A topic that was found to be tiered stays tiered."""
        wanted = self._config_of(entry)
        if wanted.drops_tier:
            return config == wanted
        return config in (wanted, dataclasses.replace(wanted, remote_storage_enable=True))

    def _publish_offline(self, entry: TopicEntry, refusal: InvalidConfigError) -> None:
        logger.error("topic %s stays offline, because its configuration is refused: %s", entry.name, refusal)
        partitions = (
            self._opener.leave(
                TopicPartition(entry.name, number), TopicIdPartition(entry.topic_id, number), refusal
            )
            for number in range(entry.partition_count)
        )
        self.registry.publish(_hosted(entry, None, tuple(partitions)))


def _by_tip(opened: Iterable[SomePartition]) -> Mapping[TopicIdPartition, SomePartition]:
    return {one.topic_id_partition: one for one in opened}


def _tips(entry: TopicEntry, first: int = 0) -> Iterator[TopicIdPartition]:
    """The partitions of the entry from number `first` on."""
    return (TopicIdPartition(entry.topic_id, number) for number in range(first, entry.partition_count))


def _hosted(
    entry: TopicEntry, config: LogConfig | None, partitions: tuple[HostedPartition | OfflinePartition, ...]
) -> HostedTopic:
    assert len(partitions) == entry.partition_count
    return HostedTopic(entry.name, entry.topic_id, entry.config, config, partitions)
