"""Objects on their way to the store, of which each wait lets one arrive: several PUTs at once, in one thread
and in an order that a seed decides. Sends that hang have threads of their own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Operation


class LateSends:
    """The clock and the other threads of an uploader. Not thread-safe: one test uses it."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self._clock = clock
        self._random = random.Random(seed)
        self._waiting: list[Callable[[], None]] = []
        self.hanging_count = 0
        """The next sends, which hang in their requests until `release`."""
        self._hanging: list[threading.Thread] = []
        self._hangs = threading.Semaphore(0)
        self._release = threading.Event()
        self.max_count = 0
        """The most sends that were on their way at the same time."""
        self.on_wait: Callable[[], bool] = lambda: False
        """Called at the begin of each wait; True ends the wait before a send does."""

    def run_beside(self, task: Callable[[], None]) -> None:
        if self.hanging_count:
            self.hanging_count -= 1
            thread = threading.Thread(target=task, daemon=True)
            self._hanging.append(thread)
            thread.start()
            self._hangs.acquire()
            return
        self._waiting.append(task)
        self.max_count = max(self.max_count, len(self._waiting))

    def hang(self, _: Operation) -> None:
        """Hang, if this is the request of a send that shall: a hook of the faulty store."""
        if threading.current_thread() in self._hanging:
            self._hangs.release()
            self._release.wait()

    def release(self) -> None:
        """Let everything arrive that hangs, and nothing hang any more."""
        self._release.set()
        for thread in self._hanging:
            thread.join()
        self._hanging.clear()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Let a send end, or time pass if there is none. The caller's condition belongs to its thread, which
        is the only one."""
        del condition
        if self.on_wait():
            return True
        if self._waiting:
            self._waiting.pop(self._random.randrange(len(self._waiting)))()
            return True
        assert timeout_s is not None
        self._clock.sleep(timeout_s)
        return False

    def sleep(self, duration_s: float) -> None:
        self._clock.sleep(duration_s)
