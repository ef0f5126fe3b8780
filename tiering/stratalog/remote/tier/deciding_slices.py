"""Finds the slices that tell which transactions of a range were aborted.

The slice that holds an abort marker names the transaction, and it may lie behind the records. The search ends
with the first slice at whose end no transaction is open that began below the end of the range. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.errors import UnsupportedOperationError
from stratalog.remote.metadata.shard.tiered_partition import LiveSlice, TieredPartition
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction


def deciding_slices(partition: TieredPartition, start_offset: int, end_offset: int) -> Iterator[LiveSlice]:
    """The slices of [start_offset, end_offset), and those behind it up to the one that decides all of it."""
    for live in partition.slices_from(start_offset):
        yield live
        if live.entry.stable_end_offset >= end_offset:
            return


def has_markers(live: LiveSlice) -> bool:
    """Whether the slice may abort records of slices before it."""
    return live.entry.has_aborted or live.entry.marker_count > 0


def aborted_in(
    live: LiveSlice, index: SliceIndex, start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions with records in [start_offset, end_offset) whose markers lie in the slice.

    Raises UnsupportedOperationError where the writer of the slice did not record them.
    """
    if not index.producer_snapshot:
        raise UnsupportedOperationError(
            "an early version uploaded this slice without its aborted transactions; read it uncommitted, or"
            " import the topic again",
            object_name=live.object_name,
            base_offset=live.base_offset,
            end_offset=live.end_offset,
        )
    return index.aborted_in(start_offset, end_offset)
