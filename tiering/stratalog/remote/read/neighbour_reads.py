"""Recognises readers of one slice after the other in the same object, as readers of whole topics are.

An object of a thousand partitions has a thousand small slices. Fetched alone, each costs a request. Readers
of a topic come to its slices in the order of their partitions, which is the order in the object. So where a
slice begins at which the last request of the object ended, the next request goes on behind the slice, and
takes twice as much as the last one did.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

_MAX_OBJECT_COUNT = 1024


class _LastRequest(NamedTuple):
    end: int
    size_bytes: int


class NeighbourReads:
    """The last request of each object. Thread-safe: `_lock` guards everything."""

    def __init__(self, max_request_bytes: int) -> None:
        self._max_request_bytes = max_request_bytes
        self._lock = threading.Lock()
        self._last: OrderedDict[str, _LastRequest] = OrderedDict()

    def end_of_request(self, key: str, start: int, end: int, *, begins_slice: bool) -> int:
        """The end of the request for [start, end), which may lie behind `end`. Remembers the request."""
        with self._lock:
            last = self._last.get(key)
            if begins_slice and last is not None and last.end == start:
                end = max(end, start + min(2 * last.size_bytes, self._max_request_bytes))
            self._last[key] = _LastRequest(end, end - start)
            self._last.move_to_end(key)
            while len(self._last) > _MAX_OBJECT_COUNT:
                self._last.popitem(last=False)
            return end
