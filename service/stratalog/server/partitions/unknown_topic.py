"""The errors of a request for a topic or a partition that does not exist, or cannot exist."""

from __future__ import annotations

from stratalog.base.errors import InvalidRequestError, UnknownTopicOrPartitionError


def unknown_topic(topic: str) -> UnknownTopicOrPartitionError:
    """The error for an unknown topic."""
    return UnknownTopicOrPartitionError("there is no such topic, create it or correct the name", topic=topic)


def require_partition_number(topic: str, partition: int) -> None:
    """Raise InvalidRequestError for a negative number, which no partition of any topic has."""
    if partition < 0:
        raise InvalidRequestError(
            "a partition is not negative; the first is 0", topic=topic, partition=partition
        )


def unknown_partition(topic: str, partition: int, partition_count: int) -> UnknownTopicOrPartitionError:
    """The error for an unknown partition of a topic with `partition_count` partitions."""
    return UnknownTopicOrPartitionError(
        "the topic has no such partition, choose one below partition_count; the first is 0",
        topic=topic,
        partition=partition,
        partition_count=partition_count,
    )
