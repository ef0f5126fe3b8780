"""Who has a partition's segments: nobody, the cleaner, or those who paused it.

::

    idle         begin  -> in progress     a worker cleans it, or drops its old segments
    idle         pause  -> paused          the cleaner stays away; pauses are counted
    in progress  end    -> idle
    in progress  pause  -> aborted         the worker is told to end, whoever paused waits
    aborted      pause  -> aborted
    aborted      resume -> aborted         or in progress, with the last pause
    aborted      end    -> paused
    paused       pause  -> paused
    paused       resume -> paused          or idle, with the last pause

Everything else is a bug. So a partition has one worker at most, none while it is paused, and whoever has
paused it and has seen it `paused` is alone with it until the last `resume`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class CleaningAbortedError(Exception):
    """A clean shall end early, with nothing changed. Never leaves the cleaner."""


class CleaningPhase(enum.Enum):
    """What a state means; see the module."""

    IDLE = "idle"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class CleaningState(NamedTuple):
    """Immutable: a move gives the next state. `pause_count`: pauses that nobody has resumed yet."""

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
        assert self.is_running, "only what has begun ends"
        return self._replace(is_running=False)

    def pause(self) -> CleaningState:
        return self._replace(pause_count=self.pause_count + 1)

    def resume(self) -> CleaningState:
        assert self.pause_count > 0, "only what is paused is resumed"
        return self._replace(pause_count=self.pause_count - 1)


IDLE = CleaningState()
