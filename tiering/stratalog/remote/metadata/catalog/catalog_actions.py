"""The actions of a commit of the catalog; docs/formats/metadata.md has their fields. `head_actions` has the
actions of every log.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from stratalog.remote.json_document import JsonFields, JsonObject, to_text, to_uuid
from stratalog.remote.metadata.catalog.topic_entry import HASH_KEY_BYTES, MAX_PARTITION_COUNT
from stratalog.remote.metadata.head.head_actions import COMMON_ACTIONS, ActionTable


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Creates a topic under a name that is free."""

    name: str
    topic_id: UUID
    partition_count: int
    config: Mapping[str, str]
    hash_key: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        return {
            "action": "create",
            "name": self.name,
            "topic_id": str(self.topic_id),
            "partition_count": self.partition_count,
            "config": dict(self.config),
            "hash_key": format_hash_key(self.hash_key),
        }

    @staticmethod
    def from_json(fields: JsonFields) -> CreateTopic:
        return CreateTopic(
            fields.text("name"),
            fields.uuid("topic_id"),
            fields.integer("partition_count", minimum=1, maximum=MAX_PARTITION_COUNT),
            parse_config(fields),
            parse_hash_key(fields),
        )


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Replaces a topic's configuration and number of partitions."""

    topic_id: UUID
    partition_count: int
    config: Mapping[str, str]

    def to_json(self) -> JsonObject:
        return {
            "action": "alter",
            "topic_id": str(self.topic_id),
            "partition_count": self.partition_count,
            "config": dict(self.config),
        }

    @staticmethod
    def from_json(fields: JsonFields) -> AlterTopic:
        return AlterTopic(
            fields.uuid("topic_id"),
            fields.integer("partition_count", minimum=1, maximum=MAX_PARTITION_COUNT),
            parse_config(fields),
        )


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Marks a topic as deleted, which frees its name, and removes the expired ones."""

    topic_id: UUID
    expired: tuple[UUID, ...] = ()

    def to_json(self) -> JsonObject:
        expired = {"expired": [str(topic_id) for topic_id in self.expired]} if self.expired else {}
        return {"action": "delete", "topic_id": str(self.topic_id), **expired}

    @staticmethod
    def from_json(fields: JsonFields) -> DeleteTopic:
        return DeleteTopic(fields.uuid("topic_id"), fields.each("expired", to_uuid))


@dataclass(frozen=True, slots=True)
class ConfigureServer:
    """Replaces the keys of the server that were altered at run time."""

    config: Mapping[str, str]

    def to_json(self) -> JsonObject:
        return {"action": "configure", "config": dict(self.config)}

    @staticmethod
    def from_json(fields: JsonFields) -> ConfigureServer:
        return ConfigureServer(parse_config(fields))


@dataclass(frozen=True, slots=True)
class TakeProducerIds:
    """Takes all producer ids from the next one up to `next_producer_id` (exclusive): for the block of a
    server, or because batches that were imported have them."""

    next_producer_id: int

    def to_json(self) -> JsonObject:
        return {"action": "take_producer_ids", "next_producer_id": self.next_producer_id}

    @staticmethod
    def from_json(fields: JsonFields) -> TakeProducerIds:
        return TakeProducerIds(fields.integer("next_producer_id", minimum=1))


@dataclass(frozen=True, slots=True)
class FencePartition:
    """Replaces the fencing token of a partition; an empty one removes it."""

    topic_id: UUID
    partition: int
    token: str

    def to_json(self) -> JsonObject:
        return {
            "action": "fence",
            "topic_id": str(self.topic_id),
            "partition": self.partition,
            "token": self.token,
        }

    @staticmethod
    def from_json(fields: JsonFields) -> FencePartition:
        return FencePartition(
            fields.uuid("topic_id"),
            fields.integer("partition", maximum=MAX_PARTITION_COUNT - 1),
            fields.text("token"),
        )


CATALOG_ACTIONS: ActionTable = {
    "create": CreateTopic.from_json,
    "alter": AlterTopic.from_json,
    "delete": DeleteTopic.from_json,
    "configure": ConfigureServer.from_json,
    "take_producer_ids": TakeProducerIds.from_json,
    "fence": FencePartition.from_json,
    **COMMON_ACTIONS,
}


def format_hash_key(hash_key: bytes) -> str:
    """Base64."""
    return base64.b64encode(hash_key).decode()


def parse_hash_key(fields: JsonFields) -> bytes:
    """Parse the hash key of a topic. Raises StoreCorruptError, which never shows the key."""
    try:
        hash_key = base64.b64decode(fields.text("hash_key"), validate=True)
    except (binascii.Error, ValueError):
        hash_key = b""
    if len(hash_key) != HASH_KEY_BYTES:
        raise JsonFields({"hash_key": "(hidden)"}, fields.what).fault("hash_key", "base64 of 16 bytes")
    return hash_key


def parse_config(fields: JsonFields, name: str = "config") -> Mapping[str, str]:
    """Texts by key, from the object in that field. Raises StoreCorruptError."""
    config = fields.fields(name)
    return MappingProxyType(
        {name: to_text(value, f"{config.what}: {name}") for name, value in config.values.items()}
    )
