"""What the cleaner has done and how far behind it is, for metrics: one immutable snapshot."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.cleaner.clean.clean_result import CleanStats
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
    max_map_use_ratio: float
    """How full the key map of the last clean of a worker was, at most. At 1 cleans end
    before the end of what is dirty: give them more of `log.cleaner.dedupe.buffer.size`."""
    max_compaction_delay_ms: int
    """How long a record is over `max.compaction.lag.ms` at most, as of the last look."""
    max_cleanable_ratio: float
    """Of the filthiest log, as of the last look."""
    next_horizon_ms: int
    """From when on the first log is due for tombstones or markers that its last clean has kept for a while,
    as of the last look; NO_HORIZON where none is."""
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
    """Over all cleans; of one that ended early, what it had exchanged by then."""

    clean_count: int = 0
    aborted_count: int = 0
    cleaned_record_count: int = 0
    kept_record_count: int = 0
    null_key_count: int = 0
    cleaned_bytes: int = 0
    written_bytes: int = 0


class LastClean(NamedTuple):
    """What is kept of the last clean of a worker."""

    duration_ms: int
    map_use_ratio: float
    """Of the entries that the map may take."""


class CleanTally:
    """What cleans came to. Thread-safe: `_guard` is held for single steps."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sums = CleanSums()
        self._last: dict[int, LastClean] = {}

    def note_clean(self, slot: int, duration_ms: int, stats: CleanStats) -> None:
        """A clean has ended; `slot`: which of the cleans that run at a time it was."""
        with self._guard:
            self._last[slot] = LastClean(
                duration_ms, stats.map_entry_count / max(1, stats.max_map_entry_count)
            )
            self._add(stats)
            self._sums = self._sums._replace(clean_count=self._sums.clean_count + 1)

    def note_cut_off(self, stats: CleanStats) -> None:
        """A clean has ended early. What it had exchanged by then stays."""
        with self._guard:
            self._add(stats)

    def _add(self, stats: CleanStats) -> None:
        sums = self._sums
        self._sums = sums._replace(
            cleaned_record_count=sums.cleaned_record_count + stats.cleaned_record_count,
            kept_record_count=sums.kept_record_count + stats.kept_record_count,
            null_key_count=sums.null_key_count + stats.null_key_count,
            cleaned_bytes=sums.cleaned_bytes + stats.cleaned_bytes,
            written_bytes=sums.written_bytes + stats.written_bytes,
        )

    def note_abort(self) -> None:
        """A clean was told to end."""
        with self._guard:
            self._sums = self._sums._replace(aborted_count=self._sums.aborted_count + 1)

    def forget_slots_from(self, slot: int) -> None:
        """There are fewer workers now."""
        with self._guard:
            self._last = {kept: last for kept, last in self._last.items() if kept < slot}

    def read(self) -> tuple[CleanSums, LastClean]:
        """The sums, and the highest of each number of the last cleans."""
        with self._guard:
            last = self._last.values()
            return self._sums, LastClean(
                max((clean.duration_ms for clean in last), default=0),
                max((clean.map_use_ratio for clean in last), default=0.0),
            )
