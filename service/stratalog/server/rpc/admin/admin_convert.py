"""Converts values of the engine to messages of the control plane, and back."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.base.errors import InvalidRequestError
from stratalog.cleaner.cleaner_failures import CleaningFailure
from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.server.configuration.config_entry import ConfigChange, ConfigEntry, ConfigSource
from stratalog.server.partitions.directory_admin import DescribedDirectory, DescribedMove
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.rpc.paging import Page
from stratalog.server.rpc.status import bounded_reason
from stratalog.v1 import admin_pb2

MAX_SET_ASIDE_COUNT = 100
"""Paths of directories that were set aside, of one log directory in an answer."""

MAX_OFFLINE_COUNT = 1_000
"""Offline partitions of one topic in an answer."""

UNKNOWN = -1
"""An offset, a time or a size that does not exist, or is unknown because a local log cannot be opened."""


def topic_message(topic: HostedTopic) -> admin_pb2.Topic:
    """A topic with its configuration in force. The hash key stays in the catalog."""
    offline = topic.unserved_partitions
    return admin_pb2.Topic(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partition_count=len(topic.all_partitions),
        config_overrides=topic.config_overrides,
        config={} if topic.config is None else topic.config.as_mapping(),
        offline_partitions=map(offline_partition_message, offline[:MAX_OFFLINE_COUNT]),
        offline_partition_count=len(offline),
    )


def topic_weight(topic: HostedTopic) -> int:
    """The weight of the message of a topic in a page: a configuration is as long as five plain items, and an
    offline partition as three."""
    return 5 + 3 * min(len(topic.unserved_partitions), MAX_OFFLINE_COUNT)


def topic_listing_message(topic: HostedTopic) -> admin_pb2.TopicListing:
    """A topic without the configuration in force."""
    return admin_pb2.TopicListing(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partition_count=len(topic.all_partitions),
        config_overrides=topic.config_overrides,
        offline_partition_count=len(topic.unserved_partitions),
    )


def offline_partition_message(partition: OfflinePartition) -> admin_pb2.OfflinePartition:
    """An offline partition, and the reason."""
    return admin_pb2.OfflinePartition(
        topic=partition.topic_partition.topic,
        partition=partition.topic_partition.partition,
        path=partition.path,
        reason=bounded_reason(partition.reason),
    )


def config_entry_message(entry: ConfigEntry) -> admin_pb2.ConfigEntry:
    """One key in force."""
    return admin_pb2.ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=_config_source(entry.source),
        update_mode=admin_pb2.ConfigUpdateMode.Value(f"CONFIG_UPDATE_MODE_{entry.update_mode.name}"),
        allowed=entry.allowed,
        synonyms=[
            admin_pb2.ConfigSynonym(
                name=synonym.name,
                value=synonym.value,
                source=_config_source(synonym.source),
            )
            for synonym in entry.synonyms
        ],
    )


def _config_source(source: ConfigSource) -> admin_pb2.ConfigSource.ValueType:
    return admin_pb2.ConfigSource.Value(f"CONFIG_SOURCE_{source.value}")


def configured_topic(resource: admin_pb2.ConfigResource) -> str | None:
    """The topic of the resource; None for the server. Raises InvalidRequestError if it names neither."""
    match resource.WhichOneof("resource"):
        case "topic":
            return resource.topic
        case "server":
            return None
        case None:
            raise InvalidRequestError("the request names no resource; name a topic or the server")


def config_changes(messages: Iterable[admin_pb2.ConfigChange]) -> tuple[ConfigChange, ...]:
    """The requested changes, in order."""
    return tuple(
        ConfigChange(message.name, message.value if message.HasField("value") else None)
        for message in messages
    )


def log_dir_message(described: DescribedDirectory, space: FreeSpace) -> admin_pb2.LogDir:
    """The state of a log directory, and its space as of the last look."""
    status = described.status
    return admin_pb2.LogDir(
        path=status.path,
        directory_id=status.directory_id,
        state=admin_pb2.LogDirState.Value(f"LOG_DIR_STATE_{status.state.name}"),
        reason=bounded_reason(status.reason),
        partition_count=status.partition_count,
        size_bytes=described.size_bytes,
        remaining_log_count=status.remaining_log_count,
        set_aside_paths=described.set_aside[:MAX_SET_ASIDE_COUNT],
        set_aside_count=len(described.set_aside),
        free_bytes=space.free_bytes.get(status.path, UNKNOWN),
        missing_free_bytes=space.shortages.get(status.path, 0),
    )


def move_message(move: DescribedMove) -> admin_pb2.PartitionMove:
    """The progress of a move."""
    progress = move.progress
    return admin_pb2.PartitionMove(
        topic=progress.partition.topic,
        partition=progress.partition.partition,
        source_path=progress.source_path,
        target_path=progress.target_path,
        state=admin_pb2.PartitionMoveState.Value(f"PARTITION_MOVE_STATE_{progress.state.name}"),
        copied_bytes=progress.copied_bytes,
        remaining_bytes=progress.remaining_bytes,
        reason=bounded_reason(progress.reason),
        operation_id=move.operation_id,
    )


def cleaner_status_message(
    stats: CleanerStats, failures: Page[CleaningFailure]
) -> admin_pb2.CleanerStatusResponse:
    """The counts of the cleaner, and a page of the partitions that it cannot clean."""
    return admin_pb2.CleanerStatusResponse(
        worker_count=stats.worker_count,
        running_count=stats.running_count,
        dead_worker_count=stats.dead_worker_count,
        since_last_search_ms=stats.ms_since_last_run,
        max_clean_ms=stats.max_clean_ms,
        max_compaction_delay_ms=stats.max_compaction_delay_ms,
        max_cleanable_ratio=stats.max_cleanable_ratio,
        clean_count=stats.clean_count,
        aborted_count=stats.aborted_count,
        cleaned_record_count=stats.cleaned_record_count,
        dropped_record_count=stats.dropped_record_count,
        null_key_record_count=stats.null_key_count,
        cleaned_bytes=stats.cleaned_bytes,
        reclaimed_bytes=stats.reclaimed_bytes,
        uncleanable_partitions=map(_uncleanable_message, failures.items),
        next_clean_ms=stats.next_clean_ms if stats.next_clean_ms < NO_HORIZON else UNKNOWN,
        next_page_token=failures.next_page_token,
    )


def _uncleanable_message(failure: CleaningFailure) -> admin_pb2.UncleanablePartition:
    return admin_pb2.UncleanablePartition(
        topic=failure.partition.topic,
        partition=failure.partition.partition,
        log_dir_path=failure.directory,
        kind=admin_pb2.CleaningFailureKind.Value(f"CLEANING_FAILURE_KIND_{failure.kind.name}"),
        reason=bounded_reason(failure.reason),
        since_ms=failure.since_ms,
        failure_count=failure.failure_count,
        next_try_ms=failure.next_try_ms,
        dirty_bytes=failure.dirty_bytes,
        alarm=failure.is_alarm,
    )
