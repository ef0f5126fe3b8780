"""A file system that dies, or fails, at the operation that a test chooses.

Operations are numbered from 1 in the order in which they begin; `trace` holds what each one was. A crash test
runs its work once to learn how many there are, and then once for each of them::

    disk = FaultyFileSystem()
    disk.crash_at(17, part=0.5)          # the 17th operation gets half-way, if it is an append
    with contextlib.suppress(SimulatedCrash):
        work(disk)
    for survival in ALL_SURVIVALS:
        verify(disk.reopened(survival))  # what a machine finds that starts again

`SimulatedCrash` is a BaseException, as the end of a process would be: no handler of the code under test may
stop it, and from then on every operation of the same file system raises it again.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.base.wrapped_filesystem import WrappedFile, WrappedFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival

Result = TypeVar("Result")

ALL_SURVIVALS = tuple(Survival(*pair) for pair in itertools.product(Kept, (Kept.NONE, Kept.HALF, Kept.ALL)))
"""Every fate of unsynced contents with every fate of unsynced names."""


class SimulatedCrash(BaseException):
    """The process ends here."""


class Fate(NamedTuple):
    """The fate of a failing operation: this fraction of it happens, then the error is raised."""

    part: float
    error: BaseException


class FaultyFileSystem(WrappedFileSystem):
    """`FileSystem` over a `MemoryFileSystem`, with numbered operations, crashes and errors. Thread-safe."""

    def __init__(self, inner: MemoryFileSystem | None = None) -> None:
        self.inner = inner if inner is not None else MemoryFileSystem()
        super().__init__(self.inner)
        self.trace: list[str] = []
        self._guard = threading.Lock()
        self._fates: dict[int, Fate] = {}
        self._crash: SimulatedCrash | None = None
        self._refused: Callable[[str], object] = lambda _: False
        self._refusal = 0

    @property
    def operation_count(self) -> int:
        """Operations begun so far; the next one has this number plus 1."""
        return len(self.trace)

    def crash_at(self, operation: int, *, part: float = 0.0) -> None:
        """Die at this operation: an append writes the fraction `part` of its bytes first, any other operation
        happens where `part` is 1 and does not happen otherwise."""
        self._fates[operation] = Fate(part, SimulatedCrash(f"at operation {operation}"))

    def fail_at(self, operation: int, *, number: int = errno.EIO, part: float = 0.0) -> None:
        """Let this operation raise OSError with the errno `number`, after the fraction `part` of it as with
        `crash_at`."""
        self._fates[operation] = Fate(part, OSError(number, os.strerror(number)))

    def fail_where(self, matches: Callable[[str], object], *, number: int = errno.EIO) -> None:
        """Let each operation whose line in `trace` matches raise OSError with that errno, until `mend`."""
        self._refused, self._refusal = matches, number

    def mend(self) -> None:
        """End what `fail_where` began."""
        self._refused = lambda _: False

    def reopened(self, survival: Survival) -> FaultyFileSystem:
        """The disk as a new process finds it after a power loss now."""
        return FaultyFileSystem(self.inner.after_crash(survival))

    def killed(self) -> FaultyFileSystem:
        """The same disk as a new process finds it after this one was killed: everything is there, little is
        durable."""
        self.inner.release_locks()
        return FaultyFileSystem(self.inner)

    def next_fate(self, name: str, path: str) -> Fate | None:
        """Number an operation that begins; None if it goes well."""
        with self._guard:
            if self._crash is not None:
                raise self._crash
            self.trace.append(f"{name} {path}")
            fate = self._fates.get(len(self.trace))
            if fate is None and self._refused(self.trace[-1]):
                first_path = path.partition(" ")[0]
                return Fate(0.0, OSError(self._refusal, os.strerror(self._refusal), first_path))
            if fate is not None and isinstance(fate.error, SimulatedCrash):
                self._crash = fate.error
            return fate

    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        return _fated(self.next_fate(name, path if target is None else f"{path} {target}"), operation)

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        return _FaultyAppendFile(self, file)


class _FaultyAppendFile(WrappedFile):
    """An open file whose operations count, too. Guarded by the file below it."""

    __slots__ = ("_filesystem",)

    def __init__(self, filesystem: FaultyFileSystem, inner: AppendFile) -> None:
        super().__init__(inner)
        self._filesystem = filesystem

    def append(self, parts: Sequence[Buffer]) -> int:
        fate = self._filesystem.next_fate("append", self.path)
        if fate is None:
            return self._inner.append(parts)
        data = b"".join(parts)
        self._inner.append([data[: round(len(data) * fate.part)]])
        raise fate.error

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        return _fated(self._filesystem.next_fate(name, self.path), operation)


def _fated(fate: Fate | None, operation: Callable[[], Result]) -> Result:
    """Let this become of it."""
    if fate is None:
        return operation()
    if fate.part >= 1:
        operation()
    raise fate.error
