"""The recovery points and log starts of one directory's logs, as the next process will find them.

Recovery points are in Kafka's file. Log starts are in the manifest, which decides, and in a file for Kafka's
tools. The files are written from time to time, which bounds the work of a recovery, and at once if a log must
not go on before they are right. Entries of partitions that were not opened yet stay as they are.
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
    """The recovery points and log starts of one directory's logs. Thread-safe. Lock order: a log's locks,
    this class's, the manifest's."""

    def __init__(
        self, filesystem: FileSystem, directory: str, spare: SpareSpace, manifest: ManifestFile
    ) -> None:
        """Read the recovery points. `spare` makes room for writes that must succeed on a full disk. Raises
        OSError."""
        self._lock = threading.Lock()
        self._spare = spare
        self._manifest = manifest
        checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{RECOVERY_POINT_FILE}")
        self._recovery_points = CheckpointEntries(checkpoint.read(), checkpoint.write)
        self._start_checkpoint = OffsetCheckpoint(filesystem, f"{directory}/{LOG_START_OFFSET_FILE}")

    def recovery_point(self, partition: TopicPartition) -> int:
        """The recovery point in the file: records below it are durable."""
        return self._recovery_points.offsets.get(partition, 0)

    def log_start_offset(self, partition: TopicPartition) -> int:
        """The log start in the manifest: records below it are deleted."""
        entry = self._manifest.entry(partition)
        return 0 if entry is None else entry.log_start_offset

    def write_for(self, log: UnifiedLog, log_start_offset: int) -> None:
        """Write the log's recovery point and this log start. Durable when it returns. Raises OSError; the
        former values hold then, and the next write of the files has them."""
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
        """Write the recovery points of the logs that `is_here` accepts, which is called under this class's
        lock: a log that was deleted meanwhile must not come back. Raises OSError."""
        with self._lock:
            for log in filter(is_here, logs):
                self._recovery_points.set(log.topic_partition, log.offsets.recovery_point)
            self._recovery_points.save()

    def write_starts(self, logs: Iterable[UnifiedLog], is_here: Callable[[UnifiedLog], bool]) -> None:
        """Write the log starts of these logs into the manifest and Kafka's file. Raises OSError."""
        # Both locks, so that no partition is put aside, or created again, before its entry is written.
        with self._lock, self._manifest.lock:
            changed = dict[TopicPartition, PartitionEntry]()
            for log in filter(is_here, logs):
                entry = self._manifest.entry(log.topic_partition)
                # The written start may be ahead of the log's. A start that goes back is written at once.
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
        """Write the recovery point of a log that is about to be here. Durable when it returns. Raises
        OSError."""
        with self._lock:
            self._recovery_points.set(partition, recovery_point)
            self._recovery_points.save()

    def lower_recovery_point(self, partition: TopicPartition, end_offset: int) -> None:
        """Lower the recovery point of a log that ends below it. Durable when it returns. Raises OSError; the
        log must not be used then."""
        with self._lock:
            if end_offset < self.recovery_point(partition):
                self._recovery_points.set(partition, end_offset)
            # An earlier try may have failed to write it.
            self._spare.writing(lambda: self._recovery_points.save_for(partition))

    def forget(self, *partitions: TopicPartition) -> None:
        """Remove their recovery points, by one write, so that no later partition of the name gets one.
        Durable when it returns. Raises OSError; no other log may take one of the names before a later call
        has succeeded."""
        with self._lock:
            self._forget(*partitions)

    def forget_unlisted(self, partition: TopicPartition) -> None:
        """Remove the recovery point as `forget` does, unless the manifest lists the partition by now."""
        with self._lock, self._manifest.lock:
            if self._manifest.entry(partition) is None:
                self._forget(partition)

    def _forget(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self._recovery_points.set(partition, None)
        self._spare.writing(lambda: self._recovery_points.save_for(*partitions))
