"""Gives ids to producers, and recognises ids that no server has given.

A server takes ids from the catalog in blocks and gives them out from memory. A block that is not used up when
the server ends is wasted. Blocks never overlap, whatever happens to a server, so no id is given twice.

An id is given if it is below the catalog's next one and not in the rest of this server's block. So those of
other servers' blocks count as given from the commit on. The catalog that this server has read may be older
than such a commit, so it is read again before an id is refused.
"""

from __future__ import annotations

import threading

from stratalog.base.errors import UnknownProducerIdError
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.server.partitions.shard_set import ShardSet

BLOCK_ID_COUNT = 1000
"""The ids of one commit, as in Kafka."""


class ProducerIds:
    """The producer ids of one server. Thread-safe: `_lock` guards the block, which is replaced whole, so that
    `is_given` reads it without the lock."""

    def __init__(self, catalog: Catalog, shards: ShardSet) -> None:
        self._catalog = catalog
        self._shards = shards
        self._lock = threading.Lock()
        self._rest = range(0)
        """The ids of the block that are not given yet."""

    def give(self) -> int:
        """An id that no producer has. May take the network for long, once for each block. Raises
        NotOwnerError once other servers have taken all shards over, StoreError."""
        with self._lock:
            self._shards.ensure_owned()
            if not self._rest:
                self._shards.confirm_owned()
                self._rest = self._catalog.take_producer_ids(BLOCK_ID_COUNT)
            given, self._rest = self._rest[0], self._rest[1:]
            return given

    def is_given(self, producer_id: int) -> bool:
        """Whether a server has given the id, as far as this one has read. Never waits."""
        # The number first: of a block that is taken in between it knows nothing.
        next_producer_id = self._catalog.state().next_producer_id
        return 0 <= producer_id < next_producer_id and producer_id not in self._rest

    def require_given(self, producer_id: int) -> None:
        """Read the catalog if it may know the id. Raises UnknownProducerIdError if no server has given it,
        StoreError if that cannot be found out."""
        if producer_id not in self._rest and producer_id >= 0:
            self._catalog.refresh()
        if not self.is_given(producer_id):
            raise UnknownProducerIdError(
                "no server has given this producer id; get one with InitProducer", producer_id=producer_id
            )
