"""The GETs of read-ahead, which get a rival only where a reader waits for them.

What lies ahead of a reader has time. Its GET runs on the thread of read-ahead itself, without a second thread
that watches it. A reader that comes to such a range before it is there waits as long as the range would take
at most as a rule, and sends a rival then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.scheduler import RunBeside
from stratalog.remote.read.hedged_gets import HedgedGets


class AheadGets:
    """Fetches ranges ahead of readers. Thread-safe: its parts are, and it has no state of its own."""

    def __init__(self, gets: HedgedGets, clock: Clock, run_beside: RunBeside) -> None:
        """`run_beside` runs the rivals."""
        self._gets = gets
        self._clock = clock
        self._run_beside = run_beside

    def now_s(self) -> float:
        """The time at which a GET begins, for `wait`."""
        return self._clock.monotonic_s()

    def pieces(self, key: str, start: int, ends: Sequence[int]) -> Iterator[bytes]:
        """The bytes of an object from `start` up to each of `ends`, by one GET, each piece as it comes.
        Raises StoreError."""
        return self._gets.pieces_alone(key, start, ends)

    def wait(self, condition: threading.Condition, size_bytes: int, begin_s: float) -> bool:
        """Wait for `condition`, which the caller holds; returns whether a GET of this size that began at
        `begin_s` is late by then."""
        delay_s = self._gets.rival_delay_s(size_bytes)
        if delay_s is None:
            self._clock.wait(condition, None)
            return False
        left_s = begin_s + delay_s - self._clock.monotonic_s()
        return left_s <= 0 or not self._clock.wait(condition, left_s)

    def send_rival(self, key: str, start: int, end: int, take: Callable[[bytes], bool]) -> bool:
        """Send one more GET on another thread, which passes the data to `take`; False if there are too many
        rivals already. `take` returns whether they came first."""
        if not self._gets.take_credit():
            return False

        def request() -> None:
            try:
                data = self._gets.get_alone(key, start, end)
            except LogStoreError:
                # The first GET goes on, and tells.
                return
            if take(data):
                self._gets.count_won()

        self._run_beside(request)
        return True
