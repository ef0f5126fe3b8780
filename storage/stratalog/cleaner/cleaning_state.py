"""The holder of a partition's segments: the cleaner, the callers that paused it, or none.

::

    idle         begin  -> in progress     a worker cleans it, or drops its old segments
    idle         pause  -> paused          the cleaner stays away; pauses are counted
    in progress  end    -> idle
    in progress  pause  -> aborted         the worker has to end, the pause waits for it
    aborted      pause  -> aborted
    aborted      resume -> aborted         or in progress, with the last pause
    aborted      end    -> paused
    paused       pause  -> paused
    paused       resume -> paused          or idle, with the last pause

Every other move is a bug. So a partition has at most one worker, and none while it is paused: from `paused`
to the last `resume` it belongs to the callers that paused it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class CleaningAbortedError(Exception):
    """A clean must end early. The cleaner catches it."""


class CleaningPhase(enum.Enum):
    """The states of the table above."""

    IDLE = "idle"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class CleaningState(NamedTuple):
    """One state of a partition. Immutable: a move returns the next state. `pause_count` is the number of
    pauses without a resume."""

    is_running: bool = False
    pause_count: int = 0

    @property
    def phase(self) -> CleaningPhase:
        if self.is_running:
            return CleaningPhase.ABORTED if self.pause_count else CleaningPhase.IN_PROGRESS
        return CleaningPhase.PAUSED if self.pause_count else CleaningPhase.IDLE

    def begin(self) -> CleaningState:
        assert self.phase is CleaningPhase.IDLE, "a partition that is paused, or has a worker, gets no other"
        return self._replace(is_running=True)

    def end(self) -> CleaningState:
        assert self.is_running, "only a running clean ends"
        return self._replace(is_running=False)

    def pause(self) -> CleaningState:
        return self._replace(pause_count=self.pause_count + 1)

    def resume(self) -> CleaningState:
        assert self.pause_count > 0, "only a paused partition is resumed"
        return self._replace(pause_count=self.pause_count - 1)


IDLE = CleaningState()
