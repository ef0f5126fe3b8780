"""Periodic work on all logs, or on those of one log directory: each method is one round, which a thread of
the caller runs.

If a log or a directory fails, the round goes on with the others, and raises the first error at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.log_to_clean import is_cleaned_here
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.disk_error import disk_errors
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.log_directory import LogDirectory


class LogTasks:
    """The periodic work on all logs. Thread-safe: it keeps nothing between rounds."""

    def __init__(
        self,
        directories: DirectorySet,
        cleaner: CleanerManager,
        logs: Callable[[], Sequence[UnifiedLog]],
        is_open: Callable[[UnifiedLog], bool],
        is_moving: Callable[[TopicPartition], bool],
    ) -> None:
        """`logs` returns all open logs. `is_open` says whether a log is open; it is called under the locks of
        the checkpoints. `is_moving`: see `MoveRegistry.is_moving`."""
        self._directories = directories
        self._cleaner = cleaner
        self._logs = logs
        self._is_open = is_open
        self._is_moving = is_moving

    def flush_old(self, path: str | None = None) -> None:
        """Flush the logs whose `flush.ms` is over, one after the other: those of the log directory of this
        path, or all. Raises DataDirectoryError; a log that raised one is offline then."""
        self._flush_each(LogFlusher.flush_if_old, path)

    def flush_rolled(self, path: str | None = None) -> None:
        """Flush the rolled segments of the logs, one log after the other, as `flush_old`."""
        self._flush_each(LogFlusher.flush_if_rolled, path)

    def _flush_each(self, flush: Callable[[LogFlusher], None], path: str | None) -> None:
        failures: list[DataDirectoryError] = []
        for log in self._logs():
            # A move takes a log elsewhere: then the round of one of the two directories has it.
            if path is not None and self._directories.of(log).path != path:
                continue
            try:
                flush(log.flusher)
            except DataDirectoryError as failure:
                failures.append(failure)
        _raise_first(failures)

    def checkpoint_recovery_points(self, path: str | None = None) -> None:
        """Write the recovery points of the logs of each directory that works, or of the one of this path,
        which bounds the work of a recovery, and reserve spare space again. Raises DataDirectoryError."""
        logs = self._logs()

        def write(directory: LogDirectory) -> None:
            directory.checkpoints.write_recovery_points(logs, partial(self.is_in, directory))
            directory.spare.keep()

        self._write_each(write, path)

    def paths(self) -> list[str]:
        """The paths of the log directories that work."""
        return [directory.path for directory in self._directories.online()]

    def keep_spare_space(self) -> None:
        """Reserve space in each directory that works; see `SpareSpace`."""
        for directory in self._directories.online():
            with suppress(DataDirectoryError):
                directory.spare.keep()

    def checkpoint_starts(self, path: str | None = None) -> None:
        """Write the log starts of each directory that works, or of the one of this path. Raises
        DataDirectoryError."""
        logs = self._logs()
        self._write_each(
            lambda directory: directory.checkpoints.write_starts(logs, partial(self.is_in, directory)), path
        )

    def _write_each(self, write: Callable[[LogDirectory], None], path: str | None) -> None:
        failures: list[DataDirectoryError] = []
        for directory in self._directories.online():
            if path is not None and directory.path != path:
                continue
            try:
                with disk_errors(directory.path):
                    write(directory)
            except DataDirectoryError as failure:
                failures.append(failure)
        _raise_first(failures)

    def is_in(self, directory: LogDirectory, log: UnifiedLog) -> bool:
        """Whether the log is open, and in this directory."""
        return self._is_open(log) and self._directories.of(log) is directory

    def delete_old_segments(self, log: UnifiedLog) -> int:
        """Drop segments of a log that is not tiered: those below its start, too many or too old. Returns
        their number. The cleaner is paused meanwhile. It drops the segments of its own logs by itself, except
        while a move keeps it away. Raises CorruptRecordError, DataDirectoryError.
        """
        # If a move ends right after this look, the pause waits for a clean that has begun.
        if is_cleaned_here(log.local_log.config) and not self._is_moving(log.topic_partition):
            return 0
        with self._cleaner.paused(log.topic_partition):
            # The policy may have changed since. The pause keeps the cleaner away either way.
            return log.retention.delete_old_segments()

    def remove_expired_producers(self) -> None:
        """Forget producers that have been idle for too long."""
        for log in self._logs():
            log.remove_expired_producers()


def _raise_first(failures: Sequence[DataDirectoryError]) -> None:
    if failures:
        raise failures[0]
