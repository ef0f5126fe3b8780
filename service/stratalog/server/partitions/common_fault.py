"""A fault that the shards of a server mostly have together, such as a store that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class CommonFault:
    """The shards that have a fault now, so that the log has a line for the first and the last of them only.
    Thread-safe: `_lock` guards the shards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: set[int] = set()
        self._checks: dict[int, Callable[[], bool]] = {}

    def watch(self, shard: int, has_fault: Callable[[], bool]) -> None:
        """Make a shard known, with a check for the fault that never waits."""
        with self._lock:
            self._checks[shard] = has_fault

    def begin(self, shard: int) -> Sequence[int]:
        """Note that the shard has it. Returns all shards that have it now, in ascending order; none if
        another one had it before."""
        with self._lock:
            is_first = not self._shards
            self._shards.add(shard)
            checks = dict(self._checks) if is_first else {}
        return sorted({shard, *(one for one, has_fault in checks.items() if has_fault())}) if is_first else ()

    def end(self, shard: int) -> bool:
        """Note that it is over for the shard; returns whether no other one has it still."""
        with self._lock:
            self._shards.discard(shard)
            return not self._shards
