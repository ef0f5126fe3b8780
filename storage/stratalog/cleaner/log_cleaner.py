"""The workers of the cleaner: each cleans the filthiest log, then the next one, until none is due.

A worker is a task of the scheduler that comes again every `log.cleaner.backoff.ms`. So one that an error has
ended begins anew, and an operator's reset only has to ask for a round at once. However many rounds there are,
no more cleans run at a time than there shall be workers, and their key maps never take more memory than they
shall together: a clean borrows its part before it begins and returns it at its end. So the numbers may be
altered while cleans run, which go on with what they have.

Logs that are compacted have no other retention than that of this class: it needs the log for itself, as a
clean does. It goes on where cleaning is switched off or a log's cleaning fails. Only while such a log moves
between directories is it done by whoever does it for the other logs.

Locks: `_changed` is held for single steps, and nothing is called under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.scheduler import ScheduledTask, Scheduler
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaner_settings import MIN_MAP_BYTES, CleanerSettings
from stratalog.cleaner.cleaner_stats import CleanerStats, CleanTally, uncleanable_by_directory
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.failure_kind import reason_of
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

CleanLog = Callable[[LogToClean, CleanLimits], CleanResult]
"""A clean of one log. Raises CleaningAbortedError with nothing changed that is not whole; CorruptRecordError,
DataDirectoryError, OSError."""


class _Slot(NamedTuple):
    """What a clean has borrowed."""

    number: int
    map_bytes: int


class LogCleaner:
    """Thread-safe: `_changed` guards settings, workers and what is borrowed."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        manager: CleanerManager,
        clean_log: CleanLog,
        settings: CleanerSettings,
        *,
        may_begin: Callable[[], bool] = lambda: True,
        may_shrink: Callable[[UnifiedLog], bool] = lambda _: True,
    ) -> None:
        """Nothing runs before `start`. `scheduler`: a clean may have one of its threads for hours, so there
        are at least as many as workers. `may_begin` is asked before each look for something to do, and
        `may_shrink` of each log before it is cleaned or its retention is applied, under no lock. Raises
        InvalidConfigError."""
        settings.require_consistent()
        self._clock = clock
        self._scheduler = scheduler
        self._manager = manager
        self._clean_log = clean_log
        self._settings = settings
        self._may_begin = may_begin
        self._may_shrink = may_shrink
        self._tally = CleanTally()
        self._changed = threading.Lock()
        self._retention_lock = threading.Lock()
        self.deleted_segment_count = 0
        """Segments that `delete_old_segments` has dropped; `_retention_lock` guards it."""
        self._slots: dict[int, _Slot] = {}
        self._workers: list[_Worker] = []
        self._is_stopped = False
        self._retention_due_s = clock.monotonic_s()
        manager.throttler.set_max_bytes_per_s(settings.max_bytes_per_s)

    @property
    def settings(self) -> CleanerSettings:
        return self._settings

    def start(self) -> None:
        """Have the workers begin."""
        self._hire()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Go on by other settings; cleans that run go on with the memory that they have.

        Raises InvalidConfigError with nothing changed, also where the number of workers would be altered by
        more than half or double.
        """
        with self._changed:
            settings.require_step_from(self._settings)
            self._settings = settings
            is_started = bool(self._workers)
        self._manager.throttler.set_max_bytes_per_s(settings.max_bytes_per_s)
        self._tally.forget_slots_from(settings.thread_count)
        if is_started:
            self._hire()

    def _hire(self) -> None:
        """Put new workers in the place of those that are there, which end after the clean they are at."""
        with self._changed:
            if self._is_stopped:
                return
            retired, settings = self._workers, self._settings
            self._workers = [_Worker(self) for _ in range(settings.thread_count)]
            hired = self._workers
        for worker in retired:
            worker.retire()
        for number, worker in enumerate(hired):
            worker.begin(self._scheduler, f"log cleaner {number}", max(1, settings.backoff_ms))

    def stop(self) -> None:
        """End all cleans and begin none any more; nothing runs when this returns. Not for a worker, nor for a
        caller who holds a lock of a log or of the log manager. May be called twice."""
        with self._changed:
            self._is_stopped = True
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.retire()
        self._manager.stop()

    def clean_filthiest(self) -> bool:
        """Clean the log that has the most to gain, or look into one of which nobody knows when it is due for
        its tombstones; False where there is none, or nobody may clean now.

        An error of one log counts as its failure and keeps no other from being cleaned.
        """
        if not self._may_begin():
            return False
        slot = self._borrow()
        if slot is None:
            return False
        try:
            chosen = self._manager.take_filthiest(self._may_shrink)
            if chosen is None:
                return self._manager.find_horizon(self._may_shrink)
            self._clean(chosen, slot)
            return True
        finally:
            with self._changed:
                del self._slots[slot.number]

    def _borrow(self) -> _Slot | None:
        with self._changed:
            settings = self._settings
            number = next((n for n in range(settings.thread_count) if n not in self._slots), None)
            free_bytes = settings.map_bytes - sum(slot.map_bytes for slot in self._slots.values())
            map_bytes = min(settings.map_bytes_per_thread, free_bytes)
            is_full = len(self._slots) >= settings.thread_count or map_bytes < MIN_MAP_BYTES
            if self._is_stopped or not settings.is_enabled or number is None or is_full:
                return None
            slot = self._slots[number] = _Slot(number, map_bytes)
            return slot

    def _clean(self, chosen: LogToClean, slot: _Slot) -> None:
        log, manager, settings = chosen.log, self._manager, self._settings

        def check_done() -> None:
            manager.check_done(log)

        def throttle(size_bytes: int) -> None:
            manager.throttler.take(size_bytes, check_done)

        limits = CleanLimits(
            map_bytes=slot.map_bytes,
            map_load_factor=settings.map_load_factor,
            io_buffer_bytes=settings.io_buffer_bytes // settings.thread_count,
            check_done=check_done,
            throttle=throttle,
            on_cut_off=self._tally.note_cut_off,
        )
        begun_s = self._clock.monotonic_s()
        try:
            result = self._clean_log(chosen, limits)
        except CleaningAbortedError:
            self._tally.note_abort()
            manager.release(chosen.partition)
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is of this log, and the others wait
            manager.failed(log, failure)
        except BaseException:
            manager.release(chosen.partition)
            raise
        else:
            duration_ms = round((self._clock.monotonic_s() - begun_s) * 1000)
            self._tally.note_clean(slot.number, duration_ms, result.stats)
            logger.info(
                "a clean of %s has ended, first_dirty_offset=`%d` end_offset=`%d` duration_ms=`%d` %s",
                chosen.partition,
                chosen.first_dirty_offset,
                result.end_offset,
                duration_ms,
                result.stats,
            )
            manager.done(chosen, result.end_offset, result.horizon_ms)

    def delete_old_segments(self) -> int:
        """Apply the retention of all logs that are compacted here; returns how many segments went.

        Of a log whose policy is `compact` alone, what lies below its start goes. A log that is being cleaned,
        or is paused, is left out; a worker looks at it afterwards. For workers, and for whoever does the
        retention of the other logs: the workers may be busy for hours.
        """
        if not self._retention_lock.acquire(blocking=False):
            return 0
        try:
            if not self._may_begin():
                return 0
            count = sum(self._delete_old_segments_of(log) for log in self._manager.cleaned_logs())
            self.deleted_segment_count += count
            return count
        finally:
            self._retention_lock.release()

    def delete_old_segments_if_due(self) -> None:
        """`delete_old_segments`, unless that began less than `log.cleaner.backoff.ms` ago."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            if now_s < self._retention_due_s:
                return
            self._retention_due_s = now_s + self._settings.backoff_ms / 1000
        self.delete_old_segments()

    def _delete_old_segments_of(self, log: UnifiedLog) -> int:
        if not self._may_shrink(log):
            return 0
        with self._manager.held(log) as is_held:
            try:
                return log.delete_old_segments() if is_held else 0
            except Exception as failure:  # One log must not keep the others from shrinking.
                is_expected = isinstance(failure, LogStoreError)
                logger.warning(
                    "the retention of %s failed and is tried again, reason=`%s`",
                    log.topic_partition,
                    reason_of(failure),
                    exc_info=None if is_expected else failure,
                )
                return 0

    def reset(self, partition: TopicPartition) -> bool:
        """Try a partition whose cleaning failed again, at once; False where it had not failed."""
        was_failed = self._manager.reset(partition)
        if was_failed and not self._is_stopped:
            self._scheduler.once("log cleaner after a reset", _Worker(self).run)
        return was_failed

    def stats(self) -> CleanerStats:
        """How things are now."""
        failures, survey = self._manager.failures(), self._manager.last_survey
        sums, last = self._tally.read()
        with self._changed:
            workers, running_count = tuple(self._workers), len(self._slots)
        return CleanerStats(
            uncleanable=uncleanable_by_directory(failures),
            failures=failures,
            worker_count=len(workers),
            running_count=running_count,
            dead_worker_count=sum(worker.is_dead for worker in workers),
            ms_since_last_run=round((self._clock.monotonic_s() - survey.at_s) * 1000),
            max_clean_ms=last.duration_ms,
            max_map_use_ratio=last.map_use_ratio,
            max_compaction_delay_ms=survey.max_compaction_delay_ms,
            max_cleanable_ratio=survey.max_cleanable_ratio,
            next_horizon_ms=survey.next_horizon_ms,
            clean_count=sums.clean_count,
            aborted_count=sums.aborted_count,
            cleaned_record_count=sums.cleaned_record_count,
            dropped_record_count=sums.cleaned_record_count - sums.kept_record_count,
            null_key_count=sums.null_key_count,
            cleaned_bytes=sums.cleaned_bytes,
            reclaimed_bytes=sums.cleaned_bytes - sums.written_bytes,
        )

    def check(self) -> None:
        """Prove that no more is borrowed than there is, and what the manager proves."""
        with self._changed:
            assert all(slot.number == number for number, slot in self._slots.items())
        self._manager.check()


class _Worker:
    """One of the tasks. Thread-safe: each field is set by single assignments."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner
        self._task: ScheduledTask | None = None
        self._is_retired = False
        self.is_dead = False
        """An error that nobody expected has ended its last round."""

    def begin(self, scheduler: Scheduler, name: str, period_ms: int) -> None:
        self._task = scheduler.every(name, self.run, period_ms)
        if self._is_retired:
            self._task.cancel()

    def retire(self) -> None:
        """No other log is begun. What is under way goes on."""
        self._is_retired = True
        if self._task is not None:
            self._task.cancel()

    def run(self) -> None:
        """A round: clean until nothing is due."""
        self.is_dead = False
        try:
            while not self._is_retired and self._cleaner.clean_filthiest():
                self._cleaner.delete_old_segments_if_due()
            if not self._is_retired:
                self._cleaner.delete_old_segments_if_due()
        except BaseException:
            self.is_dead = True
            raise
