"""Writes partitions as a broker's log directory: what Kafka opens, made of the batches of a log.

A log manager of a directory beside the target appends the batches as a replica does, with the offsets that
they have, and as a topic has them that was just created: see `broker_batches`. Indexes, transaction indexes,
producer snapshots, leader epochs and two of the checkpoint files follow from that; the third, of high
watermarks, is written at the end. Then the directory gets its name, at once. A crash leaves the directory
beside it, which nobody reads; it may be removed.

Holes stay holes. A log that ends in one gets an empty last segment whose name is the end: that is how a log
says which offset comes next.
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
from stratalog.manager.directories.data_directory import LOCK_FILE
from stratalog.manager.directories.meta_properties import META_FILE
from stratalog.manager.directories.start_checkpoint import LOG_START_COPY_FILE
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
    """A partition as it was written."""

    topic_partition: TopicPartition
    topic_id: UUID
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    open_transaction_count: int
    """Transactions that no marker ends: a broker that knows nothing of them waits for it for ever."""
    has_raised_producer_ids: bool
    """Batches have other producer ids than they had."""


class ExportTargetError(DataDirectoryError):
    """The directory cannot be written, so nothing more can be exported to it. Fields: path, reason."""


class PartitionExport:
    """One partition in the making. Belongs to one thread."""

    def __init__(
        self,
        log: UnifiedLog,
        target: str,
        log_start_offset: int,
        log_end_offset: int,
        *,
        keeps_producer_ids: bool,
    ) -> None:
        """Use `LogExport.begin`."""
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
        """Take whole batches, the next ones. Those that were taken before, and those that do not end below
        the partition's end, are left out.

        Raises CorruptRecordError, ExportTargetError, InvalidRequestError for a producer id that is too high.
        """
        written = broker_batches(data, keeps_producer_ids=self._keeps_producer_ids)
        with _target_errors(self._target):
            self._append(written)

    def _append(self, written: bytearray) -> None:
        view = memoryview(written)
        first_offset = self._log.log_end_offset
        begin = end = 0
        for position, header in batches(written):
            if header.producer_id >= 0 and not self._keeps_producer_ids:
                self._has_raised_producer_ids = True
            batch_end = position + header.size_in_bytes
            if not first_offset < header.next_offset <= self._log_end_offset:
                continue
            if begin == end:
                begin = position
            elif batch_end - begin > self._log.config.segment_bytes:
                # An append lies in one segment.
                self._log.append_as_follower(view[begin:end])
                begin = position
            end = batch_end
        if begin < end:
            self._log.append_as_follower(view[begin:end])

    def finish(self) -> ExportedLog:
        """Nothing follows. Raises ExportTargetError."""
        log = self._log
        with _target_errors(self._target):
            if log.log_end_offset <= self._log_start_offset:
                # Nothing that can be read is left of it.
                log.truncate_fully_and_start_at(self._log_end_offset)
            log.increment_log_start_offset(min(self._log_start_offset, log.log_end_offset))
        open_count = sum(producer.current_txn_first_offset is not None for producer in log.producers())
        return ExportedLog(
            log.topic_partition,
            log.topic_id,
            log.log_start_offset,
            self._log_end_offset,
            log.size_bytes,
            open_count,
            self._has_raised_producer_ids,
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
        """`target`: an absolute path where nothing is, or an empty directory, or a link that leads there.
        `keeps_producer_ids`: it goes to the cluster that has handed these out. Raises DataDirectoryError
        where something is there, or nothing can be given that name, ExportTargetError."""
        self._filesystem = filesystem
        self._keeps_producer_ids = keeps_producer_ids
        with _target_errors(target):
            # A name that is a link is not given to a directory.
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
                # Old producers are a part of what is exported: a broker forgets them by its own clock.
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
        """Nothing of this topic is to be in the directory, whatever there is of it."""
        self._exported = [exported for exported in self._exported if exported.topic_partition.topic != topic]

    def publish(self) -> tuple[ExportedLog, ...]:
        """Give the directory its name. Durable when it returns. Raises DataDirectoryError where something is
        there by now, ExportTargetError."""
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
        # These are whose directory it is: the broker's it is going to be has its own. And a broker has no
        # copy of where its logs start.
        for name in (LOCK_FILE, META_FILE, LOG_START_COPY_FILE):
            self._filesystem.unlink(f"{self._path}/{name}")
        self._filesystem.sync_directory(self._path)

    def _end_of_files(self, partition: TopicPartition) -> int:
        """Where the log ends that was closed."""
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
                "there is something already, and nothing is overwritten; choose another log directory",
                path=self._target,
            )

    def _require_replaceable(self) -> None:
        """An empty directory gives its name away at the end: let one do so now, before hours of work."""
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
            "a disk is mounted at this directory, or the system needs it, so that no other can take its name;"
            " name a new directory in it",
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
                # Something has failed before, and is what the caller is told.
                pass
        try:
            self._filesystem.remove_tree(self._path)
        except OSError:
            pass


@contextmanager
def _target_errors(target: str) -> Generator[None]:
    """Of a disk that is full or fails the caller is told where it is that he wants to have the logs: what is
    written until then has a name that nobody knows, and goes again."""
    try:
        yield
    except (DataDirectoryError, OSError) as failure:
        reason = str(failure)
        if isinstance(failure, DataDirectoryError):
            reason = str(failure.fields.get("reason", failure.message))
        raise ExportTargetError(
            "the log directory cannot be written; free space or see to the disk, and export again",
            path=target,
            reason=reason,
        ) from failure


def _without_a_will(config: LogConfig) -> LogConfig:
    """Segments as the topic has them; nothing is dropped or waits for anybody."""
    return dataclasses.replace(
        config,
        remote_storage_enable=False,
        retention_ms=UNLIMITED,
        retention_bytes=UNLIMITED,
        segment_ms=LONG_MAX,
        min_durability=Durability.OS,
    )
