"""The signals that the server is stopping: one wakes waiting calls, so that they do not use up the grace, and
one ends long work, which checks it between its steps. Where the server uploads what it has before it ends,
the second comes later.
"""

from __future__ import annotations

import asyncio

from stratalog.base.stop_signal import StopSignal
from stratalog.server.fetch.partition_signal import PartitionSignal


class Closing:
    """Set once. Belongs to the event loop, except the stop signal, which any thread may read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.signal = PartitionSignal(loop)
        self.stop = StopSignal()
        """Ends long work."""
        self._calls = StopSignal(self.stop)

    @property
    def is_set(self) -> bool:
        """Whether waiting calls end."""
        return self._calls.is_set

    def set(self, *, ends_work: bool) -> None:
        """End waiting calls, and also long work if it `ends_work`; `stop` ends that otherwise."""
        self._calls.set()
        if ends_work:
            self.stop.set()
        self.signal.notify()

    def check(self) -> None:
        """Raise StoppingError once waiting calls end."""
        self._calls.check()
