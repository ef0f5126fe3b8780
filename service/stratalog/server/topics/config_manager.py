"""Describes and alters the configuration of topics and of the server."""

from __future__ import annotations

from collections.abc import Collection

from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.log.config_key import unknown_key
from stratalog.log.log_config import LogConfig
from stratalog.server.configuration.broker_config import CORDONED
from stratalog.server.configuration.config_entry import ConfigChange, ConfigEntry
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.topics.topic_manager import TopicManager


class ConfigManager:
    """Describes and alters the configurations of topics and of the server. Thread-safe: its parts are.
    `alter` may take disk and network for long."""

    def __init__(
        self, shards: ShardSet, registry: PartitionRegistry, topics: TopicManager, runtime: RuntimeConfig
    ) -> None:
        self._shards = shards
        self._registry = registry
        self._topics = topics
        self._runtime = runtime

    def describe(self, topic: str | None, names: Collection[str] = ()) -> list[ConfigEntry]:
        """The named keys, or all, of the topic, or of the server if `topic` is None, sorted by name.

        Raises UnknownTopicOrPartitionError; InvalidConfigError for an unknown key, and for a topic that is
        offline because this version refuses its configuration.
        """
        entries = self._entries(None if topic is None else self._registry.topic(topic))
        known = {entry.name for entry in entries}
        for name in names:
            if name not in known:
                raise unknown_key(name, None, "is not a known key", known, remedy="correct the name")
        return [entry for entry in entries if not names or entry.name in names]

    def alter(
        self,
        topic: str | None,
        changes: tuple[ConfigChange, ...],
        topic_id: str = "",
        *,
        validate_only: bool = False,
    ) -> list[ConfigEntry]:
        """Make the changes, and return the altered keys that are known. `topic_id` is the topic's id, or
        empty.

        Raises what `TopicManager.alter` and `RuntimeConfig.alter` raise, NotOwnerError, and
        InvalidRequestError for a topic's id beside the server.
        """
        altered: HostedTopic | None = None
        if topic is None:
            if topic_id:
                raise InvalidRequestError(
                    "the server has no topic id; leave it out, or name a topic", topic_id=topic_id
                )
            # Other keys than the local one are the store's, which a former owner must not alter.
            if any(change.name != CORDONED for change in changes):
                self._shards.confirm_owned()
            self._runtime.alter(changes, validate_only=validate_only)
            self._topics.apply_defaults()
        else:
            altered = self._topics.alter(topic, changes, topic_id, validate_only=validate_only)
        names = {change.name for change in changes}
        return [entry for entry in self._entries(altered) if entry.name in names]

    def _entries(self, topic: HostedTopic | None) -> list[ConfigEntry]:
        layers = self._runtime.layers
        if topic is None:
            return layers.entries()
        if topic.config is None:
            raise InvalidConfigError(
                "this version does not take the topic's configuration; run the version that wrote it, or"
                " alter the topic",
                name="topic",
                value=topic.name,
                allowed="a topic that is not offline for its configuration",
            )
        # A topic that leaves the object store is tiered, by `topic.config`, until all of it has left.
        wanted = LogConfig.in_force(topic.config_overrides, self._runtime.topic_defaults)
        return layers.topic_entries(topic.config_overrides, wanted)
