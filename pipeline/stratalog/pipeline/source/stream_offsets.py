"""The offsets of a stream, as its checkpoint keeps them: the next offset of each partition.

    {"version": 1, "topics": {"flights": {"id": "8c5a...", "offsets": {"0": 1400, "1": 977}}}}

The id tells a topic from another one that was created under its name later.
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


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offsets of all topics of a stream, by name. Immutable."""

    topics: Mapping[str, TopicOffsets] = field(default_factory=dict[str, TopicOffsets])

    def next_offset(self, topic: str, topic_id: UUID, partition: int) -> int:
        """Where reading goes on; 0 for a partition that the stream has not seen yet."""
        known = self.topics.get(topic)
        if known is None or known.topic_id != topic_id:
            return 0
        return known.offsets.get(partition, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "topics": {
                name: {
                    "id": str(topic.topic_id),
                    "offsets": {str(number): topic.offsets[number] for number in sorted(topic.offsets)},
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
        return StreamOffsets(
            {
                name: TopicOffsets(
                    UUID(topic["id"]), {int(number): offset for number, offset in topic["offsets"].items()}
                )
                for name, topic in parsed["topics"].items()
            }
        )
