"""Computes when the next clean of a log has something to drop in the clean part. docs/cleaning.md has the
rule and its cost ("Logs without appends").

The time is always later than the clean itself, so that each such clean makes progress. A marker gets its
horizon only from a clean that finds no data of its transaction. If a clean has dropped the last data, its
marker waits for the next clean, as if its horizon were `delete.retention.ms` later.
"""

from __future__ import annotations

from stratalog.record.keep_rules import MAX_HORIZON_MS
from stratalog.record.native.cleaned_batches import NO_HORIZON


class KeptHorizons:
    """The horizons that one pass over a log has met. Not thread-safe."""

    def __init__(self, now_ms: int) -> None:
        """`now_ms` is the time of the pass. Of earlier horizons it notes only those of tombstones that stay
        for their versions."""
        self._now_ms = now_ms
        self._earliest_ms = NO_HORIZON
        self._latest_ms = -1
        self._is_marker_waiting = False

    def note(self, earliest_ms: int, latest_ms: int) -> None:
        """Note tombstones or markers with horizons between these times; NO_HORIZON and -1 if there are
        none."""
        self._earliest_ms = min(self._earliest_ms, earliest_ms)
        self._latest_ms = max(self._latest_ms, latest_ms)

    def note_waiting_marker(self) -> None:
        """Note a marker whose transaction will have no data in the next clean."""
        self._is_marker_waiting = True

    def due_ms(self, delete_retention_ms: int) -> int:
        """The time of the next clean, in ms since the epoch; NO_HORIZON if none is needed."""
        earliest_ms, latest_ms = self._earliest_ms, self._latest_ms
        if self._is_marker_waiting:
            waiting_ms = self._now_ms + delete_retention_ms
            earliest_ms, latest_ms = min(earliest_ms, waiting_ms), max(latest_ms, waiting_ms)
        if latest_ms < 0:
            return NO_HORIZON
        due_ms = max(min(latest_ms, earliest_ms + delete_retention_ms), self._now_ms + 1)
        return due_ms if due_ms < MAX_HORIZON_MS else NO_HORIZON
