"""The recovery points and log starts of one directory's logs, as the next process will find them.

Recovery points are in Kafka's file. Log starts are in the manifest, which decides, and in Kafka's file for
Kafka's tools, which is written with the recovery points of all logs. The files are written from time to time,
which bounds the work of a recovery, and at once where a log must not go on before they are right. Entries of
partitions that were not opened yet stay as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    CheckpointEntries,
    OffsetCheckpoint,
)
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import ManifestFile, PartitionEntry
from stratalog.manager.directories.spare_space import SpareSpace


class DirectoryCheckpoints:
    """Thread-safe. Lock order: a log's locks, this class's, the manifest's."""

    def __init__(
        self, filesystem: FileSystem, directory: str, spare: SpareSpace, manifest: ManifestFile
    ) -> None:
        """Read the recovery points. `spare` is for writes that a full disk must not refuse. Raises
        OSError."""
        self._lock = threading.Lock()
        self._spare = spare
        self._manifest = manifest
        checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{RECOVERY_POINT_FILE}")
        self._recovery_points = CheckpointEntries(checkpoint.read(), checkpoint.write)
        self._start_checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{LOG_START_OFFSET_FILE}")

    def recovery_point(self, partition: TopicPartition) -> int:
        """Everything below is durable, as far as the file knows."""
        return self._recovery_points.offsets.get(partition, 0)

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Everything below was deleted."""
        entry = self._manifest.entry(partition)
        return 0 if entry is None else entry.log_start_offset

    def write_for(self, log: UnifiedLog, log_start_offset: int) -> None:
        """Write the log's recovery point and this log start. Durable when it returns. Raises OSError; the
        former values hold then, and the next write of the files says so."""
        partition = log.topic_partition
        with self._lock:
            former = self._recovery_points.offsets.get(partition)
            self._recovery_points.set(partition, log.offsets.recovery_point)
            try:
                self._spare.writing(self._recovery_points.save)
                self._spare.writing(
                    lambda: self._manifest.change(partition, log_start_offset=log_start_offset)
                )
            except OSError:
                self._recovery_points.set(partition, former)
                raise

    def write_recovery_points(
        self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]
    ) -> None:
        """Write the recovery points of the logs for which `is_here`, asked under this class's lock, is true:
        a log that was deleted since must not come back. Raises OSError."""
        with self._lock:
            for log in filter(is_here, logs):
                self._recovery_points.set(log.topic_partition, log.offsets.recovery_point)
            self._recovery_points.save()

    def write_starts(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        """The same for log starts, in the manifest and in Kafka's file. Raises OSError."""
        # Under both, so that no partition is put aside, or created again, before its entry is written.
        with self._lock, self._manifest.lock:
            changed = dict[TopicPartition, PartitionEntry]()
            for log in filter(is_here, logs):
                entry = self._manifest.entry(log.topic_partition)
                # A start that was written may not be the log's yet; one that goes back is written at once.
                if entry is not None and entry.log_start_offset < log.offsets.log_start_offset:
                    changed[log.topic_partition] = entry._replace(
                        log_start_offset=log.offsets.log_start_offset
                    )
            self._manifest.update(partitions=changed)
            entries = self._manifest.now.partitions.items()
            self._start_checkpoint.write(
                {partition: entry.log_start_offset for partition, entry in entries if entry.log_start_offset}
            )

    def put_recovery_point(self, partition: TopicPartition, recovery_point: int) -> None:
        """For a log that is about to be here. Durable when it returns. Raises OSError."""
        with self._lock:
            self._recovery_points.set(partition, recovery_point)
            self._recovery_points.save()

    def lower_recovery_point(self, partition: TopicPartition, end_offset: int) -> None:
        """The log ends below its recovery point: the rest is gone, and later records there are not durable
        yet. Durable when it returns. Raises OSError; the log must not be used then."""
        with self._lock:
            if end_offset < self.recovery_point(partition):
                self._recovery_points.set(partition, end_offset)
            # Also what an earlier try could not write.
            self._spare.writing(lambda: self._recovery_points.save_for(partition))

    def forget(self, partition: TopicPartition) -> None:
        """A later partition of this name must not get the recovery point. Durable when it returns. Raises
        OSError; no other log may take the name then, until another call has written it."""
        with self._lock:
            self._recovery_points.set(partition, None)
            self._spare.writing(lambda: self._recovery_points.save_for(partition))
