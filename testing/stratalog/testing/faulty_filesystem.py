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

from stratalog.base.filesystem import AppendFile, Buffer, FileLock
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival

Result = TypeVar("Result")

ALL_SURVIVALS = tuple(Survival(*pair) for pair in itertools.product(Kept, (Kept.NONE, Kept.HALF, Kept.ALL)))
"""Every fate of unsynced contents with every fate of unsynced names."""


class SimulatedCrash(BaseException):
    """The process ends here."""


class Fate(NamedTuple):
    """What becomes of an operation that goes wrong: this fraction of it happens, then the error is raised."""

    part: float
    error: BaseException


class FaultyFileSystem:
    """`FileSystem` over a `MemoryFileSystem`, with numbered operations, crashes and errors. Thread-safe."""

    def __init__(self, inner: MemoryFileSystem | None = None) -> None:
        self.inner = inner if inner is not None else MemoryFileSystem()
        self.trace: list[str] = []
        self._guard = threading.Lock()
        self._fates: dict[int, Fate] = {}
        self._crash: SimulatedCrash | None = None

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

    def reopened(self, survival: Survival) -> FaultyFileSystem:
        """The disk as a new process finds it after a power loss now."""
        return FaultyFileSystem(self.inner.after_crash(survival))

    def killed(self) -> FaultyFileSystem:
        """The same disk as a new process finds it after this one was killed: everything is there, little is
        durable."""
        self.inner.release_locks()
        return FaultyFileSystem(self.inner)

    def next_fate(self, name: str, path: str) -> Fate | None:
        """Number an operation that begins; None where it goes well."""
        with self._guard:
            if self._crash is not None:
                raise self._crash
            self.trace.append(f"{name} {path}")
            fate = self._fates.get(len(self.trace))
            if fate is not None and isinstance(fate.error, SimulatedCrash):
                self._crash = fate.error
            return fate

    def run(self, name: str, path: str, operation: Callable[[], Result]) -> Result:
        fate = self.next_fate(name, path)
        if fate is None:
            return operation()
        if fate.part >= 1:
            operation()
        raise fate.error

    def open_append(self, path: str) -> AppendFile:
        return _FaultyAppendFile(self, self.run("open_append", path, lambda: self.inner.open_append(path)))

    def open_read(self, path: str) -> AppendFile:
        return _FaultyAppendFile(self, self.run("open_read", path, lambda: self.inner.open_read(path)))

    def read_file(self, path: str) -> bytes:
        return self.run("read_file", path, lambda: self.inner.read_file(path))

    def list_directory(self, path: str) -> list[str]:
        return self.run("list_directory", path, lambda: self.inner.list_directory(path))

    def exists(self, path: str) -> bool:
        return self.run("exists", path, lambda: self.inner.exists(path))

    def is_directory(self, path: str) -> bool:
        return self.run("is_directory", path, lambda: self.inner.is_directory(path))

    def real_path(self, path: str) -> str:
        return self.run("real_path", path, lambda: self.inner.real_path(path))

    def file_size(self, path: str) -> int:
        return self.run("file_size", path, lambda: self.inner.file_size(path))

    def modified_ms(self, path: str) -> int:
        return self.run("modified_ms", path, lambda: self.inner.modified_ms(path))

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.run("set_modified_ms", path, lambda: self.inner.set_modified_ms(path, modified_ms))

    def make_directories(self, path: str) -> None:
        self.run("make_directories", path, lambda: self.inner.make_directories(path))

    def rename(self, source: str, target: str) -> None:
        self.run("rename", f"{source} {target}", lambda: self.inner.rename(source, target))

    def unlink(self, path: str) -> None:
        self.run("unlink", path, lambda: self.inner.unlink(path))

    def link(self, source: str, target: str) -> None:
        self.run("link", f"{source} {target}", lambda: self.inner.link(source, target))

    def link_count(self, path: str) -> int:
        return self.run("link_count", path, lambda: self.inner.link_count(path))

    def copy_file(self, source: str, target: str) -> None:
        self.run("copy_file", f"{source} {target}", lambda: self.inner.copy_file(source, target))

    def remove_tree(self, path: str) -> None:
        self.run("remove_tree", path, lambda: self.inner.remove_tree(path))

    def sync_directory(self, path: str) -> None:
        self.run("sync_directory", path, lambda: self.inner.sync_directory(path))

    def try_lock(self, path: str) -> FileLock | None:
        return self.run("try_lock", path, lambda: self.inner.try_lock(path))

    def try_lock_shared(self, path: str) -> FileLock | None:
        return self.run("try_lock_shared", path, lambda: self.inner.try_lock_shared(path))

    def free_bytes(self, path: str) -> int:
        return self.run("free_bytes", path, lambda: self.inner.free_bytes(path))


class _FaultyAppendFile:
    """An open file whose operations count, too. Guarded by the file below it."""

    def __init__(self, filesystem: FaultyFileSystem, inner: AppendFile) -> None:
        self._filesystem = filesystem
        self._inner = inner

    @property
    def path(self) -> str:
        return self._inner.path

    def append(self, parts: Sequence[Buffer]) -> int:
        fate = self._filesystem.next_fate("append", self.path)
        if fate is None:
            return self._inner.append(parts)
        data = b"".join(parts)
        self._inner.append([data[: round(len(data) * fate.part)]])
        raise fate.error

    def read_at(self, position: int, size: int) -> bytes:
        return self._filesystem.run("read_at", self.path, lambda: self._inner.read_at(position, size))

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        return self._filesystem.run("read_into", self.path, lambda: self._inner.read_into(position, buffer))

    def size(self) -> int:
        return self._filesystem.run("size", self.path, self._inner.size)

    def truncate(self, size: int) -> None:
        self._filesystem.run("truncate", self.path, lambda: self._inner.truncate(size))

    def reserve(self, size: int) -> bool:
        return self._filesystem.run("reserve", self.path, lambda: self._inner.reserve(size))

    def sync(self) -> None:
        self._filesystem.run("sync", self.path, self._inner.sync)

    def close(self) -> None:
        self._filesystem.run("close", self.path, self._inner.close)
