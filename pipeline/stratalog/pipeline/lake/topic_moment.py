"""A topic at one moment: the committed records that its objects have, and what a table must know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from stratalog.base.errors import UnsupportedOperationError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.compaction.compactor import DEFAULT_CONFIG
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.pipeline.source.partition_range import clipped_range, require_no_gap
from stratalog.pipeline.source.read_options import ReadOptions, parse_options
from stratalog.pipeline.source.scan_plan import MAX_OFFSET, plan_tasks
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.pipeline.source.store_view import StoreReader, TopicPartitionView, require_topics
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry

_OPTIONS = {"isolationLevel": IsolationLevel.READ_COMMITTED.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMoment:
    """A topic at one moment. Immutable."""

    reader: StoreReader
    options: ReadOptions
    entry: TopicEntry
    policy: TopicPolicy
    time_ms: int
    """By the store's clock."""
    views: Sequence[TopicPartitionView]
    """All partitions, by their numbers."""

    @property
    def store_id(self) -> UUID:
        return self.reader.store_id

    @property
    def commits(self) -> Mapping[int, int]:
        """For each shard of the topic the number of its newest commit."""
        return {view.shard: view.state.seq for view in self.views}

    @property
    def ends(self) -> Mapping[int, int]:
        """For each partition the offset behind the last record that is committed for certain."""
        return {view.tip.partition: view.tiered.stable_end_offset for view in self.views}

    @property
    def log_starts(self) -> Mapping[int, int]:
        """For each partition its log start."""
        return {view.tip.partition: view.tiered.log_start_offset for view in self.views}

    def is_compacted_behind(self, offsets: Mapping[int, int]) -> bool:
        """Whether a compaction may have dropped tombstones at these offsets or behind them."""
        return any(view.tiered.compacted_upto > offsets.get(view.tip.partition, 0) for view in self.views)

    def tasks(self, starts: Mapping[int, int], max_task_bytes: int) -> list[list[SliceSpan]]:
        """The committed records from these offsets on, or from log start, divided into tasks. Raises
        OffsetOutOfRangeError for lost records among them, unless the options take that, StoreError."""
        ranges = [
            clipped_range(view, starts.get(view.tip.partition, 0), MAX_OFFSET, self.options.isolation)
            for view in self.views
        ]
        for one in ranges:
            require_no_gap(one, fails=self.options.fails_on_data_loss)
        options = replace(self.options, max_partition_bytes=max_task_bytes)
        return plan_tasks(self.reader, ranges, options)


def topic_moment(
    reader: StoreReader, topic: str, lease_s: int | None = None, *, fails_on_data_loss: bool = True
) -> TopicMoment:
    """The topic now. With a lease its objects stay for so many seconds. Raises UnknownTopicOrPartitionError,
    UnsupportedOperationError for a topic whose compaction keeps other records than the last ones, StoreError.
    """
    given = {"store": reader.store.url, "topic": topic, **_OPTIONS}
    options = replace(parse_options(given, is_stream=False), fails_on_data_loss=fails_on_data_loss)
    topics = reader.topics(options)
    require_topics(options, topics)
    (entry,) = topics
    policy = TopicPolicy.of(entry, DEFAULT_CONFIG.topic_defaults(reader.server_config))
    if policy.hashing.has_versions:
        raise UnsupportedOperationError(
            "the compaction of this topic keeps the record of a key with the highest version, which may not"
            " be the last one; such topics cannot be materialized",
            topic=topic,
        )
    if lease_s is not None:
        reader.lease(options, lambda now_ms: now_ms + 1000 * lease_s)
    views = reader.view_of(options, topics)
    return TopicMoment(
        reader=reader,
        options=options,
        entry=entry,
        policy=policy,
        time_ms=reader.store_date_ms,
        views=views,
    )
