"""The highest timestamp up to each slice of a partition, for binary searches by time.

It is computed once for the row of a partition, which reads all of its slices. The row is replaced as a whole
by each commit that changes the partition, so the row itself tells whether the slices are still the same.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate
from typing import NamedTuple

from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

_MAX_ROW_COUNT = 256


class _Times(NamedTuple):
    row: PartitionRow
    """Held, so that no other row gets its identity."""
    highest_ms: array[int]


class HighestTimes:
    """The running maxima of the partitions that were asked for last. Thread-safe: `_lock` guards them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, _Times] = OrderedDict()
        """By the identity of the row."""

    def first_reaching(self, partition: TieredPartition, timestamp_ms: int) -> int:
        """The index of the first slice with a record at or after `timestamp_ms`; their count if there is
        none. Records that are not valid any more count, too. May load pages, and raises as `slices` does."""
        return bisect_left(self._highest(partition), timestamp_ms)

    def _highest(self, partition: TieredPartition) -> array[int]:
        row = partition.row
        with self._lock:
            known = self._known.get(id(row))
            if known is not None:
                self._known.move_to_end(id(row))
                return known.highest_ms
        highest_ms = array("q", accumulate((live.entry.max_timestamp for live in partition.slices), max))
        with self._lock:
            self._known[id(row)] = _Times(row, highest_ms)
            while len(self._known) > _MAX_ROW_COUNT:
                self._known.popitem(last=False)
        return highest_ms
