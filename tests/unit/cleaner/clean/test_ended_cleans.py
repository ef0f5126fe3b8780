"""Cleans that end early: by the throttle, by a file that is gone, by a disk that is full."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC

import pytest

from stratalog.cleaner.clean import log_clean
from stratalog.cleaner.clean.aborted_index import AbortedIndex
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.exchange.cleaned_segment import CleanedSegment
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.transaction_index import ENTRY_SIZE, TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION

SETTINGS = CleanerSettings(max_bytes_per_s=1.0)


def many_groups() -> CompactedLog:
    """A log of which a clean makes many groups."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=600))
    for number in range(40):
        history.put(f"k{number}=1", f"k{number - 1}=2")
    history.log.roll()
    return history


def test_a_clean_looks_whether_it_must_end_before_each_group() -> None:
    """Nothing of the next group is on the disk at the first look after an exchange."""
    history = many_groups()
    directory, disk = history.log.local_log.directory, history.machine.disk
    segments, exchange_count = list(history.log.local_log.segments), 0

    def look() -> None:
        nonlocal segments, exchange_count
        if (now := list(history.log.local_log.segments)) != segments:
            segments, exchange_count = now, exchange_count + 1
            assert not [name for name in disk.list_directory(directory) if name.endswith(CLEANED_SUFFIX)]

    assert history.clean(on_step=look) is not None
    assert exchange_count > 3


@pytest.mark.parametrize("lost", [suffix for suffix in SEGMENT_SUFFIXES if suffix != ".log"])
def test_a_cleaned_segment_without_one_of_its_files_replaces_nothing(lost: str) -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/log")
    for suffix in SEGMENT_SUFFIXES:
        if suffix != lost:
            disk.open_append(segment_path("/log", 0, suffix) + CLEANED_SUFFIX).close()
    seal = SegmentSeal.of(0, 0, bytes(4), IndexSeal(), IndexSeal(), IndexSeal(ENTRY_SIZE, bytes(4)))
    with pytest.raises(FileNotFoundError):
        CleanedSegment(0, 0, 0, seal).prove(disk, "/log", lambda _: None)


@pytest.mark.parametrize("failure", [CleaningAbortedError("enough"), OSError(ENOSPC, "full")])
@pytest.mark.parametrize("look_count", [0, 1, 4, 7])
def test_what_was_exchanged_counts_though_the_clean_ends_early(failure: Exception, look_count: int) -> None:
    """The numbers of an operator are those of the disk, however each clean ended: what it was at then does
    not count."""
    machine = CleanerMachine()
    log = machine.open(0, dataclasses.replace(COMPACTED, segment_bytes=40_000))
    machine.fill(log, *[200] * 12)
    before_bytes, before_count = log.local_log.segments.size_bytes, len(read_local(log))
    is_failing = True
    looks = iter(range(look_count))

    def clean(chosen: LogToClean, limits: CleanLimits) -> CleanResult:
        def check_done() -> None:
            if (
                is_failing
                and log.local_log.segments.size_bytes < before_bytes / 2
                and next(looks, None) is None
            ):
                raise failure
            limits.check_done()

        return log_clean.LogClean(machine.clock, SequentialIds()).run(
            chosen, limits._replace(check_done=check_done)
        )

    workers = machine.pool(clean)
    assert workers.clean_filthiest()
    stats, reclaimed_bytes = workers.stats(), before_bytes - log.local_log.segments.size_bytes
    assert stats.clean_count == 0
    assert reclaimed_bytes > 0
    assert stats.reclaimed_bytes == reclaimed_bytes
    assert 0 < stats.cleaned_bytes < before_bytes
    assert stats.dropped_record_count == before_count - len(read_local(log))
    is_failing = False
    machine.clock.advance(3_600_000)
    assert workers.clean_filthiest()
    assert workers.stats().clean_count == 1
    assert workers.stats().reclaimed_bytes == before_bytes - log.local_log.segments.size_bytes


class ThrottledClean:
    """A log, and a cleaner which may move a byte a second and has moved too much. Used by one thread."""

    def __init__(self) -> None:
        self.machine = CleanerMachine()
        self.partition = self.machine.partition(0)
        self.log = self.machine.open(0)
        self.machine.fill(self.log, 3, 3)
        self.manager: CleanerManager = self.machine.manager
        self.cleaner = self.machine.pool(settings=SETTINGS)
        self.manager.throttler.take(1 << 40, lambda: None)

    def pause(self) -> None:
        with self.manager.paused(self.partition):
            assert self.manager.take_filthiest() is None


ENDS: dict[str, Callable[[ThrottledClean], None]] = {
    "pause": ThrottledClean.pause,
    "stop": lambda throttled: throttled.cleaner.stop(),
    "directory": lambda throttled: throttled.manager.directory_failed(DATA_DIR),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "walk"])
def test_what_waits_for_the_throttle_ends_at_once(end: str, *, is_clean: bool) -> None:
    """The time stands still meanwhile. A walk over what others have cleaned is throttled as a clean is."""
    throttled = ThrottledClean()
    machine, manager = throttled.machine, throttled.manager
    if not is_clean:
        found = manager.take_filthiest()
        assert found is not None
        manager.done(found, found.first_uncleanable_offset)
    elapsed_ms = machine.clock.elapsed_ms
    with ThreadPoolExecutor(2) as pool:
        try:
            cleaning = pool.submit(throttled.cleaner.clean_filthiest)
            machine.clock.until_waiting()
            assert throttled.cleaner.stats().running_count == 1
            ending = pool.submit(ENDS[end], throttled)
            assert cleaning.result(30)
            ending.result(30)
        finally:
            # A clean that was not woken up goes on now, or this test would never end.
            manager.throttler.set_max_bytes_per_s(float(1 << 60))
    assert machine.clock.elapsed_ms == elapsed_ms
    stats = throttled.cleaner.stats()
    assert (stats.aborted_count, stats.clean_count, stats.failures) == (int(is_clean), 0, ())
    assert [one.size_bytes > 0 for one in throttled.log.local_log.segments] == [True, True, False]
    manager.check()


def with_transactions() -> CompactedLog:
    """Every other one aborted, in many segments."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=600))
    for number in range(30):
        history.put(f"a{number}=" + "x" * 150, "k=1", txn=1)
        history.end(1, committed=number % 2 == 0)
    history.log.roll()
    return history


def worker_of(history: CompactedLog, ids: SequentialIds) -> CleanerPool:
    machine = history.machine
    clean = LogClean(machine.clock, ids).run
    return CleanerPool(machine.clock, machine.scheduler, machine.manager.cleaner, clean, CleanerSettings())


def vanish(history: CompactedLog, suffix: str, ordinal: int = 3) -> str:
    """The path of the file, of one of the segments that have such a file."""
    segments = history.log.local_log.segments.sealed
    if suffix == TRANSACTION_INDEX_SUFFIX:
        segments = tuple(segment for segment in segments if segment.has_aborted)
    segment = segments[ordinal]
    path = segment_path(segment.directory, segment.base_offset, suffix)
    history.machine.disk.unlink(path)
    history.log.segment_exchange.resources.files.forget(path)
    return path


@pytest.mark.parametrize("suffix", [LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX])
def test_a_file_that_is_gone_is_a_failure_that_names_it(suffix: str) -> None:
    history = with_transactions()
    path = vanish(history, suffix)
    worker, clock = worker_of(history, SequentialIds()), history.machine.clock
    begun_ms = clock.now_ms()
    for count in (1, 2):
        assert worker.clean_filthiest()
        assert not worker.clean_filthiest(), "it is tried again without a pause"
        (failure,) = worker.stats().failures
        assert (failure.kind, failure.failure_count, failure.since_ms) == (FailureKind.DISK, count, begun_ms)
        assert failure.reason.endswith(repr(path))
        assert "dropped" not in failure.reason
        clock.advance(count * FIRST_DELAY_MS)
    stats = worker.stats()
    assert (stats.clean_count, stats.aborted_count) == (0, 0)


def test_segments_that_retention_drops_are_no_failure() -> None:
    """A clean that misses them ends, and the next one begins at once with what is left."""
    history = with_transactions()
    log = history.log
    dropped = log.local_log.segments.sealed[3]

    class Dropping(SequentialIds):
        """At the moment when the segments of the clean are chosen."""

        def secret(self, size_bytes: int) -> bytes:
            if log.local_log.segments.start_offset < dropped.end_offset:
                log.increment_log_start_offset(dropped.end_offset)
                log.retention.delete_old_segments()
            return super().secret(size_bytes)

    worker = worker_of(history, Dropping())
    assert worker.clean_filthiest()
    stats = worker.stats()
    assert (stats.clean_count, stats.aborted_count, stats.failures) == (0, 1, ())
    while worker.clean_filthiest():
        pass
    assert history.read() == history.final_records()
    assert worker.stats().failures == ()


def test_a_pause_does_not_wait_for_a_look_at_all_transaction_indexes() -> None:
    """It comes before the first window, and a log may have thousands of them."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=300))
    for number in range(40):
        history.put(f"k{number}=1", txn=1)
        history.end(1, committed=False)
    segments = history.log.local_log.segments
    with_aborted = [segment for segment in segments if segment.has_aborted]
    assert len(with_aborted) > 5
    sizes: list[int] = []
    AbortedIndex(segments, sizes.append).between(0, 1)
    assert sum(sizes) == ENTRY_SIZE * len(
        history.log.reader.aborted_transactions(0, history.log.offsets.log_end_offset)
    )
    assert len(sizes) >= len(with_aborted)

    asked: list[int] = []

    def end(size_bytes: int) -> None:
        asked.append(size_bytes)
        raise CleaningAbortedError("enough")

    with pytest.raises(CleaningAbortedError):
        AbortedIndex(segments, end).between(0, 1)
    assert len(asked) == 1


def aborted() -> CompactedLog:
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=100_000))
    for number in range(20):
        history.put(f"k{number}=1", txn=1)
        history.end(1, committed=number % 4 == 0)
    history.log.roll()
    return history


def test_the_next_clean_writes_a_transaction_index_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the one before it ended: by a pause, a deletion, or a disk that was full."""
    # A few aborted transactions fill pages, and windows hold a few batches.
    monkeypatch.setattr(TransactionIndex, "page_bytes", 2 * ENTRY_SIZE)
    monkeypatch.setattr(log_clean, "_MIN_WINDOW_BYTES", 1)
    ended_count = step = 0
    is_ended = True
    while is_ended:
        history, step = aborted(), step + 1
        left = iter(range(step))

        def end_in_time(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise CleaningAbortedError("enough")

        try:
            history.clean(on_step=end_in_time, io_buffer_bytes=100)
            is_ended = False
        except CleaningAbortedError:
            history.machine.manager.cleaner.release(PARTITION)
            ended_count += 1
            assert history.clean(io_buffer_bytes=100) is not None
        history.log.check()
        assert history.read() == history.final_records(), step
    assert ended_count > 20
