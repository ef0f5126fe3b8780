"""The topics of a server, under short names: a part of the admin client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stratalog.client.admin import Admin
from stratalog.client.topics_admin import ConfigValue

if TYPE_CHECKING:
    from stratalog.client.values import Topic


class Topics:
    """Creates, finds, changes and deletes topics. Belongs to one event loop. Every method raises
    LogStoreError; `Client.admin` has more.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def create(
        self,
        name: str,
        *,
        partitions: int = 0,
        compact: bool = False,
        config: Mapping[str, ConfigValue] | None = None,
        exists_ok: bool = False,
    ) -> Topic:
        """Create a topic; 0 partitions mean the server's default. `compact` keeps the last record of each key
        (`cleanup.policy`); `config` uses Kafka's names. With `exists_ok` a topic that exists is returned
        unchanged. Raises TopicAlreadyExistsError, InvalidRequestError, InvalidConfigError.
        """
        policy = {"cleanup.policy": "compact"} if compact else {}
        return await self._admin.create_topic(
            name, partitions, {**policy, **(config or {})}, exists_ok=exists_ok
        )

    async def list(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in await self._admin.list_topics())

    async def describe(self, name: str) -> Topic:
        """One topic. Raises UnknownTopicOrPartitionError."""
        [topic] = await self._admin.describe_topics([name])
        return topic

    async def alter(self, name: str, config: Mapping[str, ConfigValue | None], *, topic_id: str = "") -> None:
        """Set keys of a topic; None resets a key. Applies all changes or none. `topic_id` is the topic that
        is meant. Raises UnknownTopicOrPartitionError, InvalidConfigError, and InconsistentTopicIdError if
        another topic has the name.
        """
        await self._admin.alter_configs(config, name, topic_id=topic_id)

    async def add_partitions(self, name: str, partitions: int, *, topic_id: str = "") -> Topic:
        """Give a topic this many partitions in all. Safe to repeat. `topic_id` as in `alter`. Raises
        UnknownTopicOrPartitionError, InconsistentTopicIdError, InvalidRequestError for fewer than it has.
        """
        return await self._admin.add_partitions(name, partitions, topic_id=topic_id)

    async def delete(self, name: str, *, topic_id: str = "") -> None:
        """Delete a topic and all its records. `topic_id` as in `alter`. Raises UnknownTopicOrPartitionError,
        InconsistentTopicIdError.
        """
        await self._admin.delete_topic(name, topic_id=topic_id)
