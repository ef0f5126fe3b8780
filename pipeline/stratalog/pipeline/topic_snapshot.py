"""The slices of a topic in the object store at one moment: the plan of a scan.

The driver reads the catalog and the shards' metadata once and gives the executors object names and positions
only. So every task of a scan sees the same moment, and no task needs the metadata. Records that are not
tiered yet are not in the snapshot; a partition's `end_offset` tells how far it reaches.

A reader of committed records sees a partition up to the first transaction that is undecided in the object
store. The tasks find out which records below were aborted; a span names the slices to ask.

An object that compaction replaced stays readable for the store's grace period. A scan that outlives it fails
with a clear error and can be started again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from stratalog.base.clock import SystemClock
from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.base.randomness import SystemIdGenerator, system_random
from stratalog.base.types import TopicIdPartition
from stratalog.client.isolation_level import IsolationLevel
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.ownership.head_witness import catalog_as_witness
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, shard_of


@dataclass(frozen=True, slots=True)
class SliceSpan:
    """A slice for a task: the place of its bytes, and the valid range of its offsets.

    `first_offset` is the larger of the slice's base and the partition's log start. For committed records
    `end_offset` is the smaller of the slice's end and the partition's stable end.
    """

    object_key: str
    position: int
    size_bytes: int
    partition: int
    first_offset: int
    end_offset: int
    record_count: int
    shard: int = 0
    deciding: tuple[LiveSlice, ...] = ()
    """Slices that name the span's aborted transactions; empty if every record is wanted."""


def read_snapshot(
    store: ObjectStore, topic: str, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> list[SliceSpan]:
    """The current slices of a topic with data, by shard, object and position.

    Raises UnknownTopicOrPartitionError, StoreError.
    """
    ids = SystemIdGenerator()
    identity = StoreIdentity.open(store)
    writer = Writer("spark", str(ids.uuid()))
    actor = StoreActor(
        store=store,
        clock=SystemClock(),
        random_source=system_random(),
        ids=ids,
        identity=identity,
        writer=writer,
    )
    catalog = Catalog.open(actor, read_only=True)
    entry = catalog.topics().get(topic)
    if entry is None:
        raise UnknownTopicOrPartitionError(
            "the store has no such topic; check its name and the store's URL", topic=topic, store=store.url
        )
    partitions = [TopicIdPartition(entry.topic_id, number) for number in range(entry.partition_count)]
    spans: list[SliceSpan] = []
    for shard in sorted({shard_of(partition, identity.shard_count) for partition in partitions}):
        load_directory = partial(read_directory, store, StoreLayout(shard))
        metadata = MetadataLog.open(
            actor, shard, load_directory, read_only=True, witness=catalog_as_witness(catalog)
        )
        spans += sorted(
            _spans(metadata.state(), shard, partitions, isolation),
            key=lambda span: (span.object_key, span.position),
        )
    return spans


def _spans(
    state: ShardState, shard: int, partitions: Sequence[TopicIdPartition], isolation: IsolationLevel
) -> Iterator[SliceSpan]:
    layout = StoreLayout(shard)
    is_committed = isolation is IsolationLevel.READ_COMMITTED
    for partition in partitions:
        known = state.known_partition(partition)
        if known is None:
            continue
        readable_end_offset = known.stable_end_offset if is_committed else known.tiered_end_offset
        for live in known.slices:
            first_offset = max(live.base_offset, known.log_start_offset)
            end_offset = min(live.end_offset, readable_end_offset)
            if live.entry.data_bytes == 0 or first_offset >= end_offset:
                continue
            yield SliceSpan(
                object_key=layout.data_key(live.object_name),
                position=live.entry.data_position,
                size_bytes=live.entry.data_bytes,
                partition=partition.partition,
                first_offset=first_offset,
                end_offset=end_offset,
                record_count=live.entry.record_count,
                shard=shard,
                deciding=_deciding(known, live, first_offset, end_offset) if is_committed else (),
            )


def _deciding(
    partition: TieredPartition, own: LiveSlice, first_offset: int, end_offset: int
) -> tuple[LiveSlice, ...]:
    return tuple(
        live
        for live in partition.deciding_slices(first_offset, end_offset)
        if live.base_offset == own.base_offset or live.has_markers
    )
