"""The file system of the log directories, which takes a directory offline when its disk fails.

Every operation on a file of a log goes through here: those of appends, of the cleaner, of reads and of
background tasks. An error of the disk takes the directory offline. From then on each operation below that
directory is refused without asking the disk: nothing is written there, and no thread waits for a device that
does not answer. Files may still be closed.

Paths outside of the directories pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem
from stratalog.base.wrapped_filesystem import WrappedFile, WrappedFileSystem
from stratalog.log.directory_health import DirectoryHealth

Result = TypeVar("Result")


class WatchedFileSystem(WrappedFileSystem):
    """`FileSystem` over another one. Thread-safe."""

    def __init__(self, inner: FileSystem, healths: Sequence[DirectoryHealth]) -> None:
        """`healths`: one for each directory; no directory lies in another."""
        super().__init__(inner)
        self._healths = tuple(healths)

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
        try:
            return operation()
        except OSError as error:
            health.observe(error)
            raise
        finally:
            health.answer_count += 1

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        health = self._health_of(path)
        return file if health is None else _WatchedFile(file, health)


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
