"""A clean that ended early leaves nothing that the next one trips over."""

from __future__ import annotations

import dataclasses
from errno import ENOSPC

import pytest

from stratalog.cleaner.clean import log_cleaner
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.exchange.cleaned_segment import CleanedSegment
from stratalog.segment.file_names import CLEANED_SUFFIX, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.transaction_index import ENTRY_SIZE
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.logs.log_ledger import read_local


@pytest.mark.parametrize("lost", [suffix for suffix in SEGMENT_SUFFIXES if suffix != ".log"])
def test_a_cleaned_segment_without_one_of_its_files_replaces_nothing(lost: str) -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/log")
    for suffix in SEGMENT_SUFFIXES:
        if suffix != lost:
            disk.open_append(segment_path("/log", 0, suffix) + CLEANED_SUFFIX).close()
    seal = SegmentSeal.of(0, 0, IndexSeal(), IndexSeal(), IndexSeal(ENTRY_SIZE, bytes(4)))
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
