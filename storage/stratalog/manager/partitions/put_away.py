"""Takes partitions out of their log directories: deleted, set aside for an operator, or older copies.

The manifest decides: an `aside` entry replaces the entry of the partition, and then the directory gets its
other name. A start finishes the rename; see `manifest`. A full disk may have no room for the other name, even
if the spare space is released; then a deleted partition is removed where it is.

A deleted partition is removed after a delay, because readers may use it. Its entry stays until its directory
is gone, and a start removes what the entries name. A start has no readers: in a directory that is short of
space it removes deleted partitions at once, before logs are opened, which may need space.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from functools import partial
from uuid import UUID

from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.disk_error import disk_errors
from stratalog.log.retention.late_removal import LateRemovals, Removal
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.locked_directory import DELETE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import AsideEntry, PartitionEntry, PartitionState
from stratalog.manager.directories.spare_space import SHORT_BYTES

logger = logging.getLogger(__name__)


class PutAway:
    """Takes partitions out of their log directories. Thread-safe, but for `put_away`, which is guarded by
    DirectorySet.guard."""

    def __init__(
        self,
        removals: LateRemovals,
        ids: IdGenerator,
        directories: DirectorySet,
        delay_ms: Callable[[], int],
        forget_files_below: Callable[[str], None],
    ) -> None:
        """`delay_ms` returns the delay before a deleted partition is removed. `forget_files_below` closes
        open files below a path."""
        self._removals = removals
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
        source = directory.partition_path(partition)
        if entry is None:
            return None
        if not self._filesystem.exists(source):
            directory.spare.writing(lambda: manifest.update(partitions={partition: None}))
            return None
        target = directory.files.path_beside(partition, self._ids.uuid(), reason)
        name = posixpath.basename(target)
        aside = AsideEntry(
            partition,
            entry.topic_id,
            entry.log_start_offset,
            directory.checkpoints.recovery_point(partition),
            entry.import_epoch,
        )

        def put_aside() -> None:
            manifest.update(partitions={partition: None}, aside={name: aside})
            directory.files.rename(source, target)

        try:
            directory.spare.writing(put_aside)
        except OSError as failure:
            is_full_deletion = reason == DELETE_REASON and failure.errno in NO_SPACE
            if is_full_deletion and self._is_removed(directory, source):
                manifest.update(partitions={partition: None}, aside={name: None})
                return None
            if self._filesystem.exists(source):
                directory.spare.writing(
                    lambda: manifest.update(partitions={partition: entry}, aside={name: None})
                )
                raise
        return target

    def _is_removed(self, directory: LogDirectory, path: str) -> bool:
        """Remove a deleted partition that gets no other name; returns False if the disk refuses. After a
        crash a start deletes the rest, by the catalog or by the manifest of the newer copy."""
        try:
            if not self._filesystem.exists(path):
                # It got its name after all.
                return False
            self._filesystem.remove_tree(path)
            self._filesystem.sync_directory(directory.path)
        except OSError:
            return False
        return True

    def put_away_older(self, source: LogDirectory, partition: TopicPartition, *, has_readers: bool) -> None:
        """Put away and later remove the partition's older copy in that directory. A failure is tried again
        every minute."""
        remove = self.remove_later if has_readers else self.remove_unread
        move_number = source.move_number(partition)

        def put_away() -> None:
            with self._directories.guard:
                # The partition may have moved back since, or be on its way.
                if self._is_closed or source.move_number(partition) != move_number:
                    return
                path = self.put_away(source, partition, DELETE_REASON)
            if path is not None:
                remove(path)

        try:
            put_away()
        except DataDirectoryError:
            self._later(f"put away the older copy of {partition} in {source.path}", put_away, 0, source)

    def discard_copy(self, target: LogDirectory, partition: TopicPartition, topic_id: UUID) -> None:
        """Remove the copy of a move that was given up, unless another topic has the name by now. Raises
        DataDirectoryError."""
        self._discard(
            target,
            partition,
            lambda entry: (entry.topic_id, entry.state) == (topic_id, PartitionState.INCOMING),
        )

    def _discard(
        self, target: LogDirectory, partition: TopicPartition, is_copy: Callable[[PartitionEntry], bool]
    ) -> None:
        """Remove the partition's copy if the entry that the manifest has by now is that of the copy. Raises
        DataDirectoryError."""
        path = target.partition_path(partition)
        manifest = target.manifest
        # Not under the guard, because the disk may hang: it is one step for all that name the partition here.
        with disk_errors(path), manifest.lock:
            entry = manifest.entry(partition)
            if entry is None or not is_copy(entry):
                return
            self._forget_files_below(path)
            moved_to = self._put_aside(target, partition, DELETE_REASON)
        self.forgetting(partition, lambda: target.checkpoints.forget_unlisted(partition))
        if moved_to is not None:
            self._remove_now(moved_to)

    def withdraw_copy(
        self,
        target: LogDirectory,
        partition: TopicPartition,
        noted: PartitionEntry,
        disk_calls: DiskCalls | None = None,
    ) -> None:
        """Remove the entry `noted` of a move that does not begin, and the copy of a former process. What
        fails, or does not answer, is tried again every minute, unless another move has noted an entry since,
        be it an equal one. `disk_calls` waits for the disk instead of that of the directories."""

        def withdraw() -> None:
            self._discard(target, partition, lambda entry: entry is noted)

        try:
            (disk_calls or self._directories.disk_calls).run(target.path, withdraw)
        except DataDirectoryError:
            self._later(f"withdraw the move of {partition} to {target.path}", withdraw, 0, target)

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
            self._remove_tree(path)
        except (OSError, DataDirectoryError):
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
        self._later(f"remove {path}", partial(self._remove_tree, path), delay_ms, self._directory_of(path))

    def _remove_tree(self, path: str) -> None:
        """Remove the directory of a deleted partition, and then its entry. Raises DataDirectoryError if the
        log directory is offline, OSError."""
        directory = self._directory_of(path)
        self._filesystem.remove_tree(path)
        # Before the entry goes: without it no start removes the directory.
        self._filesystem.sync_directory(directory.path)
        directory.manifest.forget_aside(posixpath.basename(path))

    def _later(self, name: str, work: Callable[[], None], delay_ms: int, directory: LogDirectory) -> None:
        self._removals.add(
            directory.path, name, [Removal(work)], delay_ms, is_over=lambda: not directory.is_online
        )

    def _directory_of(self, path: str) -> LogDirectory:
        return self._directories.at(path.rpartition("/")[0])

    def _is_short(self, path: str) -> bool:
        """Whether there may be too little space for opening the logs."""
        try:
            return self._filesystem.free_bytes(self._directory_of(path).path) < SHORT_BYTES
        except OSError:
            return False
