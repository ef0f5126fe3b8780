"""The result of a read."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.segment.indexes.transaction_index import AbortedTransaction


class FetchData(NamedTuple):
    """Whole batches, and the offset of the next read.

    The first batch may begin below the requested offset. `next_offset` is the offset behind the last batch.
    Without batches it is the requested offset at the end of the log, and larger if compaction left a hole.
    """

    chunks: tuple[bytes | memoryview, ...]
    """The batches, in order; each chunk has whole ones. A view saves a copy of what a cache has."""
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions with records in the batches, in the order of their markers; only for
    `TXN_COMMITTED`. The reader leaves out the producer's transactional records from `first_offset` to its
    next marker."""

    @property
    def size_bytes(self) -> int:
        """Size of the batches."""
        return sum(map(len, self.chunks))

    @property
    def batches(self) -> bytes:
        """A copy of the chunks, as one."""
        return b"".join(self.chunks)
