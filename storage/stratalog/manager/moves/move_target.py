"""The target of a move: the copy's directory and the manifests, step by step; `log_move` gives the order."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.log.disk_error import disk_errors
from stratalog.log.exchange.log_copy import LogCopy, LogPlace
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionEntry, PartitionState
from stratalog.manager.partitions.partition_metadata import (
    PARTITION_METADATA_FILE,
    write_partition_metadata,
)
from stratalog.manager.partitions.put_away import PutAway


class MovePlan(NamedTuple):
    """What is moved from where to where. `guard`: DirectorySet.guard."""

    log: UnifiedLog
    source: LogDirectory
    target: LogDirectory
    guard: threading.RLock


class MoveTarget:
    """Used by the thread that runs the move; `is_committed` may be asked beside it."""

    def __init__(self, filesystem: FileSystem, plan: MovePlan) -> None:
        """Raises DataDirectoryError where a directory is offline."""
        self.is_committed = False
        """The target has the partition, for good."""
        self.source = plan.source
        self._filesystem = filesystem
        self._log = plan.log
        self._partition = plan.log.topic_partition
        self._target = plan.target
        self._guard = plan.guard
        self._path = plan.target.partition_path(self._partition)
        self._move_number = plan.source.move_number(self._partition) + 1
        self._noted_end_offset = -1
        self._is_undecided = False

    def begin(self) -> LogCopy:
        """Make the copy's directory, with the files that are not of the log. Durable but for the names in it.
        Raises DataDirectoryError, UnsupportedOperationError where the source has a directory in it."""
        with self._target_errors():
            self._target.manifest.update(partitions={self._partition: self._entry(PartitionState.INCOMING)})
            # Of a move that a former process has begun.
            if self._filesystem.exists(self._path):
                self._filesystem.remove_tree(self._path)
            self._filesystem.make_directories(self._path)
            self._filesystem.sync_directory(self._target.path)
        copy = self._log.copy_to(self._path)
        # Without it a manifest that is made anew leaves the copy out, of which the rest may be missing.
        copy.copy_other_files(left_out={PARTITION_METADATA_FILE})
        return copy

    def _entry(self, state: PartitionState) -> PartitionEntry:
        return PartitionEntry(
            self._log.topic_id, state, self._log.offsets.log_start_offset, self._move_number
        )

    def prepare(self, durable_end_offset: int) -> None:
        """The commit may follow: the target has the recovery point, and the source says where the partition
        may be. Durable when it returns. Raises DataDirectoryError."""
        if self._noted_end_offset < 0:
            with self._target_errors():
                write_partition_metadata(self._filesystem, self._path, self._log.topic_id)
        self._note_end(durable_end_offset)
        with disk_errors(self.source.path):
            self._change_source(moving_to=self._target.directory_id)

    def _change_source(self, **fields: object) -> None:
        """Also where the source, from which the partition moves away, is full. Raises OSError."""
        self.source.spare.writing(lambda: self.source.manifest.change(self._partition, **fields))

    def _note_end(self, durable_end_offset: int) -> None:
        with self._target_errors():
            self._target.checkpoints.put_recovery_point(self._partition, durable_end_offset)
        self._noted_end_offset = durable_end_offset

    def commit(self) -> LogPlace:
        """Let the copy, all of it durable, be the partition. The log's locks are held.

        Raises DataDirectoryError, with the source still the partition; OSError where the outcome is unknown.
        """
        # No hole between two segments may lie above the recovery point: a recovery takes it for lost data,
        # and cuts off the rest.
        if self._noted_end_offset < self._log.local_log.segments.active.base_offset:
            self._note_end(self._log.offsets.log_end_offset)
        manifest = self._target.manifest
        self._is_undecided = True
        try:
            with self._guard:
                # A retry that removes an older copy of the target from now on sees that the name is taken.
                self._target.partitions.add(self._partition)
            manifest.update(partitions={self._partition: self._entry(PartitionState.LIVE)})
        except OSError as failure:
            with self._guard:
                self._target.note_gone(self._partition)
            # Durable or not, the copy does not count, and the log may go on where it is.
            self._change_source(move_number=self._move_number + 1, moving_to="")
            self._is_undecided = False
            raise self._target_error(failure) from failure
        self.is_committed = True
        with self._guard:
            self.source.note_gone(self._partition)
            self._target.note_opened(self._partition)
        return LogPlace(self._path, self._target.health)

    def clean_up(self, away: PutAway, *, is_wanted: bool) -> None:
        """The move was not done: the source is the partition, and the copy goes, unless the next process is
        wanted to begin it again. A start makes up for what fails here."""
        assert not self.is_committed
        if self._is_undecided:
            # The next start chooses, and must find either of them as a whole.
            return
        # In this order: a source that names a target which knows nothing of it is not served.
        with suppress(OSError, DataDirectoryError):
            self._change_source(moving_to="")
            if not is_wanted:
                away.discard_copy(self._target, self._partition)

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
            path=self._target.path,
            reason=str(failure),
        )
