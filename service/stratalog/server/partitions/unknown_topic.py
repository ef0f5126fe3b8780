"""The errors of a request for a topic or a partition that does not exist."""

from __future__ import annotations

from stratalog.base.errors import UnknownTopicOrPartitionError


def unknown_topic(topic: str) -> UnknownTopicOrPartitionError:
    """The error for an unknown topic."""
    return UnknownTopicOrPartitionError("there is no such topic, create it or correct the name", topic=topic)


def unknown_partition(topic: str, partition: int, partition_count: int) -> UnknownTopicOrPartitionError:
    """The error for an unknown partition of a topic with `partition_count` partitions."""
    return UnknownTopicOrPartitionError(
        "the topic has no such partition, choose one below partition_count; the first is 0",
        topic=topic,
        partition=partition,
        partition_count=partition_count,
    )
