"""States and partitions of a shard as tests make, read and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder
from stratalog.remote.metadata.head.document_ref import DocumentRef
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_checkpoint import shard_from_checkpoint
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.store_layout import StoreLayout


def row_of(slices: Sequence[LiveSlice]) -> PartitionRow:
    """The row of a partition that got these slices, one after the other."""
    row = PartitionRow()
    if slices:
        base_offset = slices[0].base_offset
        row = PartitionRow(base_offset, base_offset, base_offset)
    for live in slices:
        row = row.with_slice(live)
    return row


def partition_of(tip: TopicIdPartition, slices: Sequence[LiveSlice]) -> TieredPartition:
    """A partition with all of these slices in memory."""
    return TieredPartition(tip, row_of(slices))


def stored_state(store: ObjectStore, layout: StoreLayout, ref: DocumentRef) -> ShardState:
    """The state that a checkpoint holds."""
    folder = CheckpointFolder(store, layout, PageLoader())
    return shard_from_checkpoint(folder, folder.root(ref))


def partitions_in(state: ShardState) -> dict[TopicIdPartition, TieredPartition]:
    """All partitions, with their slices."""
    return {tip: state.partition(tip) for tip in state.partitions}


def without_rows(state: ShardState) -> ShardState:
    """The state without its partitions, and without what changed since the checkpoint: a row says also which
    slices are in memory, and states differ by that which mean the same."""
    return replace(state, partitions=PersistentMap(), changed=(), pages=None)


def require_same_state(one: ShardState, other: ShardState) -> None:
    """Both states say the same of everything, slice by slice."""
    assert without_rows(one) == without_rows(other)
    assert partitions_in(one) == partitions_in(other)
