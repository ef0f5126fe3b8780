"""Tells everybody that the server is about to stop, so that nobody uses up the grace who need not: calls that
wait are woken, and work that takes long looks at the signal between its steps.
"""

from __future__ import annotations

import asyncio

from stratalog.base.stop_signal import StopSignal
from stratalog.server.fetch.partition_signal import PartitionSignal


class Closing:
    """Set once. Belongs to the event loop, but for the stop signal, which work on threads may look at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.signal = PartitionSignal(loop)
        self.stop = StopSignal()

    @property
    def is_set(self) -> bool:
        return self.stop.is_set

    def set(self) -> None:
        """Wake everybody who waits for anything, and end what takes long."""
        self.stop.set()
        self.signal.notify()

    def check(self) -> None:
        """Raises StoppingError once set."""
        self.stop.check()
