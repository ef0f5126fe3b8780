"""The seam for work on a log directory whose disk may hang, so that its caller goes on without it.

The engine does such work at once. A server has threads beside it, and its `DiskCalls` wait for a bounded
time. Work that was given up may still happen, once the disk answers: it must leave nothing behind that harms
then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from stratalog.base.errors import DataDirectoryError
from stratalog.base.patient_lock import PatientLock

Result = TypeVar("Result")


class DiskAnswers(NamedTuple, Generic[Result]):
    """The answers of several log directories, by path. Immutable."""

    results: Mapping[str, Result]
    silences: Mapping[str, DataDirectoryError]
    """The errors of those that do not answer."""


class WorkSteps:
    """Counts the steps of a work, as its `progress`. One thread notes them; others may look."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """A step begins."""
        self.count += 1


class DiskCalls(Protocol):
    """Runs work on log directories. Thread-safe."""

    def run(
        self,
        directory: str,
        work: Callable[[], Result],
        progress: Callable[[], int] | None = None,
        lock: PatientLock | None = None,
    ) -> Result:
        """The result of the work, which touches this log directory. Raises its errors, and DataDirectoryError
        if the disk does not answer, at once if it `is_silent`. Work of many steps has time for each:
        `progress` returns a number that grows with them. Work that waits for `lock` for too long
        raises the error of the lock, and the directory is not silent: another work on the disk has it."""
        ...

    def run_each(
        self,
        works: Mapping[str, Callable[[], Result]],
        progress: Callable[[str], int] | None = None,
        *,
        even_alone: bool = False,
    ) -> DiskAnswers[Result]:
        """The results of the work on several log directories, side by side. `progress` returns the number for
        a directory. Waits for the only log directory of a server without a bound, unless `even_alone`. Raises
        the first error of a work, once each has ended or was given up."""
        ...

    def is_silent(self, directory: str) -> bool:
        """Whether work on the log directory was given up that has not ended since. Never waits."""
        ...


class DirectDiskCalls:
    """Does the work at once, however long it takes. Immutable."""

    def run(
        self,
        directory: str,
        work: Callable[[], Result],
        progress: Callable[[], int] | None = None,
        lock: PatientLock | None = None,
    ) -> Result:
        del directory, progress, lock
        return work()

    def run_each(
        self,
        works: Mapping[str, Callable[[], Result]],
        progress: Callable[[str], int] | None = None,
        *,
        even_alone: bool = False,
    ) -> DiskAnswers[Result]:
        del progress, even_alone
        return DiskAnswers({directory: work() for directory, work in works.items()}, {})

    def is_silent(self, directory: str) -> bool:
        del directory
        return False


DIRECT_DISK_CALLS = DirectDiskCalls()
