"""A call that runs beside other work, and whose outcome is taken later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from stratalog.base.scheduler import RunBeside

R = TypeVar("R")


class CallBeside(Generic[R]):
    """A call on another thread. Thread-safe: `_lock` guards its beginning, and `_has_ended` its outcome."""

    def __init__(self, run_beside: RunBeside, call: Callable[[], R]) -> None:
        """`run_beside` gets the call now. If it has no thread (RuntimeError), the call happens here."""
        self._call: Callable[[], R] | None = call
        """None once it has begun, or never will."""
        self._result: R | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        try:
            run_beside(self._run)
        except RuntimeError:
            # A pool may have kept it for another of its threads all the same: it happens once.
            self._run()

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is known."""
        return self._has_ended.is_set()

    def result(self) -> R:
        """Wait for the outcome. Raises the errors of the call."""
        self._has_ended.wait()
        if self._error is not None:
            raise self._error
        return cast(R, self._result)

    def end(self) -> None:
        """Return once the call has ended, whatever its outcome; one that has not begun never will, and has no
        result."""
        if self._take() is None:
            self._has_ended.wait()
        else:
            self._has_ended.set()

    def _take(self) -> Callable[[], R] | None:
        with self._lock:
            call, self._call = self._call, None
            return call

    def _run(self) -> None:
        call = self._take()
        if call is None:
            return
        try:
            self._result = call()
        except BaseException as error:  # noqa: BLE001 - who takes the result raises it
            self._error = error
        self._has_ended.set()
