"""The pool of workers that clean logs: each cleans the filthiest log, then the next one, until none is due.

A worker is a task that the scheduler repeats every `log.cleaner.backoff.ms`. So a worker begins anew after an
error, and an operator's reset only schedules a round at once. The number of cleans at a time never exceeds
the number of workers, and their key maps never exceed their common memory: a clean borrows its share at its
beginning and returns it at its end. So both numbers can change while cleans run, which keep their shares.

This class also applies the retention of compacted logs, because retention, like a clean, needs the log for
itself. It does so even while cleaning is switched off, and for logs whose cleaning fails. While such a log
moves between directories, the retention pass of the other logs does it.

Locks: `_changed` is held for single steps, and nothing is called under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.scheduler import ScheduledTask, Scheduler
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_manager import CleanerManager, log_directory
from stratalog.cleaner.cleaner_settings import MIN_MAP_BYTES, CleanerSettings
from stratalog.cleaner.cleaner_stats import CleanerStats, CleanTally, uncleanable_by_directory
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.failure_kind import reason_of
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

CleanLog = Callable[[LogToClean, CleanLimits], CleanResult]
"""Cleans one log. Raises CleaningAbortedError, CorruptRecordError, DataDirectoryError and OSError; a group of
segments is then either old or new."""


class _Slot(NamedTuple):
    """The share that a clean has borrowed."""

    number: int
    map_bytes: int


class CleanerPool:
    """Workers that clean logs. Thread-safe: `_changed` guards settings, workers and borrowed shares."""

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
        """Nothing runs before `start`. `scheduler` needs at least one thread a worker, because a clean may
        take hours. `may_begin` is called before each search for work, and `may_shrink` for each log before it
        is cleaned or its retention is applied, both under no lock. Raises InvalidConfigError."""
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
        self._shrinking: set[str] = set()
        """The log directories whose logs a thread shrinks; guarded by `_changed`."""
        self.deleted_segment_count = 0
        """Segments that `delete_old_segments` dropped; guarded by `_changed`."""
        self._slots: dict[int, _Slot] = {}
        self._workers: list[_Worker] = []
        self._is_stopped = False
        self._retention_due_s = clock.monotonic_s()
        manager.throttler.set_max_bytes_per_s(settings.max_bytes_per_s)

    @property
    def settings(self) -> CleanerSettings:
        return self._settings

    def start(self) -> None:
        self._hire()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """Change the settings; cleans that run keep their shares.

        Raises InvalidConfigError with nothing changed, also for more than double or less than half of the
        workers.
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
        """Replace the workers; the old ones end after their current clean."""
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
        """End all cleans and begin no others; nothing runs when this returns. Not to be called by a worker,
        nor under a lock of a log or of the log manager. May be called twice."""
        with self._changed:
            self._is_stopped = True
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.retire()
        self._manager.stop()

    def clean_filthiest(self) -> bool:
        """Clean the log with the most to gain, or find when a log is due next, if that is not on record.
        False if there is no such log, or cleaning is not allowed now.

        An error of one log counts as its failure; the other logs are still cleaned.
        """
        if not self._may_begin():
            return False
        slot = self._borrow()
        if slot is None:
            return False
        try:
            chosen = self._manager.take_filthiest(self._may_shrink)
            if chosen is None:
                return self._manager.find_next_clean(self._may_shrink)
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
        except Exception as failure:  # noqa: BLE001 - any failure is of this log alone, and the others wait
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
            manager.done(chosen, result.end_offset, result.next_clean_ms)

    def delete_old_segments(self, path: str | None = None) -> int:
        """Apply the retention of all compacted logs, or of those in the log directory of this path; returns
        the number of dropped segments.

        A log with the policy `compact` alone loses the segments below its start. A log that is being cleaned
        or is paused is left out; a worker looks at it afterwards. So is a directory that another thread is
        at: a disk that hangs holds up one of them. Called by the workers, and by the retention task of the
        other logs, because workers may be busy for hours.
        """
        by_path: dict[str, list[UnifiedLog]] = {}
        for log in self._manager.cleaned_logs():
            by_path.setdefault(log_directory(log), []).append(log)
        return sum(
            self._delete_old_segments_in(one, logs)
            for one, logs in by_path.items()
            if path is None or one == path
        )

    def _delete_old_segments_in(self, path: str, logs: Sequence[UnifiedLog]) -> int:
        """`delete_old_segments` for logs in one directory, unless another thread is at it."""
        with self._changed:
            if path in self._shrinking:
                return 0
            self._shrinking.add(path)
        count = 0
        try:
            if self._may_begin():
                count = sum(map(self._delete_old_segments_of, logs))
        finally:
            with self._changed:
                self._shrinking.discard(path)
                self.deleted_segment_count += count
        return count

    def delete_old_segments_if_due(self) -> None:
        """`delete_old_segments`, unless that began less than `log.cleaner.backoff.ms` ago."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            if now_s < self._retention_due_s:
                return
            self._retention_due_s = now_s + self._settings.backoff_ms / 1000
        self.delete_old_segments()

    def delete_old_segments_of(self, log: UnifiedLog) -> int:
        """`delete_old_segments` for one compacted log."""
        count = self._delete_old_segments_of(log)
        with self._changed:
            self.deleted_segment_count += count
        return count

    def _delete_old_segments_of(self, log: UnifiedLog) -> int:
        if not self._may_shrink(log):
            return 0
        with self._manager.held(log) as is_held:
            try:
                return log.retention.delete_old_segments() if is_held else 0
            except Exception as failure:  # One log must not keep the others from shrinking.
                is_expected = isinstance(failure, LogStoreError)
                logger.warning(
                    "retention of %s failed and will be tried again, reason=`%s`",
                    log.topic_partition,
                    reason_of(failure),
                    exc_info=None if is_expected else failure,
                )
                return 0

    def reset(self, partition: TopicPartition) -> bool:
        """Clean a failed partition again at once; False if it had not failed."""
        was_failed = self._manager.reset(partition)
        if was_failed and not self._is_stopped:
            self._scheduler.once("log cleaner after a reset", _Worker(self).run)
        return was_failed

    def stats(self) -> CleanerStats:
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
            next_clean_ms=survey.next_clean_ms,
            clean_count=sums.clean_count,
            aborted_count=sums.aborted_count,
            cleaned_record_count=sums.cleaned_record_count,
            dropped_record_count=sums.cleaned_record_count - sums.kept_record_count,
            null_key_count=sums.null_key_count,
            cleaned_bytes=sums.cleaned_bytes,
            reclaimed_bytes=sums.cleaned_bytes - sums.written_bytes,
        )

    def check(self) -> None:
        """Check the shares and the manager."""
        with self._changed:
            assert all(slot.number == number for number, slot in self._slots.items())
        self._manager.check()


class _Worker:
    """One task of the pool. Thread-safe: each field is set by single assignments."""

    def __init__(self, pool: CleanerPool) -> None:
        self._pool = pool
        self._task: ScheduledTask | None = None
        self._is_retired = False
        self.is_dead = False
        """An unexpected error has ended its last round."""

    def begin(self, scheduler: Scheduler, name: str, period_ms: int) -> None:
        self._task = scheduler.every(name, self.run, period_ms)
        if self._is_retired:
            self._task.cancel()

    def retire(self) -> None:
        """Begin no other log. A current clean goes on."""
        self._is_retired = True
        if self._task is not None:
            self._task.cancel()

    def run(self) -> None:
        self.is_dead = False
        try:
            while not self._is_retired and self._pool.clean_filthiest():
                self._pool.delete_old_segments_if_due()
            if not self._is_retired:
                self._pool.delete_old_segments_if_due()
        except BaseException:
            self.is_dead = True
            raise
