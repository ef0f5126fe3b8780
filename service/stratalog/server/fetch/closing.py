"""The signal that the server is stopping: it wakes waiting calls, and long work checks it between its steps,
so that neither uses up the grace.
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

    @property
    def is_set(self) -> bool:
        return self.stop.is_set

    def set(self) -> None:
        self.stop.set()
        self.signal.notify()

    def check(self) -> None:
        """Check the flag. Raises StoppingError once set."""
        self.stop.check()
