"""The target of a move: the copy's directory and the manifests, step by step; `log_move` gives the order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import DataDirectoryError, UnknownTopicOrPartitionError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.disk_error import disk_errors
from stratalog.log.exchange.log_copy import LogCopy, LogPlace
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionEntry, PartitionState
from stratalog.manager.directories.partition_metadata import (
    PARTITION_METADATA_FILE,
    write_partition_metadata,
)
from stratalog.manager.partitions.put_away import PutAway


class MovePlan(NamedTuple):
    """The log to move, its directory and the target. `guard`: DirectorySet.guard. `is_open` returns whether
    the partition still has this log; it takes no lock."""

    log: UnifiedLog
    source: LogDirectory
    target: LogDirectory
    guard: threading.RLock
    is_open: Callable[[UnifiedLog], bool]


def log_is_gone(partition: TopicPartition) -> UnknownTopicOrPartitionError:
    """The error for a move of a log that its partition has lost."""
    return UnknownTopicOrPartitionError(
        "the partition was deleted or closed before its move began; move it again if it is still there",
        **partition.error_fields,
    )


class MoveTarget:
    """The target of a move: the copy's directory and the manifests. Used by the thread that runs the move;
    `is_committed` may be asked beside it."""

    def __init__(self, filesystem: FileSystem, plan: MovePlan) -> None:
        """Begin with the target of the plan. Raises DataDirectoryError if a directory is offline."""
        self.is_committed = False
        """The target has the partition, for good."""
        self.source = plan.source
        self._filesystem = filesystem
        self._log = plan.log
        self._partition = plan.log.topic_partition
        self._target = plan.target
        self._guard = plan.guard
        self._is_open = plan.is_open
        self._path = plan.target.partition_path(self._partition)
        self._move_number = plan.source.move_number(self._partition) + 1
        self._noted_end_offset = -1
        # The entry that `record` has written last.
        self._noted: PartitionEntry | None = None

    def record(self) -> None:
        """Note in the target that the move is wanted. Durable when it returns. Raises DataDirectoryError,
        UnknownTopicOrPartitionError if the partition has lost the log."""
        manifest = self._target.manifest
        # One step: a topic that gets the name later, perhaps in this directory, replaces the entry.
        with self._target_errors(), manifest.lock:
            entry = self._entry(PartitionState.INCOMING)
            manifest.update(partitions={self._partition: entry})
            self._noted = entry

    @property
    def is_open(self) -> bool:
        """Whether the partition still has the log."""
        return self._is_open(self._log)

    def begin(self) -> LogCopy:
        """Make the copy's directory, with the files that do not belong to the log. Durable except for the
        names in it. Raises as `record`, UnsupportedOperationError if the source contains a directory."""
        self.record()
        with self._target_errors():
            # A former process may have begun a move.
            if self._filesystem.exists(self._path):
                self._filesystem.remove_tree(self._path)
            self._filesystem.make_directories(self._path)
            self._filesystem.sync_directory(self._target.path)
        copy = self._log.copy_to(self._path)
        # Without that file a rebuilt manifest leaves the copy out, which may be incomplete.
        copy.copy_other_files(left_out={PARTITION_METADATA_FILE})
        return copy

    def _entry(self, state: PartitionState) -> PartitionEntry:
        """The source's entry as the target has it. Raises UnknownTopicOrPartitionError."""
        entry = self.source.entry(self._partition)
        # In this order: the source has an entry of the log's topic for as long as the log is open.
        if not self.is_open:
            raise log_is_gone(self._partition)
        assert entry is not None
        return entry._replace(
            state=state,
            log_start_offset=self._log.offsets.log_start_offset,
            move_number=self._move_number,
            moving_to="",
        )

    def withdraw(self, away: PutAway, disk_calls: DiskCalls | None = None) -> None:
        """Take back what `record` has noted, before the move has begun. `disk_calls`: see
        `PutAway.withdraw_copy`."""
        if self._noted is not None:
            away.withdraw_copy(self._target, self._partition, self._noted, disk_calls)

    def prepare(self, durable_end_offset: int) -> None:
        """Give the target the recovery point, and note in the source where the partition may be; the commit
        may follow. Durable when it returns. Raises DataDirectoryError."""
        if self._noted_end_offset < 0:
            with self._target_errors():
                write_partition_metadata(self._filesystem, self._path, self._log.topic_id)
        self._note_end(durable_end_offset)
        with disk_errors(self.source.path):
            self._change_source(moving_to=self._target.directory_id)

    def _change_source(self, **fields: object) -> None:
        """Change the source's entry, also if its disk is full. Raises OSError."""
        self.source.spare.writing(lambda: self.source.manifest.change(self._partition, **fields))

    def _note_end(self, durable_end_offset: int) -> None:
        with self._target_errors():
            self._target.checkpoints.put_recovery_point(self._partition, durable_end_offset)
        self._noted_end_offset = durable_end_offset

    def commit(self) -> LogPlace:
        """Make the copy, all of which is durable, the partition. The caller holds the log's locks.

        Raises DataDirectoryError, UnknownTopicOrPartitionError with the source still the partition; OSError
        if the outcome is unknown.
        """
        # A recovery takes a hole between segments above the recovery point for lost data, and cuts off the
        # rest.
        if self._noted_end_offset < self._log.local_log.segments.active.base_offset:
            self._note_end(self._log.offsets.log_end_offset)
        manifest, entry = self._target.manifest, self._entry(PartitionState.LIVE)
        try:
            with self._guard:
                # A retry that removes an older copy of the target must see that the name is taken.
                self._target.partitions.add(self._partition)
            manifest.update(partitions={self._partition: entry})
        except OSError as failure:
            with self._guard:
                self._target.note_gone(self._partition)
            # Durable or not, the copy does not count then, and the log goes on in the source.
            self._change_source(move_number=self._move_number + 1, moving_to="")
            raise self._target_error(failure) from failure
        self.is_committed = True
        with self._guard:
            self.source.note_gone(self._partition)
            self._target.note_opened(self._partition)
        return LogPlace(self._path, self._target.health)

    def clean_up(self, away: PutAway, *, is_wanted: bool) -> None:
        """Undo a move that was not done: the source is the partition again, and the copy is removed unless
        the move is still wanted. A start repeats what fails here."""
        assert not self.is_committed
        # In this order: a source is not served if its target does not list the partition.
        with suppress(OSError, DataDirectoryError):
            self._change_source(moving_to="")
            if not is_wanted:
                away.discard_copy(self._target, self._partition, self._log.topic_id)

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
