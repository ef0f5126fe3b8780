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
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.spare_space import SpareSpace
from stratalog.manager.start_checkpoint import StartCheckpoint


class _Entries:
    """What a file shall say, and of which partitions it may still say something else. Guarded by the lock of
    `DirectoryCheckpoints`."""

    __slots__ = ("_spare", "_unsaved", "_write", "offsets")

    def __init__(
        self,
        offsets: dict[TopicPartition, int],
        write: Callable[[Mapping[TopicPartition, int]], None],
        spare: SpareSpace,
    ) -> None:
        self.offsets = offsets
        self._write = write
        self._spare = spare
        self._unsaved: set[TopicPartition] = set()

    def set(self, partition: TopicPartition, offset: int | None) -> None:
        """The entry, or none, until `save` in this process only."""
        if self.offsets.get(partition) == offset:
            return
        self._unsaved.add(partition)
        if offset is None:
            del self.offsets[partition]
        else:
            self.offsets[partition] = offset

    def save(self) -> None:
        """All of it is durable when it returns. Raises OSError: then nobody knows what the file says of what
        was set since the last time."""
        self._write(self.offsets)
        self._unsaved.clear()

    def must_save(self) -> None:
        """The same for somebody who cannot go on without: a full disk gets the space that is kept aside."""
        self._spare.writing(self.save)

    def must_save_for(self, partition: TopicPartition) -> None:
        """As `must_save`, where the file may say something else of this partition."""
        if partition in self._unsaved:
            self.must_save()


class DirectoryCheckpoints:
    """Thread-safe. Lock order: a log's locks before this class's."""

    def __init__(self, filesystem: FileSystem, directory: str, spare: SpareSpace) -> None:
        """Read what the files say. `spare`: for writing them on a full disk. Raises OSError."""
        self._lock = threading.Lock()
        recovery_checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{RECOVERY_POINT_FILE}")
        start_checkpoint = StartCheckpoint(filesystem, directory)
        self._recovery_points = _Entries(recovery_checkpoint.read(), recovery_checkpoint.write, spare)
        self._starts = _Entries(
            start_checkpoint.read(),
            lambda offsets: start_checkpoint.write({key: at for key, at in offsets.items() if at > 0}),
            spare,
        )

    def recovery_point(self, partition: TopicPartition) -> int:
        """Everything below is durable, as far as the file knows."""
        return self._recovery_points.offsets.get(partition, 0)

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Everything below was deleted."""
        return self._starts.offsets.get(partition, 0)

    def write_for(self, log: UnifiedLog, log_start_offset: int) -> None:
        """Both, with the recovery point that this log has now, and that start. Raises OSError; what was known
        before holds then, and is what the next write of the files says."""
        partition = log.topic_partition
        with self._lock:
            former = (
                self._recovery_points.offsets.get(partition),
                self._starts.offsets.get(partition),
            )
            self._set(partition, log.recovery_point, log_start_offset)
            try:
                self._recovery_points.must_save()
                self._starts.must_save()
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
            self._recovery_points.save()
            self._starts.save()

    def lower_recovery_point(self, partition: TopicPartition, end_offset: int) -> None:
        """The log ends below what the file says: the rest is gone, and must not be believed of what is
        written next. Durable when it returns. Raises OSError; the log must not be used then."""
        with self._lock:
            if end_offset < self.recovery_point(partition):
                self._recovery_points.set(partition, end_offset)
            # Also what an earlier try could not write.
            self._recovery_points.must_save_for(partition)

    def forget(self, partition: TopicPartition) -> None:
        """What is known of the partition must not be believed of a later one of the same name. Durable when
        it returns. Raises OSError; no other log may take the name then, until another call has written it."""
        with self._lock:
            self._set(partition, None, None)
            self._recovery_points.must_save_for(partition)
            self._starts.must_save_for(partition)

    def _set(
        self, partition: TopicPartition, recovery_point: int | None, log_start_offset: int | None
    ) -> None:
        self._recovery_points.set(partition, recovery_point)
        self._starts.set(partition, log_start_offset)

    def _note(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        for log in logs:
            if is_here(log):
                partition = log.topic_partition
                # A start that was written may not be the log's yet; one that goes back is written at once.
                start_offset = max(self.log_start_offset(partition), log.log_start_offset)
                self._set(partition, log.recovery_point, start_offset)
