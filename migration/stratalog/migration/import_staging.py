"""Moves partitions of a broker's log directories into a data directory: after a crash they are out or in.

Four steps, for all partitions of an import together:

1. `stage`: in `DATA_DIR/import.UUID-staging`, put the broker's files into a data directory of their own, with
   its checkpoints and its marker of a clean shutdown: `closed`; or `killed`, without the marker, for a
   broker's directory that had none. Finished files are shared with the broker's directory (a second name of
   the same file), all others are copied: a server appends to the last segment and cuts it above the recovery
   point.
2. `open`: load them with a log manager for each of these directories, which recovers logs that the broker did
   not close, and close them. The log learns leader epochs that are missing in its file from the batches,
   because a directory may have been copied file by file. A log that cannot be opened is found here, not by a
   server that does not start.
3. `place`: write their recovery points into the data directory's checkpoint, list all of them in the manifest
   with the epoch of the import, and give each its name in the data directory.
4. The caller creates the topics. Until then no server reads these directories, and `remove_leftovers` of the
   next import removes them.

Before 3, a failure or an interrupt removes the staging directory. A crash in 1 or 2 leaves it: a starting
server reports it, and the next import removes it. A crash in 3 leaves recovery points, which a new log
ignores, entries in the manifest, and directories of some of these.

The **epoch of an import** is the one that the data directory had claimed. The batches carry epochs of the
broker, which do not say who has owned the shard: up to the end of the import they count as batches of this
epoch. The entry keeps it as long as the partition is here. It also tells the next import which directories
without a topic a killed one has left.

Shared files are never written here: a change first makes a copy (`OpenFiles.use`). A broker that starts on
its directory again may truncate them; `shares_files=False` prevents that.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import CorruptRecordError, DataDirectoryError, UnsupportedOperationError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, OffsetCheckpoint
from stratalog.log.config_key import LONG_MAX
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.log.log_config import LogConfig
from stratalog.log.recovery.log_recovery import RecoveryReport
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import LockedDirectory
from stratalog.manager.directories.manifest import PartitionEntry, parse_partition_name, read_manifest
from stratalog.manager.directories.partition_metadata import write_partition_metadata
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.migration.kafka_log_directory import SourcePartition, SourceTopic
from stratalog.record.header import NO_PRODUCER_ID

MAX_IMPORTED_EPOCH = 2**31 - 1 - 1_000_000
"""Epochs that must remain: each start of a server takes a higher one, for the whole store."""
MAX_IMPORTED_PRODUCER_ID = 2**63 - 1 - 2**48
"""Producer ids that must remain: new producers get larger ones than all imported ones."""


class _Staged(NamedTuple):
    """A partition to stage, and the topic that it becomes a part of."""

    source: SourcePartition
    topic_id: UUID


class StagedLog(NamedTuple):
    """A log that was opened, recovered where needed, and closed."""

    log_start_offset: int
    log_end_offset: int
    latest_epoch: int
    """The highest leader epoch of its batches; -1 without one."""
    recovery: RecoveryReport
    """Recovery of the log; kept files have their names in the data directory."""
    holes_before: tuple[int, ...] = ()
    """Base offsets of segments whose previous offset is in no batch."""
    max_producer_id: int = NO_PRODUCER_ID
    """The largest producer id of its batches and of its producers' state; -1 without one."""
    open_transactions: tuple[int, ...] = ()
    """First offsets of open transactions, oldest first. They may be below the log start."""


class ImportStaging:
    """The imported partitions before they get their final places. Belongs to one thread, which has the data
    directory's lock."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        directory: LockedDirectory,
        *,
        shares_files: bool = True,
    ) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._scheduler = scheduler
        self._ids = ids
        self._directory = directory
        self._path = directory.staging_path(ids.uuid())
        self._shares_files = shares_files
        self._homes: dict[str, list[_Staged]] = {}
        self._is_placing = False

    def stage(self, topics: Sequence[SourceTopic]) -> None:
        """Link and copy the files. Every topic has its id. Durable when it returns. Raises OSError."""
        self.remove_unfinished()
        self._filesystem.make_directories(self._path)
        for topic in topics:
            assert topic.topic_id is not None
            for source in topic.partitions:
                home = f"{self._path}/{'closed' if source.was_clean else 'killed'}"
                self._homes.setdefault(home, []).append(_Staged(source, topic.topic_id))
        for home, staged in self._homes.items():
            self._stage_in(home, staged)

    def _stage_in(self, home: str, staged: Sequence[_Staged]) -> None:
        recovery_points: dict[TopicPartition, int] = {}
        start_offsets: dict[TopicPartition, int] = {}
        for source, topic_id in staged:
            target = f"{home}/{source.topic_partition}"
            self._filesystem.make_directories(target)
            for file in source.files:
                self._take(f"{source.path}/{file.name}", f"{target}/{file.name}", share=file.is_settled)
            write_partition_metadata(self._filesystem, target, topic_id)
            recovery_points[source.topic_partition] = source.recovery_point
            if source.log_start_offset:
                start_offsets[source.topic_partition] = source.log_start_offset
        OffsetCheckpoint(self._filesystem, f"{home}/{RECOVERY_POINT_FILE}").write(recovery_points)
        OffsetCheckpoint(self._filesystem, f"{home}/{LOG_START_OFFSET_FILE}").write(start_offsets)
        if staged[0].source.was_clean:
            directory = LockedDirectory(self._filesystem, home, self._ids.uuid(), written_by_broker=True)
            directory.mark_clean_shutdown()
            directory.release()

    def _take(self, source: str, target: str, *, share: bool) -> None:
        if share and self._shares_files:
            try:
                self._filesystem.link(source, target)
            except OSError:
                # Another device, or another user's file. The copy finds any other fault.
                pass
            else:
                return
        self._filesystem.copy_file(source, target)
        file = self._filesystem.open_append(target)
        try:
            file.sync()
        finally:
            file.close()

    def open(
        self, config: LogConfig, on_opened: Callable[[TopicPartition], None] = lambda _: None
    ) -> dict[TopicPartition, StagedLog]:
        """Load all staged logs as a server would, and close them. Raises DataDirectoryError for the
        partition of the broker that cannot be opened, or gone on with, UnsupportedOperationError for one that
        has messages of an older format, OSError.
        """
        described: dict[TopicPartition, StagedLog] = {}
        for home, staged in self._homes.items():
            described |= self._open_in(home, staged, config, on_opened)
        for partition, log in described.items():
            if log.latest_epoch > MAX_IMPORTED_EPOCH:
                raise DataDirectoryError(
                    "the leader epochs of this partition leave no room for those of a server, which go above"
                    " them; let a client copy the topic in Kafka, and import the copy",
                    **partition.error_fields,
                    leader_epoch=log.latest_epoch,
                    max_epoch=MAX_IMPORTED_EPOCH,
                )
            if log.max_producer_id > MAX_IMPORTED_PRODUCER_ID:
                raise DataDirectoryError(
                    "the producer ids of this partition leave no room for those of new producers, which are"
                    " larger; let a client copy the topic in Kafka, and import the copy",
                    **partition.error_fields,
                    producer_id=log.max_producer_id,
                    max_producer_id=MAX_IMPORTED_PRODUCER_ID,
                )
        return described

    def _open_in(
        self,
        home: str,
        staged: Sequence[_Staged],
        config: LogConfig,
        on_opened: Callable[[TopicPartition], None],
    ) -> dict[TopicPartition, StagedLog]:
        manager = LogManager.open(
            self._filesystem,
            self._clock,
            self._scheduler,
            self._ids,
            # Import old producers too: the server expires them by its own setting.
            LogManagerSettings(data_dirs=(home,), producer_id_expiration_ms=LONG_MAX, written_by_broker=True),
        )
        logs: list[tuple[UnifiedLog, StagedLog]] = []
        try:
            for source, topic_id in staged:
                try:
                    log = manager.open_log(source.topic_partition, topic_id, config)
                except (DataDirectoryError, CorruptRecordError) as failure:
                    if isinstance(failure.__cause__, OSError):
                        # The disk failed, not the broker's files.
                        raise failure.__cause__ from None
                    raise _refused(source, failure) from failure
                except UnsupportedOperationError as failure:
                    raise _of_source(source, failure) from failure
                logs.append((log, _described(log)))
                on_opened(source.topic_partition)
        finally:
            manager.close()
        return {log.topic_partition: self._closed(log, described) for log, described in logs}

    def _closed(self, log: UnifiedLog, described: StagedLog) -> StagedLog:
        """The description with what the files have after the close."""
        epochs = LeaderEpochCache.load(self._filesystem, log.local_log.directory)
        path = self._directory.partition_path(log.topic_partition)
        remains = tuple(f"{path}/{posixpath.basename(kept)}" for kept in log.recovery_report.remains)
        return described._replace(
            latest_epoch=-1 if epochs.latest_epoch is None else epochs.latest_epoch,
            recovery=log.recovery_report._replace(remains=remains),
        )

    def remove_leftovers(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the directories of these partitions that a killed import left and that belong to no topic.
        Raises OSError."""
        self._directory.manifest.update(partitions=dict.fromkeys(partitions))
        for partition in partitions:
            self._filesystem.remove_tree(self._directory.partition_path(partition))
        if partitions:
            self._filesystem.sync_directory(self._directory.path)

    def remove_unfinished(self) -> None:
        """Remove the staging directories of killed imports. Raises OSError."""
        for path in self._directory.staged():
            self._filesystem.remove_tree(path)

    def discard(self) -> None:
        """Remove the staging directory as far as possible; the next import removes the rest. Does nothing
        once `place` has begun."""
        if self._is_placing:
            return
        try:
            self._filesystem.remove_tree(self._path)
        except OSError:
            pass

    def place(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Move the staged logs into the data directory, all of them; `epochs`: under which each is imported.
        Durable when it returns. Raises DataDirectoryError if something is left, which stays, OSError.
        """
        homes = {staged.source.topic_partition: home for home in self._homes for staged in self._homes[home]}
        assert epochs.keys() == homes.keys(), "what was staged is what is placed"
        manifest = self._directory.manifest
        # Some may be lost: the marker, if there is one, does not tell of them.
        has_other_logs = bool(
            self._directory.partition_names() or manifest.now.partitions.keys() - epochs.keys()
        )
        self._is_placing = True
        checkpoint, *staged_checkpoints = (
            OffsetCheckpoint(self._filesystem, f"{path}/{RECOVERY_POINT_FILE}")
            for path in (self._directory.path, *self._homes)
        )
        # An older log of the name may have left a recovery point.
        offsets = {key: offset for key, offset in checkpoint.read().items() if key not in epochs}
        entries: dict[TopicPartition, PartitionEntry] = {}
        for home, staged_checkpoint in zip(self._homes, staged_checkpoints, strict=True):
            offsets |= staged_checkpoint.read()
            entries |= {
                partition: entry._replace(import_epoch=epochs[partition])
                for partition, entry in read_manifest(self._filesystem, home).partitions.items()
            }
        assert entries.keys() == epochs.keys(), "the logs that were opened are those that are placed"
        checkpoint.write(offsets)
        # Before the names: by its entry the next import knows a directory as one that it may remove.
        manifest.update(partitions=entries)
        for partition in epochs:
            staged = f"{homes[partition]}/{partition}"
            self._filesystem.rename(staged, self._directory.partition_path(partition))
        self._filesystem.sync_directory(self._directory.path)
        self._require_nothing_left()
        self._filesystem.remove_tree(self._path)
        if not has_other_logs:
            # All logs that are here were closed, by `open`.
            self._directory.mark_clean_shutdown()

    def _require_nothing_left(self) -> None:
        """Check that each staged partition was placed. Raises DataDirectoryError if a staged partition was
        not placed, before its files are removed."""
        left = [
            f"{home}/{name}"
            for home in self._homes
            for name in self._filesystem.list_directory(home)
            if parse_partition_name(name) is not None
        ]
        if left:
            raise DataDirectoryError(
                "a partition that was staged has not got its place, and stays where it is; import again, and"
                " report this",
                path=left[0],
                left_count=len(left),
            )


def _holes_before(log: UnifiedLog) -> tuple[int, ...]:
    """List the base offsets of the segments that follow a hole. Raises DataDirectoryError."""
    found: list[int] = []
    for segment in log.reader.segments()[1:]:
        try:
            header = log.reader.header_at(segment.base_offset - 1)
        except CorruptRecordError:
            # A reader of the batch gets the error.
            continue
        if header is None or header.base_offset >= segment.base_offset:
            found.append(segment.base_offset)
    return tuple(found)


def _described(log: UnifiedLog) -> StagedLog:
    """The open log. Raises DataDirectoryError."""
    producers = log.producers()
    begun = (entry.current_txn_first_offset for entry in producers)
    return StagedLog(
        # Nothing is left below the first segment.
        log_start_offset=log.offsets.local_log_start_offset,
        log_end_offset=log.offsets.log_end_offset,
        latest_epoch=-1,
        recovery=log.recovery_report,
        holes_before=_holes_before(log),
        # A snapshot may know producers whose batches are gone.
        max_producer_id=max([log.recovery_report.max_producer_id, *(one.producer_id for one in producers)]),
        open_transactions=tuple(sorted(offset for offset in begun if offset is not None)),
    )


def _refused(source: SourcePartition, failure: DataDirectoryError | CorruptRecordError) -> DataDirectoryError:
    """The failure, with the path of the broker's directory instead of the staged one."""
    fields = {**failure.fields, "path": source.path}
    return DataDirectoryError(
        f"this partition of the broker cannot be opened: {failure.message}; whatever you change, change it in"
        " a copy of the log directory",
        **fields,
    )


def _of_source(source: SourcePartition, failure: UnsupportedOperationError) -> UnsupportedOperationError:
    """The failure, with the path of the broker's file."""
    name = posixpath.basename(str(failure.fields["path"]))
    return UnsupportedOperationError(failure.message, **{**failure.fields, "path": f"{source.path}/{name}"})
