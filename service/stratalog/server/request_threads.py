"""Threads for requests that may hang for ever: the end of the process does not wait for them.

A thread that is done waits for the next request, because a new one for each commit costs more than what it
runs. A request never waits for one that hangs: where no thread is idle, another one starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

MAX_IDLE_COUNT = 4
"""The shards that commit at once are few."""

_Request = Callable[[], None]


class RequestThreads:
    """Threads that run a request each. Thread-safe: `_lock` guards the idle ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Request | None]] = []
        """The queue of each idle thread, which gets its next request, or None for its end."""
        self._is_closed = False

    def run(self, request: _Request) -> None:
        """Run a request, which handles its own failures, without waiting for it. Raises RuntimeError if no
        thread can be had."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            idle.put(request)
            return
        threading.Thread(target=self._serve, args=(request,), name="stratalog-request", daemon=True).start()

    def close(self) -> None:
        """End the idle threads. Later requests have threads of their own."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.put(None)

    def _serve(self, request: _Request) -> None:
        following: SimpleQueue[_Request | None] = SimpleQueue()
        while True:
            request()
            # It holds what it has sent and got.
            del request
            with self._lock:
                if self._is_closed or len(self._idle) >= MAX_IDLE_COUNT:
                    return
                self._idle.append(following)
            found = following.get()
            if found is None:
                return
            request = found
            del found
