"""Takes partitions out of their log directories: deleted, set aside for an operator, or older copies.

The manifest decides: an `aside` entry replaces the entry of the partition, and then the directory gets its
other name. A start finishes the rename; see `manifest`. A full disk may have no room for the other name; then
the files of a deleted partition are removed where they are.

A deleted partition is removed after a delay, because readers may use it. A start has no readers: in a
directory that is short of space it removes deleted partitions at once, before logs are opened, which may need
space.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicPartition
from stratalog.log.disk_error import disk_errors
from stratalog.log.retention.late_removal import remove_later
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.locked_directory import DELETE_REASON, STRAY_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import AsideEntry, PartitionEntry
from stratalog.manager.directories.partition_metadata import read_partition_metadata
from stratalog.manager.directories.spare_space import SHORT_BYTES
from stratalog.segment.file_names import LOG_SUFFIX

logger = logging.getLogger(__name__)


class PutAway:
    """Takes partitions out of their log directories. Thread-safe, but for `put_away`, which is guarded by
    DirectorySet.guard."""

    def __init__(
        self,
        scheduler: Scheduler,
        ids: IdGenerator,
        directories: DirectorySet,
        delay_ms: Callable[[], int],
        forget_files_below: Callable[[str], None],
    ) -> None:
        """`delay_ms` returns the delay before a deleted partition is removed. `forget_files_below` closes
        open files below a path."""
        self._scheduler = scheduler
        self._ids = ids
        self._directories = directories
        self._forget_files_below = forget_files_below
        self._delay_ms = delay_ms
        # Guarded by DirectorySet.guard.
        self._is_closed = False

    def close(self) -> None:
        """Leave directories that have a partition's name to the next process."""
        with self._directories.guard:
            self._is_closed = True

    @property
    def _filesystem(self) -> FileSystem:
        return self._directories.filesystem

    def put_away(self, directory: LogDirectory, partition: TopicPartition, reason: str) -> str | None:
        """Take the partition out of that directory; returns the new path of its files, None if it has none.
        Raises DataDirectoryError, with the partition as it was."""
        path = directory.partition_path(partition)
        # An open file would keep its space.
        self._forget_files_below(path)
        with disk_errors(path):
            moved_to = self._put_aside(directory, partition, reason)
        directory.note_gone(partition)
        # A reader may have opened a file again after the log let go of it.
        self._forget_files_below(path)
        self.forgetting(partition, lambda: directory.checkpoints.forget(partition))
        return moved_to

    def _put_aside(self, directory: LogDirectory, partition: TopicPartition, reason: str) -> str | None:
        """Put the directory of a partition aside. Raises OSError."""
        manifest, entry = directory.manifest, directory.manifest.entry(partition)
        if entry is None:
            return None
        if not self._filesystem.exists(directory.partition_path(partition)):
            directory.spare.writing(lambda: manifest.update(partitions={partition: None}))
            return None
        path = directory.files.path_beside(partition, self._ids.uuid(), reason)
        name = posixpath.basename(path)
        aside = AsideEntry(
            partition,
            entry.topic_id,
            entry.log_start_offset,
            directory.checkpoints.recovery_point(partition),
            entry.import_epoch,
        )

        def update() -> None:
            directory.spare.writing(
                lambda: manifest.update(partitions={partition: None}, aside={name: aside})
            )

        try:
            update()
        except OSError as failure:
            if reason != DELETE_REASON or failure.errno not in NO_SPACE:
                raise
            self._make_room(directory.partition_path(partition), update)
        return self._rename(directory, entry, name, aside)

    def _make_room(self, path: str, update: Callable[[], None]) -> None:
        """Remove files of a deleted partition until there is room for `update`. After a crash a start deletes
        the rest, by the catalog or by the manifest of the newer copy. Raises OSError."""
        for name in sorted(
            self._filesystem.list_directory(path), key=lambda name: not name.endswith(LOG_SUFFIX)
        ):
            self._filesystem.unlink(f"{path}/{name}")
            # Some file systems free the space only then.
            self._filesystem.sync_directory(path)
            try:
                update()
            except OSError as failure:
                if failure.errno not in NO_SPACE:
                    raise
            else:
                return
        update()

    def _rename(
        self, directory: LogDirectory, entry: PartitionEntry, name: str, aside: AsideEntry
    ) -> str | None:
        source, target = directory.partition_path(aside.partition), f"{directory.path}/{name}"
        is_deleted = name.endswith(f"-{DELETE_REASON}")
        try:
            directory.spare.writing(lambda: directory.files.rename(source, target))
        except OSError as failure:
            if is_deleted and failure.errno in NO_SPACE:
                self._remove_in_place(directory, aside.partition, name)
                return None
            directory.spare.writing(
                lambda: directory.manifest.update(partitions={aside.partition: entry}, aside={name: None})
            )
            raise
        if is_deleted:
            directory.manifest.forget_aside(name)
        return target

    def _remove_in_place(self, directory: LogDirectory, partition: TopicPartition, name: str) -> None:
        """Remove a deleted partition that cannot get another name. If that fails it is tried again until
        another partition has the name."""
        path = directory.partition_path(partition)
        directory.note_gone(partition)

        def remove() -> None:
            with self._directories.guard, suppress(DataDirectoryError):
                is_free = partition not in directory.partitions and directory.topic_id(partition) is None
                if not self._is_closed and is_free:
                    self._filesystem.remove_tree(path)
                    self._filesystem.sync_directory(directory.path)
                    directory.manifest.forget_aside(name)

        try:
            remove()
        except OSError:
            self._later(f"remove {path}", remove, 0, directory)

    def put_away_older(self, source: LogDirectory, partition: TopicPartition, *, has_readers: bool) -> None:
        """Put away and later remove the partition's older copy in that directory, again and again until it
        succeeds."""
        remove = self.remove_later if has_readers else self.remove_unread
        move_number = source.move_number(partition)

        def put_away() -> None:
            with self._directories.guard, suppress(DataDirectoryError):
                # The partition may have moved back since, or be on its way.
                if self._is_closed or source.move_number(partition) != move_number:
                    return
                self._forget_files_below(source.partition_path(partition))
                left_path = self._put_aside(source, partition, DELETE_REASON)
                if left_path is not None:
                    remove(left_path)
                self.forgetting(partition, lambda: source.checkpoints.forget(partition))

        try:
            put_away()
        except OSError:
            self._later(f"put away the older copy of {partition} in {source.path}", put_away, 0, source)

    def discard_copy(self, target: LogDirectory, partition: TopicPartition) -> None:
        """Remove the copy of a move that was given up. Raises DataDirectoryError."""
        with self._directories.guard:
            path = self.put_away(target, partition, DELETE_REASON)
        if path is not None:
            self._remove_now(path)

    def set_unlisted_aside(self, directory: LogDirectory, partition: TopicPartition, topic_id: UUID) -> None:
        """Rename a directory of the partition's name that the manifest does not list and that belongs to
        another topic. Raises DataDirectoryError, OSError."""
        path = directory.partition_path(partition)
        if self._filesystem.exists(path) and read_partition_metadata(self._filesystem, path) not in (
            None,
            topic_id,
        ):
            stray_path = directory.files.path_beside(partition, self._ids.uuid(), STRAY_REASON)
            directory.files.rename(path, stray_path)

    def forgetting(self, partition: TopicPartition, forget: Callable[[], None]) -> None:
        """Take the partition, which was put away, out of a checkpoint; log a refusal of the disk."""
        try:
            forget()
        except (OSError, DataDirectoryError) as failure:
            logger.warning(
                "a checkpoint still has an entry of %s, which was put away; no other partition gets the name"
                " in that directory before it could be written: %s",
                partition,
                failure,
            )

    def remove_later(self, path: str) -> None:
        """Remove the directory of a deleted partition after the delay, again and again until it is gone or
        its disk has failed. Then the next start removes it."""
        self._remove(path, self._delay_ms())

    def remove_unread(self, path: str) -> None:
        """Remove the directory of a deleted partition without readers: at once if space is short."""
        if not self._is_short(path):
            self.remove_later(path)
        else:
            self._remove_now(path)

    def _remove_now(self, path: str) -> None:
        try:
            self._filesystem.remove_tree(path)
        except OSError:
            # It is tried again, with a warning.
            self._remove(path, 0)

    def remove_leftovers(self) -> None:
        """Remove deleted partitions that a former process has left. Called before a log is opened."""
        for directory in self._directories.online():
            try:
                leftovers = directory.files.leftovers()
            except (OSError, DataDirectoryError):
                # The directory is offline then, or the next start finds them.
                continue
            for path in leftovers:
                self.remove_unread(path)

    def _remove(self, path: str, delay_ms: int) -> None:
        directory = self._directory_of(path)
        self._later(f"remove {path}", partial(self._filesystem.remove_tree, path), delay_ms, directory)

    def _later(self, name: str, work: Callable[[], None], delay_ms: int, directory: LogDirectory) -> None:
        remove_later(self._scheduler, name, [work], delay_ms, is_over=lambda: not directory.is_online)

    def _directory_of(self, path: str) -> LogDirectory:
        return self._directories.at(path.rpartition("/")[0])

    def _is_short(self, path: str) -> bool:
        """Whether there may be too little space for opening the logs."""
        try:
            return self._filesystem.free_bytes(self._directory_of(path).path) < SHORT_BYTES
        except OSError:
            return False
