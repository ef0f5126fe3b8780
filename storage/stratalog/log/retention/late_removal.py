"""Removes deleted files later, each by itself, and tries again until they are gone.

A file that cannot be removed now (it was made immutable, or the process has no free descriptor) does not keep
the others from going. It is tried again, because the operator expects its space. After a failure of the disk
the removals stop. Files that are left when a process ends are removed by the next one.

Until then they take space. A log directory that is short of it has its waiting removals done at once.

One thread at a time does what is due in a log directory, so a disk that hangs takes one thread of the
scheduler, however many logs wait for it.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import Scheduler
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.log_availability import LogAvailability
from stratalog.segment.log_segment import LogSegment

logger = logging.getLogger(__name__)

RETRY_MS = 60_000
"""Time between two tries."""


class Removal(NamedTuple):
    """Something to remove."""

    run: Callable[[], None]
    """The removal, which raises OSError or DataDirectoryError."""
    size_bytes: int = 0
    """The space that becomes free; 0 if it is unknown."""


class LateRemovals:
    """The removals of a process that wait. Thread-safe: `_lock` guards the lists, and each entry has its own
    lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        # In the order in which they came.
        self._waiting: dict[_Waiting, None] = {}
        # What is due, by directory, and whether it is the first try; a thread is at work at the first one.
        self._due: dict[str, deque[tuple[_Waiting, bool]]] = {}

    def add(
        self,
        directory: str,
        name: str,
        removals: Sequence[Removal],
        delay_ms: int,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        """Do these removals in that log directory after `delay_ms`, and repeat those that raise OSError or
        DataDirectoryError until `is_over` returns True. The first failure is logged with `name`."""
        if not removals:
            return
        waiting = _Waiting(directory, name, removals, is_over)
        with self._lock:
            self._waiting[waiting] = None
        self._scheduler.once(name, lambda: self._take_turn(waiting, is_first=True), delay_ms)

    def hurry(self, directory: str, on_removal: Callable[[], None] = lambda: None) -> int:
        """Do what waits in that log directory now; returns the size of what is gone. What another thread is
        about to remove is gone, too. What fails keeps its turn. Calls `on_removal` before each removal."""
        with self._lock:
            found = [waiting for waiting in self._waiting if waiting.directory == directory]
        return sum(waiting.remove(on_removal).freed_bytes for waiting in found if not waiting.is_over())

    def _take_turn(self, waiting: _Waiting, *, is_first: bool) -> None:
        """Do what is due in the directory, unless a thread is at work there, which does this, too, then."""
        with self._lock:
            due = self._due.setdefault(waiting.directory, deque())
            due.append((waiting, is_first))
            if len(due) > 1:
                return
        self._work_off(waiting.directory, due)

    def _work_off(self, directory: str, due: deque[tuple[_Waiting, bool]]) -> None:
        is_left = True
        while is_left:
            waiting, is_first = due[0]
            try:
                self._try_once(waiting, is_first=is_first)
            except BaseException:
                if self._is_left(directory, due):
                    self._scheduler.once(due[0][0].name, partial(self._work_off, directory, due))
                raise
            is_left = self._is_left(directory, due)

    def _is_left(self, directory: str, due: deque[tuple[_Waiting, bool]]) -> bool:
        """Take out what was tried; returns whether more is due."""
        with self._lock:
            due.popleft()
            if not due:
                del self._due[directory]
            return bool(due)

    def _try_once(self, waiting: _Waiting, *, is_first: bool) -> None:
        is_due = is_first or not waiting.is_over()
        failures: Sequence[OSError | DataDirectoryError] = waiting.remove().failures if is_due else ()
        if not failures or waiting.is_over():
            with self._lock:
                del self._waiting[waiting]
            return
        if is_first:
            logger.warning(
                "deleted files cannot be removed and are tried again every %d s; correct the reason, %s"
                " left_count=`%d` reason=`%s`",
                RETRY_MS // 1000,
                waiting.name,
                len(failures),
                failures[0],
            )
        self._scheduler.once(waiting.name, lambda: self._take_turn(waiting, is_first=False), RETRY_MS)


class _Removed(NamedTuple):
    """The result of a try."""

    freed_bytes: int
    failures: Sequence[OSError | DataDirectoryError]


class _Waiting:
    """Removals that have their turn together. Thread-safe: one thread at a time removes, with `_lock`."""

    def __init__(
        self, directory: str, name: str, removals: Sequence[Removal], is_over: Callable[[], bool]
    ) -> None:
        self.directory = directory
        self.name = name
        self.is_over = is_over
        self._lock = threading.Lock()
        self._left = tuple(removals)

    def remove(self, on_removal: Callable[[], None] = lambda: None) -> _Removed:
        """Do what is left. Calls `on_removal` before each removal."""
        with self._lock:
            freed_bytes = 0
            failures: list[OSError | DataDirectoryError] = []
            left: list[Removal] = []
            for removal in self._left:
                on_removal()
                try:
                    removal.run()
                    freed_bytes += removal.size_bytes
                except (OSError, DataDirectoryError) as failure:
                    failures.append(failure)
                    left.append(removal)
            self._left = tuple(left)
            return _Removed(freed_bytes, failures)


def unlink_later(
    removals: LateRemovals, availability: LogAvailability, dropped: Sequence[LogSegment], delay_ms: int
) -> None:
    """Unlink the files of dropped segments of a log. Files that are left when the log is closed go when it is
    opened again."""
    if not dropped:
        return
    removals.add(
        posixpath.dirname(dropped[0].directory),
        f"unlink {availability.topic_partition}",
        [Removal(segment.unlink_deleted, segment.size_bytes) for segment in dropped],
        delay_ms,
        is_over=lambda: availability.is_closed or availability.health.reason is not None,
    )


def unlink_leftover(filesystem: FileSystem, path: str) -> None:
    """Unlink a file of a dropped segment that a former process has left. A file that cannot be unlinked
    stays, with a warning: it means nothing to the log. Raises OSError if the disk fails."""
    try:
        filesystem.unlink(path)
    except OSError as failure:
        if failure.errno in DISK_FAILURES:
            raise
        logger.warning(
            "a file of a deleted segment cannot be removed and stays until the next start; correct the"
            " reason, path=`%s` reason=`%s`",
            path,
            failure,
        )
