"""The result of a read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.header import HEADER_SIZE
from stratalog.segment.indexes.transaction_index import AbortedTransaction


class FetchData(NamedTuple):
    """Whole batches, and the offset of the next read.

    The first batch may begin below the requested offset. `next_offset` is the offset behind the last batch.
    Without batches it is the requested offset at the end of the log, and larger if compaction left a hole.
    """

    chunks: tuple[Buffer, ...]
    """The batches, in order. Each chunk begins with a batch and has whole ones; but one that is shorter than
    a header goes on in the next one. A view saves a copy of what a cache has."""
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions with records in the batches, in the order of their markers; only for
    `TXN_COMMITTED`. The reader leaves out the producer's transactional records from `first_offset` to its
    next marker."""
    lacks_room: bool = False
    """The next batch was too large for the rest of the room. False if that is not known."""

    @property
    def size_bytes(self) -> int:
        """Size of the batches."""
        return sum(map(len, self.chunks))

    @property
    def batches(self) -> bytes:
        """A copy of the chunks, as one."""
        return b"".join(self.chunks)


def whole_chunks(chunks: Iterable[Buffer]) -> Iterator[Buffer]:
    """The chunks of `FetchData`, each with whole batches."""
    beginning: Buffer = b""
    for chunk in chunks:
        if len(chunk) < HEADER_SIZE:
            beginning = chunk
            continue
        yield b"".join((beginning, chunk)) if beginning else chunk
        beginning = b""
