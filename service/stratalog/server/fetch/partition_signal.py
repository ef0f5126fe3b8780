"""Wakes calls that wait for a partition's high watermark, last stable offset or log start to move.

Writers work on threads, waiters on the event loop. ``notify`` may be called from any thread and costs one hop
to the loop, and none on the loop itself, or if no call waits or a hop is pending. A waiter enters *before* it
looks at the log and waits afterwards, so a change between the look and the wait is never lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager


class PartitionSignal:
    """`notify` is thread-safe; everything else belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiters: set[asyncio.Event] = set()
        self._is_hop_pending = False

    def notify(self) -> None:
        """Wake all waiting calls. Any thread."""
        # Both reads race with the loop, harmlessly: a waiter that enters after the first read looks at the
        # log after that, and a pending hop has not woken a waiter yet. Neither order loses a change.
        if not self._waiters:
            return
        if is_running(self.loop):
            self._wake()
        elif not self._is_hop_pending:
            self._is_hop_pending = True
            self.loop.call_soon_threadsafe(self._hop)

    def _hop(self) -> None:
        # First: a change from here on needs a hop of its own.
        self._is_hop_pending = False
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    def enter(self, waiter: asyncio.Event) -> None:
        self._waiters.add(waiter)

    def leave(self, waiter: asyncio.Event) -> None:
        self._waiters.discard(waiter)


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop runs on this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


@contextmanager
def waiting_for(signals: Iterable[PartitionSignal]) -> Generator[asyncio.Event]:
    """An event that any of the signals sets, for as long as the block lasts."""
    waiter = asyncio.Event()
    entered = tuple(signals)
    for signal in entered:
        signal.enter(waiter)
    try:
        yield waiter
    finally:
        for signal in entered:
            signal.leave(waiter)
