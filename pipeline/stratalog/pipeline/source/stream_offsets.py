"""The offsets of a stream, as its checkpoint keeps them: the next offset of each partition.

    {"version": 1, "store": "51d0...", "topics": {"flights": {"id": "8c5a...", "offsets": {"0": 14, "1": 9}}}}

The id tells a topic from another one that was created under its name later, and that of the store tells it
from a restored copy, which may go on with other records. Checkpoints of earlier software lack "store". A
stream with a service has "epochs" beside the offsets: the leader epochs of the partitions at that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stratalog.base.errors import UnsupportedOperationError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The next offsets of a topic's partitions. Immutable."""

    topic_id: UUID
    offsets: Mapping[int, int]
    """By partition; one that is missing was not there yet, and begins at 0."""
    epochs: Mapping[int, int] = field(default_factory=dict[int, int])
    """By partition: no record below the offset has a higher leader epoch. Without those that are unknown."""


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offsets of all topics of a stream, by name. Immutable."""

    topics: Mapping[str, TopicOffsets] = field(default_factory=dict[str, TopicOffsets])
    store_id: UUID | None = None
    """None in the offsets of earlier software."""

    def next_offset(self, topic: str, topic_id: UUID, partition: int) -> int:
        """Where reading goes on; 0 for a partition that the stream has not seen yet."""
        known = self.topics.get(topic)
        if known is None or known.topic_id != topic_id:
            return 0
        return known.offsets.get(partition, 0)

    def epoch(self, topic: str, topic_id: UUID, partition: int) -> int | None:
        """The leader epoch when the stream came there; None if it is unknown."""
        known = self.topics.get(topic)
        return None if known is None or known.topic_id != topic_id else known.epochs.get(partition)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            **({} if self.store_id is None else {"store": str(self.store_id)}),
            "topics": {
                name: {
                    "id": str(topic.topic_id),
                    "offsets": _by_text(topic.offsets),
                    **({"epochs": _by_text(topic.epochs)} if topic.epochs else {}),
                }
                for name, topic in sorted(self.topics.items())
            },
        }

    @staticmethod
    def from_json(parsed: Mapping[str, Any]) -> StreamOffsets:
        """Parse offsets. Raises UnsupportedOperationError if another version of this software wrote them."""
        if parsed.get("version") != _VERSION:
            raise UnsupportedOperationError(
                "the checkpoint of the stream has offsets of another version; use the version that wrote it",
                version=parsed.get("version"),
                supported=_VERSION,
            )
        store = parsed.get("store")
        return StreamOffsets(
            {
                name: TopicOffsets(
                    UUID(topic["id"]), _by_number(topic["offsets"]), _by_number(topic.get("epochs", {}))
                )
                for name, topic in parsed["topics"].items()
            },
            None if store is None else UUID(store),
        )


def _by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(number): numbers[number] for number in sorted(numbers)}


def _by_number(texts: Mapping[str, int]) -> dict[int, int]:
    return {int(text): number for text, number in texts.items()}
