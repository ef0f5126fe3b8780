"""What is known to be durable about the logs of one directory: recovery points, and where the logs start.

In Kafka's form; where the logs start is there twice, see `start_checkpoint`. The files are written now and
then, which bounds the work of a recovery, and at once where a log must not go on before they are right.
Entries of partitions that were not opened yet are carried over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.checkpoint_entries import CheckpointEntries
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.spare_space import SpareSpace
from stratalog.manager.directories.start_checkpoint import StartCheckpoint


class DirectoryCheckpoints:
    """Thread-safe. Lock order: a log's locks before this class's."""

    def __init__(self, filesystem: FileSystem, directory: str, spare: SpareSpace) -> None:
        """Read what the files say. `spare`: for who must write them on a full disk. Raises OSError."""
        self._lock = threading.Lock()
        self._spare = spare
        self._filesystem = filesystem
        self._directory = directory
        # An entry is to be written of a partition whose directory may have no durable name yet.
        self._may_be_unnamed = False
        recovery_path = f"{directory}/{RECOVERY_POINT_FILE}"
        recovery_checkpoint = OffsetCheckpoint(filesystem, recovery_path)
        self.were_written = filesystem.exists(recovery_path)
        """A former process has written them, as every one does that ends in order, or lasts for a while."""
        start_checkpoint = StartCheckpoint(filesystem, directory)
        self._recovery_points = CheckpointEntries(
            recovery_checkpoint.read(), lambda offsets: self._write(recovery_checkpoint.write, offsets)
        )
        self._starts = CheckpointEntries(
            start_checkpoint.read(),
            lambda offsets: self._write(
                start_checkpoint.write, {key: at for key, at in offsets.items() if at > 0}
            ),
        )

    def _write(
        self, write: Callable[[Mapping[TopicPartition, int]], None], offsets: Mapping[TopicPartition, int]
    ) -> None:
        """An entry tells that the partition has a directory: what a power loss takes back was never lost."""
        if self._may_be_unnamed:
            self._filesystem.sync_directory(self._directory)
            self._may_be_unnamed = False
        write(offsets)

    def recovery_point(self, partition: TopicPartition) -> int:
        """Everything below is durable, as far as the file knows."""
        return self._recovery_points.offsets.get(partition, 0)

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Everything below was deleted."""
        return self._starts.offsets.get(partition, 0)

    def known_end(self, partition: TopicPartition) -> int | None:
        """What the partition has reached, as far as the files know; None where they have no entry."""
        return max((offset for offset in self.entries(partition) if offset is not None), default=None)

    def entries(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        """Recovery point and log start, as far as the files have them."""
        return self._recovery_points.offsets.get(partition), self._starts.offsets.get(partition)

    def partitions(self) -> set[TopicPartition]:
        """Those that have an entry."""
        with self._lock:
            return {*self._recovery_points.offsets, *self._starts.offsets}

    def write_for(self, log: UnifiedLog, log_start_offset: int) -> None:
        """Both, with the recovery point that this log has now, and that start. Raises OSError; what was known
        before holds then, and is what the next write of the files says."""
        partition = log.topic_partition
        with self._lock:
            former = self.entries(partition)
            self._set(partition, log.recovery_point, log_start_offset)
            try:
                self._spare.writing(self._save)
            except OSError:
                self._set(partition, *former)
                raise

    def write_recovery_points(
        self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]
    ) -> None:
        """Those of the logs of which `is_here` says, under this class's lock, that they still have their name
        in this directory: one that was deleted since must not come back. Raises OSError.
        """
        with self._lock:
            self._note(logs, is_here)
            self._recovery_points.save()

    def write_starts(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        """The same for where the logs start."""
        with self._lock:
            self._note(logs, is_here)
            self._starts.save()

    def put(self, partition: TopicPartition, recovery_point: int, log_start_offset: int) -> None:
        """What another directory knew of a log that is about to be here. Durable when it returns. Raises
        OSError."""
        with self._lock:
            self._set(partition, recovery_point, log_start_offset)
            self._save()

    def lower_recovery_point(self, partition: TopicPartition, end_offset: int) -> None:
        """The log ends below what the file says: the rest is gone, and must not be believed of what is
        written next. Durable when it returns. Raises OSError; the log must not be used then."""
        with self._lock:
            if end_offset < self.recovery_point(partition):
                self._recovery_points.set(partition, end_offset)
            # Also what an earlier try could not write.
            self._spare.writing(lambda: self._recovery_points.save_for(partition))

    def forget(self, partition: TopicPartition) -> None:
        """What is known of the partition must not be believed of a later one of the same name. Durable when
        it returns. Raises OSError; no other log may take the name then, until another call has written it."""
        with self._lock:
            self._set(partition, None, None)
            self._spare.writing(lambda: self._save_for(partition))

    def _set(
        self, partition: TopicPartition, recovery_point: int | None, log_start_offset: int | None
    ) -> None:
        self._may_be_unnamed |= recovery_point is not None and self.known_end(partition) is None
        self._recovery_points.set(partition, recovery_point)
        self._starts.set(partition, log_start_offset)

    def _save(self) -> None:
        self._recovery_points.save()
        self._starts.save()

    def _save_for(self, partition: TopicPartition) -> None:
        self._recovery_points.save_for(partition)
        self._starts.save_for(partition)

    def _note(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        for log in logs:
            if is_here(log):
                partition = log.topic_partition
                # A start that was written may not be the log's yet; one that goes back is written at once.
                start_offset = max(self.log_start_offset(partition), log.log_start_offset)
                self._set(partition, log.recovery_point, start_offset)
