"""Finds the directory of a partition, or gives it one, and loads or creates the log in it.

A directory that has the partition's name may be that of an older topic, or what a creation left that a crash
cut off. The topic's id in `partition.metadata` tells: what is not the topic's is set aside, and what holds
nothing gives way to what holds something. Of two that hold something one may have taken the other's place,
see `cut_off_moves`; else they are for a human. Where there is none, and
the partition is not new, one that was set aside while no topic had its id is taken back; and none is made
where checkpoints know of records that have gone with it, see `lost_partitions`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import DataDirectoryError
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.disk_error import disk_errors
from stratalog.log.log_config import LogConfig
from stratalog.log.recovery.log_loader import LogLoader
from stratalog.log.recovery.log_recovery import LoadProgress
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.data_directory import STRAY_REASON
from stratalog.manager.directories.log_directories import LogDirectories
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.moves.cut_off_moves import keep_newest
from stratalog.manager.partitions.lost_partitions import forget_elsewhere, require_not_lost
from stratalog.manager.partitions.partition_metadata import (
    is_of_topic,
    read_partition_metadata,
    write_partition_metadata,
)
from stratalog.manager.partitions.stray_offsets import (
    note_stray_offsets,
    remove_stray_offsets,
    restore_stray_offsets,
)
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


class _Found(NamedTuple):
    """A directory that has the partition's name."""

    directory: LogDirectory
    topic_id: UUID | None
    is_of_topic: bool


class LogLoading:
    """Thread-safe; one partition is loaded by one thread at a time."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        random_source: random.Random,
        directories: LogDirectories,
        resources: SegmentResources,
        cleaner: CleanerManager,
        settings: LogManagerSettings,
        checkpoint: Callable[[UnifiedLog, int], None],
    ) -> None:
        """`checkpoint`: see UnifiedLog."""
        self._filesystem = directories.filesystem
        self._clock = clock
        self._scheduler = scheduler
        self._ids = ids
        self._random = random_source
        self._directories = directories
        self._resources = resources
        self._cleaner = cleaner
        self._written_by_broker = settings.written_by_broker
        self.producer_id_expiration_ms = settings.producer_id_expiration_ms
        """Of the next log that is loaded."""
        self._checkpoint = checkpoint

    def load(self, wanted: WantedLog, on_progress: Callable[[LoadProgress], None]) -> UnifiedLog:
        """The log, as far as its files say it. Raises DataDirectoryError, CorruptRecordError."""
        found = self._find(wanted)
        if found is not None:
            return self._load_in(found.directory, wanted, on_progress, found)
        with self._directories.guard:
            directory = self._directories.emptiest()
            directory.partitions.add(wanted.partition)
        try:
            return self._load_in(directory, wanted, on_progress, None)
        except BaseException:
            # Nothing was promised of it: the next try may use another directory.
            with self._directories.guard:
                directory.note_gone(wanted.partition)
            raise

    def _find(self, wanted: WantedLog) -> _Found | None:
        """The directory that is the partition's; others of its name are set aside. Raises
        DataDirectoryError."""
        partition = wanted.partition
        found = self._look_everywhere(wanted)
        ours = [one for one in found if one.is_of_topic]
        if len(ours) > 1:
            paths = [one.directory.partition_path(partition) for one in ours]
            holding = [one for one, path in zip(ours, paths, strict=True) if not self._is_blank(path)]
            if len(holding) > 1:
                raise DataDirectoryError(
                    "two log directories hold this partition, and nobody knows which one is right; move one"
                    " of them away",
                    path=holding[0].directory.partition_path(partition),
                    other_path=holding[1].directory.partition_path(partition),
                )
            ours = holding or ours
        chosen = ours[0] if ours else None
        if chosen is None and not wanted.is_first_opening:
            self._directories.require_nowhere(partition)
        for other in found:
            if other is not chosen:
                self._set_aside(other, wanted)
        if chosen is None and not wanted.is_first_opening:
            chosen = self._take_back(wanted)
            if chosen is None:
                require_not_lost(self._directories, partition, wanted.start_offset)
        return chosen

    def _take_back(self, wanted: WantedLog) -> _Found | None:
        """The partition as it was set aside while no topic had its id. Raises DataDirectoryError where there
        are two of it, and nobody knows which one is right."""
        found: list[tuple[LogDirectory, str]] = []
        for directory in self._directories.online():
            with disk_errors(directory.path):
                strays = directory.files.set_aside_of(wanted.partition, STRAY_REASON)
                found += [(directory, path) for path in strays if self._is_stray_of(path, wanted.topic_id)]
        if len(found) > 1:
            raise DataDirectoryError(
                "two directories that were set aside hold this partition, and nobody knows which one is"
                " right; move one of them away",
                path=found[0][1],
                other_path=found[1][1],
            )
        for directory, path in found:
            with disk_errors(path):
                restore_stray_offsets(self._filesystem, directory, wanted.partition, path)
                with self._directories.guard:
                    directory.files.take_back(path, wanted.partition)
                    directory.note_let_go(wanted.partition, is_clean=False)
                    directory.partitions.add(wanted.partition)
            remove_stray_offsets(self._filesystem, directory.partition_path(wanted.partition))
            logger.warning(
                "the local log of %s, which had been set aside while no topic had its id, is taken back,"
                " former_path=`%s` path=`%s`",
                wanted.partition,
                path,
                directory.partition_path(wanted.partition),
            )
            return _Found(directory, wanted.topic_id, is_of_topic=True)
        return None

    def _is_stray_of(self, path: str, topic_id: UUID) -> bool:
        """It says that it is the topic's, and has something."""
        try:
            is_of_topic = read_partition_metadata(self._filesystem, path) == topic_id
        except DataDirectoryError:
            # For whoever looks at what was set aside.
            return False
        return is_of_topic and not self._is_blank(path)

    def _look_everywhere(self, wanted: WantedLog) -> list[_Found]:
        """What the directories that work have of the partition. One that fails meanwhile matters only where
        it holds the partition. Raises DataDirectoryError."""
        partition = wanted.partition
        holders = self._holders(partition)
        if len(holders) > 1:
            self._keep_newest(partition, holders)
            holders = self._holders(partition)
        found: list[_Found] = []
        for directory in holders:
            try:
                found.append(self._look_at(directory, wanted))
            except DataDirectoryError:
                if directory.is_online:
                    raise
        with self._directories.guard:
            self._directories.require_not_offline(partition)
        return found

    def _holders(self, partition: TopicPartition) -> list[LogDirectory]:
        """Directories that work and have the partition's name. Raises DataDirectoryError."""
        holders: list[LogDirectory] = []
        for directory in self._directories.online():
            try:
                if self._exists(directory, partition):
                    holders.append(directory)
            except DataDirectoryError:
                if directory.is_online:
                    raise
        return holders

    def _keep_newest(self, partition: TopicPartition, holders: list[LogDirectory]) -> None:
        """Of a partition that has moved: what the start could not put away is tried again, and what cannot be
        put away now either is told. Raises DataDirectoryError."""
        try:
            with self._directories.guard, disk_errors(holders[0].partition_path(partition)):
                keep_newest(self._filesystem, self._ids, partition, holders)
        except DataDirectoryError:
            # One that has failed meanwhile matters only where it holds the partition.
            if all(directory.is_online for directory in holders):
                raise

    def _exists(self, directory: LogDirectory, partition: TopicPartition) -> bool:
        path = directory.partition_path(partition)
        with disk_errors(path):
            return self._filesystem.exists(path)

    def _look_at(self, directory: LogDirectory, wanted: WantedLog) -> _Found:
        path = directory.partition_path(wanted.partition)
        with disk_errors(path):
            topic_id = read_partition_metadata(self._filesystem, path)
            is_ours = is_of_topic(self._filesystem, path, topic_id, wanted.topic_id)
            return _Found(directory, topic_id, is_ours)

    def _is_blank(self, path: str) -> bool:
        """There is no record in the directory, and never was."""
        first_path = segment_path(path, 0, LOG_SUFFIX)
        with disk_errors(path):
            names = self._filesystem.list_directory(path)
            paths = [f"{path}/{name}" for name in names if name.endswith(LOG_SUFFIX)]
            return not paths or (paths == [first_path] and not self._filesystem.file_size(first_path))

    def _set_aside(self, other: _Found, wanted: WantedLog) -> None:
        directory = other.directory
        path = directory.partition_path(wanted.partition)
        with disk_errors(path):
            note_stray_offsets(self._filesystem, directory, wanted.partition)
            with self._directories.guard:
                stray_path = directory.files.move_aside(wanted.partition, self._ids.uuid(), STRAY_REASON)
                directory.note_gone(wanted.partition)
            directory.checkpoints.forget(wanted.partition)
        logger.warning(
            "the local log of %s %s, and was set aside for you to look at, path=`%s` topic_id=`%s`",
            wanted.partition,
            "has no record, and another log directory has the partition"
            if other.is_of_topic
            else "is not that of the topic which has this name now",
            stray_path,
            wanted.topic_id,
        )

    def _prepare(self, directory: LogDirectory, wanted: WantedLog, found: _Found | None) -> None:
        """Let the partition have a directory that says whose it is, if it is new with nothing besides. Raises
        OSError."""
        path = directory.partition_path(wanted.partition)
        if found is None:
            directory.checkpoints.forget(wanted.partition)
            self._cleaner.forget(wanted.partition)
            self._filesystem.make_directories(path)
        if found is None or found.topic_id is None:
            write_partition_metadata(self._filesystem, path, wanted.topic_id)

    def _load_in(
        self,
        directory: LogDirectory,
        wanted: WantedLog,
        on_progress: Callable[[LoadProgress], None],
        found: _Found | None,
    ) -> UnifiedLog:
        partition = wanted.partition
        path = directory.partition_path(partition)
        checkpoints = directory.checkpoints
        with disk_errors(path):
            self._prepare(directory, wanted, found)
            loader = LogLoader(
                self._resources,
                path,
                wanted.config,
                now_ms=self._clock.now_ms(),
                recovery_point=checkpoints.recovery_point(partition),
                cleaned_offset=self._cleaner.cleaned_offset(partition, directory.path),
                producer_id_expiration_ms=self.producer_id_expiration_ms,
                written_by_broker=self._written_by_broker,
                on_progress=on_progress,
            )
            log_start_offset = checkpoints.log_start_offset(partition)
            loaded = loader.load(
                is_new=found is None,
                was_clean=directory.is_clean(partition),
                first_offset=max(wanted.start_offset, log_start_offset),
                log_start_offset=log_start_offset,
            )
            end_offset = loaded.local_log.segments.end_offset
            self._settle(directory, partition, end_offset)
        forget_elsewhere(self._directories, partition, directory)
        log = UnifiedLog(
            self._clock,
            self._scheduler,
            self._random,
            loaded,
            self._checkpoint,
            partition,
            wanted.topic_id,
            wanted.config,
            directory.health,
        )
        if end_offset < log.log_start_offset:
            # Records were deleted up to an offset that the log, which had not been flushed, has lost. Offsets
            # below it are spent all the same.
            log.truncate_fully_and_start_at(log.log_start_offset)
            log.recovery_report = log.recovery_report._replace(lost_end_offset=end_offset)
        return log

    def _settle(self, directory: LogDirectory, partition: TopicPartition, end_offset: int) -> None:
        """The log that was found ends there: the files that the checkpoints spoke of may be gone. Raises
        OSError."""
        checkpoints = directory.checkpoints
        checkpoints.lower_recovery_point(partition, end_offset)
        if self._cleaner.cleaned_offset(partition, directory.path) > end_offset:
            # It is dropped, and must not leave holes behind that nothing else knows of.
            checkpoints.put(partition, end_offset, checkpoints.log_start_offset(partition))
        self._cleaner.opened(partition, directory.path, end_offset)
