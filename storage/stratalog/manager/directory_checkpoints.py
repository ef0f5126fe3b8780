"""What is known to be durable about the logs of one directory: recovery points, and where the logs start.

In Kafka's form; where the logs start is there twice, see `start_checkpoint`. The files are written now and
then, which bounds the work of a recovery, and at once where a log must not go on before they are right.
Entries of partitions that were not opened yet are carried over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.start_checkpoint import StartCheckpoint


class DirectoryCheckpoints:
    """Thread-safe. Lock order: a log's locks before this class's."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Read what the files say. Raises OSError."""
        self._lock = threading.Lock()
        self._recovery_checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{RECOVERY_POINT_FILE}")
        self._start_checkpoint = StartCheckpoint(filesystem, directory)
        self._recovery_points = self._recovery_checkpoint.read()
        self._start_offsets = self._start_checkpoint.read()

    def recovery_point(self, partition: TopicPartition) -> int:
        """Everything below is durable, as far as the file knows."""
        return self._recovery_points.get(partition, 0)

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Everything below was deleted."""
        return self._start_offsets.get(partition, 0)

    def write_for(self, log: UnifiedLog) -> None:
        """Both, with what this log says now. Raises OSError."""
        with self._lock:
            self._note(log)
            self._write_recovery_points()
            self._write_starts()

    def write_recovery_points(
        self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]
    ) -> None:
        """Those of the logs of which `is_here` says, under this class's lock, that they still have their name
        in this directory: one that was deleted since must not come back. Raises OSError.
        """
        with self._lock:
            for log in logs:
                if is_here(log):
                    self._note(log)
            self._write_recovery_points()

    def write_starts(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        """The same for where the logs start."""
        with self._lock:
            for log in logs:
                if is_here(log):
                    self._note(log)
            self._write_starts()

    def put(self, partition: TopicPartition, recovery_point: int, log_start_offset: int) -> None:
        """What another directory knew of a log that is about to be here. Durable when it returns. Raises
        OSError."""
        with self._lock:
            self._recovery_points[partition] = recovery_point
            self._start_offsets[partition] = log_start_offset
            self._write_recovery_points()
            self._write_starts()

    def lower_recovery_point(self, partition: TopicPartition, end_offset: int) -> None:
        """The log ends below what the file says: the rest is gone, and must not be believed of what is
        written next. Durable when it returns. Raises OSError."""
        if end_offset < self.recovery_point(partition):
            with self._lock:
                self._recovery_points[partition] = end_offset
                self._write_recovery_points()

    def forget(self, partition: TopicPartition) -> None:
        """What is known of the partition must not be believed of a later one of the same name. Durable when
        it returns. Raises OSError."""
        with self._lock:
            known = self._recovery_points.pop(partition, None), self._start_offsets.pop(partition, None)
            if known != (None, None):
                self._write_recovery_points()
                self._write_starts()

    def _note(self, log: UnifiedLog) -> None:
        self._recovery_points[log.topic_partition] = log.recovery_point
        self._start_offsets[log.topic_partition] = log.log_start_offset

    def _write_recovery_points(self) -> None:
        self._recovery_checkpoint.write(self._recovery_points)

    def _write_starts(self) -> None:
        self._start_checkpoint.write(
            {key: offset for key, offset in self._start_offsets.items() if offset > 0}
        )
