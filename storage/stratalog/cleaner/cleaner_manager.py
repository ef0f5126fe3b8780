"""Chooses the log to clean next, and pauses cleaning while other code changes a log.

It has the task of Kafka's `LogCleanerManager`.

Truncation, deletion, a move and a change of configuration pause the partition. A running clean ends first;
each of its groups of segments is then old or new. `CleaningState` has the rules.

Locks: `_changed` is held for single steps, and nothing is called under it. So these methods may be called
under any lock, except those that wait for a clean to end (`pause`, `paused`, `stop`): a clean takes the locks
of its log and of the checkpoints, so a caller that waits while it holds one of them would wait for ever.

Crash: only the checkpoints are durable, see `CleanerCheckpoints`. States and failures begin anew.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.header_walk import find_horizons
from stratalog.cleaner.cleaner_checkpoints import CleanerCheckpoints, HorizonStore
from stratalog.cleaner.cleaner_failures import CleanerFailures, CleaningFailure
from stratalog.cleaner.cleaning_state import IDLE, CleaningAbortedError, CleaningState
from stratalog.cleaner.failure_kind import FailureKind, kind_of, reason_of
from stratalog.cleaner.log_to_clean import (
    LogToClean,
    dirty_bytes,
    first_dirty_offset,
    first_ms_on,
    has_clean_part,
    is_cleaned_here,
    log_to_clean,
)
from stratalog.cleaner.throttler import Throttler
from stratalog.log.config_key import LONG_MAX
from stratalog.log.retention.retention import newest_ms_on
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.native.cleaned_batches import NO_HORIZON

logger = logging.getLogger(__name__)


class CleanerSurvey(NamedTuple):
    """The result of a look at all logs that are not being cleaned."""

    at_s: float
    """Monotonic time; the start of the process before the first survey."""
    max_compaction_delay_ms: int
    """The highest `LogToClean.compaction_delay_ms`."""
    max_cleanable_ratio: float
    next_clean_ms: int
    """The earliest `LogToClean.next_clean`; NO_HORIZON if there is none."""


class CleanerManager:
    """The cleaning states of all logs. Thread-safe: `_changed` guards the states."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        random_source: random.Random,
        logs: Callable[[], Sequence[UnifiedLog]],
    ) -> None:
        """`logs`: returns all open logs; called under no lock of this class. `add_directory` adds their
        directories."""
        self._clock = clock
        self._logs = logs
        self._newest_ms = newest_ms_on(filesystem)
        self._first_ms = first_ms_on(filesystem)
        self._checkpoints = CleanerCheckpoints(filesystem)
        self._failures = CleanerFailures(clock, random_source)
        self.throttler = Throttler(clock)
        """Limits the bytes of all cleans together; unlimited until it is configured."""
        self._changed = threading.Condition()
        self._states: dict[TopicPartition, CleaningState] = {}
        self._workers: dict[TopicPartition, int] = {}
        self._is_stopping = False
        self._last_survey = CleanerSurvey(clock.monotonic_s(), 0, 0.0, NO_HORIZON)

    # Called by the log manager.

    def add_directory(self, directory: str, horizons: HorizonStore) -> None:
        """Clean the logs in this directory from now on. Raises OSError if its checkpoint cannot be read."""
        self._checkpoints.add_directory(directory, horizons)

    def directory_failed(self, directory: str) -> None:
        """Ignore the directory from now on: cleans in it end, nothing is written to it. Does not wait, may be
        called under any lock, and again."""
        self._checkpoints.drop_directory(directory)
        self.throttler.interrupt()

    @contextmanager
    def paused(self, *partitions: TopicPartition) -> Generator[None]:
        """Keep the cleaner away from the partitions, see `pause`."""
        with ExitStack() as resumed:
            for partition in partitions:
                self.pause(partition)
                resumed.callback(self.resume, partition)
            yield

    def pause(self, partition: TopicPartition) -> None:
        """Keep the cleaner away from the partition until `resume` was called as often. A running clean has
        ended when this returns. The partition need not exist.

        Not to be called under a lock of a log or of the log manager, nor by a worker.
        """
        with self._changed:
            assert self._workers.get(partition) != threading.get_ident(), "a worker would wait for itself"
            state = self._states[partition] = self._states.get(partition, IDLE).pause()
        if not state.is_running:
            return
        try:
            self.throttler.interrupt()
            with self._changed:
                while self._states[partition].is_running:
                    self._clock.wait(self._changed, None)
        except BaseException:
            self.resume(partition)
            raise

    def resume(self, partition: TopicPartition) -> None:
        """End one pause."""
        with self._changed:
            self._set_state(partition, self._states.get(partition, IDLE).resume())

    def cleaned_offset(self, partition: TopicPartition, directory: str) -> int:
        """The exclusive end of the cleaned part, by the checkpoint of the log directory."""
        return self._checkpoints.offset_of(partition, directory) or 0

    def opened(self, partition: TopicPartition, directory: str, end_offset: int) -> None:
        """Note a log that was loaded from this directory and ends there, before it is used.

        Removes entries of other directories, and above the log's end. Durable when it returns. Raises
        OSError; the log must not be used then.
        """
        above_offset = self._checkpoints.settle(partition, directory, end_offset)
        if above_offset is not None:
            logger.warning(
                "the cleaner checkpoint of %s is above its log's end, so the log is cleaned from its start;"
                " check whether an older copy has replaced the log, checkpoint=`%d` log_end_offset=`%d`",
                partition,
                above_offset,
                end_offset,
            )

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lower the checkpoint before a truncation to `offset`. Durable when it returns.

        To be called in a pause, before the truncation: records that are written afterwards must not count as
        cleaned. Raises OSError; the log must not be truncated then.
        """
        self._checkpoints.lower(partition, offset)

    def forget(self, *partitions: TopicPartition) -> None:
        """Remove the entries of partitions that are deleted, or replaced by other logs. Durable when it
        returns.

        To be called in a pause. Raises OSError; no other log may take one of the names then.
        """
        for partition in partitions:
            self._failures.reset(partition)
        self._checkpoints.forget(*partitions)

    def moved(self, partition: TopicPartition, source: str, target: str) -> None:
        """Note that the partition has moved from the directory `source` to `target`, whose `HorizonStore` has
        its horizon already. Durable when it returns.

        To be called in a pause. After a crash before this, the log is cleaned from its start, because
        `opened` has removed the entry of an earlier stay. Raises OSError.
        """
        self._checkpoints.move(partition, source, target)

    # Called for operators.

    def failures(self) -> tuple[CleaningFailure, ...]:
        return self._failures.all()

    def reset(self, partition: TopicPartition) -> bool:
        """Clean a failed partition again at once; False if it had not failed."""
        return self._failures.reset(partition)

    @property
    def last_survey(self) -> CleanerSurvey:
        return self._last_survey

    # Called by workers.

    def take_filthiest(self, may_clean: Callable[[UnifiedLog], bool] = lambda _: True) -> LogToClean | None:
        """The log with the most to gain, for the caller alone until `done`, `failed` or `release`. None if no
        log is due that the caller may clean; that callback is called under no lock.

        The filthiest log with enough dirt; without one, the log whose next clean has been due longest.
        """
        for candidate in sorted(self._survey(), key=_place_in_line):
            may_try = self._failures.may_try(candidate.partition) and may_clean(candidate.log)
            if not (candidate.is_due and may_try and self._try_begin(candidate.log)):
                continue
            try:
                # The log may have changed since the survey; from here on it is held.
                found = self._look_at(candidate.log)
            except BaseException:
                self.release(candidate.partition)
                raise
            if found is not None and found.is_due:
                return found if found.is_filthy else found.without_dirt()
            self.release(candidate.partition)
        return None

    def find_next_clean(self, may_look: Callable[[UnifiedLog], bool] = lambda _: True) -> bool:
        """Find when one cleaned log is due next, from its headers, if that is not on record. False if there
        is no such log that the caller may read; that callback is called under no lock.
        """
        for log in self.cleaned_logs():
            may_try = self._lacks_next_clean(log) and self._failures.may_try(log.topic_partition)
            if not (may_try and may_look(log)):
                continue
            with self.held(log) as is_held:
                if is_held and self._lacks_next_clean(log):
                    self._find_next_clean_of(log)
                    return True
        return False

    def _lacks_next_clean(self, log: UnifiedLog) -> bool:
        is_clean = has_clean_part(log, first_dirty_offset(log, self._checkpoint_of(log)))
        return is_clean and self._next_clean_ms(log) is None

    def _find_next_clean_of(self, log: UnifiedLog) -> None:
        def on_read(size_bytes: int) -> None:
            self.check_done(log)
            self.throttler.take(size_bytes, lambda: self.check_done(log))

        end_offset = first_dirty_offset(log, self._checkpoint_of(log))
        try:
            found = find_horizons(log, end_offset, self._clock.now_ms(), on_read)
            self._put(log, end_offset, found.due_ms(log.local_log.config.delete_retention_ms))
        except CleaningAbortedError:
            pass
        except Exception as failure:  # noqa: BLE001 - one log must not keep the others from being cleaned
            if self._is_cleanable(log):
                self._note_failure(log, failure)

    def check_done(self, log: UnifiedLog) -> None:
        """Raise CleaningAbortedError if the clean of this log must end."""
        state = self._states.get(log.topic_partition, IDLE)
        if self._is_stopping or state.pause_count or not self._is_cleanable(log):
            raise CleaningAbortedError(f"the clean of {log.topic_partition} must end")

    def done(self, cleaned: LogToClean, end_offset: int, next_clean_ms: int | None = None) -> None:
        """End a clean with success: everything below `end_offset` is clean, with nothing to drop before
        `next_clean_ms`, see `CleanResult`. Releases the log."""
        log = cleaned.log
        try:
            if end_offset > cleaned.first_dirty_offset or cleaned.gets_further(next_clean_ms):
                # A pause waits for this, too: nothing is written after it has begun.
                self._put(log, end_offset, next_clean_ms)
                self._failures.reset(cleaned.partition)
            else:
                self._note_no_progress(cleaned)
        except OSError as failure:
            self._note_failure(log, failure)
        finally:
            self.release(cleaned.partition)

    def failed(self, log: UnifiedLog, failure: Exception) -> None:
        """End a clean with an error; it is tried again later. Releases the log."""
        try:
            self._note_failure(log, failure)
        finally:
            self.release(log.topic_partition)

    def release(self, partition: TopicPartition) -> None:
        """End a clean that changed nothing, or a hold. Releases the log."""
        with self._changed:
            self._workers.pop(partition, None)
            self._set_state(partition, self._states.get(partition, IDLE).end())
            self._changed.notify_all()

    @contextmanager
    def held(self, log: UnifiedLog) -> Generator[bool]:
        """Hold the log like a clean; False if it is held already, or is not cleaned here. Does not wait."""
        if not self._try_begin(log):
            yield False
            return
        try:
            yield True
        finally:
            self.release(log.topic_partition)

    def cleaned_logs(self) -> tuple[UnifiedLog, ...]:
        """The open logs that are compacted here, on online directories."""
        return tuple(log for log in self._logs() if self._is_cleanable(log))

    def stop(self) -> None:
        """End all cleans, and begin no others. Nothing runs when it returns. Waits as `pause` does."""
        self._is_stopping = True
        self.throttler.interrupt()
        with self._changed:
            while any(state.is_running for state in self._states.values()):
                self._clock.wait(self._changed, None)

    def check(self) -> None:
        """Prove that exactly the running cleans have a worker, and that no idle state is kept."""
        with self._changed:
            assert IDLE not in self._states.values()
            running = {partition for partition, state in self._states.items() if state.is_running}
            assert running == self._workers.keys()
        self._failures.check()

    # Internal steps.

    def _is_cleanable(self, log: UnifiedLog) -> bool:
        if (
            log.availability.is_closed
            or log.availability.is_offline
            or not is_cleaned_here(log.local_log.config)
        ):
            return False
        return self._checkpoints.has_directory(log_directory(log))

    def _try_begin(self, log: UnifiedLog) -> bool:
        partition = log.topic_partition
        with self._changed:
            state = self._states.get(partition, IDLE)
            if self._is_stopping or state != IDLE:
                return False
            self._states[partition] = state.begin()
            self._workers[partition] = threading.get_ident()
        # Only now: the closing or the change of policy paused the log, and may have ended.
        if self._is_cleanable(log):
            return True
        self.release(partition)
        return False

    def _set_state(self, partition: TopicPartition, state: CleaningState) -> None:
        if state == IDLE:
            del self._states[partition]
        else:
            self._states[partition] = state

    def _survey(self) -> list[LogToClean]:
        """The cleanable part of each log that is not held. A log that cannot be read has failed."""
        logs = self.cleaned_logs()
        self._failures.keep_only(frozenset(log.topic_partition for log in logs))
        surveyed: list[LogToClean] = []
        for log in logs:
            if log.topic_partition in self._states:
                continue
            self._heal(log)
            self._roll_if_old(log)
            found = self._look_at(log)
            if found is not None:
                surveyed.append(found)
                self._forget_failure(found)
        self._last_survey = CleanerSurvey(
            self._clock.monotonic_s(),
            max((found.compaction_delay_ms for found in surveyed), default=0),
            max((found.cleanable_ratio for found in surveyed), default=0.0),
            min((found.next_clean.at_ms for found in surveyed if found.next_clean), default=NO_HORIZON),
        )
        return surveyed

    def _forget_failure(self, found: LogToClean) -> None:
        """Forget failures of logs without dirt: the failure was a look at the log, or the last step of a
        clean. It is recorded again if a later look fails."""
        partition = found.partition
        if found.is_due or not (self._failures.has(partition) and self._failures.may_try(partition)):
            return
        with self.held(found.log) as is_held:
            offset = self._checkpoint_of(found.log)
            if not is_held or self._lacks_next_clean(found.log):
                return
            try:
                if offset is not None:
                    self._put(found.log, offset, self._next_clean_ms(found.log))
                self._failures.reset(partition)
            except OSError as failure:
                self._note_failure(found.log, failure)

    def _checkpoint_of(self, log: UnifiedLog) -> int | None:
        return self._checkpoints.offset_of(log.topic_partition, log_directory(log))

    def _next_clean_ms(self, log: UnifiedLog) -> int | None:
        return self._checkpoints.horizon_of(log.topic_partition, log_directory(log))

    def _put(self, log: UnifiedLog, offset: int, next_clean_ms: int | None) -> None:
        self._checkpoints.put(log.topic_partition, log_directory(log), offset, next_clean_ms)

    def _heal(self, log: UnifiedLog) -> None:
        """Correct a checkpoint above the log's end, before the log grows beyond it."""
        offset = self._checkpoint_of(log)
        if offset is None or first_dirty_offset(log, offset) == offset:
            return
        with self.held(log) as is_held:
            if not is_held:
                return
            offset = self._checkpoint_of(log)
            right_offset = first_dirty_offset(log, offset)
            if offset is None or right_offset == offset:
                return
            # Deletions and retention pass the cleaned part as a matter of course.
            is_passed = offset < right_offset
            logger.log(
                logging.DEBUG if is_passed else logging.WARNING,
                "%s was cleaned up to an offset %s, and is cleaned from its start, checkpoint=`%d`"
                " log_start_offset=`%d` log_end_offset=`%d`",
                log.topic_partition,
                "below its start" if is_passed else "that its log does not have",
                offset,
                log.offsets.log_start_offset,
                log.offsets.log_end_offset,
            )
            try:
                self._put(log, right_offset, None)
            except OSError as failure:
                self._note_failure(log, failure)

    def _roll_if_old(self, log: UnifiedLog) -> None:
        """Seal an active segment without appends before it is too old to be cleaned in time."""
        is_bounded = log.local_log.config.max_compaction_lag_ms < LONG_MAX
        if not (is_bounded and self._failures.may_try(log.topic_partition)):
            return
        try:
            log.roll(only_if_idle=True)
        except Exception as failure:  # noqa: BLE001 - one log must not keep the others from being cleaned
            if self._is_cleanable(log):
                self._note_failure(log, failure)

    def _look_at(self, log: UnifiedLog) -> LogToClean | None:
        """Measure the log's cleanable part. Records a failure and returns None if the log cannot be read."""
        segments, now_ms = log.local_log.segments, self._clock.now_ms()
        dirty_offset = first_dirty_offset(log, self._checkpoint_of(log))
        self._failures.note_dirty_bytes(log.topic_partition, dirty_bytes(log, dirty_offset))
        try:
            return log_to_clean(
                log, dirty_offset, self._newest_ms, self._first_ms, now_ms, self._next_clean_ms(log)
            )
        except Exception as failure:  # noqa: BLE001 - one log must not keep the others from being cleaned
            # A log that was dropped or truncated meanwhile comes again in the next survey.
            if log.local_log.segments is segments and self._is_cleanable(log):
                self._note_failure(log, failure)
            return None

    def _note_failure(self, log: UnifiedLog, failure: Exception) -> None:
        kind = kind_of(failure)
        if kind is FailureKind.UNEXPECTED:
            logger.error("the clean of %s failed unexpectedly", log.topic_partition, exc_info=failure)
        self._record(log, kind, reason_of(failure))

    def _note_no_progress(self, cleaned: LogToClean) -> None:
        reason = (
            f"a clean of [{cleaned.first_dirty_offset}, {cleaned.first_uncleanable_offset})"
            " ended where it had begun"
        )
        self._record(cleaned.log, FailureKind.NO_PROGRESS, reason)

    def _record(self, log: UnifiedLog, kind: FailureKind, reason: str) -> None:
        failure = self._failures.record(
            log.topic_partition,
            log_directory(log),
            kind,
            reason,
            dirty_bytes(log, first_dirty_offset(log, self._checkpoint_of(log))),
        )
        logger.log(
            logging.ERROR if failure.is_alarm else logging.WARNING,
            "%s is not cleaned for now and will be tried again, kind=`%s` reason=`%s` failure_count=`%d`"
            " next_try_ms=`%d`",
            log.topic_partition,
            kind.value,
            reason,
            failure.failure_count,
            failure.next_try_ms,
        )


def _place_in_line(found: LogToClean) -> tuple[bool, float]:
    """Sort key of the logs to clean. Dirty logs come first, because they gain more than a few tombstones."""
    if found.is_filthy or found.next_clean is None:
        return (not found.is_filthy, -found.cleanable_ratio)
    return (True, found.next_clean.at_ms)


def log_directory(log: UnifiedLog) -> str:
    """The directory that holds the log now; a move changes it."""
    return log.local_log.log_dir
