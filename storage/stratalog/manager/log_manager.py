"""All logs of a data directory.

A log is created or loaded when it is asked for, by `open_log`. What is known to be durable about the logs is
kept in two checkpoint files; they are written by `checkpoint` (call it now and then: it bounds the work of a
recovery), and at once where a log must not go on before they are right. Checkpoints of partitions that were
not opened yet are carried over. Many logs can be loaded at a time, by as many threads of the caller.

A crash finds the logs as `log_loader` describes it. A clean stop leaves a marker, written last; it is there
only if every log was closed and none was left in a state that still needs recovery. Threads: any; one
partition is opened, deleted or set aside by one thread at a time, which is the caller's duty. Lock order: a
log's locks before this class's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    LogStoreError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator, seeded_random
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.log.log_config import LogConfig
from stratalog.log.log_loader import LogLoader
from stratalog.log.log_recovery import LoadProgress
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.data_directory import DELETE_REASON, DataDirectory
from stratalog.manager.import_mark import read_import_mark
from stratalog.manager.partition_metadata import (
    is_of_topic,
    read_partition_metadata,
    write_partition_metadata,
)
from stratalog.segment.index_page_cache import DEFAULT_MAX_BYTES
from stratalog.segment.open_files import DEFAULT_MAX_OPEN
from stratalog.segment.segment_resources import SegmentResources

logger = logging.getLogger(__name__)

STRAY_REASON = "stray"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerSettings:
    """Immutable, hence thread-safe."""

    data_dir: str
    """Where the logs are; absolute. Created where it is missing."""
    max_open_files: int = DEFAULT_MAX_OPEN
    """Log files that are kept open at most; more descriptors are needed only while more are in use at
    once."""
    index_cache_bytes: int = DEFAULT_MAX_BYTES
    """Memory for pages of index files that were read."""
    file_delete_delay_ms: int = 60 * 1000
    """Directories of deleted partitions are removed after this long."""
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
    """A log forgets a producer that has sent nothing for this long and has no open transaction. Longer than a
    client may retry: a batch that it sends again afterwards is stored again."""
    producer_id_expiration_check_interval_ms: int = 10 * 60 * 1000
    """How often such producers are looked for."""
    written_by_broker: bool = False
    """Kafka wrote the logs, and they were perhaps copied file by file. So the files of leader epochs may be
    older than the batches: what is newer is learnt from these, in a recovery (our own files have each epoch
    before a batch has it). And a hole between segments is one that compaction left, even above the recovery
    point."""


class LogManager:
    """Thread-safe."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        directory: DataDirectory,
        settings: LogManagerSettings,
    ) -> None:
        """Use `open`."""
        self._filesystem = filesystem
        self._clock = clock
        self._scheduler = scheduler
        self._ids = ids
        self._random = seeded_random(ids)
        self._directory = directory
        self._settings = settings
        self._resources = SegmentResources.over(
            filesystem,
            max_open_files=settings.max_open_files,
            index_cache_bytes=settings.index_cache_bytes,
        )
        self._guard = threading.RLock()
        self._checkpoint_lock = threading.Lock()
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._loading: set[TopicPartition] = set()
        self._recovery_checkpoint = OffsetCheckpoint(filesystem, f"{settings.data_dir}/{RECOVERY_POINT_FILE}")
        self._start_checkpoint = OffsetCheckpoint(filesystem, f"{settings.data_dir}/{LOG_START_OFFSET_FILE}")
        self._recovery_points = self._recovery_checkpoint.read()
        self._start_offsets = self._start_checkpoint.read()
        # Found in the directory and not opened yet: these are as the former process left them.
        self._unopened = set(directory.partitions())
        self._was_clean = directory.take_clean_shutdown()
        self._is_closed = False
        self._expiry = scheduler.every(
            "expire producers",
            self._remove_expired_producers,
            settings.producer_id_expiration_check_interval_ms,
            delay_ms=settings.producer_id_expiration_check_interval_ms,
        )

    @staticmethod
    def open(
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        settings: LogManagerSettings,
    ) -> LogManager:
        """Lock the data directory and read what is known about its logs.

        Raises DataDirectoryInUseError, DataDirectoryError.
        """
        try:
            directory = DataDirectory(filesystem, settings.data_dir, ids.uuid())
            try:
                manager = LogManager(filesystem, clock, scheduler, ids, directory, settings)
                for path in directory.leftovers():
                    manager._remove_later(path)
            except BaseException:
                directory.release()
                raise
        except OSError as failure:
            raise DataDirectoryError(
                "the data directory cannot be used; it must be a directory that this user may write to",
                path=settings.data_dir,
                reason=str(failure),
            ) from failure
        return manager

    @property
    def data_dir(self) -> str:
        return self._settings.data_dir

    @property
    def was_clean(self) -> bool:
        """The former process closed all logs, so that none has to be recovered."""
        return self._was_clean

    @property
    def bound_store_id(self) -> str | None:
        """The object store that the data directory is tied to."""
        return self._directory.bound_store_id

    def bind_store(self, store_id: str) -> None:
        """Tie the data directory to an object store. Raises DataDirectoryError where it is tied to another
        one."""
        with self._guard:
            try:
                self._directory.bind_store(store_id)
            except OSError as failure:
                raise self._disk_error(failure) from failure

    def partitions_on_disk(self) -> tuple[tuple[TopicPartition, UUID | None], ...]:
        """Partitions that have a directory, opened or not, with their topic ids where these can be read."""
        with self._guard:
            try:
                partitions = self._directory.partitions()
            except OSError as failure:
                raise self._disk_error(failure) from failure
            return tuple((partition, self._topic_id_of(partition)) for partition in partitions)

    def _topic_id_of(self, partition: TopicPartition) -> UUID | None:
        try:
            return read_partition_metadata(self._filesystem, self._directory.partition_path(partition))
        except (DataDirectoryError, OSError):
            # Whoever opens the partition is told.
            return None

    def epochs_on_disk(self) -> Iterator[tuple[TopicIdPartition, int]]:
        """The newest leader epoch of each partition that has a directory, as far as both can be read. Raises
        DataDirectoryError."""
        for partition, topic_id in self.partitions_on_disk():
            path = self._directory.partition_path(partition)
            try:
                epoch = LeaderEpochCache.load(self._filesystem, path).latest_epoch
            except (CorruptRecordError, OSError):
                # Whoever opens the partition is told, or takes them from its batches.
                continue
            if topic_id is not None and epoch is not None:
                yield TopicIdPartition(topic_id, partition.partition), epoch

    def open_log(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        start_offset: int = 0,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> UnifiedLog:
        """The partition's log, loaded and recovered, or created, empty, at `start_offset`.

        A directory that belongs to another topic of the same name is set aside. `on_progress` is told how far
        a recovery is. Raises DataDirectoryError with a path in the partition's directory, or that of it, also
        where the file that says whose it is has been damaged or lost.
        """
        with self._guard:
            assert not self._is_closed
            assert partition not in self._logs, f"{partition} is open already"
            assert partition not in self._loading, f"{partition} is being opened"
            self._loading.add(partition)
        try:
            log = self._load(partition, topic_id, config, start_offset, on_progress)
        except OSError as failure:
            raise self._disk_error(failure, self._directory.partition_path(partition)) from failure
        else:
            with self._guard:
                assert not self._is_closed
                self._unopened.discard(partition)
                self._logs[partition] = log
        finally:
            with self._guard:
                self._loading.discard(partition)
        if log.log_end_offset < log.log_start_offset:
            # Records were deleted up to an offset that the log, which had not been flushed, has lost. Offsets
            # below it are spent all the same.
            lost_end_offset = log.log_end_offset
            log.truncate_fully_and_start_at(log.log_start_offset)
            log.recovery_report = log.recovery_report._replace(lost_end_offset=lost_end_offset)
        return log

    def _load(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        start_offset: int,
        on_progress: Callable[[LoadProgress], None] | None,
    ) -> UnifiedLog:
        path = self._directory.partition_path(partition)
        if self._filesystem.exists(path) and not is_of_topic(self._filesystem, path, topic_id):
            with self._guard:
                stray_path = self._directory.move_aside(partition, self._ids.uuid(), STRAY_REASON)
            logger.warning(
                "the local log of %s is not that of the topic which has this name now, and was set aside for"
                " you to look at, path=`%s` topic_id=`%s`",
                partition,
                stray_path,
                topic_id,
            )
        is_new = not self._filesystem.exists(path)
        if is_new:
            self._forget(partition)
            self._filesystem.make_directories(path)
        if read_partition_metadata(self._filesystem, path) is None:
            write_partition_metadata(self._filesystem, path, topic_id)
        loader = LogLoader(
            self._resources,
            path,
            config,
            now_ms=self._clock.now_ms(),
            recovery_point=self._recovery_points.get(partition, 0),
            producer_id_expiration_ms=self._settings.producer_id_expiration_ms,
            written_by_broker=self._settings.written_by_broker,
            on_progress=on_progress,
        )
        log_start_offset = self._start_offsets.get(partition, 0)
        loaded = loader.load(
            is_new=is_new,
            was_clean=self._was_clean and partition in self._unopened,
            first_offset=max(start_offset, log_start_offset),
            log_start_offset=log_start_offset,
        )
        end_offset = loaded.local_log.segments.end_offset
        if end_offset < self._recovery_points.get(partition, 0):
            # The files that the checkpoint spoke of are gone; it must not be believed of what is written
            # next.
            with self._checkpoint_lock:
                self._recovery_points[partition] = end_offset
                self._write_checkpoints()
        return UnifiedLog(
            self._clock,
            self._scheduler,
            self._random,
            loaded,
            self._checkpoint_of,
            partition,
            topic_id,
            config,
        )

    def log(self, partition: TopicPartition) -> UnifiedLog:
        """Raises UnknownTopicOrPartitionError where it is not open."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownTopicOrPartitionError(
                "the partition has no log here; create the topic or correct the name",
                topic=partition.topic,
                partition=partition.partition,
            )
        return log

    def import_epoch(self, partition: TopicPartition) -> int | None:
        """The epoch under which the partition's directory was taken over from a broker; None where it was
        not. Raises DataDirectoryError."""
        path = self._directory.partition_path(partition)
        try:
            return read_import_mark(self._filesystem, path)
        except OSError as failure:
            raise self._disk_error(failure, path) from failure

    def logs(self) -> tuple[UnifiedLog, ...]:
        """All open logs, in order."""
        with self._guard:
            return tuple(self._logs[partition] for partition in sorted(self._logs))

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete the partition's log, open or not: out of the way at once, removed later. Raises
        DataDirectoryError."""
        path = self._take_out(partition, DELETE_REASON, flush=False)
        if path is not None:
            self._remove_later(path)

    def set_aside(self, partition: TopicPartition, reason: str) -> str | None:
        """Close the partition's log and give its directory another name, for a human to look at. It is never
        deleted.

        Returns the path, None where there was no directory. Raises DataDirectoryError.
        """
        assert reason not in ("", DELETE_REASON)
        return self._take_out(partition, reason, flush=True)

    def let_go(self, partition: TopicPartition) -> None:
        """Close the partition's log, if it is open, and leave its directory to the next process as it is."""
        with self._guard:
            log = self._logs.pop(partition, None)
            if log is None:
                return
            self._unopened.add(partition)
        log.close(flush=False)

    def _take_out(self, partition: TopicPartition, reason: str, *, flush: bool) -> str | None:
        assert partition not in self._loading, f"{partition} is being opened"
        log = self._logs.get(partition)
        if log is not None:
            try:
                log.close(flush=flush)
            except DataDirectoryError:
                # It is offline. What can be saved is saved by whoever looks at the directory.
                pass
        with self._guard:
            self._logs.pop(partition, None)
            self._unopened.discard(partition)
            path = self._directory.partition_path(partition)
            try:
                moved_to = None
                if self._filesystem.exists(path):
                    moved_to = self._directory.move_aside(partition, self._ids.uuid(), reason)
                # A reader may have opened a file again after the log let go of it.
                self._resources.files.forget_below(path)
                self._forget(partition)
            except OSError as failure:
                raise self._disk_error(failure) from failure
            return moved_to

    def _remove_later(self, path: str) -> None:
        self._scheduler.once(
            f"remove {path}", lambda: self._filesystem.remove_tree(path), self._settings.file_delete_delay_ms
        )

    def _forget(self, partition: TopicPartition) -> None:
        """What the checkpoints say about the partition must not be believed of a later one of the same
        name."""
        with self._checkpoint_lock:
            known = self._recovery_points.pop(partition, None), self._start_offsets.pop(partition, None)
            if known != (None, None):
                self._write_checkpoints()

    def _remove_expired_producers(self) -> None:
        for log in self.logs():
            log.remove_expired_producers()

    def flush_old(self) -> None:
        """Flush the logs whose `flush.ms` is over, one after the other. Call it now and then: it bounds what
        a power loss takes.

        Raises the first DataDirectoryError that a log gave, which is offline then; the others are flushed all
        the same.
        """
        failures: list[DataDirectoryError] = []
        for log in self.logs():
            try:
                log.flush_if_old()
            except DataDirectoryError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def checkpoint(self) -> None:
        """Write recovery points and start offsets of all logs. Raises DataDirectoryError."""
        logs = self.logs()
        with self._checkpoint_lock:
            try:
                for log in logs:
                    # One that was deleted since must not come back: its name may belong to another log by
                    # now.
                    if self._logs.get(log.topic_partition) is log:
                        self._note(log)
                self._write_checkpoints()
            except OSError as failure:
                raise self._disk_error(failure) from failure

    def _checkpoint_of(self, log: UnifiedLog) -> None:
        with self._checkpoint_lock:
            self._note(log)
            self._write_checkpoints()

    def _note(self, log: UnifiedLog) -> None:
        self._recovery_points[log.topic_partition] = log.recovery_point
        self._start_offsets[log.topic_partition] = log.log_start_offset

    def _write_checkpoints(self) -> None:
        self._recovery_checkpoint.write(self._recovery_points)
        self._start_checkpoint.write(
            {key: offset for key, offset in self._start_offsets.items() if offset > 0}
        )

    def close(self) -> None:
        """Flush and close all logs, write the checkpoints, leave the marker, release the directory.

        Raises the first error that a log or the directory gave; everything else is closed all the same, and
        the next process recovers.
        """
        failures: list[LogStoreError] = []
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        self._expiry.cancel()
        for log in self.logs():
            try:
                log.close()
            except LogStoreError as failure:
                failures.append(failure)
        try:
            self.checkpoint()
            # A log that was not opened is as it was found: clean only if all were.
            if not failures and (self._was_clean or not self._unopened):
                self._directory.mark_clean_shutdown()
        except DataDirectoryError as failure:
            failures.append(failure)
        except OSError as failure:
            failures.append(self._disk_error(failure))
        finally:
            self._resources.files.close()
            self._directory.release()
        if failures:
            raise failures[0]

    def check(self) -> None:
        """Prove every log and the shared resources."""
        for log in self.logs():
            log.check()
        self._resources.files.check()
        self._resources.index_pages.check()

    def _disk_error(self, failure: OSError, path: str | None = None) -> DataDirectoryError:
        return DataDirectoryError(
            "the local disk failed; repair it and restart the server",
            path=path or self.data_dir,
            reason=str(failure),
        )
