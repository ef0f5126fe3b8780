"""The progress and the backlog of the cleaner, for metrics: one immutable snapshot."""

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
    """The bytes that wait to be cleaned in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStats:
    """A snapshot of the cleaner. Immutable, hence thread-safe. Counts and sums are since the start of the
    process."""

    uncleanable: Mapping[str, UncleanableLogs]
    """By log directory; a directory without failures is missing."""
    failures: tuple[CleaningFailure, ...]
    """Sorted by partition, each once."""
    worker_count: int
    running_count: int
    """Cleans that run now."""
    dead_worker_count: int
    """Workers whose last round ended with an unexpected error. Each begins another one."""
    ms_since_last_run: int
    """Since the last search of a worker for a log to clean. If it is much more than `log.cleaner.backoff.ms`
    while `running_count` is below `worker_count`, the cleaner does not run."""
    max_clean_ms: int
    """The longest of the workers' last cleans."""
    max_map_use_ratio: float
    """The fullest key map of the workers' last cleans. At 1 cleans end before the end of the dirty part:
    raise `log.cleaner.dedupe.buffer.size`."""
    max_compaction_delay_ms: int
    """The longest delay beyond `max.compaction.lag.ms`, in the last survey."""
    max_cleanable_ratio: float
    """The ratio of the filthiest log, in the last survey."""
    next_clean_ms: int
    """The earliest time at which a log has tombstones or markers to drop, in the last survey; NO_HORIZON if
    there is none."""
    clean_count: int
    """Complete cleans."""
    aborted_count: int
    """Cleans that were aborted."""
    cleaned_record_count: int
    dropped_record_count: int
    null_key_count: int
    cleaned_bytes: int
    """Sizes of the segments that cleans replaced."""
    reclaimed_bytes: int
    """How much smaller these are now."""


def uncleanable_by_directory(failures: tuple[CleaningFailure, ...]) -> dict[str, UncleanableLogs]:
    """Group the failures for Kafka's `uncleanable-partitions-count` and `uncleanable-bytes`."""
    found: dict[str, UncleanableLogs] = {}
    for failure in failures:
        count, size_bytes = found.get(failure.directory, UncleanableLogs(0, 0))
        found[failure.directory] = UncleanableLogs(count + 1, size_bytes + failure.dirty_bytes)
    return found


class CleanSums(NamedTuple):
    """Sums over all cleans. A clean that ended early counts with the groups that it exchanged."""

    clean_count: int = 0
    aborted_count: int = 0
    cleaned_record_count: int = 0
    kept_record_count: int = 0
    null_key_count: int = 0
    cleaned_bytes: int = 0
    written_bytes: int = 0


class LastClean(NamedTuple):
    """Duration and map use of a worker's last clean."""

    duration_ms: int
    map_use_ratio: float
    """The used part of the map's capacity."""


class CleanTally:
    """The sums over cleans. Thread-safe: `_guard` is held for single steps."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sums = CleanSums()
        self._last: dict[int, LastClean] = {}

    def note_clean(self, slot: int, duration_ms: int, stats: CleanStats) -> None:
        """Count a complete clean; `slot` is its number among the cleans of that time."""
        with self._guard:
            self._last[slot] = LastClean(
                duration_ms, stats.map_entry_count / max(1, stats.max_map_entry_count)
            )
            self._add(stats)
            self._sums = self._sums._replace(clean_count=self._sums.clean_count + 1)

    def note_cut_off(self, stats: CleanStats) -> None:
        """Count a clean that ended early. The groups that it exchanged stay."""
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
        with self._guard:
            self._sums = self._sums._replace(aborted_count=self._sums.aborted_count + 1)

    def forget_slots_from(self, slot: int) -> None:
        with self._guard:
            self._last = {kept: last for kept, last in self._last.items() if kept < slot}

    def read(self) -> tuple[CleanSums, LastClean]:
        with self._guard:
            last = self._last.values()
            return self._sums, LastClean(
                max((clean.duration_ms for clean in last), default=0),
                max((clean.map_use_ratio for clean in last), default=0.0),
            )
