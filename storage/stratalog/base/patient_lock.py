"""A lock that is kept over work on a disk, so that some of those that want it must not wait for ever.

An fsync may take many seconds on a disk that is slow and healthy. Work that waits behind it says nothing
about the disk, and ends with an error of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from stratalog.base.errors import LogStoreError

Result = TypeVar("Result")


class _Bound(NamedTuple):
    wait_s: float
    on_step: Callable[[], None]


class PatientLock:
    """A reentrant lock. Thread-safe. Waits for it have no bound, but for those within `bounded`."""

    def __init__(self, refusal: Callable[[], LogStoreError]) -> None:
        """`refusal` returns the error of a wait that was too long."""
        self._refusal = refusal
        self._lock = threading.RLock()
        # By thread; each one changes its own entry.
        self._bounds: dict[int, _Bound] = {}

    def __enter__(self) -> None:
        bound = self._bounds.get(threading.get_ident()) if self._bounds else None
        if bound is None:
            self._lock.acquire()
            return
        bound.on_step()
        if not self._lock.acquire(timeout=bound.wait_s):
            raise self._refusal()
        bound.on_step()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def bounded(self, work: Callable[[], Result], wait_s: float, on_step: Callable[[], None]) -> Result:
        """The result of work that waits for this lock for at most `wait_s` each time. Calls `on_step` as a
        wait begins, and as it ends with the lock. Raises the error of `refusal`, and those of the work."""
        thread = threading.get_ident()
        self._bounds[thread] = _Bound(wait_s, on_step)
        try:
            return work()
        finally:
            del self._bounds[thread]
