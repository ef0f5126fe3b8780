"""Plans an import of a broker's log directory, before anything is changed.

A topic keeps its name and id, so neither may be known here: not in the catalog (which keeps a deleted topic
for 30 days), not in its shards, not in the data directory. Directories that a killed import left belong to no
topic and are removed.

A topic that is known under both its name and its id, with all its partitions in the server's directories, was
imported before, by an import that was killed between two topics, for example. It stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    DataDirectoryError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.migration.kafka_log_directory import INTERNAL_TOPICS, PassedOver, SourceTopic
from stratalog.migration.stopped_broker import StoppedBroker
from stratalog.remote.metadata.catalog.catalog_bounds import CatalogBounds
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.catalog.topic_entry import require_partition_count, require_topic_name
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.store_layout import shard_of

RETENTION_MS = "retention.ms"
_RAISE_BOUNDS = "raise --max-topics or --max-partitions"


class PresentPartition(NamedTuple):
    """A partition that has a directory in the data directory, or in a log directory of the same server."""

    topic_partition: TopicPartition
    path: str
    topic_id: UUID | None
    is_imported: bool


class ImportTarget(NamedTuple):
    """The topics and logs that exist already."""

    catalog: CatalogState
    shards: Sequence[ShardState]
    present: Sequence[PresentPartition]

    def shard_of(self, partition: TopicIdPartition) -> int:
        return shard_of(partition, len(self.shards))


class ImportPlan(NamedTuple):
    """The topics to import, and those that are passed over."""

    topics: tuple[SourceTopic, ...]
    config: Mapping[str, str]
    """Configuration overrides of every topic."""
    unclean_log_dirs: tuple[str, ...]
    """Log directories that the broker did not close; their logs are recovered."""
    passed_over: tuple[PassedOver, ...]
    leftovers: tuple[TopicPartition, ...]
    """Directories of these topics that a killed import left."""
    already_imported: tuple[str, ...] = ()
    """Topics that an earlier import brought; they stay unchanged."""

    @property
    def was_clean(self) -> bool:
        return not self.unclean_log_dirs

    @property
    def is_retention_assumed(self) -> bool:
        """No override limits retention, so the records are kept for ever."""
        return self.config.get(RETENTION_MS) == str(UNLIMITED)


def plan_import(
    source: StoppedBroker,
    wanted: Sequence[str],
    config: Mapping[str, str],
    target: ImportTarget,
    bounds: CatalogBounds,
) -> ImportPlan:
    """Plan the import of the `wanted` topics, or of all except Kafka's own if none is named.

    `config` has overrides; without one, retention is unlimited. Raises UnknownTopicOrPartitionError,
    TopicAlreadyExistsError, InvalidRequestError for a name that collides with another topic's,
    LimitExceededError if the store would have more than the `bounds` allow, InvalidConfigError,
    UnsupportedOperationError, DataDirectoryError, OSError.
    """
    config = {RETENTION_MS: str(UNLIMITED), **config}
    LogConfig.from_overrides(config)
    found = source.partitions_by_topic
    for name in wanted:
        if name not in found:
            raise UnknownTopicOrPartitionError(
                "the log directory has no partition of this topic; correct the name", topic=name
            )
    names = [name for name in found if (name in wanted if wanted else name not in INTERNAL_TOPICS)]
    if not names:
        raise UnknownTopicOrPartitionError(
            "the log directory has no topic to import; correct the path, or name a topic", path=source.path
        )
    passed_over = list(source.passed_over)
    if not wanted:
        passed_over += [
            PassedOver(
                str(partition),
                "it belongs to Kafka's own topics; name the topic to import it",
                source.path_of(partition),
            )
            for name in found
            if name in INTERNAL_TOPICS
            for partition in (TopicPartition(name, number) for number in found[name])
        ]
    found_topics = [source.topic(name) for name in names]
    _require_own_ids(found_topics)
    already_imported = tuple(topic.name for topic in found_topics if _is_imported(topic, target))
    topics = tuple(topic for topic in found_topics if topic.name not in already_imported)
    for topic in topics:
        _require_new(topic, target, [*target.catalog.topics(), *names])
    partition_count = sum(len(topic.partitions) for topic in topics)
    bounds.require_room(target.catalog, partition_count, len(topics), remedy=_RAISE_BOUNDS)
    new_names = {topic.name for topic in topics}
    leftovers = tuple(
        present.topic_partition for present in target.present if present.topic_partition.topic in new_names
    )
    return ImportPlan(
        topics=topics,
        config=config,
        unclean_log_dirs=source.unclean_paths,
        passed_over=tuple(passed_over),
        leftovers=leftovers,
        already_imported=already_imported,
    )


def _require_own_ids(topics: Sequence[SourceTopic]) -> None:
    """Two topics have one id if a directory was copied or renamed by hand. Raises DataDirectoryError."""
    named: dict[UUID, SourceTopic] = {}
    for topic in topics:
        if topic.topic_id is None:
            continue
        other = named.setdefault(topic.topic_id, topic)
        if other is not topic:
            raise DataDirectoryError(
                "two topics of the log directory have one id, so one of them was copied or renamed by hand;"
                " leave one of them out, or move it away",
                topic_id=topic.topic_id,
                topic=topic.name,
                path=topic.partitions[0].path,
                other_topic=other.name,
                other_path=other.partitions[0].path,
            )


def _is_imported(topic: SourceTopic, target: ImportTarget) -> bool:
    """Say whether the store has the topic already. Raises TopicAlreadyExistsError if the store has the name
    for another topic, or this one elsewhere."""
    entry = target.catalog.named(topic.name)
    if entry is None:
        return False
    if topic.topic_id is None:
        raise _exists(
            topic,
            "the store has a topic of that name already, and the log directory has no id that says whether it"
            " is this one; leave this one out",
            store_topic_id=entry.topic_id,
        )
    if topic.topic_id != entry.topic_id:
        raise _exists(
            topic,
            "the store has a topic of that name already, with another id; delete it, or leave this one out",
            store_topic_id=entry.topic_id,
        )
    if len(topic.partitions) > entry.partition_count:
        raise _exists(
            topic,
            "the store has this very topic already, with fewer partitions than the log directory; leave it"
            " out, and let a client copy what is in the others",
            partition_count=len(topic.partitions),
            store_partition_count=entry.partition_count,
        )
    here = {present.topic_partition for present in target.present if present.topic_id == entry.topic_id}
    numbers = [one.topic_partition.partition for one in topic.partitions if one.topic_partition not in here]
    if numbers:
        # Logs are placed, durably, before the topic is created: no cut leaves this.
        raise _exists(
            topic,
            "the store has this very topic already, and partitions of it are not in the server's log"
            " directories; import into the data directory that has them, or leave it out",
            missing_partitions=",".join(map(str, numbers)),
        )
    return True


def _require_new(topic: SourceTopic, target: ImportTarget, taken: Sequence[str]) -> None:
    require_topic_name(topic.name, taken)
    require_partition_count(len(topic.partitions))
    if topic.topic_id is not None and topic.topic_id in target.catalog.entries:
        raise _exists(topic, "the store has, or had not long ago, a topic of that id; leave this one out")
    for present in target.present:
        if present.is_imported and present.topic_partition.topic == topic.name:
            # A killed import left it: the catalog does not know the name.
            continue
        if present.topic_partition.topic == topic.name or (
            topic.topic_id is not None and present.topic_id == topic.topic_id
        ):
            raise _exists(
                topic,
                "the server's log directories have logs of a topic of that name or id; move them away, or"
                " leave this topic out",
                path=present.path,
            )
    if topic.topic_id is None:
        return
    for partition in topic.partitions:
        tip = TopicIdPartition(topic.topic_id, partition.topic_partition.partition)
        state = target.shards[target.shard_of(tip)]
        known = state.partition(tip)
        # A killed import leaves a log start.
        is_used = known.slices or known.tiered_end_offset > partition.log_start_offset
        if is_used or topic.topic_id in state.dropped_topics:
            raise _exists(topic, "the store has records of a topic of that id; leave this one out")


def _exists(topic: SourceTopic, message: str, **fields: object) -> TopicAlreadyExistsError:
    return TopicAlreadyExistsError(message, topic=topic.name, topic_id=topic.topic_id, **fields)
