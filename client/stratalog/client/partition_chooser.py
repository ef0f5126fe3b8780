"""Chooses the partition of a record: by key as Kafka's clients do; records without a key fill one partition
at a time.
"""

from __future__ import annotations

import functools
from random import Random

from stratalog.record.key_partition import partition_for_key

CACHED_KEY_COUNT = 65_536


class PartitionChooser:
    """Chooses partitions of one topic. Belongs to one event loop."""

    def __init__(self, random: Random, partition_count: int) -> None:
        assert partition_count > 0
        self.partition_count = partition_count
        self._current = random.randrange(partition_count)

    def for_key(self, key: bytes | None) -> int:
        """The partition by Kafka's murmur2; without a key the current partition, so that batches fill up."""
        if key is None:
            return self._current
        return _cached_partition_for_key(key, self.partition_count)

    def batch_sealed(self, partition: int) -> None:
        """Note that a batch for `partition` is complete: records without keys go to the next partition
        now.
        """
        if partition == self._current:
            self._current = (self._current + 1) % self.partition_count


# Keys of a changelog repeat, and murmur2 in Python costs more than a look-up.
_cached_partition_for_key = functools.lru_cache(CACHED_KEY_COUNT)(partition_for_key)
