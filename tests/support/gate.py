"""A gate in a disk or a store: while it is closed, each operation that comes to it stands still."""

from __future__ import annotations

import threading

_PATIENCE_S = 60.0


class Gate:
    """Open at first. Thread-safe."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.is_reached = threading.Event()
        """An operation stands still at the gate, or did since it was closed last."""

    def close(self) -> None:
        self.is_reached.clear()
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def pass_through(self) -> None:
        """Go on, once the gate is open."""
        if not self._is_open.is_set():
            self.is_reached.set()
            assert self._is_open.wait(_PATIENCE_S)
