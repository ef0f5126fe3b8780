"""A bucket and a disk in memory, and the servers that are started over them one after the other."""

from __future__ import annotations

from typing import Any

from stratalog.base.filesystem import FileSystem
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_logs import TieredLogs


class TieredSite:
    """A store and its servers. Servers work on `store`; a test may put another one there. Not thread-safe."""

    def __init__(self, *, skew_ms: int = 0, **options: Any) -> None:
        """`skew_ms`: how far the servers' clock is ahead of the store's. `options`: those of `TieredLogs`."""
        self.clock = ManualClock()
        store_clock = ManualClock(self.clock.now_ms() - skew_ms) if skew_ms else self.clock
        self.bucket = MemoryObjectStore(store_clock)
        self.store: ObjectStore = self.bucket
        self.ids = SequentialIds(1)
        self.disk = MemoryFileSystem()
        self._options = options

    def start(self, disk: FileSystem | None = None, *, opens: bool = True, **options: Any) -> TieredLogs:
        """A server on the site's disk, or on another one; with `opens`, with the catalog's topics open."""
        changed = self._options | options
        logs = TieredLogs(disk or self.disk, self.store, self.clock, self.ids, **changed)
        if opens:
            for topic in logs.catalog.topics().values():
                logs.open_topic(topic)
        return logs
