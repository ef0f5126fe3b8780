"""Counts the keys of partitions, and foretells what a compaction of all their records would leave.

The driver reads the metadata, and tasks count keys (`key_count`): from the key streams of the slices, and
from the data of a slice without a usable one. Topics that are not compacted have no key streams, so counting
their keys costs a read of all their data.

A record stays if it is the last one of its key (or has the highest version), or has no key. What stays of a
slice is taken to have its share of the bytes. Markers, and records of transactions that are aborted or
undecided, are counted with those that do not stay; so are records below log start in the first slice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import DEFAULT_CONFIG
from stratalog.compaction.plan.topic_policy import TopicPolicy, topic_policies
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.count_unit import DEFAULT_BOUNDS, CountBounds, CountedPartition
from stratalog.pipeline.jobs.key_count import count_keys
from stratalog.pipeline.jobs.shard_view import StoreView, open_view
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

_SLICES_AT_ONCE = 50_000
"""Slices that the driver holds at a time, unless one partition has more."""


class PartitionStatistics(NamedTuple):
    """The numbers of one partition."""

    topic: str
    partition: int
    compacted: bool
    """Whether the topic is compacted."""
    object_count: int
    record_count: int
    tombstone_count: int
    """Records without a value."""
    marker_count: int
    size_bytes: int
    """Data of all slices."""
    dirty_bytes: int
    """Data of the slices that end above `compacted_upto`."""
    lost_offset_count: int = 0
    """Offsets that the metadata records as lost."""
    key_count: int = 0
    """Different keys."""
    keyless_count: int = 0
    """Records without a key, as far as the data had to be read."""
    kept_record_count: int = 0
    """Records that a compaction of all would leave."""
    kept_bytes: int = 0
    """An estimate of their data."""
    unread_bytes: int = 0
    """Data that would have to be read to count the keys, and was not; 0 if they were counted."""

    @property
    def keys_counted(self) -> bool:
        """Whether the keys were counted, and with them what a compaction would leave."""
        return self.unread_bytes == 0


class _Found(NamedTuple):
    """A partition as the metadata has it."""

    statistics: PartitionStatistics
    counted: CountedPartition


def key_statistics(
    cluster: Cluster,
    open_place: OpenPlace,
    topics: Collection[str],
    *,
    reads_keys: bool = False,
    bounds: CountBounds = DEFAULT_BOUNDS,
) -> list[PartitionStatistics]:
    """The numbers of the partitions of these topics, or of all without any, by topic and partition. Without
    `reads_keys` the keys of a topic that is not compacted are counted only where key streams have them all.
    Raises UnknownTopicOrPartitionError, StoreError, StoreCorruptError, CorruptRecordError, and LogStoreError
    if the cluster gives up."""
    done: list[PartitionStatistics] = []
    batch: list[_Found] = []
    slice_count = 0
    with open_place() as means:
        for one in _partitions(open_view(means), topics):
            if not one.statistics.compacted and not reads_keys:
                unread_bytes = _unread_bytes(one.counted)
                if unread_bytes:
                    done.append(one.statistics._replace(unread_bytes=unread_bytes))
                    continue
            batch.append(one)
            slice_count += len(one.counted.slices)
            if slice_count >= _SLICES_AT_ONCE:
                done += _counted(cluster, open_place, batch, bounds)
                batch, slice_count = [], 0
    return sorted([*done, *_counted(cluster, open_place, batch, bounds)])


def _partitions(view: StoreView, topics: Collection[str]) -> Iterator[_Found]:
    """The partitions of these topics, or of all without any. Raises UnknownTopicOrPartitionError,
    StoreError."""
    entries = view.topics(topics).values()
    defaults = DEFAULT_CONFIG.topic_defaults(view.catalog.state().server_config)
    policies = topic_policies(entries, defaults)
    for number in range(view.shard_count):
        state = view.shard(number).state()
        for tip in state.partitions:
            policy = policies.get(tip.topic_id)
            if policy is not None:
                yield _found(number, policy, tip, state.partition(tip))


def _found(shard: int, policy: TopicPolicy, tip: TopicIdPartition, partition: TieredPartition) -> _Found:
    every = tuple(partition.slices_from(0))
    slices = [live for live in every if live.gap is None]
    entries = [live.entry for live in slices]
    upto = partition.compacted_upto
    statistics = PartitionStatistics(
        topic=policy.name,
        partition=tip.partition,
        compacted=policy.is_compacted,
        object_count=len({live.object_name for live in slices}),
        record_count=sum(entry.record_count for entry in entries),
        tombstone_count=sum(entry.tombstone_count for entry in entries),
        marker_count=sum(entry.marker_count for entry in entries),
        size_bytes=sum(entry.data_bytes for entry in entries),
        dirty_bytes=sum(live.entry.data_bytes for live in slices if live.end_offset > upto),
        lost_offset_count=sum(live.end_offset - live.base_offset for live in every if live.gap is not None),
    )
    counted = CountedPartition(
        shard=shard,
        hashing=policy.hashing,
        log_start_offset=partition.log_start_offset,
        slices=every,
        open_transactions=partition.open_transactions,
    )
    return _Found(statistics, counted)


def _unread_bytes(partition: CountedPartition) -> int:
    """Data that must be read to count the keys."""
    return sum(live.entry.data_bytes for live in partition.slices if partition.needs_data(live))


def _counted(
    cluster: Cluster, open_place: OpenPlace, batch: Sequence[_Found], bounds: CountBounds
) -> Iterator[PartitionStatistics]:
    """Count the keys of some partitions."""
    tally = count_keys(cluster, open_place, [one.counted for one in batch], bounds)
    first = 0
    for statistics, partition in batch:
        key_count = keyless_count = kept_bytes = 0
        for number, live in enumerate(partition.slices, first):
            entry, newest_count, without_count = live.entry, tally.newest[number], tally.keyless[number]
            key_count += newest_count
            keyless_count += without_count
            if entry.record_count:
                kept_bytes += entry.data_bytes * (newest_count + without_count) // entry.record_count
        first += len(partition.slices)
        yield statistics._replace(
            key_count=key_count,
            keyless_count=keyless_count,
            kept_record_count=key_count + keyless_count,
            kept_bytes=kept_bytes,
        )
