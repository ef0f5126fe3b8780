"""The loop of every crash test: a workload runs whole, then dies, or fails, at one operation after another.

Example::

    class Follower:                       # has a disk, and everything before the work is done
        disk: FaultyFileSystem

    def verify(death: Death[Follower]) -> None:
        for disk in death.disks():        # each disk that the next process may find
            ...

    CrashSweep(Follower, Follower.truncate).at_deaths(verify)

`make simulate` dies at every moment and builds every disk; other runs sample both, see `Sampling`. An error
in `verify` gets a note that names the moment.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import Kept, Survival
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, ONLY_LOOKING, SURVIVALS, deaths
from tests.support.logs.sampling import Sampling

ERRORS = (errno.ENOSPC, errno.EPERM, errno.EIO)
_OTHER_DISKS = 1
"""How many disks between nothing and everything a sampled run builds of each death."""


class Workload(Protocol):
    """An object with a disk that can die, which a sweep runs."""

    @property
    def disk(self) -> FaultyFileSystem: ...


Subject = TypeVar("Subject", bound=Workload)


class Death(NamedTuple, Generic[Subject]):
    """A workload whose machine has died."""

    subject: Subject
    operation: int
    sampling: Sampling

    def disks(self) -> Iterator[FaultyFileSystem]:
        """Each different disk that the next process may find: after a power loss, and last, because it is the
        same disk, after the death of the process alone."""
        disk = self.subject.disk
        of_each = (Survival(Kept.EACH, names, seed=self.operation) for names in (Kept.ALL, Kept.EACH))
        between = [one for one in SURVIVALS if one not in (NOTHING_KEPT, EVERYTHING_KEPT)]
        survivals = [NOTHING_KEPT, *self.sampling.at_most([*between, *of_each], _OTHER_DISKS)]
        built: list[dict[str, bytes | None]] = []
        for survival in (*survivals, EVERYTHING_KEPT):
            found = disk.reopened(survival)
            if (contents := found.inner.contents()) not in built:
                built.append(contents)
                yield found
        yield disk.killed()


class Failure(NamedTuple, Generic[Subject]):
    """A workload one operation of which has failed with the errno `number`; `error`: what the work raised."""

    subject: Subject
    operation: int
    number: int
    error: Exception | None


class CrashSweep(Generic[Subject]):
    """`whole` is the workload that nothing happened to, `trace` its operations from the first to the last."""

    def __init__(
        self, prepare: Callable[[], Subject], work: Callable[[Subject], object], *, count: int = 20
    ) -> None:
        """`prepare` gives the same workload each time, and `work` runs it. `count`: the number of moments at
        which a sampled run dies, and at which it fails."""
        self._prepare, self._work, self._count = prepare, work, count
        self._sampling = Sampling()
        self.whole = prepare()
        self.first_operation = self.whole.disk.operation_count + 1
        work(self.whole)
        self.trace = list(self.whole.disk.trace)

    def at_deaths(
        self, verify: Callable[[Death[Subject]], None], *, always: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Let the machine die, also when all is done. `always` chooses operations, by their names, that no
        sample leaves out."""
        moments = list(deaths(self.trace, self.first_operation))
        chosen = {moment for moment in moments if always(self.trace[moment[0] - 1])}
        chosen.update(self._sampling.at_most(moments, self._count))
        for operation, part in [*sorted(chosen), (len(self.trace) + 1, 0.0)]:
            subject = self._prepare()
            subject.disk.crash_at(operation, part=part)
            if operation > len(self.trace):
                self._work(subject)
            else:
                with pytest.raises(SimulatedCrash):
                    self._work(subject)
            done = subject.disk.trace
            assert done == self.trace[:operation], "each run has the same operations"
            try:
                verify(Death(subject, operation, self._sampling))
            except Exception as error:
                error.add_note(f"died at {operation}, {done[-1]}, part {part}")
                raise

    def at_failures(
        self,
        verify: Callable[[Failure[Subject]], None],
        *,
        expected: tuple[type[Exception], ...] = (LogStoreError,),
        errors: Iterable[int] = ERRORS,
        only: Callable[[str], bool] = lambda _: True,
        part: float = 0.5,
    ) -> None:
        """Let one operation fail, with each of the `errors`; `expected` may come out of the work then. Most
        operations only look, at what others have looked at: a sampled run takes few of these.

        `only` chooses operations by their names. `part` of the operation happens before it fails: with 1 all
        of it."""
        operations = range(self.first_operation, len(self.trace) + 1)
        chosen_operations = [operation for operation in operations if only(self.trace[operation - 1])]
        moments = [(operation, number) for operation in chosen_operations for number in errors]
        looks = [moment for moment in moments if self._kind(moment[0]) in ONLY_LOOKING]
        changes = [moment for moment in moments if self._kind(moment[0]) not in ONLY_LOOKING]
        chosen = self._sampling.at_most(looks, self._count // 3)
        for operation, number in sorted([*chosen, *self._sampling.at_most(changes, self._count)]):
            subject = self._prepare()
            subject.disk.fail_at(operation, number=number, part=part)
            error: Exception | None = None
            try:
                self._work(subject)
            except expected as raised:
                error = raised
            try:
                verify(Failure(subject, operation, number, error))
            except Exception as failure:
                failure.add_note(f"{os.strerror(number)} at {operation}, {self.trace[operation - 1]}")
                raise

    def _kind(self, operation: int) -> str:
        return self.trace[operation - 1].split(" ")[0]
