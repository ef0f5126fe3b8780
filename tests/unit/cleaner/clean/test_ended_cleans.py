"""A clean that ended early leaves nothing that the next one trips over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from errno import ENOSPC

import pytest

from stratalog.cleaner.clean import log_cleaner
from stratalog.cleaner.clean.aborted_index import AbortedIndex
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.exchange.cleaned_segment import CleanedSegment
from stratalog.segment.file_names import CLEANED_SUFFIX, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.transaction_index import ENTRY_SIZE, TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION

PAGE_ENTRIES = 2


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few aborted transactions fill pages, and windows hold a few batches."""
    monkeypatch.setattr(TransactionIndex, "page_bytes", PAGE_ENTRIES * ENTRY_SIZE)
    monkeypatch.setattr(log_cleaner, "_MIN_WINDOW_BYTES", 1)


def aborted() -> CompactedLog:
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=100_000))
    for number in range(20):
        history.put(f"k{number}=1", txn=1)
        history.end(1, committed=number % 4 == 0)
    history.log.roll()
    return history


def test_the_next_clean_writes_a_transaction_index_that_is_there() -> None:
    """Wherever the one before it ended: by a pause, a deletion, or a disk that was full."""
    ended_count = step = 0
    is_ended = True
    while is_ended:
        history, step = aborted(), step + 1
        left = iter(range(step))

        def end_in_time(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise CleaningAbortedError("enough")

        assert history.machine.manager is not None
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

        return log_cleaner.LogCleaner(machine.clock, SequentialIds()).clean(
            chosen, limits._replace(check_done=check_done)
        )

    workers = CleanerPool(machine.clock, machine.machine.scheduler, machine.manager, clean, CleanerSettings())
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
