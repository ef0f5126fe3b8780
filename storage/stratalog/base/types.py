"""Names of values that travel between the layers."""

from __future__ import annotations

import enum
from typing import NamedTuple
from uuid import UUID


class TopicPartition(NamedTuple):
    """A partition as people name it. `str()` is Kafka's directory name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def error_fields(self) -> dict[str, object]:
        """The fields of an error about the partition."""
        return {"topic": self.topic, "partition": self.partition}


class TopicIdPartition(NamedTuple):
    """A partition as metadata names it: ids are never reused, names are. Sorts as slices lie in an object."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}"

    @property
    def error_fields(self) -> dict[str, object]:
        """The fields of an error about the partition."""
        return {"topic_id": self.topic_id, "partition": self.partition}


class Durability(enum.IntEnum):
    """The state of an append that is acknowledged, weakest first. The numbers are those of the wire."""

    OS = 1
    DISK = 2
    OBJECT = 3

    @property
    def config_value(self) -> str:
        """The value of `min.durability`."""
        return self.name.lower()
