"""The part of a topic's configuration that compaction needs, resolved once for a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from uuid import UUID

from stratalog.base.errors import InvalidConfigError
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.slice_span import UNBOUNDED, SliceSpan

COMPACTED_KIND = 0
"""The kind of compacted topics."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """A topic as the planner sees it. Immutable."""

    topic_id: UUID
    name: str
    hashing: KeyHashing
    is_compacted: bool
    """Whether `cleanup.policy` has `compact`; a plain topic's slices are only merged."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_dirty_ratio: float = 0.5
    """`min.cleanable.dirty.ratio`: a partition is compacted once this part of its bytes is dirty."""
    span: SliceSpan = UNBOUNDED
    """The most that an output slice may span."""
    retention_ms: int = LONG_MAX
    """`retention.ms`; `LONG_MAX` if no time limits the records."""

    @property
    def kind(self) -> int:
        """The kind of topics whose slices lie together, because they die together: `COMPACTED_KIND`, or a
        larger number for plain ones, one more for each factor of four in their retention time."""
        return COMPACTED_KIND if self.is_compacted else 1 + self.retention_ms.bit_length() // 2

    @property
    def takes_all_ages(self) -> bool:
        """Whether a job may compact any slices of the topic together, however young or old they are."""
        has_lag = self.min_compaction_lag_ms > 0 or self.max_compaction_lag_ms < LONG_MAX
        return self.is_compacted and not has_lag and not self.span.is_bounded

    @staticmethod
    def of(topic: TopicEntry, defaults: LogConfig) -> TopicPolicy:
        """The policy of a topic on a server with these defaults. Raises InvalidConfigError if this version
        does not understand the topic's configuration."""
        config = LogConfig.in_force(topic.config, defaults)
        return TopicPolicy(
            topic_id=topic.topic_id,
            name=topic.name,
            hashing=KeyHashing(topic.hash_key, config.version_rule),
            is_compacted=config.is_compacted,
            delete_retention_ms=config.delete_retention_ms,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            min_dirty_ratio=config.min_cleanable_dirty_ratio,
            span=SliceSpan.of(config),
            retention_ms=_retention_ms(config),
        )


def topic_policies(topics: Iterable[TopicEntry], defaults: LogConfig) -> Mapping[UUID, TopicPolicy]:
    """Policies by topic id. Deleted topics are left out: their slices are dropped elsewhere.

    A topic with a configuration of a later version is left out too; the planner reports partitions without a
    policy.
    """
    policies: dict[UUID, TopicPolicy] = {}
    for topic in topics:
        if topic.is_deleted:
            continue
        try:
            policies[topic.topic_id] = TopicPolicy.of(topic, defaults)
        except InvalidConfigError:
            continue
    return policies


def _retention_ms(config: LogConfig) -> int:
    return config.retention_ms if config.is_deleted and config.retention_ms != UNLIMITED else LONG_MAX
