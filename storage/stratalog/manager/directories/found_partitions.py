"""Which partitions the log directories have, opened or not, as their files say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.disk_error import disk_error
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.manager.directories.log_directories import LogDirectories
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.partitions.partition_metadata import read_partition_metadata


class FoundPartitions:
    """Thread-safe: it keeps nothing. Directories that are offline or missing are left out."""

    def __init__(self, directories: LogDirectories) -> None:
        self._directories = directories
        self._filesystem = directories.filesystem

    def with_topics(self) -> tuple[tuple[TopicPartition, UUID | None], ...]:
        """All, in order, with their topic ids where these can be read; one that is in two directories comes
        twice. Raises DataDirectoryError."""
        return tuple(
            (partition, self._topic_id_of(directory, partition)) for partition, directory in self._all()
        )

    def of_topic(self, partition: TopicPartition, topic_id: UUID) -> list[LogDirectory]:
        """The directories that have the partition, as one of that topic."""
        return [
            directory
            for directory in self._directories.online()
            if partition in directory.partitions and self._topic_id_of(directory, partition) == topic_id
        ]

    def set_aside(self) -> dict[str, list[str]]:
        """By log directory, the paths of what a human should look at: directories that are named like a
        partition and are no topic's, and what was set aside. One that cannot be read now is left out."""
        found: dict[str, list[str]] = {}
        for directory in self._directories.online():
            with suppress(OSError, DataDirectoryError), self._directories.guard:
                found[directory.path] = directory.set_aside()
        return found

    def epochs(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """The newest leader epoch of each, as far as that and its topic can be read. Raises
        DataDirectoryError."""
        for partition, directory in self._all():
            topic_id = self._topic_id_of(directory, partition)
            try:
                path = directory.partition_path(partition)
                epoch = LeaderEpochCache.load(self._filesystem, path).latest_epoch
            except (CorruptRecordError, OSError):
                # Whoever opens the partition is told, or takes them from its batches.
                continue
            if topic_id is not None and epoch is not None:
                yield TopicIdPartition(topic_id, partition.partition), epoch

    def _all(self) -> list[tuple[TopicPartition, LogDirectory]]:
        found: list[tuple[TopicPartition, LogDirectory]] = []
        for directory in self._directories.online():
            try:
                found += [(partition, directory) for partition in directory.files.partitions()]
            except OSError as failure:
                if directory.is_online:
                    raise disk_error(failure, directory.path) from failure
        return sorted(found, key=lambda one: one[0])

    def _topic_id_of(self, directory: LogDirectory, partition: TopicPartition) -> UUID | None:
        try:
            return read_partition_metadata(self._filesystem, directory.partition_path(partition))
        except (DataDirectoryError, OSError):
            # Whoever opens the partition is told.
            return None
