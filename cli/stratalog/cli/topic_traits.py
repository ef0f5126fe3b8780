"""Traits of a topic that follow from its configuration."""

from __future__ import annotations

from stratalog.v1 import admin_pb2


def is_tiered(topic: admin_pb2.Topic) -> bool:
    """Whether the segments of the topic go to the object store. False while its configuration is refused."""
    return topic.config.get("remote.storage.enable") == "true"


def is_compacted(topic: admin_pb2.Topic) -> bool:
    """Whether the topic keeps the last record of each key. False while its configuration is refused."""
    return "compact" in topic.config.get("cleanup.policy", "").split(",")
