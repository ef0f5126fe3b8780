"""When the next clean of a log has something to drop of what is clean already.

A clean that keeps tombstones and markers for a while writes into their batches from when on they may go. Only
another clean drops them, and into a log that nobody writes to no dirt comes that would bring one. So a clean
says when the log is due for their sake:

* when the last of these times has come, so that one clean drops all of them;
* or `delete.retention.ms` after the first of them, so that one that is far away (the key was altered, the
  wall clock was wrong) does not keep the others;
* but always later than the clean itself, so that each such clean gets the log further.

A marker gets its time only from a clean that finds nothing of its transaction. Where a clean has dropped the
last of that, there is a marker that waits for the next one: as if its time came `delete.retention.ms` later.

Such cleans take nothing dirty, so they make no tombstone wait: behind a clean of dirt there is one of them,
or, with transactions, as many as it takes to empty one, to give its marker a time, and to drop it.
"""

from __future__ import annotations

from stratalog.record.keep_rules import MAX_HORIZON_MS
from stratalog.record.native.cleaned_batches import NO_HORIZON


class KeptHorizons:
    """Not thread-safe: of one pass over a log."""

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: of the pass. What is to go by then is dropped by it, and not noted."""
        self._now_ms = now_ms
        self._earliest_ms = NO_HORIZON
        self._latest_ms = -1
        self._is_marker_waiting = False

    def note(self, earliest_ms: int, latest_ms: int) -> None:
        """Tombstones or markers stay that go between these times; NO_HORIZON and -1 where there are none."""
        self._earliest_ms = min(self._earliest_ms, earliest_ms)
        self._latest_ms = max(self._latest_ms, latest_ms)

    def note_waiting_marker(self) -> None:
        """The next clean will find nothing of its transaction."""
        self._is_marker_waiting = True

    def due_ms(self, delete_retention_ms: int) -> int:
        """From when on another clean is worth it; NO_HORIZON where none ever is."""
        earliest_ms, latest_ms = self._earliest_ms, self._latest_ms
        if self._is_marker_waiting:
            waiting_ms = self._now_ms + delete_retention_ms
            earliest_ms, latest_ms = min(earliest_ms, waiting_ms), max(latest_ms, waiting_ms)
        if latest_ms < 0:
            return NO_HORIZON
        due_ms = max(min(latest_ms, earliest_ms + delete_retention_ms), self._now_ms + 1)
        return due_ms if due_ms < MAX_HORIZON_MS else NO_HORIZON
