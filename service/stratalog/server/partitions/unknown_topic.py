"""The errors of a request for a topic or a partition that does not exist, or is not the one that is meant."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.errors import InconsistentTopicIdError, UnknownTopicOrPartitionError


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


def inconsistent_topic_id(topic: str, topic_id: str, current_topic_id: UUID) -> InconsistentTopicIdError:
    """The error for a topic whose name belongs to another topic now."""
    return InconsistentTopicIdError(
        "another topic has this name, the one that is meant was deleted; look the topic up again",
        topic=topic,
        topic_id=topic_id,
        current_topic_id=current_topic_id,
    )
