"""Which slices say how the transactions of a range ended, and what they say.

The slice that holds an abort marker names the transaction, and it may lie behind the records. The search
ends with the first slice at whose end no transaction is open that began below the end of the range. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.base.errors import UnsupportedOperationError
from stratalog.remote.metadata.shard.partition_state import LiveSlice, PartitionState
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction


def deciding_slices(partition: PartitionState, start_offset: int, end_offset: int) -> Iterator[LiveSlice]:
    """The slices of [start_offset, end_offset), and those behind them up to where all of it was decided."""
    for live in partition.slices_from(start_offset):
        yield live
        if live.entry.stable_end_offset >= end_offset:
            return


def has_markers(live: LiveSlice) -> bool:
    """Whether the slice may say of records in slices before it that they were aborted."""
    return live.entry.has_aborted or live.entry.marker_count > 0


def aborted_in(
    live: LiveSlice, index: SliceIndex, start_offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions with records in [start_offset, end_offset) whose markers lie in the slice.

    Raises UnsupportedOperationError where the writer of the slice did not tell.
    """
    if not index.producer_snapshot:
        raise UnsupportedOperationError(
            "which transactions of a slice were aborted is not known, because an early version"
            " uploaded it; read it uncommitted, or import the topic again",
            object_name=live.object_name,
            base_offset=live.base_offset,
            end_offset=live.end_offset,
        )
    return index.aborted_in(start_offset, end_offset)
