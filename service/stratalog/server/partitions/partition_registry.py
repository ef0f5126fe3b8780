"""The hosted topics and partitions, by name.

A topic is published whole, once each of its partitions is open or offline, and withdrawn whole before any of
them is deleted. So a request finds all partitions of a topic or none.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from stratalog.base.errors import InconsistentTopicIdError
from stratalog.log.log_config import LogConfig
from stratalog.server.log_identity import ANY_TOPIC_ID, require_topic_id
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import ForeignPartition, OfflinePartition
from stratalog.server.partitions.unknown_topic import (
    require_partition_number,
    unknown_partition,
    unknown_topic,
)


@dataclass(frozen=True, slots=True)
class HostedTopic:
    """A topic that is open here. Immutable."""

    name: str
    topic_id: UUID
    config_overrides: Mapping[str, str]
    config: LogConfig | None
    """None if this version refuses `config_overrides`; then all partitions are offline."""
    all_partitions: tuple[HostedPartition | OfflinePartition, ...]
    """Sorted by number."""

    @property
    def drops_tier(self) -> bool:
        """Whether the topic's data in the object store is to be deleted, and was not all deleted when its
        logs got their configuration."""
        is_tiered = self.config is not None and self.config.remote_storage_enable
        if not is_tiered or "remote.log.delete.on.disable" not in self.config_overrides:
            return False
        return LogConfig.in_force(self.config_overrides, LogConfig()).drops_tier

    def find_partition(self, number: int) -> HostedPartition | OfflinePartition:
        """Return the partition with this number. Raises UnknownTopicOrPartitionError, and InvalidRequestError
        for a negative number."""
        require_partition_number(self.name, number)
        if number >= len(self.all_partitions):
            raise unknown_partition(self.name, number, len(self.all_partitions))
        return self.all_partitions[number]

    @property
    def partitions(self) -> tuple[HostedPartition, ...]:
        return tuple(one for one in self.all_partitions if isinstance(one, HostedPartition))

    @property
    def offline_partitions(self) -> tuple[OfflinePartition, ...]:
        """Those that this server should serve, and cannot."""
        return tuple(
            one
            for one in self.all_partitions
            if isinstance(one, OfflinePartition) and not isinstance(one, ForeignPartition)
        )

    @property
    def failed_partitions(self) -> tuple[OfflinePartition, ...]:
        return tuple(failed for one in self.partitions if (failed := one.offline()) is not None)

    @property
    def unserved_partitions(self) -> tuple[OfflinePartition, ...]:
        return tuple(
            sorted((*self.offline_partitions, *self.failed_partitions), key=lambda one: one.topic_partition)
        )


class PartitionRegistry:
    """The topics and partitions that this server serves. Thread-safe: `_lock` guards changes, which replace
    the mapping; look-ups read it without the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: Mapping[str, HostedTopic] = MappingProxyType({})

    def publish(self, topic: HostedTopic) -> None:
        """Make a topic visible to requests. Its name must be free."""
        with self._lock:
            assert topic.name not in self._topics, "a name belongs to one topic at a time"
            self._topics = MappingProxyType({**self._topics, topic.name: topic})

    def replace(self, topic: HostedTopic) -> None:
        """Publish a new configuration or more partitions of a visible topic."""
        with self._lock:
            former = self._topics[topic.name]
            assert former.topic_id == topic.topic_id, "the name has gone to another topic"
            former_count = len(former.all_partitions)
            assert topic.all_partitions[:former_count] == former.all_partitions, "partitions stay"
            self._topics = MappingProxyType({**self._topics, topic.name: topic})

    def withdraw(self, name: str) -> HostedTopic | None:
        """Hide a topic from requests; returns it, or None if it is not visible."""
        with self._lock:
            topics = dict(self._topics)
            topic = topics.pop(name, None)
            self._topics = MappingProxyType(topics)
            return topic

    def topics(self) -> tuple[HostedTopic, ...]:
        topics = self._topics
        return tuple(topics[name] for name in sorted(topics))

    def find(self, name: str) -> HostedTopic | None:
        return self._topics.get(name)

    def topic(self, name: str, topic_id: str = "") -> HostedTopic:
        """Return the topic of that name. Raises UnknownTopicOrPartitionError; if `topic_id` is given and is
        not its id, InconsistentTopicIdError, or NotOwnerError where others own all its partitions."""
        topic = self._topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        if topic_id == ANY_TOPIC_ID:
            return topic
        try:
            require_topic_id(name, topic_id, str(topic.topic_id))
        except InconsistentTopicIdError:
            # The server that has taken over may know a newer topic of the name.
            if all(partition.shard.is_fenced for partition in topic.all_partitions):
                topic.all_partitions[0].shard.leader_epoch()
            raise
        return topic

    def find_partition(
        self, topic: str, partition: int, topic_id: str = ""
    ) -> HostedPartition | OfflinePartition:
        """Return a partition, which may be offline. Raises InvalidRequestError for a negative number, as
        `topic`, whose id is checked next, because another topic of the name may have fewer partitions, and as
        `HostedTopic.find_partition`."""
        require_partition_number(topic, partition)
        return self.topic(topic, topic_id).find_partition(partition)

    def partition(self, topic: str, partition: int, topic_id: str = "") -> HostedPartition:
        """Return a partition that is online. Raises as `find_partition`, or the error of an offline one."""
        hosted = self._topics.get(topic)
        if hosted is not None and topic_id == ANY_TOPIC_ID and 0 <= partition < len(hosted.all_partitions):
            # So it is for nearly each append.
            found = hosted.all_partitions[partition]
        else:
            found = self.find_partition(topic, partition, topic_id)
        if isinstance(found, OfflinePartition):
            raise found.error()
        return found

    def partitions(self) -> tuple[HostedPartition, ...]:
        return tuple(partition for topic in self.topics() for partition in topic.partitions)

    def offline_partitions(self) -> tuple[OfflinePartition, ...]:
        """The `HostedTopic.unserved_partitions` of all topics."""
        return tuple(partition for topic in self.topics() for partition in topic.unserved_partitions)
