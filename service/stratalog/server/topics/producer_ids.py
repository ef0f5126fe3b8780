"""Gives ids to producers.

A server takes ids from the catalog in blocks and gives them out from memory. A block that is not used up when
the server ends is wasted. Blocks never overlap, whatever happens to a server, so no id is given twice.
"""

from __future__ import annotations

import threading

from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.server.partitions.shard_set import ShardSet

BLOCK_ID_COUNT = 1000
"""The ids of one commit, as in Kafka."""


class ProducerIds:
    """The producer ids of one server. Thread-safe: `_lock` guards the block."""

    def __init__(self, catalog: Catalog, shards: ShardSet) -> None:
        self._catalog = catalog
        self._shards = shards
        self._lock = threading.Lock()
        self._rest = range(0)
        """The ids of the block that are not given yet."""

    def give(self) -> int:
        """An id that no producer has. May take the network for long, once for each block. Raises FencedError
        once another server has taken over, StoreError."""
        with self._lock:
            for shard in self._shards:
                shard.leader_epoch()
            if not self._rest:
                self._shards.confirm_owned()
                self._rest = self._catalog.take_producer_ids(BLOCK_ID_COUNT)
            given, self._rest = self._rest[0], self._rest[1:]
            return given
