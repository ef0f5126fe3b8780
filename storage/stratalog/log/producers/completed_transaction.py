"""A transaction whose marker is in the log."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.segment.indexes.transaction_index import AbortedTransaction


class CompletedTransaction(NamedTuple):
    """From its first record to its marker, both inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int
    """First offset of the oldest transaction that was still open then; behind the marker without one."""

    @property
    def index_entry(self) -> AbortedTransaction:
        """What the transaction index of the marker's segment gets of an aborted one."""
        assert self.is_aborted
        return AbortedTransaction(
            self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )
