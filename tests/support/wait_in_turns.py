"""A wait for a short time that a busy machine makes longer, for tests that wait for a disk that hangs."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, wait

_TURN_COUNT = 20


def wait_in_turns(running: Collection[Future[object]], patience_s: float) -> None:
    """Wait as `concurrent.futures.wait`, in short turns. On a busy machine this thread gets its turns late,
    as those do that it waits for: only what hangs is given up."""
    for _ in range(_TURN_COUNT):
        if not wait(running, patience_s / _TURN_COUNT).not_done:
            return
