"""Opens the log of a partition: finds its directory, or gives it one, and loads or creates the log in it.

The manifests say where the partition is. A directory of the same name with another topic id belongs to an
older topic and is set aside. If two directories list the partition, the one with the higher move number has
it; at equal numbers an empty one gives way, and otherwise an operator must choose. If none lists it, and the
partition is not new, a directory that was set aside while no topic had its id is taken back.

If a listed directory is gone, the partition is lost and stays offline until the directory is back, or until
an operator makes an empty one in its place: then the log begins anew, above the records that were deleted. A
directory that is not listed is not used, unless it is empty.

Partitions that are created together cost one write of each manifest: their directories are made durable, then
the manifest lists all of them. A crash leaves each of them listed and empty, or not listed; those of one log
directory are listed together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
from stratalog.manager.directories.partition_metadata import (
    PARTITION_METADATA_FILE,
    format_topic_id,
    read_partition_metadata,
    write_partition_metadata,
)
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.partitions.put_away import PutAway
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.segment.segment_resources import SegmentResources

logger = logging.getLogger(__name__)


class SoughtPartition(NamedTuple):
    """A partition that gets a directory if it has none."""

    partition: TopicPartition
    topic_id: UUID
    is_first_opening: bool = False
    """The partition never had a log."""


class RecoveryProgress:
    """The segments that each opening thread still has to walk. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._remaining: dict[str, int] = {}

    @property
    def remaining_segment_counts(self) -> dict[str, int]:
        """By name of the thread, segments of the log that it is loading; 0 for an idle thread."""
        with self._guard:
            return dict(self._remaining)

    def reporting_to(self, also: Callable[[LoadProgress], None] | None) -> Callable[[LoadProgress], None]:
        """A function for the loader of a log, which notes the progress and passes it to `also`."""

        def report(progress: LoadProgress) -> None:
            self._note(progress.remaining_segment_count)
            if also is not None:
                also(progress)

        return report

    def finished(self) -> None:
        """This thread has loaded its log, or failed to."""
        if self._remaining:
            self._note(0)

    def _note(self, count: int) -> None:
        with self._guard:
            self._remaining[threading.current_thread().name] = count


class LogOpener:
    """Creates and opens the logs of partitions. Thread-safe; one partition is loaded by one thread at a
    time."""

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
        """The expiration for logs that are loaded from now on."""
        self._checkpoint = checkpoint
        self.progress = RecoveryProgress()
        # Partitions whose directories were made by this process and not loaded yet. Guarded by the guard of
        # the directories.
        self._new: set[TopicPartition] = set()

    def create(self, sought: Sequence[SoughtPartition]) -> None:
        """Give a directory to each partition that has none. Raises DataDirectoryError: what no manifest lists
        then can be created again."""
        self._place([one for one in sought if self._find(one) is None])

    def open(
        self,
        sought: SoughtPartition,
        config: LogConfig,
        start_offset: int,
        also_report_to: Callable[[LoadProgress], None] | None = None,
    ) -> UnifiedLog:
        """The log, as far as its files say it. Raises DataDirectoryError, CorruptRecordError."""
        partition = sought.partition
        directory = self._find(sought)
        if directory is None:
            directory = self._place([sought])[partition]
        with self._directories.guard:
            is_new = partition in self._new
            self._new.discard(partition)

        def load() -> UnifiedLog:
            with disk_errors(directory.partition_path(partition)):
                if not is_new:
                    self._require_present(directory, partition)
                    self._prepare(directory, sought)
                report = self.progress.reporting_to(also_report_to)
                return self._load(directory, sought, config, start_offset, report, is_new=is_new)

        if not sought.is_first_opening:
            # A recovery takes as long as it takes.
            return load()
        # Other topics wait for this one. A log that is given up and loaded later is nowhere in use.
        return self._directories.disk_calls.run(directory.path, load)

    def _find(self, wanted: SoughtPartition) -> LogDirectory | None:
        """The directory that has the partition, or None. Sets aside others that list its name. Raises
        DataDirectoryError."""
        partition = wanted.partition
        with self._directories.guard:
            self._directories.require_not_offline(partition)
            found = self._directories.holders(partition)
        if wanted.is_first_opening:
            self._directories.require_answers(partition)
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
            self._require_not_unlisted(partition, may_skip=wanted.is_first_opening)
        return chosen

    def _chosen(self, partition: TopicPartition, ours: Sequence[LogDirectory]) -> LogDirectory | None:
        """The directory that has the newest copy. Raises DataDirectoryError if two may have it."""
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
        """Raise DataDirectoryError if the partition's directory, which the manifest lists, is gone."""
        path = directory.partition_path(partition)
        if not self._exists(path):
            raise DataDirectoryError(
                "the partition's directory is gone from its log directory, whose manifest lists it; put it"
                " back, or, to go on without the records that are not tiered, make an empty directory at its"
                " path",
                path=path,
            )

    def _require_not_elsewhere(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Raise DataDirectoryError if a newer copy may be in a directory that could not be read."""
        entry = directory.manifest.entry(partition)
        if entry is not None and entry.moving_to:
            raise DataDirectoryError(
                "the partition may have moved to another log directory, which is missing, offline or does not"
                " list it; start the server with that directory, or give it up by `stratalog log-dirs forget"
                " ID`, or, if it is there, stop the server, write `rebuild` into the manifest beside this"
                " copy, and start the server",
                path=directory.partition_path(partition),
                directory_id=entry.moving_to,
            )

    def _require_not_unlisted(self, partition: TopicPartition, *, may_skip: bool = False) -> None:
        """Raise DataDirectoryError if a log directory has records of the partition that its manifest does not
        list. One that does not answer is left out if it `may_skip` it: the partition is new, so nothing there
        is of it, and the next start that can read the directory sets it aside."""
        for directory in self._directories.online():
            path = directory.partition_path(partition)
            if directory.topic_id(partition) is not None:
                continue
            try:
                is_there = self._directories.disk_calls.run(directory.path, partial(self._has_records, path))
            except DataDirectoryError:
                if not may_skip or not self._directories.disk_calls.is_silent(directory.path):
                    raise
                logger.warning(
                    "%s is created without a look at its name in a log directory that does not answer,"
                    " path=`%s`",
                    partition,
                    directory.path,
                )
                continue
            if is_there:
                raise DataDirectoryError(
                    "a log directory has a directory of the partition's name that its manifest does not list;"
                    " move it away, or, if it is the partition, stop the server, write `rebuild` into the"
                    " manifest beside it, and start the server",
                    path=path,
                )

    def _has_records(self, path: str) -> bool:
        return self._exists(path) and not self._is_blank(path)

    def _exists(self, path: str) -> bool:
        with disk_errors(path):
            return self._filesystem.exists(path)

    def _is_blank(self, path: str) -> bool:
        """Whether there is no directory, or one that has no record and never had one."""
        first_path = segment_path(path, 0, LOG_SUFFIX)
        with disk_errors(path):
            if not self._filesystem.exists(path):
                return True
            names = self._filesystem.list_directory(path)
            paths = [f"{path}/{name}" for name in names if name.endswith(LOG_SUFFIX)]
            return not paths or (paths == [first_path] and not self._filesystem.file_size(first_path))

    def _set_aside(self, directory: LogDirectory, wanted: SoughtPartition, reason: str) -> None:
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

    def _take_back(self, wanted: SoughtPartition) -> LogDirectory | None:
        """Give the partition the directory that was set aside while no topic had its id; None if there is
        none. Raises DataDirectoryError if there are two."""
        found = [
            (directory, name, aside)
            for directory in self._directories.online()
            for name, aside in directory.manifest.now.aside.items()
            if (aside.partition, aside.topic_id) == (wanted.partition, wanted.topic_id)
            and name.endswith(f"-{STRAY_REASON}")
            and self._directories.disk_calls.run(
                directory.path, partial(self._has_records, f"{directory.path}/{name}")
            )
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
            entry = PartitionEntry(
                aside.topic_id, log_start_offset=aside.log_start_offset, import_epoch=aside.import_epoch
            )
            with disk_errors(former_path):
                if self._filesystem.exists(path):
                    # A creation was cut off there, before it had a record.
                    self._filesystem.remove_tree(path)
                directory.checkpoints.put_recovery_point(wanted.partition, aside.recovery_point)
                with self._directories.guard:
                    # After a crash in between, a start sets the directory aside again.
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

    def _place(self, sought: Sequence[SoughtPartition]) -> dict[TopicPartition, LogDirectory]:
        """Create the directories of partitions that have none, and list them. Raises DataDirectoryError."""
        placed: dict[LogDirectory, list[SoughtPartition]] = {}
        try:
            for one in sought:
                with self._directories.guard:
                    directory = self._directories.emptiest()
                    directory.partitions.add(one.partition)
                placed.setdefault(directory, []).append(one)
            for directory, group in placed.items():
                made = set[TopicPartition]()
                self._directories.disk_calls.run(
                    directory.path,
                    partial(self._create_in, directory, group, made),
                    made.__len__,
                )
                with self._directories.guard:
                    self._new = (self._new - {one.partition for one in group}) | made
        except BaseException:
            # The next try may use another directory if no manifest lists the partition.
            with self._directories.guard:
                for directory, group in placed.items():
                    for one in group:
                        if directory.topic_id(one.partition) is None:
                            directory.note_gone(one.partition)
            raise
        return {one.partition: directory for directory, group in placed.items() for one in group}

    def _create_in(
        self, directory: LogDirectory, group: Sequence[SoughtPartition], made: set[TopicPartition]
    ) -> None:
        """Create the partitions of a group in one directory; adds those whose directories it makes to `made`.
        Raises DataDirectoryError. If it is given up and happens later, the manifest lists partitions of a
        topic that is not there, as after a crash."""
        try:
            for one in group:
                entry = directory.entry(one.partition)
                if entry is not None and entry.topic_id != one.topic_id:
                    # What is withdrawn is no partition, and may wait for its turn.
                    self._away.discard_copy(directory, one.partition, entry.topic_id)
                if not self._exists(directory.partition_path(one.partition)):
                    made.add(one.partition)
                self._make_directory(directory, one)
            # What the manifest lists is there, also after a power loss.
            with disk_errors(directory.path):
                self._filesystem.sync_directory(directory.path)
        except DataDirectoryError:
            # No manifest can list them yet. What cannot be removed is empty, and used by a later creation.
            for partition in made:
                with suppress(OSError):
                    self._filesystem.remove_tree(directory.partition_path(partition))
            raise
        with disk_errors(directory.path):
            directory.manifest.update(
                partitions={partition: PartitionEntry(topic_id) for partition, topic_id, _ in group}
            )

    def _make_directory(self, directory: LogDirectory, sought: SoughtPartition) -> None:
        """Make the directory of a partition. Raises DataDirectoryError."""
        partition, topic_id, _ = sought
        path = directory.partition_path(partition)
        with disk_errors(path):
            directory.checkpoints.forget(partition)
            self._cleaner.forget(partition)
            self._filesystem.make_directories(path)
            write_partition_metadata(self._filesystem, path, topic_id)

    def _prepare(self, directory: LogDirectory, wanted: SoughtPartition) -> None:
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

    def _load(
        self,
        directory: LogDirectory,
        sought: SoughtPartition,
        config: LogConfig,
        start_offset: int,
        on_progress: Callable[[LoadProgress], None],
        *,
        is_new: bool,
    ) -> UnifiedLog:
        """Load the log of a partition. Raises DataDirectoryError, CorruptRecordError, OSError."""
        partition = sought.partition
        checkpoints = directory.checkpoints
        log_start_offset = checkpoints.log_start_offset(partition)
        loader = LogLoader(
            self._resources,
            directory.partition_path(partition),
            config,
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
        loaded = loader.load(is_new=is_new, first_offset=max(start_offset, log_start_offset))
        end_offset = loaded.local_log.segments.end_offset
        self._settle(directory, partition, end_offset)
        log = UnifiedLog(
            environment=self._environment,
            loaded=loaded,
            checkpoint=self._checkpoint,
            topic_partition=partition,
            topic_id=sought.topic_id,
            health=directory.health,
        )
        if end_offset < log.offsets.log_start_offset:
            # Records were deleted up to an offset that the log, which had not been flushed, has lost. Offsets
            # below it are spent all the same.
            log.truncation.truncate_fully_and_start_at(log.offsets.log_start_offset)
            log.recovery_report = log.recovery_report._replace(lost_end_offset=end_offset)
        return log

    def _settle(self, directory: LogDirectory, partition: TopicPartition, end_offset: int) -> None:
        """Lower checkpoints that are above the end of the loaded log. Raises OSError."""
        checkpoints = directory.checkpoints
        checkpoints.lower_recovery_point(partition, end_offset)
        if self._cleaner.cleaned_offset(partition, directory.path) > end_offset:
            # The cleaner's checkpoint is dropped; then only this one explains the holes of a clean.
            checkpoints.put_recovery_point(partition, end_offset)
        self._cleaner.opened(partition, directory.path, end_offset)
