"""How many topics and partitions a store may have.

Each topic is a row in the memory of every process that reads the catalog, and each partition has state in the
server that hosts it: a caller who creates without end would take all of its memory, files and threads.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import LimitExceededError
from stratalog.remote.metadata.catalog.catalog_state import CatalogState


class CatalogBounds(NamedTuple):
    """The most live topics of a store, and the most partitions of all of them."""

    topic_count: int
    partition_count: int

    def require_room(
        self, state: CatalogState, partition_count: int, topic_count: int = 1, *, remedy: str
    ) -> None:
        """Raise LimitExceededError unless the catalog has room for so many more partitions and topics.
        `remedy` says how to raise the bounds."""
        present = [entry.partition_count for entry in state.entries.values() if not entry.is_deleted]
        if topic_count and len(present) + topic_count > self.topic_count:
            raise LimitExceededError(
                f"the store would have more topics than it may have; delete topics, or {remedy}",
                topic_count=len(present) + topic_count,
                max_topic_count=self.topic_count,
            )
        if partition_count > 0 and sum(present) + partition_count > self.partition_count:
            raise LimitExceededError(
                "the topics of the store would have more partitions than they may have; ask for fewer, delete"
                f" topics, or {remedy}",
                partition_count=sum(present) + partition_count,
                max_partition_count=self.partition_count,
            )


DEFAULT_BOUNDS = CatalogBounds(10_000, 50_000)
"""The bounds of a server that is given none."""

MAX_BOUNDS = CatalogBounds(100_000, 1_000_000)
"""The largest bounds, for jobs that know none of a server."""
