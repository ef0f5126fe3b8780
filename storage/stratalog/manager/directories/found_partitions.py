"""The partitions that the manifests of the log directories list, opened or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionState


class FoundPartitions:
    """The partitions that the manifests of the log directories list. Thread-safe: it has no state.
    Directories that are offline or missing are left out."""

    def __init__(self, directories: DirectorySet) -> None:
        self._directories = directories
        self._filesystem = directories.filesystem

    def with_topics(self) -> tuple[tuple[TopicPartition, UUID], ...]:
        """All partitions, in order, with their topic ids; one that is in two directories comes twice."""
        return tuple((partition, topic_id) for partition, topic_id, _ in self._all())

    def of_topic(self, partition: TopicPartition, topic_id: UUID) -> list[LogDirectory]:
        """The directories that have the partition of that topic."""
        return [
            directory
            for directory in self._directories.online()
            if directory.topic_id(partition) == topic_id
            and directory.entries[partition].state is not PartitionState.INCOMING
        ]

    def set_aside(self) -> dict[str, list[str]]:
        """By log directory, the paths for an operator to look at; see `LogDirectory.set_aside`. Leaves out a
        directory that cannot be read now."""
        paths = [directory.path for directory in self._directories.online()]
        return {path: found for path in paths if (found := self.set_aside_in(path)) is not None}

    def set_aside_in(self, path: str) -> list[str] | None:
        """Those in the log directory of this path; None if it cannot be read now."""
        with suppress(OSError, DataDirectoryError):
            return self._directories.at(path).set_aside(self._directories.guard)
        return None

    def epochs(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """The newest leader epoch of each partition, as far as it can be read."""
        for partition, topic_id, directory in self._all():
            try:
                path = directory.partition_path(partition)
                epoch = LeaderEpochCache.load(self._filesystem, path).latest_epoch
            except (CorruptRecordError, OSError):
                # Opening the partition reports it, or takes the epochs from its batches.
                continue
            if epoch is not None:
                yield TopicIdPartition(topic_id, partition.partition), epoch

    def _all(self) -> list[tuple[TopicPartition, UUID, LogDirectory]]:
        found = [
            (partition, entry.topic_id, directory)
            for directory in self._directories.online()
            for partition, entry in directory.entries.items()
            if entry.state is not PartitionState.INCOMING
        ]
        return sorted(found, key=lambda one: one[:2])
