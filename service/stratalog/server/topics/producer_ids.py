"""Gives ids to producers, and recognises ids that no server has given.

A server takes ids from the catalog in blocks and gives them out from memory. A background pass takes a block
soon after the start, and the next one when less than half a block is left. So new producers have ids while
the object store does not answer. Blocks that are not used up when the server ends are wasted. Blocks never
overlap, whatever happens to a server, so no id is given twice.

An id is given if it is below the catalog's next one and not in the rest of this server's blocks. So those of
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
MIN_LEFT_COUNT = BLOCK_ID_COUNT // 2
"""With fewer ids left than these the next block is taken."""


class ProducerIds:
    """The producer ids of one server. Thread-safe: `_lock` guards the blocks, which are replaced whole, so
    that `is_given` reads them without the lock."""

    def __init__(self, catalog: Catalog, shards: ShardSet) -> None:
        self._catalog = catalog
        self._shards = shards
        self._lock = threading.Lock()
        self._rest: tuple[range, ...] = ()
        """The ids of each block that are not given yet, the next one first. None is empty."""

    def give(self) -> int:
        """An id that no producer has. May take the network for long where `refill` has left no ids. Raises
        NotOwnerError once other servers have taken all shards over, StoreError."""
        with self._lock:
            self._shards.ensure_owned()
            if not self._rest:
                self._rest = (self._take(),)
            first, *later = self._rest
            rest = (first[1:],) if len(first) > 1 else ()
            self._rest = (*rest, *later)
            return first[0]

    def refill(self) -> int:
        """Take a block if less than half of one is left; returns the number of ids that were taken. For one
        background thread; `give` does not wait for it. Raises NotOwnerError, StoreError."""
        if sum(map(len, self._rest)) >= MIN_LEFT_COUNT:
            return 0
        # Without the lock: the store may not answer, and there may be ids.
        taken = self._take()
        with self._lock:
            self._rest = (*self._rest, taken)
        return len(taken)

    def _take(self) -> range:
        self._shards.confirm_owned()
        return self._catalog.take_producer_ids(BLOCK_ID_COUNT)

    def is_given(self, producer_id: int) -> bool:
        """Whether a server has given the id, as far as this one has read. Never waits."""
        # The number first: of a block that is taken in between it knows nothing.
        next_producer_id = self._catalog.state().next_producer_id
        return 0 <= producer_id < next_producer_id and not self._is_left(producer_id)

    def _is_left(self, producer_id: int) -> bool:
        return any(producer_id in block for block in self._rest)

    def require_given(self, producer_id: int) -> None:
        """Read the catalog if it may know the id. Raises UnknownProducerIdError if no server has given it,
        StoreError if that cannot be found out."""
        if producer_id >= 0 and not self._is_left(producer_id):
            self._catalog.refresh()
        if not self.is_given(producer_id):
            raise UnknownProducerIdError(
                "no server has given this producer id; get one with InitProducer", producer_id=producer_id
            )
