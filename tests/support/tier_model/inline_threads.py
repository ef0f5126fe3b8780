"""The threads of an engine without threads: what is submitted runs at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from stratalog.base.scheduler import ScheduledTask
from stratalog.testing.manual_scheduler import ManualScheduler


class InlineExecutor(Executor):
    """Runs everything within `submit`. A death of the process passes through it. Thread-safe: keeps
    nothing."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the caller gets it from the future
            future.set_exception(error)
        return future


class InlineScheduler(ManualScheduler):
    """Sends objects within the upload; all else waits for the clock. Guarded by its base."""

    def once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> ScheduledTask:
        if name != "send an object":
            return super().once(name, task, delay_ms)
        task()
        return super().once(name, lambda: None)
