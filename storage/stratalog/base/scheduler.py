"""Background work, as something that is handed in. Only the server makes a real one: it owns the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ScheduledTask(Protocol):
    """What `Scheduler` hands out for a task. Thread-safe."""

    def cancel(self) -> None:
        """No run begins after this returns; one that is under way finishes."""
        ...


class Scheduler(Protocol):
    """Runs callables later, on threads of its own. A failing run is logged and does not end a periodic task.
    Thread-safe."""

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> ScheduledTask: ...

    def every(self, name: str, task: Callable[[], None], period_ms: int, delay_ms: int = 0) -> ScheduledTask:
        """Runs of one task never overlap: the next one begins `period_ms` after the end of the last."""
        ...

    def close(self) -> None:
        """Cancel what waits, wait for what runs."""
        ...
