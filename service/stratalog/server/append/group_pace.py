"""Decides how many appends of a partition wait for each other before they are written.

A group costs the server several times what one more append in it costs: a thread wakes up, writes, and wakes
the event loop. Where many producers append to a partition side by side, it is worth to wait a moment for the
next append, because that leaves time to all of them. Where one producer waits for its answer, nothing else
comes, and the wait is lost.

So a partition begins with groups of one, which never wait. Appends that find its writer at work again and
again show that producers append side by side: then a group waits for two, and for one more each time that
enough groups have come together. It waits for `LONGEST_WAIT_S` at most. Where that was too short, the next
groups wait for as many as had come, and it takes twice the evidence until one more is tried.
"""

from __future__ import annotations

MOST_APPENDS = 8
"""Beyond this one append more saves little."""
LONGEST_WAIT_S = 0.003
"""The longest wait of an append for others of its group."""
ENOUGH_BYTES = 16 << 10
"""Requests of this size together are written at once: their bytes cost more than their group."""

_BUSY_WEIGHT = 2
"""More than half of the appends find the writer idle, also where many come: it is quick."""
_FIRST_TRIAL = 8
_RAREST_TRIAL = 1 << 10


class GroupPace:
    """The pace of one partition. Guarded by its owner."""

    __slots__ = ("_evidence", "_trial_evidence", "wanted_count")

    def __init__(self) -> None:
        self.wanted_count = 1
        """The appends for which a group waits."""
        self._evidence = 0
        """Evidence that larger groups would come together."""
        self._trial_evidence = _FIRST_TRIAL
        """With so much evidence, larger groups are tried."""

    def note_busy(self) -> None:
        """Note an append that has found the writer at work."""
        if self.wanted_count == 1:
            self._add(_BUSY_WEIGHT)

    def must_wait(self, append_count: int, size_bytes: int) -> bool:
        """Whether a group of so much, whose writer is idle, waits for more."""
        if self.wanted_count == 1:
            self._evidence = max(0, self._evidence - 1)
            return False
        if append_count < self.wanted_count and size_bytes < ENOUGH_BYTES:
            return True
        self._add(1)
        return False

    def note_lost_wait(self, append_count: int) -> None:
        """Note a group that has waited for the longest time, with the appends that have come."""
        self.wanted_count = append_count
        self._evidence = 0
        self._trial_evidence = min(2 * self._trial_evidence, _RAREST_TRIAL)

    def _add(self, evidence: int) -> None:
        self._evidence += evidence
        if self._evidence >= self._trial_evidence and self.wanted_count < MOST_APPENDS:
            self.wanted_count += 1
            self._evidence = 0
