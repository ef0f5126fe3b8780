"""The file system below the log directories, which notices where a disk fails.

Whatever reads, writes, syncs or renames a file of a log goes through here: an error that is of the disk takes
the directory offline, be it met by an append, the cleaner, a look at an index or a task that nobody waits
for. From then on every operation below that directory is refused without asking the disk, so nothing is
written there any more and nobody waits for a device that does not answer. Files may still be closed.

Paths outside of the directories pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.base.filesystem import AppendFile, Buffer, FileLock, FileSystem
from stratalog.log.directory_health import DirectoryHealth

Result = TypeVar("Result")


class WatchedFileSystem:
    """`FileSystem` over another one. Thread-safe."""

    def __init__(self, inner: FileSystem, healths: Sequence[DirectoryHealth]) -> None:
        """`healths`: of directories none of which lies in another."""
        self._inner = inner
        self._healths = tuple(healths)

    def _health_of(self, path: str) -> DirectoryHealth | None:
        for health in self._healths:
            if path.startswith(health.path) and path[len(health.path) :][:1] in ("", "/"):
                return health
        return None

    def _run(self, path: str, operation: Callable[[], Result]) -> Result:
        for health in self._healths:
            if health.reason is not None and self._health_of(path) is health:
                raise health.os_error(path)
        try:
            return operation()
        except OSError as error:
            failed = self._health_of(path)
            if failed is not None:
                failed.observe(error)
            raise

    def _run_between(self, source: str, target: str, operation: Callable[[], Result]) -> Result:
        """As `_run`; of an error between two directories nobody knows which of them it is of."""
        if self._health_of(source) is self._health_of(target):
            return self._run(source, operation)
        return operation()

    def _watched(self, path: str, file: AppendFile) -> AppendFile:
        health = self._health_of(path)
        return file if health is None else _WatchedFile(file, health)

    def open_append(self, path: str) -> AppendFile:
        return self._watched(path, self._run(path, lambda: self._inner.open_append(path)))

    def open_read(self, path: str) -> AppendFile:
        return self._watched(path, self._run(path, lambda: self._inner.open_read(path)))

    def read_file(self, path: str) -> bytes:
        return self._run(path, lambda: self._inner.read_file(path))

    def list_directory(self, path: str) -> list[str]:
        return self._run(path, lambda: self._inner.list_directory(path))

    def exists(self, path: str) -> bool:
        return self._run(path, lambda: self._inner.exists(path))

    def is_directory(self, path: str) -> bool:
        return self._run(path, lambda: self._inner.is_directory(path))

    def real_path(self, path: str) -> str:
        return self._run(path, lambda: self._inner.real_path(path))

    def file_size(self, path: str) -> int:
        return self._run(path, lambda: self._inner.file_size(path))

    def modified_ms(self, path: str) -> int:
        return self._run(path, lambda: self._inner.modified_ms(path))

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._run(path, lambda: self._inner.set_modified_ms(path, modified_ms))

    def make_directories(self, path: str) -> None:
        self._run(path, lambda: self._inner.make_directories(path))

    def rename(self, source: str, target: str) -> None:
        self._run_between(source, target, lambda: self._inner.rename(source, target))

    def unlink(self, path: str) -> None:
        self._run(path, lambda: self._inner.unlink(path))

    def link(self, source: str, target: str) -> None:
        self._run_between(source, target, lambda: self._inner.link(source, target))

    def link_count(self, path: str) -> int:
        return self._run(path, lambda: self._inner.link_count(path))

    def copy_file(self, source: str, target: str) -> None:
        self._run_between(source, target, lambda: self._inner.copy_file(source, target))

    def remove_tree(self, path: str) -> None:
        self._run(path, lambda: self._inner.remove_tree(path))

    def sync_directory(self, path: str) -> None:
        self._run(path, lambda: self._inner.sync_directory(path))

    def try_lock(self, path: str) -> FileLock | None:
        return self._run(path, lambda: self._inner.try_lock(path))

    def try_lock_shared(self, path: str) -> FileLock | None:
        return self._run(path, lambda: self._inner.try_lock_shared(path))

    def free_bytes(self, path: str) -> int:
        return self._run(path, lambda: self._inner.free_bytes(path))


class _WatchedFile:
    """An open file below a log directory. Guarded as the file is that it stands for."""

    __slots__ = ("_health", "_inner")

    def __init__(self, inner: AppendFile, health: DirectoryHealth) -> None:
        self._inner = inner
        self._health = health

    @property
    def path(self) -> str:
        return self._inner.path

    def append(self, parts: Sequence[Buffer]) -> int:
        self._require_online()
        try:
            return self._inner.append(parts)
        except OSError as error:
            self._health.observe(error)
            raise

    def read_at(self, position: int, size: int) -> bytes:
        self._require_online()
        try:
            return self._inner.read_at(position, size)
        except OSError as error:
            self._health.observe(error)
            raise

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        self._require_online()
        try:
            return self._inner.read_into(position, buffer)
        except OSError as error:
            self._health.observe(error)
            raise

    def size(self) -> int:
        return self._run(self._inner.size)

    def truncate(self, size: int) -> None:
        self._run(lambda: self._inner.truncate(size))

    def reserve(self, size: int) -> bool:
        return self._run(lambda: self._inner.reserve(size))

    def sync(self) -> None:
        self._run(self._inner.sync)

    def close(self) -> None:
        self._inner.close()

    def _run(self, operation: Callable[[], Result]) -> Result:
        self._require_online()
        try:
            return operation()
        except OSError as error:
            self._health.observe(error)
            raise

    def _require_online(self) -> None:
        if self._health.reason is not None:
            raise self._health.os_error(self.path)
