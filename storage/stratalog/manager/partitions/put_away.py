"""Directories of partitions that are put out of the way, and what becomes of those that were deleted.

The rename is what counts: once it is durable the partition is gone from here, whatever a checkpoint says of
it. What a full disk keeps in a checkpoint means nothing while no directory has the partition's name, and
whoever gives the name to another one writes the checkpoint first, see `LogLoading`.

What was deleted is removed after a while, for readers who are at it. At a start nobody is: where a directory
is short of space it is removed then before anything is opened, which may need some.

`LeavingDirectory` is how a directory loses its name on a full disk, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicPartition
from stratalog.log.disk_error import disk_errors
from stratalog.log.retention.late_removal import remove_later
from stratalog.manager.directories.log_directories import LogDirectories
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.spare_space import SHORT_BYTES
from stratalog.manager.moves.cut_off_moves import discard_future
from stratalog.manager.partitions.leaving_directory import LeavingDirectory

logger = logging.getLogger(__name__)


class PutAway:
    """Thread-safe, but for `put_away`, which is guarded by LogDirectories.guard."""

    def __init__(
        self,
        scheduler: Scheduler,
        ids: IdGenerator,
        directories: LogDirectories,
        delay_ms: Callable[[], int],
        forget_files_below: Callable[[str], None],
    ) -> None:
        """`delay_ms`: until what was deleted from now on is removed. `forget_files_below` closes what is open
        below a path."""
        self._scheduler = scheduler
        self._ids = ids
        self._directories = directories
        self._forget_files_below = forget_files_below
        self._delay_ms = delay_ms
        # Guarded by LogDirectories.guard.
        self._is_closed = False

    def close(self) -> None:
        """The directories are about to be another process's: what has a partition's name is left alone."""
        with self._directories.guard:
            self._is_closed = True

    @property
    def _filesystem(self) -> FileSystem:
        return self._directories.filesystem

    def put_away(self, directory: LogDirectory, partition: TopicPartition, reason: str) -> str | None:
        """Rename what that directory has of the partition; returns where it is then, None where there is
        nothing. Raises DataDirectoryError: it has its name, and what there is of it, unless it was deleted,
        is all that there was."""
        path, moved_to = directory.partition_path(partition), None
        # What is open of a file that has to be unlinked would keep its space.
        self._forget_files_below(path)
        with disk_errors(path):
            if self._filesystem.exists(path):
                leaving = LeavingDirectory(
                    self._filesystem, directory, partition, self._ids.uuid(), reason, is_older_copy=False
                )
                moved_to = leaving.put_away()
        directory.note_gone(partition)
        # A reader may have opened a file again after the log let go of it.
        self._forget_files_below(path)
        self.forgetting(partition, lambda: directory.checkpoints.forget(partition))
        return moved_to

    def put_away_older(
        self, source: LogDirectory, partition: TopicPartition, older: LeavingDirectory
    ) -> bool:
        """Put away what a moved partition has left in that directory, and remove it later. False where that
        cannot be done now: it is told, and tried again until it is done."""

        def put_away() -> None:
            # Another partition may have got the name since.
            with self._directories.guard, suppress(DataDirectoryError):
                if not self._is_closed and partition not in source.partitions:
                    self._forget_files_below(older.path)
                    left_path = older.put_away()
                    if left_path is not None:
                        self.remove_later(left_path)

        try:
            put_away()
        except OSError:
            remove_later(
                self._scheduler,
                f"put away what {partition} has left, path=`{older.path}`",
                [put_away],
                0,
                is_over=lambda: not source.is_online,
            )
            return False
        return source.is_online

    def forgetting(self, partition: TopicPartition, forget: Callable[[], None]) -> None:
        """Take the partition, which was put away, out of a checkpoint; what the disk refuses is told."""
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
        """Remove the directory of a deleted partition, or what a move has left, after the delay; again and
        again until it is gone, or its disk has failed: then the next start does."""
        self._remove(path, self._delay_ms())

    def remove_future(self, path: str) -> None:
        """Remove a copy that nobody wants to become the partition any more, later, by a name that no start
        takes for a wish, where the disk has room for one."""
        with suppress(OSError):
            path = discard_future(self._filesystem, path)
        self.remove_later(path)

    def remove_unread(self, path: str) -> None:
        """The same for one that nobody reads: at once where space is short."""
        if not self._is_short(path):
            self.remove_later(path)
            return
        try:
            self._filesystem.remove_tree(path)
        except OSError:
            # Tried again and told, as ever.
            self._remove(path, 0)

    def remove_leftovers(self) -> None:
        """Remove what a former process has deleted and left. Before a log is opened."""
        for directory in self._directories.online():
            try:
                leftovers = directory.files.leftovers()
            except (OSError, DataDirectoryError):
                # It is offline then, or the next start finds them.
                continue
            for path in leftovers:
                self.remove_unread(path)

    def _remove(self, path: str, delay_ms: int) -> None:
        remove_later(
            self._scheduler,
            f"remove {path}",
            [partial(self._filesystem.remove_tree, path)],
            delay_ms,
            is_over=lambda: not self._directory_of(path).is_online,
        )

    def _directory_of(self, path: str) -> LogDirectory:
        return self._directories.at(path.rpartition("/")[0])

    def _is_short(self, path: str) -> bool:
        """There may be too little space for opening the logs, which is not known before."""
        try:
            return self._filesystem.free_bytes(self._directory_of(path).path) < SHORT_BYTES
        except OSError:
            return False
