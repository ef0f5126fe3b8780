"""One change of a topic at a time, and changes of different topics beside each other.

A topic has its turn by name: a topic that is created anew has the name of one whose logs are being deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class TopicTurns:
    """The topics that are being changed. Thread-safe: `_changed` guards the names. A thread has one turn at
    most, and waits for one with no lock in its hands."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[str] = set()

    @contextmanager
    def of(self, name: str, *, waits: bool = True) -> Generator[bool]:
        """Keep others from the topic, once no other thread changes it. Unless it `waits`, returns False if
        one does."""
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: name not in self._busy)
            is_free = name not in self._busy
            self._busy.add(name)
        try:
            yield is_free
        finally:
            if is_free:
                self._end(name)

    def _end(self, name: str) -> None:
        with self._changed:
            self._busy.remove(name)
            self._changed.notify_all()
