"""An executor that runs what was submitted when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class HandExecutor(Executor):
    """Runs its work on the test's thread, in order. Used by one thread."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.is_closed = False
        self.finds_no_thread = False
        """Whether it refuses work and runs it later nevertheless, as a ThreadPoolExecutor that needs a new
        thread and gets none."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.waiting.append(partial(fn, *args, **kwargs))
        if self.finds_no_thread:
            raise RuntimeError("can't start new thread")
        return Future()

    def run_one(self) -> None:
        """Run the oldest work."""
        self.waiting.pop(0)()

    def run_all(self) -> None:
        """Run until nothing is left, with what is submitted meanwhile."""
        while self.waiting:
            self.run_one()
