"""Tells calls that wait that the server is about to stop, so that they end at once instead of using up the
grace.
"""

from __future__ import annotations

import asyncio

from stratalog.server.partition_signal import PartitionSignal


class Closing:
    """Set once. Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.signal = PartitionSignal(loop)
        self.is_set = False

    def set(self) -> None:
        """Wake everybody who waits for anything."""
        self.is_set = True
        self.signal.notify()
