"""What a request is told that names a topic which is not here, or a partition that its topic has not."""

from __future__ import annotations

from stratalog.base.errors import UnknownTopicOrPartitionError


def unknown_topic(topic: str) -> UnknownTopicOrPartitionError:
    """No topic of that name is served."""
    return UnknownTopicOrPartitionError("there is no such topic, create it or correct the name", topic=topic)


def unknown_partition(topic: str, partition: int, partition_count: int) -> UnknownTopicOrPartitionError:
    """`partition_count`: how many the topic has, numbered from 0."""
    return UnknownTopicOrPartitionError(
        "the topic has no such partition, choose one below partition_count; the first is 0",
        topic=topic,
        partition=partition,
        partition_count=partition_count,
    )
