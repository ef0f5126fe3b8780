"""Describes and alters configurations: those of topics, which the catalog keeps, and the server's own."""

from __future__ import annotations

from collections.abc import Collection

from stratalog.base.errors import InvalidConfigError
from stratalog.server.configuration.config_entry import ConfigChange, ConfigEntry
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.topics.topic_manager import TopicManager

BROKER = ""
"""In the place of a topic's name: the server."""


class ConfigManager:
    """Thread-safe: its parts are. `alter` may take disk and network for long."""

    def __init__(self, registry: PartitionRegistry, topics: TopicManager, runtime: RuntimeConfig) -> None:
        self._registry = registry
        self._topics = topics
        self._runtime = runtime

    def describe(self, topic: str, names: Collection[str] = ()) -> list[ConfigEntry]:
        """The keys of that name, or all, in order; of the topic, or of the server.

        Raises UnknownTopicOrPartitionError, InvalidConfigError for a key that is unknown, and for a topic
        whose configuration this version does not take.
        """
        entries = self._entries(topic)
        known = {entry.name for entry in entries}
        for name in names:
            if name not in known:
                raise InvalidConfigError(
                    f"`{name}` is not a known key; correct the name",
                    name=name,
                    allowed=", ".join(sorted(known)),
                )
        return [entry for entry in entries if not names or entry.name in names]

    def alter(
        self, topic: str, changes: tuple[ConfigChange, ...], *, validate_only: bool = False
    ) -> list[ConfigEntry]:
        """Make the changes, and return their keys as they are then, those of them that are known.

        Raises what `TopicManager.alter` and `RuntimeConfig.alter` raise.
        """
        if topic == BROKER:
            self._runtime.alter(changes, validate_only=validate_only)
        else:
            self._topics.alter(topic, changes, validate_only=validate_only)
        names = {change.name for change in changes}
        return [entry for entry in self._entries(topic) if entry.name in names]

    def _entries(self, topic: str) -> list[ConfigEntry]:
        config = self._runtime.current
        if topic == BROKER:
            return config.entries()
        hosted = self._registry.topic(topic)
        if hosted.config is None:
            raise InvalidConfigError(
                "this version does not take the topic's configuration; run the version that wrote it, or"
                " alter the topic",
                name="topic",
                value=topic,
                allowed="a topic that is not offline for its configuration",
            )
        return config.topic_entries(hosted.config_overrides, hosted.config)
