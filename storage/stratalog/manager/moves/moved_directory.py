"""The directories of a partition that moves: how the copy becomes the partition, step by step.

`log_move` says in which order, and what a crash between any two steps leaves.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.log.disk_error import disk_errors
from stratalog.log.exchange.log_copy import LogCopy, LogPlace
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.data_directory import FUTURE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.moves.move_mark import (
    MOVE_MARK_FILE,
    MoveMark,
    read_move_mark,
    remove_move_source,
    write_move_mark,
    write_move_void,
)
from stratalog.manager.partitions.leaving_directory import LeavingDirectory
from stratalog.manager.partitions.put_away import PutAway


class MovePlan(NamedTuple):
    """What is moved from where to where. `guard`: LogDirectories.guard."""

    log: UnifiedLog
    source: LogDirectory
    target: LogDirectory
    move_id: UUID
    guard: threading.RLock


class MovedDirectory:
    """Used by the thread that runs the move; `is_committed` may be asked beside it."""

    def __init__(self, filesystem: FileSystem, plan: MovePlan) -> None:
        """Raises DataDirectoryError where the target is offline."""
        self.is_committed = False
        """The target has the partition, for good."""
        self._filesystem = filesystem
        self._log = plan.log
        self._partition = plan.log.topic_partition
        self._source = plan.source
        self._target = plan.target
        self._move_id = plan.move_id
        self._guard = plan.guard
        self._source_path = plan.log.directory
        self._future_path = plan.target.files.path_beside(self._partition, plan.move_id, FUTURE_REASON)
        self._path = plan.target.partition_path(self._partition)
        self._noted_start_offset = self._noted_end_offset = -1
        self._is_undecided = False
        # After the commit: the source's directory has lost the partition's name.
        self._has_left = False

    def begin(self) -> LogCopy:
        """Make the directory of the copy, with all that is not of the log, and the mark, durable. Raises
        DataDirectoryError, UnsupportedOperationError where the source has a directory in it."""
        with self._target_errors():
            self._filesystem.make_directories(self._future_path)
        copy = self._log.copy_to(self._future_path)
        copy.copy_other_files(left_out={MOVE_MARK_FILE})
        # The target's checkpoints will know of the copy's records. A crash before the commit must leave the
        # partition somewhere, if with fewer records, or these would pass for lost.
        with disk_errors(self._source_path):
            self._filesystem.sync_directory(self._source.path)
            mark = MoveMark(self._partition, self._move_id, self._find_sources())
        with self._target_errors():
            write_move_mark(self._filesystem, self._future_path, mark)
            self._filesystem.sync_directory(self._target.path)
        return copy

    def _find_sources(self) -> tuple[str, ...]:
        """Every directory that has a copy by now, or may have an older one."""
        # There is none in the target, and two that name each other would say nothing.
        remove_move_source(self._filesystem, self._source_path, self._target.files.directory_id)
        mark = read_move_mark(self._filesystem, self._source_path)
        older_ids = mark.source_ids if mark is not None else ()
        return tuple(dict.fromkeys((self._source.files.directory_id, *older_ids)))

    def note_offsets(self, durable_end_offset: int) -> None:
        """The target's checkpoints know what the copy has; durable when it returns. Raises
        DataDirectoryError."""
        start_offset = self._log.log_start_offset
        checkpoints = self._target.checkpoints
        with self._target_errors():
            checkpoints.put(self._partition, durable_end_offset, start_offset)
        self._noted_start_offset, self._noted_end_offset = start_offset, durable_end_offset

    def commit(self) -> LogPlace:
        """Let the copy, all of it durable, be the partition. The log's locks are held.

        Raises DataDirectoryError, with the source still the partition; OSError where nobody knows which it
        is.
        """
        # Records may have been deleted since, which is acknowledged. And no hole between two segments may lie
        # above the recovery point: a recovery takes it for lost data, and cuts off what is behind.
        is_behind = self._noted_end_offset < self._log.active_base_offset
        if is_behind or self._log.log_start_offset != self._noted_start_offset:
            self.note_offsets(self._log.log_end_offset)
        self._target.require_online()
        self._is_undecided = True
        try:
            with self._guard:
                self._filesystem.rename(self._future_path, self._path)
                # Whoever puts away what an earlier move has left there knows whose the name is now.
                self._target.partitions.add(self._partition)
            self._filesystem.sync_directory(self._target.path)
        except OSError as failure:
            with self._guard:
                self._target.note_gone(self._partition)
            # Durable or not, it does not count, and the log may go on where it is.
            write_move_void(self._filesystem, self._source_path, self._move_id)
            self._is_undecided = False
            raise self._target_error(failure) from failure
        self.is_committed = True
        with self._guard:
            self._source.note_gone(self._partition)
            self._target.note_opened(self._partition)
        # Where the source's disk fails now, or is full, it has an older copy, of which the mark tells.
        with suppress(OSError, DataDirectoryError):
            self._older_copy().rename()
            self._has_left = True
        return LogPlace(self._path, self._target.health)

    def _older_copy(self) -> LeavingDirectory:
        """What the source has. Raises DataDirectoryError."""
        return LeavingDirectory(
            self._filesystem, self._source, self._partition, self._move_id, is_older_copy=True
        )

    def settle(self, away: PutAway) -> None:
        """The log is in the target: let go of what the source has and knows of it, and of the mark. What
        fails here is made up for later, or by the next start."""
        with suppress(DataDirectoryError):
            older = self._older_copy()
            if self._has_left:
                away.remove_later(older.aside_path)
            else:
                self._has_left = away.put_away_older(self._source, self._partition, older)
        with suppress(OSError, DataDirectoryError):
            self._source.checkpoints.forget(self._partition)
        if self._has_left:
            source_id = self._source.status.directory_id
            with suppress(OSError):
                remove_move_source(self._filesystem, self._path, source_id)

    def clean_up(self, away: PutAway) -> None:
        """The move has failed or is not wanted any more: remove what there is of the copy. What cannot be
        removed now is removed later; what the disk refuses is removed after the next start."""
        assert not self.is_committed
        if self._is_undecided:
            # The next start chooses, and must find either of them as a whole.
            return
        try:
            self._filesystem.remove_tree(self._future_path)
        except OSError:
            away.remove_future(self._future_path)
        with suppress(OSError, DataDirectoryError):
            mark = read_move_mark(self._filesystem, self._path)
            if mark is not None and mark.move_id == self._move_id:
                self._filesystem.remove_tree(self._path)
            self._filesystem.sync_directory(self._target.path)
            self._target.checkpoints.forget(self._partition)

    @contextmanager
    def _target_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as failure:
            raise self._target_error(failure) from failure

    def _target_error(self, failure: OSError) -> DataDirectoryError:
        return DataDirectoryError(
            "the directory to which the partition was to move is full or its disk failed; free space, repair"
            " it or choose another one",
            path=posixpath.dirname(self._path),
            reason=str(failure),
        )
