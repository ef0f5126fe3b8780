"""The producers of partitions at their tiered ends, kept from one pass of waiting tails to the next.

Without them each pass would read the batches of the active segment from its beginning on. They are only a
short cut: a partition that is not here, or at another offset, is read anew.
"""

from __future__ import annotations

from stratalog.base.types import TopicIdPartition
from stratalog.remote.tier.slice_producers import SliceProducers

MAX_PRODUCER_COUNT = 100_000
"""Producers of all kept partitions together, about a kilobyte each."""


class FollowedProducers:
    """The producers of the partitions that were uploaded last. Guarded by the lock of its `Uploader`."""

    def __init__(self) -> None:
        self._kept: dict[TopicIdPartition, SliceProducers] = {}
        self._producer_count = 0

    def take(self, tip: TopicIdPartition, offset: int) -> SliceProducers | None:
        """Remove and return the producers of the partition; None if they are not those at `offset`."""
        kept = self._kept.pop(tip, None)
        if kept is None:
            return None
        self._producer_count -= _weight(kept)
        return kept if kept.offset == offset else None

    def keep(self, tip: TopicIdPartition, producers: SliceProducers) -> None:
        """Keep the producers, and forget those that were kept longest ago if they are too many."""
        assert tip not in self._kept, "they are taken first"
        self._kept[tip] = producers
        self._producer_count += _weight(producers)
        while self._producer_count > MAX_PRODUCER_COUNT:
            oldest = next(iter(self._kept))
            self._producer_count -= _weight(self._kept.pop(oldest))

    def check(self) -> None:
        assert self._producer_count == sum(map(_weight, self._kept.values()))


def _weight(producers: SliceProducers) -> int:
    # A partition without producers takes some memory, too.
    return producers.producer_count + 1
