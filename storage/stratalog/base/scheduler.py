"""The seam for background work. Only the server has a real scheduler, because it owns the threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

R = TypeVar("R")

RunBeside = Callable[[Callable[[], None]], object]
"""Runs a task on another thread, without waiting for it, or at once."""


def run_here(task: Callable[[], None]) -> None:
    """Run the task at once: a `RunBeside` without another thread."""
    task()


def call_beside(run_beside: RunBeside, call: Callable[[], R]) -> Future[R]:
    """Begin a call beside; its result, or its error, is the future's. A call that has not begun can be
    cancelled."""
    future: Future[R] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - the user of the future raises it
            future.set_exception(error)
        else:
            future.set_result(result)

    run_beside(run)
    return future


def end_call(future: Future[R]) -> None:
    """Return once the call has ended, whatever its outcome, or will never begin."""
    if not future.cancel():
        wait((future,))


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
