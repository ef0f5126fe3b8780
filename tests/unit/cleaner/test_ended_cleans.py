"""A clean that ended early leaves nothing that the next one trips over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from stratalog.cleaner import cleaner
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.log.cleaned_segment import CleanedSegment
from stratalog.segment.file_names import CLEANED_SUFFIX, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.transaction_index import ENTRY_SIZE, TransactionIndex
from stratalog.testing.compacted_log import CONFIG, CompactedLog
from stratalog.testing.log_machine import PARTITION
from stratalog.testing.memory_filesystem import MemoryFileSystem

PAGE_ENTRIES = 2


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few aborted transactions fill pages, and windows hold a few batches."""
    monkeypatch.setattr(TransactionIndex, "_page_bytes", PAGE_ENTRIES * ENTRY_SIZE)
    monkeypatch.setattr(cleaner, "_MIN_WINDOW_BYTES", 1)


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
    with pytest.raises(FileNotFoundError):
        CleanedSegment(0, 0, 0, 0, has_aborted=True).prove(disk, "/log", lambda _: None)
