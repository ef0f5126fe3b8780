"""The highest timestamp up to each slice of a partition, for binary searches by time.

It is computed once for a row of slices. The row of a partition is replaced as a whole by each commit that
changes it, so the row itself tells whether it is still the same.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from stratalog.remote.metadata.shard.live_slice import LiveSlice

_MAX_ROW_COUNT = 256


class _Row(NamedTuple):
    slices: Sequence[LiveSlice]
    """Held, so that no other row gets its identity."""
    highest_ms: array[int]


class HighestTimes:
    """The running maxima of the rows that were asked for last. Thread-safe: `_lock` guards the rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[int, _Row] = OrderedDict()

    def first_reaching(self, slices: Sequence[LiveSlice], timestamp_ms: int) -> int:
        """The index of the first slice with a record at or after `timestamp_ms`; their count if there is
        none. Records that are not valid any more count, too."""
        return bisect_left(self._highest(slices), timestamp_ms)

    def _highest(self, slices: Sequence[LiveSlice]) -> array[int]:
        with self._lock:
            row = self._rows.get(id(slices))
            if row is not None:
                self._rows.move_to_end(id(slices))
                return row.highest_ms
        highest_ms = array("q", accumulate((live.entry.max_timestamp for live in slices), max))
        with self._lock:
            self._rows[id(slices)] = _Row(slices, highest_ms)
            while len(self._rows) > _MAX_ROW_COUNT:
                self._rows.popitem(last=False)
        return highest_ms
