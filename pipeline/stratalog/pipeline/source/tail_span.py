"""A part of a log for a task that its server has, because it is not tiered.

Spans travel pickled from the driver to the executors. They have names and offsets, and nothing secret.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TailSpan:
    """The offsets [first, end) of a partition, all in the log when the query was planned. Immutable."""

    topic: str
    topic_id: str
    """A UUID in lower-case hexadecimal with hyphens."""
    partition: int
    first_offset: int
    end_offset: int
    local_start_offset: int
    """The first offset on the server's disk when the query was planned."""
    size_bytes: int
    """An estimate, to divide a query into tasks."""

    @property
    def error_fields(self) -> dict[str, object]:
        """The fields of an error about the span: topic, partition and offsets."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "tail": f"{self.first_offset}-{self.end_offset}",
        }
