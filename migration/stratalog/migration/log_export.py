"""Writes partitions as a broker's log directory, which Kafka opens.

A log manager in a directory beside the target appends the batches as a replica does, with their offsets, and
rewritten for a new topic (see `broker_batches`). That makes indexes, transaction indexes, producer snapshots,
leader epochs and two of the checkpoint files; the third one, of high watermarks, is written at the end. Then
the directory is renamed to the target. A crash leaves the directory beside it, which may be removed.

Holes stay holes. A log that ends in one gets an empty last segment, whose name gives the next offset.
"""

from __future__ import annotations

import dataclasses
import errno
import posixpath
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

from stratalog.base.atomic_file import replace_file
from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import Durability, TopicPartition
from stratalog.log.checkpoint import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    OffsetCheckpoint,
)
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import LOCK_FILE
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.directories.meta_properties import META_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration.broker_batches import broker_batches
from stratalog.record.batch import batches
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)


class ExportedLog(NamedTuple):
    """A partition that was written."""

    topic_partition: TopicPartition
    topic_id: UUID
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    open_transaction_count: int
    """Open transactions: a broker that does not know them never ends them."""
    has_raised_producer_ids: bool
    """Whether producer ids were raised."""


class ExportTargetError(DataDirectoryError):
    """The directory cannot be written, so nothing more can be exported to it. Fields: path, reason."""


class PartitionExport:
    """A partition that is being written. Belongs to one thread."""

    def __init__(
        self,
        log: UnifiedLog,
        target: str,
        log_start_offset: int,
        log_end_offset: int,
        *,
        keeps_producer_ids: bool,
    ) -> None:
        self._log = log
        self._target = target
        self._log_start_offset = log_start_offset
        self._log_end_offset = log_end_offset
        self._keeps_producer_ids = keeps_producer_ids
        self._has_raised_producer_ids = False

    @property
    def topic_partition(self) -> TopicPartition:
        return self._log.topic_partition

    def append(self, data: Buffer) -> None:
        """Append the next whole batches. Leaves out batches that were appended before, and those that do not
        end below the partition's end.

        Raises CorruptRecordError, ExportTargetError, InvalidRequestError for a producer id that is too high.
        """
        written = broker_batches(data, keeps_producer_ids=self._keeps_producer_ids)
        with _target_errors(self._target):
            self._append(written)

    def _append(self, written: bytearray) -> None:
        view = memoryview(written)
        first_offset = self._log.offsets.log_end_offset
        begin = end = 0
        for position, header in batches(written):
            if header.producer_id >= 0 and not self._keeps_producer_ids:
                self._has_raised_producer_ids = True
            batch_end = position + header.size_in_bytes
            if not first_offset < header.next_offset <= self._log_end_offset:
                continue
            if begin == end:
                begin = position
            elif batch_end - begin > self._log.local_log.config.segment_bytes:
                # An append lies in one segment.
                self._log.appender.append_as_follower(view[begin:end])
                begin = position
            end = batch_end
        if begin < end:
            self._log.appender.append_as_follower(view[begin:end])

    def finish(self) -> ExportedLog:
        """Finish the partition. Raises ExportTargetError."""
        log = self._log
        with _target_errors(self._target):
            if log.offsets.log_end_offset <= self._log_start_offset:
                # No readable record is left.
                log.truncation.truncate_fully_and_start_at(self._log_end_offset)
            log.increment_log_start_offset(min(self._log_start_offset, log.offsets.log_end_offset))
        open_count = sum(producer.current_txn_first_offset is not None for producer in log.producers())
        return ExportedLog(
            topic_partition=log.topic_partition,
            topic_id=log.topic_id,
            log_start_offset=log.offsets.log_start_offset,
            log_end_offset=self._log_end_offset,
            size_bytes=log.local_log.segments.size_bytes,
            open_transaction_count=open_count,
            has_raised_producer_ids=self._has_raised_producer_ids,
        )


class LogExport:
    """A log directory in the making; as a context manager it removes what was not finished. Belongs to one
    thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        target: str,
        *,
        keeps_producer_ids: bool = False,
    ) -> None:
        """`target` is a new absolute path, an empty directory, or a link to either. `keeps_producer_ids` is
        for the cluster that has handed out the ids. Raises DataDirectoryError if the target is taken or
        cannot be replaced, ExportTargetError."""
        self._filesystem = filesystem
        self._keeps_producer_ids = keeps_producer_ids
        with _target_errors(target):
            # A link cannot be replaced by a directory.
            self._target = target = filesystem.real_path(target)
        self._require_room()
        self._path = f"{target}.{ids.uuid().hex}-export"
        self._require_replaceable()
        self._exported: list[ExportedLog] = []
        self._begun: dict[TopicPartition, UnifiedLog] = {}
        with _target_errors(target):
            self._manager: LogManager | None = LogManager.open(
                filesystem,
                clock,
                scheduler,
                ids,
                # Export old producers too: a broker expires them by its own clock.
                LogManagerSettings(data_dirs=(self._path,), producer_id_expiration_ms=LONG_MAX),
            )

    def begin(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        base_offset: int,
        log_start_offset: int,
        log_end_offset: int,
    ) -> PartitionExport:
        """Begin a partition that has the given range, the first batch of which begins at `base_offset` or
        above. One that was begun before, and not ended, begins anew. Raises ExportTargetError."""
        assert self._manager is not None
        assert base_offset <= log_start_offset <= log_end_offset
        with _target_errors(self._target):
            log = self._begun.get(topic_partition)
            if log is None:
                log = self._begun[topic_partition] = self._manager.open_log(
                    topic_partition, topic_id, _without_a_will(config), start_offset=base_offset
                )
            else:
                self._manager.truncate_fully_and_start_at(topic_partition, base_offset)
        return PartitionExport(
            log, self._target, log_start_offset, log_end_offset, keeps_producer_ids=self._keeps_producer_ids
        )

    def end(self, export: PartitionExport) -> ExportedLog:
        """Finish the partition. Raises ExportTargetError."""
        exported = export.finish()
        self._exported.append(exported)
        return exported

    def leave_out(self, topic: str) -> None:
        """Remove everything of this topic from the directory."""
        self._exported = [exported for exported in self._exported if exported.topic_partition.topic != topic]

    def publish(self) -> tuple[ExportedLog, ...]:
        """Rename the directory to the target. Durable when it returns. Raises DataDirectoryError if the
        target exists by now, ExportTargetError."""
        assert self._manager is not None
        with _target_errors(self._target):
            self._manager.close()
            self._manager = None
            self._complete()
        self._require_room()
        with _target_errors(self._target):
            self._filesystem.rename(self._path, self._target)
            self._filesystem.sync_directory(posixpath.dirname(self._target))
        return tuple(self._exported)

    def _complete(self) -> None:
        ends = {exported.topic_partition: exported.log_end_offset for exported in self._exported}
        for partition in self._begun:
            if partition not in ends:
                self._filesystem.remove_tree(f"{self._path}/{partition}")
        starts = OffsetCheckpoint(self._filesystem, f"{self._path}/{LOG_START_OFFSET_FILE}")
        starts.write({partition: offset for partition, offset in starts.read().items() if partition in ends})
        for partition, end_offset in ends.items():
            directory = f"{self._path}/{partition}"
            # A broker seals nothing.
            ours = [
                name
                for name in self._filesystem.list_directory(directory)
                if name.endswith((DELETED_SUFFIX, SEAL_SUFFIX))
            ]
            for name in ours:
                self._filesystem.unlink(f"{directory}/{name}")
            if ours:
                self._filesystem.sync_directory(directory)
            if self._end_of_files(partition) < end_offset:
                for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                    replace_file(self._filesystem, segment_path(directory, end_offset, suffix), b"")
        for name in (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE):
            OffsetCheckpoint(self._filesystem, f"{self._path}/{name}").write(ends)
        # A broker makes the first two itself, and has no manifest.
        for name in (LOCK_FILE, META_FILE, MANIFEST_FILE):
            self._filesystem.unlink(f"{self._path}/{name}")
        self._filesystem.sync_directory(self._path)

    def _end_of_files(self, partition: TopicPartition) -> int:
        checkpoint = OffsetCheckpoint(self._filesystem, f"{self._path}/{RECOVERY_POINT_FILE}")
        return checkpoint.read()[partition]

    def _require_room(self) -> None:
        with _target_errors(self._target):
            is_taken = self._filesystem.exists(self._target) and not (
                self._filesystem.is_directory(self._target)
                and not self._filesystem.list_directory(self._target)
            )
        if is_taken:
            raise DataDirectoryError(
                "the target exists already, and an export overwrites nothing; choose another log directory",
                path=self._target,
            )

    def _require_replaceable(self) -> None:
        """Check now, before hours of work, that the empty target directory can be replaced at the end."""
        with _target_errors(self._target):
            if not self._filesystem.exists(self._target):
                return
            self._filesystem.make_directories(self._path)
            try:
                self._filesystem.rename(self._path, self._target)
                return
            except OSError as failure:
                self._filesystem.remove_tree(self._path)
                if failure.errno != errno.EBUSY:
                    raise
        raise DataDirectoryError(
            "the target is a mount point or a system directory and cannot be replaced; name a new directory"
            " below it",
            path=self._target,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._manager is not None:
            try:
                self._manager.close()
            except (DataDirectoryError, CorruptRecordError):
                # The caller gets the first failure.
                pass
        try:
            self._filesystem.remove_tree(self._path)
        except OSError:
            pass


@contextmanager
def _target_errors(target: str) -> Generator[None]:
    """Report disk errors with the caller's target path: the directory beside it is temporary."""
    try:
        yield
    except (DataDirectoryError, OSError) as failure:
        reason = str(failure)
        if isinstance(failure, DataDirectoryError):
            reason = str(failure.fields.get("reason", failure.message))
        raise ExportTargetError(
            "the log directory cannot be written; free space or repair the disk, and export again",
            path=target,
            reason=reason,
        ) from failure


def _without_a_will(config: LogConfig) -> LogConfig:
    """The topic's segment sizes, without retention or durability."""
    return dataclasses.replace(
        config,
        remote_storage_enable=False,
        retention_ms=UNLIMITED,
        retention_bytes=UNLIMITED,
        segment_ms=LONG_MAX,
        min_durability=Durability.OS,
    )
