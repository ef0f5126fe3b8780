"""All logs of a process: the open ones, their directories, and how they are created, opened and deleted.

`open_log` creates or loads a log. Each directory has checkpoint files with the recovery points and starts of
its logs. `tasks` writes them; a caller runs it from time to time, which bounds the work of a recovery. A log
that must not go on before a checkpoint is right writes it at once. Threads of the caller may load many logs
at the same time.

When a disk fails, its directory goes offline, and its logs refuse every call. The others go on.

`log_loader` describes what a crash leaves of a log. A clean stop writes a marker into each directory, as the
last step. The marker is there only if each log of the directory was closed and needs no recovery. Directories
are closed side by side.

Threads: any. One thread at a time opens, deletes or sets aside a partition; the caller sees to that. Lock
order: a log's locks before those of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls, WorkSteps
from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator, seeded_random
from stratalog.base.scheduler import Scheduler
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.log.disk_error import disk_errors
from stratalog.log.log_config import LogConfig
from stratalog.log.log_environment import LogEnvironment
from stratalog.log.producers.producer_room import ProducerRoom
from stratalog.log.recovery.log_recovery import LoadProgress
from stratalog.log.retention.late_removal import LateRemovals
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.found_partitions import FoundPartitions
from stratalog.manager.directories.locked_directory import DELETE_REASON
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.idle_producers import IdleProducers
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.log_opener import LogOpener, SoughtPartition
from stratalog.manager.log_tasks import LogTasks
from stratalog.manager.moves.log_move import LogMove
from stratalog.manager.moves.move_registry import MoveRegistry
from stratalog.manager.partitions.put_away import PutAway, PutAwayOutcome
from stratalog.manager.partitions.stray_partitions import ClaimOf, StrayPartitions
from stratalog.segment.segment_resources import SegmentResources

R = TypeVar("R")

DELETED_TOGETHER = 256
"""Partitions whose deletion is one write of a manifest. Other changes of partitions wait for one such group.
"""

_SILENT_AT_CLOSE = (
    "its disk did not answer while its logs were closed, so it has no marker of a clean shutdown, and the"
    " next start recovers them"
)


class Threads(Protocol):
    """Threads of the caller, as an executor of Python's library offers them. Thread-safe."""

    def map(self, work: Callable[[UnifiedLog], R], /, *logs: Iterable[UnifiedLog]) -> Iterator[R]:
        """The results of all calls, in order."""
        ...


class LogManager:
    """The logs of one process. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        directories: DirectorySet,
        settings: LogManagerSettings,
    ) -> None:
        """Use `open`."""
        self.filesystem = directories.filesystem
        """It notices when a disk fails, and refuses operations in a directory that is offline."""
        self.directories = directories
        """The log directories: their states, cordons, store, and those that are missing."""
        self._settings = settings
        self.found = FoundPartitions(directories)
        """The partitions that have a directory, opened or not."""
        self._resources = SegmentResources.over(
            directories.filesystem,
            max_open_files=settings.max_open_files,
            index_cache_bytes=settings.index_cache_bytes,
            tail_bytes=settings.tail_bytes,
        )
        self._guard = directories.guard
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._loading: set[TopicPartition] = set()
        self._left: dict[TopicPartition, UnifiedLog | None] = {}
        """Openings that were given up and have not ended, each with its log if that was open by then."""
        self.file_delete_delay_ms = settings.file_delete_delay_ms
        """Delay before the directory of a deleted or moved partition is removed. May be set at any time, for
        later deletions."""
        self.removals = LateRemovals(scheduler)
        """The files of deleted segments and partitions that wait to be removed."""
        delay_ms, forget = lambda: self.file_delete_delay_ms, self._resources.files.forget_below
        self._away = PutAway(self.removals, ids, directories, delay_ms, forget)
        self._is_closed = False
        self.cleaner = CleanerManager(directories.filesystem, clock, seeded_random(ids), self.logs)
        """Cleans compacted logs. A change of a log that must not meet a clean pauses it."""
        self.producer_room = ProducerRoom(clock, settings.max_log_producer_count, settings.max_producer_count)
        """The producers that all logs remember."""
        self._idle_producers = IdleProducers(scheduler, self.producer_room, self.logs)
        self._opener = LogOpener(
            environment=LogEnvironment(clock, self.removals, seeded_random(ids), self.producer_room),
            directories=directories,
            away=self._away,
            resources=self._resources,
            cleaner=self.cleaner,
            settings=settings,
            checkpoint=self._checkpoint_of,
        )
        self._let_cleaner_into(directories)
        self._away.remove_leftovers()
        self.moves = MoveRegistry(clock, directories, self.cleaner, self._away, self._is_open)
        """Moves of logs between directories, in progress or cut off."""
        self.tasks = LogTasks(directories, self.cleaner, self.logs, self._is_open, self.moves.is_moving)
        """Periodic work, which the caller runs."""
        check_ms = settings.producer_id_expiration_check_interval_ms
        self._expiry = scheduler.every(
            "expire producers", self.tasks.remove_expired_producers, check_ms, delay_ms=check_ms
        )

    def leave_free(self, min_free_bytes: int) -> None:
        """Reserve no space from now on that would leave less free in a log directory."""
        self._resources.preallocation.min_free_bytes = min_free_bytes

    @property
    def tail_bytes(self) -> int:
        """The memory of the newest batches of all logs."""
        return self._resources.tails.held_bytes

    def _let_cleaner_into(self, directories: DirectorySet) -> None:
        directories.tell_failures_to(self.cleaner.directory_failed)
        for directory in directories.online():
            try:
                self.cleaner.add_directory(directory.path, directory.manifest)
            except OSError as failure:
                # Without its checkpoint the cleaner cannot work there.
                directory.health.fail(str(failure))

    @staticmethod
    def open(
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        ids: IdGenerator,
        settings: LogManagerSettings,
        on_all_failed: Callable[[], None] = lambda: None,
        disk_calls: DiskCalls = DIRECT_DISK_CALLS,
    ) -> LogManager:
        """Lock the directories and read their manifests and checkpoints. `on_all_failed` is called, once and
        under any lock, when the last directory has gone offline. `disk_calls`: see `DirectorySet.open`.

        Raises DataDirectoryInUseError, DataDirectoryError.
        """
        directories = DirectorySet.open(
            filesystem,
            ids,
            settings.data_dirs,
            settings.cordoned_dirs,
            on_all_failed,
            written_by_broker=settings.written_by_broker,
            disk_calls=disk_calls,
        )
        try:
            return LogManager(clock, scheduler, ids, directories, settings)
        except BaseException:
            directories.release()
            raise

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """Paths of the log directories, in the order of the settings."""
        return self._settings.data_dirs

    @property
    def was_clean(self) -> bool:
        """The former process closed all logs, so none has to be recovered."""
        return all(directory.was_clean for directory in self.directories)

    def path_of(self, partition: TopicPartition) -> str:
        """The partition's directory, or the one that it would have."""
        holder = self.directories.holder(partition)
        return f"{self.data_dirs[0]}/{partition}" if holder is None else holder.partition_path(partition)

    def directory_of(self, partition: TopicPartition) -> str | None:
        """The log directory that the partition is in; None if it has none yet. Open logs of different
        directories in parallel."""
        holder = self.directories.holder(partition)
        return None if holder is None else holder.path

    @property
    def remaining_segment_counts(self) -> dict[str, int]:
        """By name of an opening thread, the segments of its log that it has not walked yet."""
        return self._opener.progress.remaining_segment_counts

    def end_start(self, claim_of: ClaimOf) -> None:
        """Settle the strays: all logs that topics want were opened. See `StrayPartitions`."""
        with self._guard:
            StrayPartitions(self.directories, self._away, claim_of, self.moves.is_wanted).settle()
            for directory in self.directories:
                directory.note_start_over()
        self.tasks.keep_spare_space()
        self.directories.end_start()

    def create_logs(self, sought: Sequence[SoughtPartition]) -> None:
        """Give a directory to each of these partitions that has none, so that `open_log` finds it.

        Each manifest is written once, which makes this quicker than `open_log` alone for many partitions. A
        crash leaves each of them there, empty, or not there. Raises DataDirectoryError; some of them may be
        there then.
        """
        partitions = {one.partition for one in sought}
        with self._guard:
            assert not self._is_closed
            for partition in partitions:
                self._require_not_left(partition)
            assert not partitions & (self._logs.keys() | self._loading), "one of them is open"
            self._loading |= partitions
        try:
            self._opener.create(sought)
        finally:
            with self._guard:
                self._loading -= partitions

    def open_log(
        self,
        partition: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
        *,
        start_offset: int = 0,
        is_first_opening: bool = False,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> UnifiedLog:
        """The partition's log, loaded and recovered, or created, empty, at `start_offset`.

        A directory that belongs to another topic of the same name is set aside. `is_first_opening`: the
        caller knows that the partition never had a log; otherwise no log is created while a log directory
        that may hold it cannot be read. `on_progress` gets the progress of a recovery. Raises
        DataDirectoryError, which has the path of the partition's directory or of a file in it, also if a
        manifest lists a directory that is gone.
        """
        with self._guard:
            self._require_not_left(partition)
            assert not self._is_closed
            assert partition not in self._logs, f"{partition} is open already"
            assert partition not in self._loading, f"{partition} is being opened"
            self._loading.add(partition)
        sought = SoughtPartition(partition, topic_id, is_first_opening)
        try:
            log = self._opener.open(sought, config, start_offset, on_progress)
            self._add(log)
            self._follow_expiration(log)
        finally:
            with self._guard:
                self._loading.discard(partition)
                for directory in self.directories:
                    directory.note_tried(partition)
            self._opener.progress.finished()
        return log

    def _add(self, log: UnifiedLog) -> None:
        """Add a log that was loaded. Raises DataDirectoryError, with the log closed, if its opening was given
        up meanwhile."""
        partition = log.topic_partition
        try:
            with self._guard:
                self._require_not_left(partition)
                assert not self._is_closed
                self.directories.of(log).note_opened(partition)
                self._logs[partition] = log
        except DataDirectoryError:
            log.close(flush=False)
            raise

    def leave(self, partition: TopicPartition) -> None:
        """Give up the opening of a partition whose log directory is offline. The thread that opens it may
        still be at work under its name, so all calls about it are refused until that calls `end_left`. Its
        log is not open any more, and does not become so."""
        with self._guard:
            self._left[partition] = self._logs.pop(partition, None)

    def end_left(self, partition: TopicPartition) -> None:
        """Note the end of an opening that was given up; closes what it has opened."""
        log = self._left.get(partition)
        if log is not None:
            log.close(flush=False)
        with self._guard:
            del self._left[partition]

    def _require_not_left(self, partition: TopicPartition) -> None:
        """Raise DataDirectoryError while an opening that was given up may still be at work. Holds the
        guard."""
        if partition in self._left:
            raise DataDirectoryError(
                "the disk of the partition's log directory did not answer while the log was opened, and a"
                " thread still waits for it; find out why, and restart the server",
                path=self.path_of(partition),
                **partition.error_fields,
            )

    def log(self, partition: TopicPartition) -> UnifiedLog:
        """The open log of the partition. Raises UnknownTopicOrPartitionError if it is not open."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownTopicOrPartitionError(
                "the partition has no log here; create the topic or correct the name",
                topic=partition.topic,
                partition=partition.partition,
            )
        return log

    def import_epoch(self, partition: TopicPartition) -> int | None:
        """The epoch under which an import took the partition over from a broker; None if none did."""
        holder = self.directories.holder(partition)
        entry = None if holder is None else holder.entry(partition)
        return None if entry is None else entry.import_epoch

    def logs(self) -> tuple[UnifiedLog, ...]:
        """All open logs, in order, also those that are offline."""
        with self._guard:
            return tuple(self._logs[partition] for partition in sorted(self._logs))

    def set_producer_id_expiration_ms(self, expiration_ms: int) -> None:
        """Let all logs, also those that are opened later, forget producers that are idle for so long."""
        self._opener.producer_id_expiration_ms = expiration_ms
        for log in self.logs():
            self._follow_expiration(log)

    def _follow_expiration(self, log: UnifiedLog) -> None:
        """Give the log the expiration in force, again if it is altered meanwhile."""
        expiration_ms: int | None = None
        while expiration_ms != self._opener.producer_id_expiration_ms:
            expiration_ms = self._opener.producer_id_expiration_ms
            log.set_producer_id_expiration_ms(expiration_ms)

    def begin_move(self, partition: TopicPartition, target_path: str) -> LogMove:
        """Begin a move of the open log to that log directory, see `MoveRegistry.begin`. Also raises
        UnknownTopicOrPartitionError."""
        return self.moves.begin(self.log(partition), target_path)

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete the partition's log, open or not. Its name is free at once; its files are removed later.

        Raises DataDirectoryError. On a disk that is offline the files stay for `delete_leftover` of a later
        process; in this process another log may have the name.
        """
        _raise_first(self._delete([partition], self._away.remove_later))

    def delete_logs(
        self, partitions: Iterable[TopicPartition], topic_id: UUID
    ) -> dict[TopicPartition, DataDirectoryError]:
        """Delete the logs of partitions of a topic that is gone, open or not, as `delete_log` and
        `delete_leftover` do; logs of other topics of its name stay. Returns the errors of those that fail.

        Many partitions cost few writes of the manifests and the checkpoints.
        """
        is_open = list[TopicPartition]()
        is_closed = list[TopicPartition]()
        for partition in partitions:
            log = self._logs.get(partition)
            if log is None:
                is_closed.append(partition)
            elif log.topic_id == topic_id:
                is_open.append(partition)
        failures = self._delete(is_open, self._away.remove_later)
        return failures | self._delete_leftovers(is_closed, topic_id)

    def _delete(
        self, partitions: Sequence[TopicPartition], remove: Callable[[str], None]
    ) -> dict[TopicPartition, DataDirectoryError]:
        failures: dict[TopicPartition, DataDirectoryError] = {}
        for first in range(0, len(partitions), DELETED_TOGETHER):
            group = partitions[first : first + DELETED_TOGETHER]
            taken = self._take_out(group, DELETE_REASON, flush=False)
            with self._guard:
                for partition in taken.failures:
                    holder = self.directories.holder(partition)
                    if holder is not None and not holder.is_online:
                        holder.note_gone(partition)
            for path in taken.paths.values():
                remove(path)
            failures.update(taken.failures)
        return failures

    def delete_leftover(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Delete the directories of the partition that are of this topic, which is gone. The partition is not
        open. Directories of other topics stay. Raises DataDirectoryError."""
        _raise_first(self._delete_leftovers([partition], topic_id))

    def _delete_leftovers(
        self, partitions: Iterable[TopicPartition], topic_id: UUID
    ) -> dict[TopicPartition, DataDirectoryError]:
        sole = list[TopicPartition]()
        failures: dict[TopicPartition, DataDirectoryError] = {}
        for partition in partitions:
            assert partition not in self._logs, f"{partition} is open"
            found = self.found.of_topic(partition, topic_id)
            if found and self.directories.holders(partition) == found:
                sole.append(partition)
                continue
            try:
                for directory in found:
                    with self._guard:
                        path = self._away.put_away(directory, partition, DELETE_REASON)
                    if path is not None:
                        self._away.remove_unread(path)
            except DataDirectoryError as failure:
                failures[partition] = failure
        return failures | self._delete(sole, self._away.remove_unread)

    def forget_lost(self, partition: TopicPartition) -> bool:
        """Take a partition whose directory is gone out of the manifest. Its topic is deleted, and it is not
        open. Returns False if there is a directory, or may be one in a log directory that is offline or
        missing."""
        with self._guard:
            for directory in self.directories.holders(partition):
                try:
                    if self.filesystem.exists(directory.partition_path(partition)):
                        return False
                    self._away.put_away(directory, partition, DELETE_REASON)
                except (OSError, DataDirectoryError):
                    return False
        return self.directories.is_all_known

    def set_aside(self, partition: TopicPartition, reason: str) -> str | None:
        """Close the partition's log and give its directory another name, for an operator to look at. It is
        never deleted.

        Returns the path, None if there was no directory. Raises DataDirectoryError.
        """
        assert reason not in ("", DELETE_REASON)
        taken = self._take_out([partition], reason, flush=True)
        _raise_first(taken.failures)
        return taken.paths.get(partition)

    def let_go(self, partition: TopicPartition) -> None:
        """Close the partition's log, if it is open, and leave its directory to the next process as it is."""
        self.moves.end(partition)
        with self.cleaner.paused(partition):
            with self._guard:
                log = self._logs.pop(partition, None)
            if log is None:
                return
            log.close(flush=False)
            with self._guard:
                # A log that was changed is like one that a crash has left.
                is_clean = log.recovery_report.was_clean and not log.local_log.is_changed
                self.directories.of(log).note_let_go(partition, is_clean=is_clean)

    def truncate_to(self, partition: TopicPartition, offset: int) -> int:
        """Drop the batches that end at or above `offset`; returns the log's end. Durable when it returns.

        Raises UnknownTopicOrPartitionError, CorruptRecordError with nothing changed, DataDirectoryError.
        """
        log = self.log(partition)
        self.moves.end(partition)
        with self.cleaner.paused(partition):
            end_offset = offset
            if log.offsets.local_log_start_offset <= offset < log.offsets.log_end_offset:
                end_offset = log.reader.end_without(offset)
            self._lower_cleaned(log, end_offset)
            return log.truncation.truncate_to(offset)

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Drop all local records and go on, empty, at `offset`. Durable when it returns. Raises
        UnknownTopicOrPartitionError, DataDirectoryError."""
        log = self.log(partition)
        self.moves.end(partition)
        with self.cleaner.paused(partition):
            self._lower_cleaned(log, offset)
            log.truncation.truncate_fully_and_start_at(offset)

    def _lower_cleaned(self, log: UnifiedLog, end_offset: int) -> None:
        """Lower the cleaner's checkpoint: later records above that offset must not count as cleaned."""
        with disk_errors(log.local_log.directory):
            self.cleaner.lower(log.topic_partition, end_offset)

    def _take_out(self, partitions: Sequence[TopicPartition], reason: str, *, flush: bool) -> PutAwayOutcome:
        """Close the logs of these partitions and put their directories away, together."""
        failures: dict[TopicPartition, DataDirectoryError] = {}
        with self._guard:
            for partition in partitions:
                with _noting(failures, partition):
                    self._require_not_left(partition)
                    assert partition not in self._loading, f"{partition} is being opened"
        taken = [partition for partition in partitions if partition not in failures]
        with self.cleaner.paused(*taken):
            for partition in taken:
                self.moves.forget(partition)
            self._close_each([log for one in taken if (log := self._logs.get(one)) is not None], flush=flush)
            with self._guard:
                for partition in taken:
                    self._logs.pop(partition, None)
            # A move may have been accepted since.
            for partition in taken:
                self.moves.forget(partition)
            # No thread waits for a disk with the guard in its hands.
            failures |= self.directories.silences(taken)
            with self._guard:
                outcome = self._put_away([one for one in taken if one not in failures], reason)
                gone = [one for one in taken if one not in failures and one not in outcome.failures]
                if gone:
                    self._away.forgetting(gone, lambda: self.cleaner.forget(*gone))
        return PutAwayOutcome(outcome.paths, {**failures, **outcome.failures})

    def _close_each(self, logs: Iterable[UnifiedLog], *, flush: bool) -> None:
        """Close logs. One that cannot be closed is offline, or its disk hangs. Its files stay for an
        operator."""
        by_directory: dict[str, list[UnifiedLog]] = {}
        for log in logs:
            by_directory.setdefault(log.local_log.log_dir, []).append(log)
        for path, found in by_directory.items():
            with suppress(DataDirectoryError):
                self._close_all_in(path, found, flush=flush)

    def _close_all_in(self, path: str, logs: Sequence[UnifiedLog], *, flush: bool) -> None:
        steps = WorkSteps()
        close = partial(_close_all, logs, steps, flush=flush)
        self.directories.disk_calls.run(path, close, lambda: steps.count)

    def _put_away(self, partitions: Iterable[TopicPartition], reason: str) -> PutAwayOutcome:
        """Put the directories of partitions away, those of a log directory together. Holds the guard."""
        by_directory: dict[LogDirectory, list[TopicPartition]] = {}
        for partition in partitions:
            holder = self.directories.holder(partition)
            if holder is not None:
                by_directory.setdefault(holder, []).append(partition)
        paths: dict[TopicPartition, str] = {}
        failures: dict[TopicPartition, DataDirectoryError] = {}
        for directory, found in by_directory.items():
            try:
                outcome = self._away.put_away_all(directory, found, reason)
            except DataDirectoryError as failure:
                failures |= dict.fromkeys(found, failure)
                continue
            paths |= outcome.paths
            failures |= outcome.failures
        return PutAwayOutcome(paths, failures)

    def _is_open(self, log: UnifiedLog) -> bool:
        return self._logs.get(log.topic_partition) is log

    def _checkpoint_of(self, log: UnifiedLog, log_start_offset: int) -> None:
        self.directories.of(log).checkpoints.write_for(log, log_start_offset)

    @property
    def closed_count(self) -> int:
        """The logs that `close` has closed so far."""
        return sum(log.availability.is_closed for log in tuple(self._logs.values()))

    def close(
        self,
        threads: Callable[[str], Threads] | None = None,
        disk_calls: DiskCalls = DIRECT_DISK_CALLS,
        *,
        are_tasks_left: bool = False,
    ) -> None:
        """Flush and close all logs, write the checkpoints and the markers, release the directories. `threads`
        returns those that close the logs of a log directory in parallel. `disk_calls` wait for the disks.
        `are_tasks_left`: moves and cleans were asked to end, and have not; nothing waits for them.

        Raises the first error of a log or a directory; everything else is closed all the same, and the next
        process recovers. Directories that were offline before raise no error. A directory that does not
        answer is offline from then on, and an error: it gets no marker, its files stay open, and it stays
        locked until the process ends, because threads may be at work in it.
        """
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        self._expiry.cancel()
        self._idle_producers.close()
        self._away.close()
        if not are_tasks_left:
            self.moves.close()
            self.cleaner.stop()
        closings = {
            directory.path: _Closing(
                directory, [log for log in self.logs() if self.directories.of(log) is directory]
            )
            for directory in self.directories
        }
        failures: list[LogStoreError] = []
        try:
            answers = disk_calls.run_each(
                {
                    path: partial(self._close_directory, closing, threads)
                    for path, closing in closings.items()
                },
                lambda path: closings[path].closed_count,
                even_alone=True,
            )
            for path, closing in closings.items():
                if path in answers.results:
                    failures += answers.results[path]
                elif closing.directory.is_online:
                    failures.append(answers.silences[path])
        finally:
            for directory in self.directories:
                if disk_calls.is_silent(directory.path):
                    directory.health.fail(_SILENT_AT_CLOSE)
                else:
                    directory.release()
        if failures:
            raise failures[0]

    def _close_directory(
        self, closing: _Closing, threads: Callable[[str], Threads] | None
    ) -> list[LogStoreError]:
        """Close the logs of a directory, and flush them and mark it if it works; returns the errors."""
        directory = closing.directory
        was_online = directory.is_online
        if was_online:
            # Nothing is appended any more, and closing may need the space.
            with suppress(DataDirectoryError, OSError):
                directory.spare.give_up()
        logs = closing.logs
        try:
            outcomes = (
                map(closing.close, logs)
                if threads is None
                else threads(directory.path).map(closing.close, logs)
            )
            failures = [failure for failure in outcomes if failure is not None]
            if was_online:
                try:
                    self._checkpoint_last(directory, has_failed=bool(failures))
                except LogStoreError as failure:
                    failures.append(failure)
        finally:
            self._resources.files.close_in(directory.path)
        return failures

    def _checkpoint_last(self, directory: LogDirectory, *, has_failed: bool) -> None:
        logs = self.logs()
        is_here = partial(self.tasks.is_in, directory)
        with disk_errors(directory.path):
            directory.checkpoints.write_recovery_points(logs, is_here)
            directory.checkpoints.write_starts(logs, is_here)
            if not has_failed:
                directory.mark_clean_shutdown()

    def check(self) -> None:
        """Assert the invariants of every log that is not offline, and of the shared resources."""
        for log in self.logs():
            if not log.availability.is_offline:
                log.check()
        self._resources.files.check()
        self._resources.index_pages.check()


def _raise_first(failures: Mapping[TopicPartition, DataDirectoryError]) -> None:
    for failure in failures.values():
        raise failure from failure.__cause__


@contextmanager
def _noting(failures: dict[TopicPartition, DataDirectoryError], partition: TopicPartition) -> Generator[None]:
    """Note the partition's failure instead of raising it."""
    try:
        yield
    except DataDirectoryError as failure:
        failures[partition] = failure


def _close_all(logs: Iterable[UnifiedLog], steps: WorkSteps, *, flush: bool) -> None:
    for log in logs:
        steps.note()
        with suppress(DataDirectoryError):
            log.close(flush=flush)


class _Closing:
    """A log directory whose logs are being closed. Threads close the logs; any may look at the count."""

    def __init__(self, directory: LogDirectory, logs: Sequence[UnifiedLog]) -> None:
        self.directory = directory
        self.logs = logs
        self.closed_count = 0

    def close(self, log: UnifiedLog) -> LogStoreError | None:
        """Close a log, and flush it if the directory works; returns its error."""
        try:
            log.close(flush=self.directory.is_online)
        except LogStoreError as failure:
            return failure
        finally:
            # It is looked at for growth alone: an addition that another thread overwrites is no harm.
            self.closed_count += 1
        return None
