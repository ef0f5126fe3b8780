"""The file system of scratch files, which waits for a disk that hangs for a bounded time.

An operation that the disk has not answered in time is an error of the disk for its caller, which then takes
the scratch of another log directory. The log directory stays in use: its disk may be slow and no more.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.base.wrapped_filesystem import WrappedFile, WrappedFileSystem
from stratalog.server.partitions.patient_disk_calls import PatientDiskCalls

Result = TypeVar("Result")


class ScratchFileSystem(WrappedFileSystem):
    """`FileSystem` over another one. Thread-safe."""

    def __init__(self, inner: FileSystem, directories: Sequence[str], calls: PatientDiskCalls) -> None:
        """`directories`: the log directories. Operations elsewhere wait for as long as they take."""
        super().__init__(inner)
        self._directories = tuple(directories)
        self._calls = calls

    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        directory = self._directory_of(path)
        return operation() if directory is None else _answer(self._calls, directory, path, operation)

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        directory = self._directory_of(path)
        return file if directory is None else _ScratchFile(file, directory, self._calls)

    def _directory_of(self, path: str) -> str | None:
        return next((one for one in self._directories if f"{path}/".startswith(f"{one}/")), None)


class _ScratchFile(WrappedFile):
    """An open scratch file. Thread-safe: `_guard` is held during each operation, so that a file is not closed
    under one that was given up, and nothing is written to a file that is closed."""

    __slots__ = ("_calls", "_directory", "_guard", "_is_closed")

    def __init__(self, inner: AppendFile, directory: str, calls: PatientDiskCalls) -> None:
        super().__init__(inner)
        self._directory = directory
        self._calls = calls
        self._is_closed = False
        self._guard = threading.Lock()

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        def guarded() -> Result:
            with self._guard:
                if self._is_closed:
                    raise OSError(errno.EBADF, "the scratch file is closed", self.path)
                return operation()

        return _answer(self._calls, self._directory, self.path, guarded)

    def close(self) -> None:
        self._is_closed = True
        if self._guard.acquire(blocking=False):
            try:
                self._inner.close()
            finally:
                self._guard.release()
            return

        def close() -> None:
            with self._guard:
                self._inner.close()

        self._calls.leave(self._directory, close)


def _answer(calls: PatientDiskCalls, directory: str, path: str, operation: Callable[[], Result]) -> Result:
    try:
        return calls.run(directory, operation)
    except DataDirectoryError as silence:
        raise OSError(errno.ETIMEDOUT, silence.message, path) from silence
