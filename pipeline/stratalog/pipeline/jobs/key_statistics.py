"""Counts the keys of partitions, and foretells what a compaction of all their records would leave.

The key streams of all slices of a partition are merged; a slice without a usable one is hashed from its data.
A record stays if it is the last one of its key, or has no key. What stays of a slice is taken to have its
share of the bytes. Markers, and records of transactions that are aborted or undecided, are counted with those
that do not stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compactor import DEFAULT_CONFIG
from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.key_parts import KeyParts
from stratalog.compaction.keys.survivor_bits import new_bitmap, survivor_count
from stratalog.compaction.keys.survivor_plan import merge_keys
from stratalog.compaction.plan.topic_policy import TopicPolicy, topic_policies
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.slice_keys import OffsetBounds, SliceKeys
from stratalog.pipeline.jobs.cluster import Cluster, shares
from stratalog.pipeline.jobs.shard_view import open_view
from stratalog.pipeline.jobs.slice_means import proof_means
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.key_stream import KeyBlock

_WINDOW_BYTES = 1 << 20


class PartitionStatistics(NamedTuple):
    """The numbers of one partition."""

    topic: str
    partition: int
    compacted: bool
    """Whether the topic is compacted. Keys are counted only then."""
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


class _Task(NamedTuple):
    """Partitions of a shard that one task counts."""

    shard: int
    partitions: tuple[TopicIdPartition, ...]


def key_statistics(
    cluster: Cluster, open_place: OpenPlace, topics: Collection[str]
) -> list[PartitionStatistics]:
    """The numbers of the partitions of these topics, or of all without any, by topic and partition. Raises
    UnknownTopicOrPartitionError, StoreError, StoreCorruptError, and LogStoreError if the cluster gives up."""
    tasks: list[_Task] = []
    with open_place() as means:
        view = open_view(means)
        wanted = {entry.topic_id for entry in view.topics(topics).values()}
        for number in range(view.shard_count):
            tips = [tip for tip in view.shard(number).state().partitions if tip.topic_id in wanted]
            tasks += [_Task(number, tuple(share)) for share in shares(tips, cluster)]
    if not tasks:
        return []
    found: list[PartitionStatistics] = []
    for done in cluster.each(partial(_count, open_place), tasks):
        if isinstance(done, LogStoreError):
            raise done
        found += done
    return sorted(found)


def _count(open_place: OpenPlace, task: _Task) -> list[PartitionStatistics] | LogStoreError:
    """Count the keys of some partitions, on the machine of the task."""
    try:
        with open_place() as means:
            view = open_view(means)
            defaults = DEFAULT_CONFIG.topic_defaults(view.catalog.state().server_config)
            policies = topic_policies(view.catalog.topics().values(), defaults)
            state = view.shard(task.shard).state()
            slices = proof_means(means, task.shard)
            return [
                _statistics_of(slices, policy, tip.partition, state.partition(tip))
                for tip in task.partitions
                if (policy := policies.get(tip.topic_id)) is not None
            ]
    except LogStoreError as error:
        return error


def _statistics_of(
    means: ProofMeans, policy: TopicPolicy, number: int, partition: TieredPartition
) -> PartitionStatistics:
    every = list(partition.slices_from(0))
    slices = [live for live in every if live.gap is None]
    entries = [live.entry for live in slices]
    upto = partition.compacted_upto
    plain = PartitionStatistics(
        topic=policy.name,
        partition=number,
        compacted=policy.is_compacted,
        object_count=len({live.object_name for live in slices}),
        record_count=sum(entry.record_count for entry in entries),
        tombstone_count=sum(entry.tombstone_count for entry in entries),
        marker_count=sum(entry.marker_count for entry in entries),
        size_bytes=sum(entry.data_bytes for entry in entries),
        dirty_bytes=sum(live.entry.data_bytes for live in slices if live.end_offset > upto),
        lost_offset_count=sum(live.end_offset - live.base_offset for live in every if live.gap is not None),
    )
    if not policy.is_compacted:
        return plain
    with contextlib.ExitStack() as closing:
        count = _KeyCount(means, policy, partition, closing)
        kept = count.kept_counts(slices)
    kept_bytes = sum(
        entry.data_bytes * kept_count // entry.record_count
        for entry, kept_count in zip(entries, kept, strict=True)
        if entry.record_count
    )
    return plain._replace(
        key_count=sum(kept) - count.keyless_count,
        keyless_count=count.keyless_count,
        kept_record_count=sum(kept),
        kept_bytes=kept_bytes,
    )


class _KeyCount:
    """One count. Not thread-safe: one task uses it."""

    def __init__(
        self,
        means: ProofMeans,
        policy: TopicPolicy,
        partition: TieredPartition,
        closing: contextlib.ExitStack,
    ) -> None:
        """`closing` gives the scratch back."""
        self.keyless_count = 0
        self._means = means
        self._policy = policy
        self._fates = RecordFates(means.reads, partition)
        self._log_start_offset = partition.log_start_offset
        self._closing = closing

    def kept_counts(self, slices: Sequence[LiveSlice]) -> list[int]:
        """For each slice the number of records that a compaction of all would leave."""
        bitmaps = [new_bitmap(live.entry.record_count) for live in slices]
        cursors: list[KeyCursor] = []
        keyless_counts: list[int] = []
        for live, bitmap in zip(slices, bitmaps, strict=True):
            sources, keyless_count = self._keys_of(live)
            keyless_counts.append(keyless_count)
            cursors += [KeyCursor(blocks, bitmap) for blocks in sources]
        merge_keys(cursors)
        self.keyless_count = sum(keyless_counts)
        return [survivor_count(bitmap) + count for bitmap, count in zip(bitmaps, keyless_counts, strict=True)]

    def _keys_of(self, live: LiveSlice) -> tuple[list[Iterator[KeyBlock]], int]:
        """The sorted parts of a slice's keys, oldest first, and its records without a key."""
        stream, hashing = live.entry.key_stream, self._policy.hashing
        if not live.entry.record_count:
            return [], 0
        if stream is not None and hashing.made(stream):
            return [self._means.reads.key_blocks(live, _WINDOW_BYTES)], 0
        parts = KeyParts(
            self._means.make_scratch,
            live.entry.record_count,
            self._means.max_part_entries,
            keeps_repeats=False,
            has_versions=hashing.has_versions,
        )
        self._closing.callback(parts.close)
        bounds = OffsetBounds(max(live.base_offset, self._log_start_offset), live.end_offset)
        keys = SliceKeys(hashing, self._fates, bounds, parts)
        with self._means.reads.data(live) as reader:
            keys.read(reader)
        return [blocks() for blocks in parts.end()], keys.keyless_count
