"""What a read found."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.segment.indexes.transaction_index import AbortedTransaction


class FetchData(NamedTuple):
    """Whole batches, and where to go on.

    The first batch may begin below the offset that was asked for. `next_offset` is the offset behind the last
    batch; it may be larger than what was asked for where there is no batch, and is equal to it at the end.
    """

    batches: bytes
    next_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    """Those with records among the batches, in the order of their markers, for `TXN_COMMITTED` only: a
    producer's transactional records from `first_offset` to its next marker are to be left out."""
