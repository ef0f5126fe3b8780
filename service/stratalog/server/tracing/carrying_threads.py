"""Threads whose tasks run in the context of the caller, so that a span below them knows its call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class CarryingThreads(ThreadPoolExecutor):
    """A thread pool whose tasks have the context variables of their submission. Thread-safe."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a function on a thread, as `Executor.submit`."""
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))


def carrying(run: Callable[[Callable[[], None]], None]) -> Callable[[Callable[[], None]], None]:
    """`run`, which runs a function on another thread, in the context of its caller."""
    return lambda function: run(partial(copy_context().run, function))
