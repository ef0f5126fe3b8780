"""Topics and configurations, for the admin client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stratalog.base.errors import InvalidRequestError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from stratalog.client import values
from stratalog.client.admin_calls import AdminCalls
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.errors import refusing_misfits
from stratalog.client.pages import at_page
from stratalog.client.values.conversion import value_of, values_of
from stratalog.v1 import admin_pb2

MAX_DESCRIBED_COUNT = 1_000
"""Topics of one request to describe them."""


ConfigValue = str | int | float | bool
"""The value of a key of a configuration."""


class TopicsAdmin(AdminCalls):
    """Creates, lists, describes, alters and deletes topics. Belongs to one event loop."""

    async def create_topic(
        self,
        name: str,
        partition_count: int = 0,
        config: Mapping[str, ConfigValue] | None = None,
        *,
        exists_ok: bool = False,
    ) -> values.Topic:
        """Create a topic; 0 partitions mean the server's default. `config` uses Kafka's names. With
        `exists_ok` a topic that exists is returned unchanged. Raises TopicAlreadyExistsError,
        InvalidRequestError for the name, InvalidConfigError."""
        with refusing_misfits():
            request = admin_pb2.CreateTopicRequest(
                name=name,
                partition_count=partition_count,
                config={key: _config_text(key, value) for key, value in (config or {}).items()},
            )
        try:
            response = await self._channel.call(self._stub.CreateTopic(request, timeout=CALL_TIMEOUT_S))
        except TopicAlreadyExistsError:
            if not exists_ok:
                raise
            [topic] = await self.describe_topics([name])
            return topic
        return value_of(values.Topic, response.topic)

    async def list_topics(self) -> list[values.TopicListing]:
        """All topics, sorted by name, without the values of their keys."""
        pages = self._pages(
            lambda token: self._stub.ListTopics(
                admin_pb2.ListTopicsRequest(page_token=token), timeout=CALL_TIMEOUT_S
            )
        )
        return [value_of(values.TopicListing, topic) async for page in pages for topic in page.topics]

    async def describe_topics(self, names: Sequence[str] = ()) -> list[values.Topic]:
        """The named topics, in this order, or all. Raises UnknownTopicOrPartitionError for a name."""
        if names:
            return await self._describe(names)
        listed = [topic.name for topic in await self.list_topics()]
        while listed:
            try:
                return await self._describe(listed)
            except UnknownTopicOrPartitionError as gone:
                # It was deleted meanwhile.
                listed = [name for name in listed if name != gone.fields["topic"]]
        return []

    async def _describe(self, names: Sequence[str]) -> list[values.Topic]:
        topics: list[values.Topic] = []
        for start in range(0, len(names), MAX_DESCRIBED_COUNT):
            topics += await self._describe_some(names[start : start + MAX_DESCRIBED_COUNT])
        return topics

    async def _describe_some(self, names: Sequence[str]) -> list[values.Topic]:
        with refusing_misfits():
            request = admin_pb2.DescribeTopicsRequest(names=names)
        pages = self._pages(
            lambda token: self._stub.DescribeTopics(at_page(request, token), timeout=CALL_TIMEOUT_S)
        )
        return [value_of(values.Topic, topic) async for page in pages for topic in page.topics]

    async def add_partitions(self, topic: str, partition_count: int, *, topic_id: str = "") -> values.Topic:
        """Give a topic `partition_count` partitions in all. Raises UnknownTopicOrPartitionError,
        InconsistentTopicIdError, InvalidRequestError for a number below the present one, InvalidConfigError
        above the server's limit. Safe to repeat."""
        with refusing_misfits():
            request = admin_pb2.AddPartitionsRequest(
                topic=topic, topic_id=topic_id, partition_count=partition_count
            )
        response = await self._channel.call(
            self._stub.AddPartitions(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return value_of(values.Topic, response.topic)

    async def delete_topic(self, name: str, *, topic_id: str = "") -> Sequence[str]:
        """Delete a topic and all its records. Returns directories of partitions on failed disks of the
        server, which a later start deletes. Raises UnknownTopicOrPartitionError, and InconsistentTopicIdError
        if another topic than that of `topic_id` has the name."""
        with refusing_misfits():
            request = admin_pb2.DeleteTopicRequest(name=name, topic_id=topic_id)
        response = await self._channel.call(self._stub.DeleteTopic(request, timeout=CALL_TIMEOUT_S))
        return list(response.left_over_paths)

    async def describe_configs(
        self, topic: str | None = None, names: Sequence[str] = ()
    ) -> list[values.ConfigEntry]:
        """The current configuration of a topic, or of the server if `topic` is None: the named keys, or all.
        Raises UnknownTopicOrPartitionError, InvalidConfigError for an unknown key."""
        with refusing_misfits():
            request = admin_pb2.DescribeConfigsRequest(resource=_resource(topic), names=names)
        response = await self._channel.call(
            self._stub.DescribeConfigs(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return values_of(values.ConfigEntry, response.entries)

    async def alter_configs(
        self,
        changes: Mapping[str, ConfigValue | None],
        topic: str | None = None,
        *,
        validate_only: bool = False,
        topic_id: str = "",
    ) -> list[values.ConfigEntry]:
        """Set keys of a topic, or of the server if `topic` is None; the value None resets a key. Applies all
        changes or none, before it returns the changed keys. Raises UnknownTopicOrPartitionError,
        InconsistentTopicIdError if another topic than that of `topic_id` has the name, InvalidConfigError.
        Safe to repeat."""
        with refusing_misfits():
            request = admin_pb2.AlterConfigsRequest(
                resource=_resource(topic),
                changes=[
                    admin_pb2.ConfigChange(
                        name=name, value=None if value is None else _config_text(name, value)
                    )
                    for name, value in changes.items()
                ],
                validate_only=validate_only,
                topic_id=topic_id,
            )
        response = await self._channel.call(
            self._stub.AlterConfigs(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return values_of(values.ConfigEntry, response.entries)


def _config_text(name: str, value: object) -> str:
    """The value of a key as the server takes it. Raises InvalidRequestError."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidRequestError(
        "the value of a key is text, a number or a bool", name=name, value=value, type=type(value).__name__
    )


def _resource(topic: str | None) -> admin_pb2.ConfigResource:
    """The resource of the topic, or the server's for None."""
    if topic is None:
        return admin_pb2.ConfigResource(server=admin_pb2.ConfigResource.Server())
    return admin_pb2.ConfigResource(topic=topic)
