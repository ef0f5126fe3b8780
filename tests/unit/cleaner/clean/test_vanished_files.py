"""Files of a log that vanish under a running server: the cleaner says which, and waits before it goes on."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.segment.file_names import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.compacted_log import CONFIG, CompactedLog


def with_transactions() -> CompactedLog:
    """Every other one aborted, in many segments."""
    history = CompactedLog(dataclasses.replace(CONFIG, segment_bytes=600))
    for number in range(30):
        history.put(f"a{number}=" + "x" * 150, "k=1", txn=1)
        history.end(1, committed=number % 2 == 0)
    history.log.roll()
    return history


def worker_of(history: CompactedLog) -> CleanerPool:
    machine = history.machine
    assert machine.manager is not None
    clean = LogCleaner(machine.clock, SequentialIds()).clean
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
    worker, clock = worker_of(history), history.machine.clock
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

    machine = history.machine
    assert machine.manager is not None
    clean = LogCleaner(machine.clock, Dropping()).clean
    worker = CleanerPool(machine.clock, machine.scheduler, machine.manager.cleaner, clean, CleanerSettings())
    assert worker.clean_filthiest()
    stats = worker.stats()
    assert (stats.clean_count, stats.aborted_count, stats.failures) == (0, 1, ())
    while worker.clean_filthiest():
        pass
    assert history.read() == history.final_records()
    assert worker.stats().failures == ()
