"""A file system over another one, with every operation in one method.

A subclass that watches, counts or fails operations overrides that method; this class passes each operation of
the seam to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.base.filesystem import AppendFile, Buffer, FileLock, FileSystem

Result = TypeVar("Result")


class WrappedFileSystem(ABC):
    """A `FileSystem` over another one. As thread-safe as `_run`."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    @abstractmethod
    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        """Run the named operation, or refuse it. `target` is the second path of an operation that has two."""

    @abstractmethod
    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        """Return a `WrappedFile` around an opened file, or the file itself."""

    def open_append(self, path: str) -> AppendFile:
        return self._opened(path, self._run("open_append", path, lambda: self._inner.open_append(path)))

    def open_read(self, path: str) -> AppendFile:
        return self._opened(path, self._run("open_read", path, lambda: self._inner.open_read(path)))

    def read_file(self, path: str) -> bytes:
        return self._run("read_file", path, lambda: self._inner.read_file(path))

    def list_directory(self, path: str) -> list[str]:
        return self._run("list_directory", path, lambda: self._inner.list_directory(path))

    def exists(self, path: str) -> bool:
        return self._run("exists", path, lambda: self._inner.exists(path))

    def is_directory(self, path: str) -> bool:
        return self._run("is_directory", path, lambda: self._inner.is_directory(path))

    def real_path(self, path: str) -> str:
        return self._run("real_path", path, lambda: self._inner.real_path(path))

    def file_size(self, path: str) -> int:
        return self._run("file_size", path, lambda: self._inner.file_size(path))

    def modified_ms(self, path: str) -> int:
        return self._run("modified_ms", path, lambda: self._inner.modified_ms(path))

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._run("set_modified_ms", path, lambda: self._inner.set_modified_ms(path, modified_ms))

    def make_directories(self, path: str) -> None:
        self._run("make_directories", path, lambda: self._inner.make_directories(path))

    def rename(self, source: str, target: str) -> None:
        self._run("rename", source, lambda: self._inner.rename(source, target), target)

    def unlink(self, path: str) -> None:
        self._run("unlink", path, lambda: self._inner.unlink(path))

    def link(self, source: str, target: str) -> None:
        self._run("link", source, lambda: self._inner.link(source, target), target)

    def link_count(self, path: str) -> int:
        return self._run("link_count", path, lambda: self._inner.link_count(path))

    def copy_file(self, source: str, target: str) -> None:
        self._run("copy_file", source, lambda: self._inner.copy_file(source, target), target)

    def remove_tree(self, path: str) -> None:
        self._run("remove_tree", path, lambda: self._inner.remove_tree(path))

    def sync_directory(self, path: str) -> None:
        self._run("sync_directory", path, lambda: self._inner.sync_directory(path))

    def try_lock(self, path: str) -> FileLock | None:
        return self._run("try_lock", path, lambda: self._inner.try_lock(path))

    def try_lock_shared(self, path: str) -> FileLock | None:
        return self._run("try_lock_shared", path, lambda: self._inner.try_lock_shared(path))

    def free_bytes(self, path: str) -> int:
        return self._run("free_bytes", path, lambda: self._inner.free_bytes(path))


class WrappedFile(ABC):
    """An `AppendFile` over another one, with its guard."""

    __slots__ = ("_inner",)

    def __init__(self, inner: AppendFile) -> None:
        self._inner = inner

    @abstractmethod
    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        """Run the named operation, or refuse it."""

    @property
    def path(self) -> str:
        return self._inner.path

    def append(self, parts: Sequence[Buffer]) -> int:
        return self._run("append", lambda: self._inner.append(parts))

    def read_at(self, position: int, size: int) -> bytes:
        return self._run("read_at", lambda: self._inner.read_at(position, size))

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        return self._run("read_into", lambda: self._inner.read_into(position, buffer))

    def read_cached(self, position: int, size: int) -> Buffer | None:
        return self._run("read_cached", lambda: self._inner.read_cached(position, size))

    def size(self) -> int:
        return self._run("size", self._inner.size)

    def truncate(self, size: int) -> None:
        self._run("truncate", lambda: self._inner.truncate(size))

    def reserve(self, size: int) -> bool:
        return self._run("reserve", lambda: self._inner.reserve(size))

    def bypass_cache(self) -> None:
        # A hint, which cannot fail.
        self._inner.bypass_cache()

    def sync(self) -> None:
        self._run("sync", self._inner.sync)

    def close(self) -> None:
        self._run("close", self._inner.close)
