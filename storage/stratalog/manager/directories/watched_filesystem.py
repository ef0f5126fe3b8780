"""The file system of the log directories, which takes a directory offline when its disk fails.

Every operation on a file of a log goes through here: those of appends, of the cleaner, of reads and of
background tasks. An error of the disk takes the directory offline. From then on each operation below that
directory is refused without asking the disk: nothing is written there, and no thread waits for a device that
does not answer. Files may still be closed.

A start reads and writes small files of each directory, one operation after another: while it does, its thread
waits for each operation with patience (`starting`), so that a disk that hangs takes its directory offline.

Paths outside of the directories pass through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem
from stratalog.base.wrapped_filesystem import WrappedFile, WrappedFileSystem
from stratalog.log.directory_health import DirectoryHealth

Result = TypeVar("Result")


class OnDisk(Protocol):
    """Runs an operation on a log directory, and waits for it with patience."""

    def __call__(self, path: str, work: Callable[[], Result], /) -> Result:
        """The result of the work on the directory of this path. Raises what it raises, and OSError if the
        disk does not answer; then the directory is offline."""
        ...


class _Start(NamedTuple):
    """A start that goes on, and how its thread waits for disks."""

    thread_id: int
    on_disk: OnDisk


class WatchedFileSystem(WrappedFileSystem):
    """`FileSystem` over another one. Thread-safe."""

    def __init__(self, inner: FileSystem, healths: Sequence[DirectoryHealth]) -> None:
        """`healths`: one for each directory; no directory lies in another."""
        super().__init__(inner)
        self._healths = tuple(healths)
        self._start: _Start | None = None

    def begin_start(self, on_disk: OnDisk) -> None:
        """Let each operation of the calling thread wait by `on_disk`, until `end_start`. Other threads are
        not affected."""
        self._start = _Start(threading.get_ident(), on_disk)

    def end_start(self) -> None:
        """Let operations of all threads take as long as they take."""
        self._start = None

    def _health_of(self, path: str) -> DirectoryHealth | None:
        for health in self._healths:
            if path.startswith(health.path) and path[len(health.path) :][:1] in ("", "/"):
                return health
        return None

    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        if target is not None and self._health_of(target) is not self._health_of(path):
            # An error between two directories does not say which of them has failed.
            return operation()
        health = self._health_of(path)
        if health is None:
            return operation()
        if health.reason is not None:
            raise health.os_error(path)
        watched = partial(_watched, health, operation)
        start = self._start_here()
        return watched() if start is None else start.on_disk(health.path, watched)

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        health = self._health_of(path)
        if health is None:
            return file
        watched = _WatchedFile(file, health)
        return watched if self._start_here() is None else _StartFile(watched, health, self._start_here)

    def _start_here(self) -> _Start | None:
        """The start that the calling thread does; None if it does none."""
        start = self._start
        return start if start is not None and start.thread_id == threading.get_ident() else None


def _watched(health: DirectoryHealth, operation: Callable[[], Result]) -> Result:
    try:
        return operation()
    except OSError as error:
        health.observe(error)
        raise
    finally:
        health.answer_count += 1


class _WatchedFile(WrappedFile):
    """An open file below a log directory. It has the guard of the file that it wraps."""

    __slots__ = ("_health",)

    def __init__(self, inner: AppendFile, health: DirectoryHealth) -> None:
        super().__init__(inner)
        self._health = health

    # Appends and reads are by far the most frequent calls, so they do not go through `_run`.

    def append(self, parts: Sequence[Buffer]) -> int:
        self._require_online()
        try:
            return self._inner.append(parts)
        except OSError as error:
            self._health.observe(error)
            raise
        finally:
            self._health.answer_count += 1

    def read_at(self, position: int, size: int) -> bytes:
        self._require_online()
        try:
            return self._inner.read_at(position, size)
        except OSError as error:
            self._health.observe(error)
            raise
        finally:
            self._health.answer_count += 1

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        self._require_online()
        try:
            return self._inner.read_into(position, buffer)
        except OSError as error:
            self._health.observe(error)
            raise
        finally:
            self._health.answer_count += 1

    def close(self) -> None:
        self._inner.close()

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        self._require_online()
        try:
            return operation()
        except OSError as error:
            self._health.observe(error)
            raise
        finally:
            self._health.answer_count += 1

    def _require_online(self) -> None:
        if self._health.reason is not None:
            raise self._health.os_error(self.path)


class _StartFile(WrappedFile):
    """A file that a start has opened. While that goes on, it is closed with patience, too: a disk may keep
    it."""

    __slots__ = ("_health", "_start_here")

    def __init__(
        self, inner: AppendFile, health: DirectoryHealth, start_here: Callable[[], _Start | None]
    ) -> None:
        super().__init__(inner)
        self._health = health
        self._start_here = start_here

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        start = self._start_here()
        return operation() if start is None else start.on_disk(self._health.path, operation)
