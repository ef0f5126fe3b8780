"""The seam for background work. Only the server has a real scheduler, because it owns the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RunBeside = Callable[[Callable[[], None]], object]
"""Runs a task on another thread, without waiting for it, or at once."""


def run_here(task: Callable[[], None]) -> None:
    """Run the task at once: a `RunBeside` without another thread."""
    task()


class ScheduledTask(Protocol):
    """A scheduled task. Thread-safe."""

    def cancel(self) -> None:
        """Do not run the task again after this returns; a task that runs finishes."""
        ...


class Scheduler(Protocol):
    """Runs callables later, on threads of its own. A failure is logged and does not end a periodic task.
    Thread-safe."""

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> ScheduledTask: ...

    def every(self, name: str, task: Callable[[], None], period_ms: int, delay_ms: int = 0) -> ScheduledTask:
        """Run `task` after `delay_ms`, then `period_ms` after each of its ends, so that it never overlaps
        itself."""
        ...

    def close(self) -> None:
        """Cancel waiting tasks, wait for running ones."""
        ...
