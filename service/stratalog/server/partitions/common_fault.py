"""A fault that the shards of a server mostly have together, such as a store that does not answer."""

from __future__ import annotations

import threading


class CommonFault:
    """The shards that have a fault now, so that the log has a line for the first and the last of them only.
    Thread-safe: `_lock` guards the shards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: set[int] = set()

    def begin(self, shard: int) -> bool:
        """Note that the shard has it; returns whether no other one had it before."""
        with self._lock:
            is_first = not self._shards
            self._shards.add(shard)
            return is_first

    def end(self, shard: int) -> bool:
        """Note that it is over for the shard; returns whether no other one has it still."""
        with self._lock:
            self._shards.discard(shard)
            return not self._shards
