"""Opens the log of a partition: finds its directory, or gives it one, and loads or creates the log in it.

The manifests say where the partition is. One of the same name with another topic id is an older topic's and
is set aside. Of two directories that list the partition the one with the higher move number has it; at equal
numbers an empty one gives way, and otherwise an operator must choose. Where none lists it, and the partition
is not new, one that was set aside while no topic had its id is taken back.

A listed directory that is gone was lost, and the partition stays offline until it is back, or until an
operator makes an empty directory in its place: then the log begins anew, above the records that were deleted.
A directory that is there and not listed is not used, unless it is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.disk_error import disk_errors
from stratalog.log.log_config import LogConfig
from stratalog.log.log_environment import LogEnvironment
from stratalog.log.recovery.log_loader import LoadSettings, LogLoader
from stratalog.log.recovery.log_recovery import LoadProgress, LogCheckpoints
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.locked_directory import STRAY_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionEntry, PartitionState
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.partitions.partition_metadata import (
    PARTITION_METADATA_FILE,
    format_topic_id,
    read_partition_metadata,
    write_partition_metadata,
)
from stratalog.manager.partitions.put_away import PutAway
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.segment.segment_resources import SegmentResources

logger = logging.getLogger(__name__)


class WantedLog(NamedTuple):
    """A log to open, see `LogManager.open_log`."""

    partition: TopicPartition
    topic_id: UUID
    config: LogConfig
    start_offset: int
    is_first_opening: bool


class LogOpener:
    """Thread-safe; one partition is loaded by one thread at a time."""

    def __init__(
        self,
        environment: LogEnvironment,
        directories: DirectorySet,
        away: PutAway,
        resources: SegmentResources,
        cleaner: CleanerManager,
        settings: LogManagerSettings,
        checkpoint: Callable[[UnifiedLog, int], None],
    ) -> None:
        """`checkpoint`: see UnifiedLog."""
        self._filesystem = directories.filesystem
        self._environment = environment
        self._directories = directories
        self._away = away
        self._resources = resources
        self._cleaner = cleaner
        self._written_by_broker = settings.written_by_broker
        self.producer_id_expiration_ms = settings.producer_id_expiration_ms
        """Of the next log that is loaded."""
        self._checkpoint = checkpoint

    def open(self, wanted: WantedLog, on_progress: Callable[[LoadProgress], None]) -> UnifiedLog:
        """The log, as far as its files say it. Raises DataDirectoryError, CorruptRecordError."""
        found = self._find(wanted)
        if found is not None:
            self._require_present(found, wanted.partition)
            return self._load_in(found, wanted, on_progress, is_new=False)
        with self._directories.guard:
            directory = self._directories.emptiest()
            directory.partitions.add(wanted.partition)
        try:
            return self._load_in(directory, wanted, on_progress, is_new=True)
        except BaseException:
            # Where the manifest does not list it yet the next try may use another directory.
            with self._directories.guard:
                if directory.topic_id(wanted.partition) is None:
                    directory.note_gone(wanted.partition)
            raise

    def _find(self, wanted: WantedLog) -> LogDirectory | None:
        """The directory that has the partition; others that list its name are set aside. Raises
        DataDirectoryError."""
        partition = wanted.partition
        with self._directories.guard:
            self._directories.require_not_offline(partition)
            found = self._directories.holders(partition)
        ours = [directory for directory in found if directory.topic_id(partition) == wanted.topic_id]
        chosen = self._chosen(partition, ours)
        if chosen is not None:
            self._require_not_elsewhere(chosen, partition)
        elif not wanted.is_first_opening:
            self._directories.require_nowhere(partition)
        for directory in found:
            if directory not in ours:
                self._set_aside(directory, wanted, "is not of the topic that has this name now")
            elif (
                directory is not chosen
                and chosen is not None
                and (directory.move_number(partition) == chosen.move_number(partition))
            ):
                self._set_aside(
                    directory, wanted, "has no record, and another log directory has the partition"
                )
        if chosen is None and not wanted.is_first_opening:
            chosen = self._take_back(wanted)
        if chosen is None:
            self._require_not_unlisted(partition)
        return chosen

    def _chosen(self, partition: TopicPartition, ours: Sequence[LogDirectory]) -> LogDirectory | None:
        """The directory that has the newest copy. Raises DataDirectoryError where two may have it."""
        if not ours:
            return None
        number = max(directory.move_number(partition) for directory in ours)
        newest = [directory for directory in ours if directory.move_number(partition) == number]
        if len(newest) > 1:
            newest = [one for one in newest if not self._is_blank(one.partition_path(partition))] or newest[
                :1
            ]
        if len(newest) > 1:
            raise DataDirectoryError(
                "two log directories hold this partition, and their manifests do not say which one is right;"
                " move one of the partition's directories away",
                path=newest[0].partition_path(partition),
                other_path=newest[1].partition_path(partition),
            )
        return newest[0]

    def _require_present(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Raises DataDirectoryError where the partition's directory, which the manifest lists, is gone."""
        path = directory.partition_path(partition)
        if not self._exists(path):
            raise DataDirectoryError(
                "the partition's directory is gone from its log directory, whose manifest lists it; put it"
                " back, or, to go on without the records that are not tiered, make an empty directory at its"
                " path",
                path=path,
            )

    def _require_not_elsewhere(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Raises DataDirectoryError where a newer copy may be in a directory that could not be read."""
        entry = directory.manifest.entry(partition)
        if entry is not None and entry.moving_to:
            raise DataDirectoryError(
                "the partition may have moved to another log directory, which is missing, offline or does not"
                " list it; start the server with that directory, or give it up by `stratalog log-dirs forget"
                " ID`, or, if it is there, write `rebuild` into the manifest beside this copy and restart",
                path=directory.partition_path(partition),
                directory_id=entry.moving_to,
            )

    def _require_not_unlisted(self, partition: TopicPartition) -> None:
        """Raises DataDirectoryError where a log directory has the partition's records, as it seems, and its
        manifest does not list them."""
        for directory in self._directories.online():
            path = directory.partition_path(partition)
            if directory.topic_id(partition) is None and self._exists(path) and not self._is_blank(path):
                raise DataDirectoryError(
                    "a log directory has a directory of the partition's name that its manifest does not list;"
                    " move it away, or, if it is the partition, stop the server and write `rebuild` into the"
                    " manifest",
                    path=path,
                )

    def _exists(self, path: str) -> bool:
        with disk_errors(path):
            return self._filesystem.exists(path)

    def _is_blank(self, path: str) -> bool:
        """There is no directory, or one that has no record and never had one."""
        first_path = segment_path(path, 0, LOG_SUFFIX)
        with disk_errors(path):
            if not self._filesystem.exists(path):
                return True
            names = self._filesystem.list_directory(path)
            paths = [f"{path}/{name}" for name in names if name.endswith(LOG_SUFFIX)]
            return not paths or (paths == [first_path] and not self._filesystem.file_size(first_path))

    def _set_aside(self, directory: LogDirectory, wanted: WantedLog, reason: str) -> None:
        with self._directories.guard:
            stray_path = self._away.put_away(directory, wanted.partition, STRAY_REASON)
        if stray_path is not None:
            logger.warning(
                "the local log of %s %s, and was set aside for you to look at, path=`%s` topic_id=`%s`",
                wanted.partition,
                reason,
                stray_path,
                wanted.topic_id,
            )

    def _take_back(self, wanted: WantedLog) -> LogDirectory | None:
        """Give the partition the directory that was set aside while no topic had its id. Raises
        DataDirectoryError where there are two."""
        found = [
            (directory, name, aside)
            for directory in self._directories.online()
            for name, aside in directory.manifest.now.aside.items()
            if (aside.partition, aside.topic_id) == (wanted.partition, wanted.topic_id)
            and name.endswith(f"-{STRAY_REASON}")
            and self._exists(f"{directory.path}/{name}")
            and not self._is_blank(f"{directory.path}/{name}")
        ]
        if len(found) > 1:
            raise DataDirectoryError(
                "two directories that were set aside hold this partition; move one of them away",
                path=f"{found[0][0].path}/{found[0][1]}",
                other_path=f"{found[1][0].path}/{found[1][1]}",
            )
        for directory, name, aside in found:
            path, former_path = directory.partition_path(wanted.partition), f"{directory.path}/{name}"
            self._require_not_unlisted(wanted.partition)
            entry = PartitionEntry(aside.topic_id, log_start_offset=aside.log_start_offset)
            with disk_errors(former_path):
                if self._filesystem.exists(path):
                    # A creation was cut off there, before it had a record.
                    self._filesystem.remove_tree(path)
                directory.checkpoints.put_recovery_point(wanted.partition, aside.recovery_point)
                with self._directories.guard:
                    # A crash in between leaves a directory without its name, to which a start gives it again.
                    directory.files.rename(former_path, path)
                    directory.manifest.update(partitions={wanted.partition: entry}, aside={name: None})
                    directory.note_opened(wanted.partition)
                    directory.note_let_go(wanted.partition, is_clean=False)
            logger.warning(
                "the local log of %s, which had been set aside while no topic had its id, is taken back,"
                " former_path=`%s` path=`%s`",
                wanted.partition,
                former_path,
                path,
            )
            return directory
        return None

    def _create(self, directory: LogDirectory, wanted: WantedLog) -> None:
        """Give the new partition a directory, and list it. Raises OSError."""
        partition, path = wanted.partition, directory.partition_path(wanted.partition)
        directory.checkpoints.forget(partition)
        self._cleaner.forget(partition)
        self._filesystem.make_directories(path)
        write_partition_metadata(self._filesystem, path, wanted.topic_id)
        # What the manifest lists is there, also after a power loss.
        self._filesystem.sync_directory(directory.path)
        directory.manifest.update(partitions={partition: PartitionEntry(wanted.topic_id)})

    def _prepare(self, directory: LogDirectory, wanted: WantedLog) -> None:
        """Compare the directory with its entry of the manifest, which decides. Raises DataDirectoryError,
        OSError."""
        path = directory.partition_path(wanted.partition)
        try:
            found_id = read_partition_metadata(self._filesystem, path)
        except DataDirectoryError:
            found_id = None
        if found_id is None:
            logger.warning(
                "%s is missing or damaged, and written again, path=`%s`", PARTITION_METADATA_FILE, path
            )
            write_partition_metadata(self._filesystem, path, wanted.topic_id)
        elif found_id != wanted.topic_id:
            raise DataDirectoryError(
                f"the {PARTITION_METADATA_FILE} of a partition names another topic than the manifest of its"
                " log directory; put the right directory there, or, if only that file is wrong, remove it",
                path=f"{path}/{PARTITION_METADATA_FILE}",
                topic_id=format_topic_id(found_id),
                expected_topic_id=format_topic_id(wanted.topic_id),
            )
        directory.manifest.change(wanted.partition, state=PartitionState.LIVE)

    def _load_in(
        self,
        directory: LogDirectory,
        wanted: WantedLog,
        on_progress: Callable[[LoadProgress], None],
        *,
        is_new: bool,
    ) -> UnifiedLog:
        partition = wanted.partition
        path = directory.partition_path(partition)
        checkpoints = directory.checkpoints
        with disk_errors(path):
            if is_new:
                self._away.set_unlisted_aside(directory, partition, wanted.topic_id)
            is_empty = is_new and not self._filesystem.exists(path)
            if is_new:
                self._create(directory, wanted)
            else:
                self._prepare(directory, wanted)
            log_start_offset = checkpoints.log_start_offset(partition)
            loader = LogLoader(
                self._resources,
                path,
                wanted.config,
                LogCheckpoints(
                    recovery_point=checkpoints.recovery_point(partition),
                    log_start_offset=log_start_offset,
                    cleaned_offset=self._cleaner.cleaned_offset(partition, directory.path),
                    was_clean=directory.is_clean(partition),
                ),
                LoadSettings(self.producer_id_expiration_ms, self._written_by_broker),
                now_ms=self._environment.clock.now_ms(),
                on_progress=on_progress,
            )
            loaded = loader.load(is_new=is_empty, first_offset=max(wanted.start_offset, log_start_offset))
            end_offset = loaded.local_log.segments.end_offset
            self._settle(directory, partition, end_offset)
        log = UnifiedLog(
            self._environment,
            loaded,
            self._checkpoint,
            partition,
            wanted.topic_id,
            directory.health,
        )
        if end_offset < log.offsets.log_start_offset:
            # Records were deleted up to an offset that the log, which had not been flushed, has lost. Offsets
            # below it are spent all the same.
            log.truncation.truncate_fully_and_start_at(log.offsets.log_start_offset)
            log.recovery_report = log.recovery_report._replace(lost_end_offset=end_offset)
        return log

    def _settle(self, directory: LogDirectory, partition: TopicPartition, end_offset: int) -> None:
        """The loaded log ends there, perhaps below what the checkpoints say. Raises OSError."""
        checkpoints = directory.checkpoints
        checkpoints.lower_recovery_point(partition, end_offset)
        if self._cleaner.cleaned_offset(partition, directory.path) > end_offset:
            # The cleaner's checkpoint is dropped; without it only this one explains holes of a clean.
            checkpoints.put_recovery_point(partition, end_offset)
        self._cleaner.opened(partition, directory.path, end_offset)
