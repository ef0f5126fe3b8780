"""What the cleaner has done and how far behind it is, for metrics: one immutable snapshot."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.cleaner.clean_result import CleanCounts
from stratalog.cleaner.cleaner_failures import CleaningFailure


class UncleanableLogs(NamedTuple):
    """The partitions of one log directory whose cleaning failed and is tried again later."""

    partition_count: int
    dirty_bytes: int
    """What waits to be cleaned of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStats:
    """Immutable, hence thread-safe. Counts and sums are since the process began."""

    uncleanable: Mapping[str, UncleanableLogs]
    """By log directory; one in which nothing failed is missing."""
    failures: tuple[CleaningFailure, ...]
    worker_count: int
    running_count: int
    """Cleans that are under way."""
    dead_worker_count: int
    """Workers whose last round was ended by an error that nobody expected. Each begins another one."""
    ms_since_last_run: int
    """Since a worker last looked for something to clean. Much more than `log.cleaner.backoff.ms` while
    `running_count` is below `worker_count`: the cleaner does not run."""
    max_clean_ms: int
    """How long the last clean of a worker took, at most."""
    max_compaction_delay_ms: int
    """How long a record is over `max.compaction.lag.ms` at most, as of the last look."""
    max_cleanable_ratio: float
    """Of the filthiest log, as of the last look."""
    clean_count: int
    """Cleans that came to their end."""
    aborted_count: int
    """Cleans that were told to end."""
    cleaned_record_count: int
    dropped_record_count: int
    null_key_count: int
    cleaned_bytes: int
    """Of the segments that cleans replaced."""
    reclaimed_bytes: int
    """What these are smaller by now."""


def uncleanable_by_directory(failures: tuple[CleaningFailure, ...]) -> dict[str, UncleanableLogs]:
    """Kafka's `uncleanable-partitions-count` and `uncleanable-bytes`."""
    found: dict[str, UncleanableLogs] = {}
    for failure in failures:
        count, size_bytes = found.get(failure.directory, UncleanableLogs(0, 0))
        found[failure.directory] = UncleanableLogs(count + 1, size_bytes + failure.dirty_bytes)
    return found


class CleanSums(NamedTuple):
    """Over all cleans."""

    clean_count: int = 0
    aborted_count: int = 0
    records_in: int = 0
    records_kept: int = 0
    null_key_count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class CleanTally:
    """What cleans came to. Thread-safe: `_guard` is held for single steps."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sums = CleanSums()
        self._last_ms: dict[int, int] = {}

    def note_clean(self, slot: int, duration_ms: int, counts: CleanCounts) -> None:
        """A clean has ended; `slot`: which of the cleans that run at a time it was."""
        with self._guard:
            sums = self._sums
            self._last_ms[slot] = duration_ms
            self._sums = CleanSums(
                sums.clean_count + 1,
                sums.aborted_count,
                sums.records_in + counts.records_in,
                sums.records_kept + counts.records_kept,
                sums.null_key_count + counts.null_key_count,
                sums.bytes_in + counts.bytes_in,
                sums.bytes_out + counts.bytes_out,
            )

    def note_abort(self) -> None:
        """A clean was told to end."""
        with self._guard:
            self._sums = self._sums._replace(aborted_count=self._sums.aborted_count + 1)

    def forget_slots_from(self, slot: int) -> None:
        """There are fewer workers now."""
        with self._guard:
            self._last_ms = {kept: value for kept, value in self._last_ms.items() if kept < slot}

    def read(self) -> tuple[CleanSums, int]:
        """The sums, and the longest of the last cleans in milliseconds."""
        with self._guard:
            return self._sums, max(self._last_ms.values(), default=0)
