"""A clock that a test moves.

Nothing passes by itself: `advance` moves wall time and monotonic time together, step by step through every
deadline on the way, so that scheduled work and waits come due in their order and see the moment they were due
at.
"""

from __future__ import annotations

import threading

# 2026-01-01T00:00:00Z: a plausible wall time, so that ages and retention behave as in production.
DEFAULT_NOW_MS = 1_767_225_600_000


class ManualTimers:
    """Timers that a clock fires; `ManualScheduler` is a subclass. Guarded by its subclass."""

    def next_due_ms(self) -> int | None:
        """The earliest deadline in the clock's `elapsed_ms`, or None."""
        raise NotImplementedError

    def fire(self, elapsed_ms: int) -> None:
        """Run everything that is due at `elapsed_ms`."""
        raise NotImplementedError


class ManualClock:
    """`Clock` under a test's control. Thread-safe."""

    def __init__(self, now_ms: int = DEFAULT_NOW_MS) -> None:
        self._guard = threading.Lock()
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._waiting: list[tuple[int, threading.Condition]] = []
        self._timers: list[ManualTimers] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._elapsed_ms / 1000

    def set_wall_ms(self, now_ms: int) -> None:
        """Let wall time jump, as it does when an operator corrects it; monotonic time does not notice."""
        self._now_ms = now_ms

    def attach(self, timers: ManualTimers) -> None:
        """Have `timers` fired in the order of their deadlines whenever time moves."""
        with self._guard:
            self._timers.append(timers)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return condition.wait()
        entry = (self._elapsed_ms + max(0, round(timeout_s * 1000)), condition)
        if entry[0] <= self._elapsed_ms:
            return False
        with self._guard:
            self._waiting.append(entry)
        condition.wait()
        with self._guard:
            # `advance` removes an entry when its time has come, so a removed entry was not notified by a
            # writer.
            if entry in self._waiting:
                self._waiting.remove(entry)
                return True
        return False

    def sleep(self, duration_s: float) -> None:
        """Moves the clock itself: a test with one thread would otherwise wait for ever."""
        self.advance(round(duration_s * 1000))

    def advance(self, duration_ms: int) -> None:
        """Let time pass. Callers must not hold a condition with waiters, nor a lock that a timer needs."""
        assert duration_ms >= 0, "time does not go back; use set_wall_ms to make wall time jump"
        end_ms = self._elapsed_ms + duration_ms
        while True:
            due_ms = min((timers.next_due_ms() for timers in self._timers), default=None, key=_none_last)
            if due_ms is None or due_ms > end_ms:
                break
            self._move_to(max(due_ms, self._elapsed_ms))
            for timers in list(self._timers):
                timers.fire(self._elapsed_ms)
        self._move_to(end_ms)

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since this clock was made; what timers count in."""
        return self._elapsed_ms

    def _move_to(self, elapsed_ms: int) -> None:
        with self._guard:
            self._now_ms += elapsed_ms - self._elapsed_ms
            self._elapsed_ms = elapsed_ms
            expired = [entry for entry in self._waiting if entry[0] <= elapsed_ms]
            self._waiting = [entry for entry in self._waiting if entry[0] > elapsed_ms]
        for _, condition in expired:
            with condition:
                condition.notify_all()


def _none_last(due_ms: int | None) -> float:
    return float("inf") if due_ms is None else due_ms
