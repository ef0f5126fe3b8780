"""Logs on real disks, and everything that may happen to them at once, on threads of their own.

Producers write, in transactions and without; readers begin at the start again and again; the cleaner's
workers clean with key maps that are far too small; retention deletes segments and a thread deletes records,
of compacted logs, too; the producers leave one log alone now and then, and then all, so that logs are cleaned
for the sake of what they keep for a while; logs move between three directories, and some moves are cancelled.
When time is up every log is read from its start, is closed, opened again, recovered and read once more. Each
reader that was there all the time, and each of the end, must know the last value of every key that is above
the log's start and nothing else, and must have met the values of a key in their order.

What happens follows from the seed as far as threads allow; the seed is in every message.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicPartition
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_pool import CleanerPool, CleanLog
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.moves.log_move import MoveState
from stratalog.server.background.thread_scheduler import ThreadScheduler
from tests.support.torture.keyed_ledger import KeyedLedger
from tests.support.torture.torture_producer import TortureProducer
from tests.support.torture.torture_reader import TortureReader

THREAD_COUNT = 16
_DIRECTORY_COUNT = 3
_PRODUCER_COUNT = 2
_SMALL = {
    "remote.storage.enable": "false",
    "segment.bytes": "60000",
    "index.interval.bytes": "2000",
    "file.delete.delay.ms": "500",
    "retention.ms": "-1",
}
_COMPACT = _SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_TOPICS = {
    # Deletions stay, so a reader may be as slow as it likes.
    "state": _COMPACT,
    "packed": _COMPACT | {"compression.type": "zstd", "flush.messages": "500"},
    # Deletions go at once: only a reader that begins when all is over can know everything. And nothing stays
    # in the active segment for long.
    "brief": _COMPACT | {"delete.retention.ms": "50", "max.compaction.lag.ms": "500"},
    # The older half goes by its age, whatever the cleaner has made of it.
    "window": _COMPACT
    | {"cleanup.policy": "compact,delete", "retention.ms": "1500", "delete.retention.ms": "50"},
    "events": _SMALL | {"cleanup.policy": "delete", "retention.bytes": "500000"},
}
_SLOW_READERS_OF = ("state", "packed")
# No thread deletes records of these, so that there is one that is known from its first record on.
_WHOLE = ("state",)
_IDLE_NOW_AND_THEN = "brief"
_PHASE_S = 1.0
_PATIENCE_S = 120.0


class TortureReport(NamedTuple):
    """How much of everything there was: a run that did little has shown little."""

    batches: int
    committed: int
    aborted: int
    records_read: int
    cleans: int
    aborted_cleans: int
    idle_cleans: int
    """Cleans of logs without enough dirt, for tombstones and markers whose time had come."""
    records_dropped: int
    compacted_deletions: int
    """How often the start of a compacted log was moved."""
    segments_deleted: int
    moves_done: int
    moves_ended: int

    @property
    def has_everything(self) -> bool:
        """All of it has happened; whether a clean meets a move or a pause is left to chance."""
        return min(self._replace(aborted_cleans=1)) > 0


@dataclass(slots=True)
class _Counts:
    """Counters. Not thread-safe: one thread, or the torture's guard, is behind each."""

    records_read: int = 0
    idle_cleans: int = 0
    compacted_deletions: int = 0
    segments_deleted: int = 0
    moves_done: int = 0
    moves_ended: int = 0


class LogTorture:
    """The torture of one log directory. One use: `run`, by one thread."""

    def __init__(self, threads: Executor, path: str, seed: int) -> None:
        """`threads`: as many as THREAD_COUNT. `path`: an empty directory."""
        self._directories = tuple(f"{path}/disk{number}" for number in range(_DIRECTORY_COUNT))
        self._seed = seed
        self._clock = SystemClock()
        self._ledger = KeyedLedger()
        self._counts = _Counts()
        self._stop = threading.Event()
        self._are_producers_done = threading.Event()
        self._threads = threads
        self._undo: list[Callable[[], None]] = []
        self._guard = threading.Lock()

    def run(self, duration_s: float) -> TortureReport:
        """Run for this time at least, and on a slow machine until everything has happened, or no longer than
        `_PATIENCE_S`. Raises AssertionError, or the first error that a thread met."""
        try:
            return self._run(duration_s)
        except BaseException as failure:
            failure.add_note(f"torture with seed {self._seed}")
            raise
        finally:
            self._stop.set()
            self._are_producers_done.set()
            # Whatever still runs would write to a directory that the caller may remove.
            for close in reversed(self._undo):
                close()

    def _run(self, duration_s: float) -> TortureReport:
        scheduler = ThreadScheduler(8)
        manager = self._open(scheduler)
        cleaner = CleanerPool(
            self._clock,
            scheduler,
            manager.cleaner,
            self._counting(LogClean(self._clock, SystemIdGenerator()).run),
            CleanerSettings(thread_count=2, map_bytes=2 << 20, map_load_factor=0.005, backoff_ms=20),
        )
        self._undo += [scheduler.close, cleaner.stop]
        producers = [
            TortureProducer(
                self._clock,
                self._chance(f"producer {number}"),
                lambda: self._written_to(manager),
                self._ledger,
                number,
            )
            for number in range(_PRODUCER_COUNT)
        ]
        cleaner.start()
        deadline_s = self._clock.monotonic_s() + max(duration_s, _PATIENCE_S)

        def is_enough() -> bool:
            report = self._report(producers, cleaner.stats())
            return report.has_everything or self._clock.monotonic_s() > deadline_s

        self._live(manager, producers, duration_s, is_enough)
        while cleaner.clean_filthiest():
            pass
        stats = cleaner.stats()
        cleaner.stop()
        assert not stats.failures, f"{stats.failures}"
        assert stats.dead_worker_count == 0, "a worker of the cleaner has ended"
        manager.check()
        self._check(manager)
        manager.close()
        scheduler.close()
        self._reopen()
        return self._report(producers, stats)

    def _live(
        self,
        manager: LogManager,
        producers: Sequence[TortureProducer],
        duration_s: float,
        is_enough: Callable[[], bool],
    ) -> None:
        """Everything at once, until time is up or a thread fails, whose error is raised."""
        writing = [self._thread(self._until_stopped(self._writing(producer))) for producer in producers]
        followed = [log for log in manager.logs() if log.topic_partition.topic in _SLOW_READERS_OF]
        others = [
            self._thread(self._mover(manager)),
            self._thread(self._housekeeper(manager)),
            self._thread(self._restarting_reader(manager)),
            *(self._thread(self._follower(log)) for log in followed),
        ]
        self._stop.wait(duration_s)
        while not is_enough() and not self._stop.wait(_PHASE_S):
            pass
        self._stop.set()
        wait(writing)
        self._are_producers_done.set()
        wait(others)
        for thread in (*writing, *others):
            thread.result()

    def _report(self, producers: Sequence[TortureProducer], stats: CleanerStats) -> TortureReport:
        return TortureReport(
            batches=sum(producer.batch_count for producer in producers),
            committed=sum(producer.committed_count for producer in producers),
            aborted=sum(producer.aborted_count for producer in producers),
            records_read=self._counts.records_read,
            cleans=stats.clean_count,
            aborted_cleans=stats.aborted_count,
            idle_cleans=self._counts.idle_cleans,
            records_dropped=stats.dropped_record_count,
            compacted_deletions=self._counts.compacted_deletions,
            segments_deleted=self._counts.segments_deleted,
            moves_done=self._counts.moves_done,
            moves_ended=self._counts.moves_ended,
        )

    def _open(self, scheduler: ThreadScheduler) -> LogManager:
        settings = LogManagerSettings(
            data_dirs=self._directories,
            max_open_files=32,
            index_cache_bytes=64 * 1024,
            file_delete_delay_ms=500,
        )
        manager = LogManager.open(PosixFileSystem(), self._clock, scheduler, SystemIdGenerator(), settings)
        for number, (topic, overrides) in enumerate(_TOPICS.items()):
            manager.open_log(
                TopicPartition(topic, 0), UUID(int=number + 1), LogConfig.from_overrides(overrides)
            )
        return manager

    def _reopen(self) -> None:
        """Open all logs twice: as a process that finds them clean, and as one that finds no marker and
        recovers."""
        for _ in range(2):
            scheduler = ThreadScheduler(2)
            manager = self._open(scheduler)
            manager.check()
            self._check(manager)
            if manager.was_clean:
                for log in manager.logs():
                    log.close(flush=False)
            manager.close()
            scheduler.close()

    def _check(self, manager: LogManager) -> None:
        for log in manager.logs():
            reader = TortureReader(log)
            reader.read_to_end()
            if log.local_log.config.is_compacted:
                self._require_all(reader)

    def _require_all(self, reader: TortureReader) -> None:
        differences = reader.differences(self._ledger)
        assert not differences, f"{len(differences)} keys differ:\n" + "\n".join(differences[:20])

    def _written_to(self, manager: LogManager) -> Sequence[UnifiedLog]:
        """All; without one now and then; and none now and then, or the workers of the cleaner would always
        find enough dirt elsewhere."""
        phase = int(self._clock.monotonic_s() / _PHASE_S) % 4
        if phase == 0:
            return ()
        logs = manager.logs()
        return [log for log in logs if phase > 1 or log.topic_partition.topic != _IDLE_NOW_AND_THEN]

    def _counting(self, clean: CleanLog) -> CleanLog:
        def counting(to_clean: LogToClean, limits: CleanLimits) -> CleanResult:
            result = clean(to_clean, limits)
            with self._guard:
                self._counts.idle_cleans += to_clean.first_dirty_offset == to_clean.first_uncleanable_offset
            return result

        return counting

    # Threads.

    def _chance(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed} {purpose}")

    def _thread(self, work: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                work()
            finally:
                # When time is up, and at once where a thread fails.
                self._stop.set()

        return self._threads.submit(run)

    def _until_stopped(self, step: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            while not self._stop.is_set():
                step()

        return work

    def _writing(self, producer: TortureProducer) -> Callable[[], None]:
        def step() -> None:
            if not producer.step():
                self._stop.wait(0.02)

        return step

    def _follower(self, log: UnifiedLog) -> Callable[[], None]:
        """Reads from the start and follows to the very end."""

        def work() -> None:
            reader = TortureReader(log)
            while True:
                is_last = self._are_producers_done.is_set()
                reader.read_to_end()
                if is_last:
                    break
                self._are_producers_done.wait(0.01)
            self._require_all(reader)
            self._add_read(reader)

        return work

    def _restarting_reader(self, manager: LogManager) -> Callable[[], None]:
        chance = self._chance("reader")

        def step() -> None:
            reader = TortureReader(chance.choice(manager.logs()))
            while not self._stop.is_set() and reader.read_on():
                pass
            self._add_read(reader)

        return self._until_stopped(step)

    def _add_read(self, reader: TortureReader) -> None:
        with self._guard:
            self._counts.records_read += reader.view.record_count

    def _mover(self, manager: LogManager) -> Callable[[], None]:
        chance = self._chance("mover")

        def step() -> None:
            log = chance.choice(manager.logs())
            here = manager.directory_of(log.topic_partition)
            target = chance.choice([path for path in self._directories if path != here])
            move = manager.begin_move(log.topic_partition, target)
            if chance.random() < 0.2:
                move.cancel("chance")
            is_done = move.run() is MoveState.DONE
            self._counts.moves_done += is_done
            self._counts.moves_ended += not is_done
            self._stop.wait(0.02)

        return self._until_stopped(step)

    def _housekeeper(self, manager: LogManager) -> Callable[[], None]:
        chance = self._chance("housekeeper")

        def step() -> None:
            for log in manager.logs():
                self._counts.segments_deleted += manager.tasks.delete_old_segments(log)
                self._delete_records(log, chance)
            manager.tasks.checkpoint_recovery_points()
            manager.tasks.checkpoint_starts()
            manager.tasks.flush_old()
            self._stop.wait(0.05)

        return self._until_stopped(step)

    def _delete_records(self, log: UnifiedLog, chance: random.Random) -> None:
        """Now and then. Of a compacted log few: there would be nothing left to be sure of."""
        is_compacted = log.local_log.config.is_compacted
        if log.topic_partition.topic in _WHOLE or chance.random() >= (0.06 if is_compacted else 0.1):
            return
        start_offset, end_offset = log.offsets.log_start_offset, log.offsets.high_watermark
        part = chance.random() ** (4 if is_compacted else 1)
        log.increment_log_start_offset(start_offset + int(part * (end_offset - start_offset)))
        self._counts.compacted_deletions += is_compacted
