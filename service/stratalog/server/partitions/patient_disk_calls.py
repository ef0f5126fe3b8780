"""Waits for disks on behalf of a caller, for a bounded time: the one way to do work on a log directory that
may hang, if something waits for the outcome. Passes that repeat, and for which nothing waits, have
`PassRounds`.

Each piece of work has a thread of its own, for which the end of the process does not wait. Work that gets on
no more is left to its thread, and its directory is silent until it ends: other work is refused at once then,
so that a disk that hangs costs one wait and the threads of those that waited. A server with one log directory
has nothing to go on with, so work that must be done waits there for as long as the disk takes, on the thread
of the caller; looks are bounded there, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DiskAnswers, WorkSteps
from stratalog.base.errors import DataDirectoryError
from stratalog.base.patient_lock import PatientLock
from stratalog.base.scheduler import RunBeside
from stratalog.server.worker_pools import begin_beside

R = TypeVar("R")

PATIENCE_S = 5.0
"""How long work waits for a disk that does nothing, unless the owner has another patience."""
_TURN_COUNT = 6


class PatientDiskCalls:
    """Implements `stratalog.base.disk_calls.DiskCalls`. Thread-safe: `_lock` guards what was given up."""

    def __init__(
        self, clock: Clock, run_beside: RunBeside, directory_count: int, patience_s: float | None = None
    ) -> None:
        """`run_beside` runs work on another thread; if it runs it at once, all waits are without a bound. The
        server has so many log directories."""
        self._clock = clock
        self._run_beside = run_beside
        self._directory_count = directory_count
        self._patience_s = patience_s
        self._given_up: dict[str, list[tuple[Future[Any], float]]] = {}
        """The works on each silent directory that have not ended, and the monotonic times of their begins."""
        self._lock = threading.Lock()

    def run(
        self,
        directory: str,
        work: Callable[[], R],
        progress: Callable[[], int] | None = None,
        lock: PatientLock | None = None,
    ) -> R:
        if self._directory_count == 1:
            return work()
        steps = WorkSteps()
        if lock is not None:
            # A wait ends before the work would be given up, and what it does next has its own time.
            work = partial(lock.bounded, work, self._wait_s / 2, steps.note)
        answers = self.run_each(
            {directory: work}, lambda _: steps.count + (0 if progress is None else progress())
        )
        for silence in answers.silences.values():
            raise silence
        return answers.results[directory]

    def run_each(
        self,
        works: Mapping[str, Callable[[], R]],
        progress: Callable[[str], int] | None = None,
        *,
        even_alone: bool = False,
    ) -> DiskAnswers[R]:
        if self._directory_count == 1 and not even_alone:
            return DiskAnswers({directory: work() for directory, work in works.items()}, {})
        step_of = progress or _no_step
        begin_s = self._clock.monotonic_s()
        silences: dict[str, DataDirectoryError] = {}
        running: dict[str, Future[R]] = {}
        steps: dict[str, int] = {}
        for directory, work in works.items():
            since_s = self._silent_since_s(directory)
            if since_s is not None:
                silences[directory] = self._silence(directory, since_s)
                continue
            steps[directory] = step_of(directory)
            running[directory] = begin_beside(self._run_beside, work)
        waiting: dict[str, Future[R]] = {**running}
        while waiting:
            self._wait(waiting.values())
            waiting = {directory: one for directory, one in waiting.items() if not one.done()}
            for directory, one in tuple(waiting.items()):
                step = step_of(directory)
                if step == steps[directory]:
                    silences[directory] = self._give_up(directory, one, begin_s)
                    del waiting[directory]
                steps[directory] = step
        return DiskAnswers(
            {path: one.result() for path, one in running.items() if path not in silences}, silences
        )

    def _wait(self, running: Collection[Future[Any]]) -> None:
        """Wait for all of them, for the whole patience at most. In turns, because a process that is stopped
        and goes on has lost the time of one turn alone, and the disks have the others to answer."""
        for _ in range(_TURN_COUNT):
            wait(running, self._wait_s / _TURN_COUNT)
            if all(one.done() for one in running):
                return

    @property
    def _wait_s(self) -> float:
        return PATIENCE_S if self._patience_s is None else self._patience_s

    def leave(self, directory: str, work: Callable[[], object]) -> None:
        """Let the work be done whenever the disk answers."""
        if self._directory_count == 1:
            work()
        else:
            begin_beside(self._run_beside, work)

    def is_silent(self, directory: str) -> bool:
        return self._silent_since_s(directory) is not None

    def _give_up(self, directory: str, work: Future[Any], begin_s: float) -> DataDirectoryError:
        with self._lock:
            self._given_up.setdefault(directory, []).append((work, begin_s))
        return self._silence(directory, begin_s)

    def _silent_since_s(self, directory: str) -> float | None:
        with self._lock:
            # Each one may still change files, so none may be begun again before the last one has ended.
            left = [one for one in self._given_up.pop(directory, ()) if not one[0].done()]
            if not left:
                return None
            self._given_up[directory] = left
            return min(begin_s for _, begin_s in left)

    def _silence(self, directory: str, since_s: float) -> DataDirectoryError:
        return DataDirectoryError(
            "the disk of a log directory does not answer; `stratalog log-dirs describe` and the server's log"
            " name it: find out why, or restart the server without it",
            path=directory,
            waited_s=round(self._clock.monotonic_s() - since_s),
        )


def _no_step(_: str) -> int:
    return 0
