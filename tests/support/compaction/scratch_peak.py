"""A file system that measures the files below a directory after each append."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.filesystem import AppendFile
from stratalog.base.wrapped_filesystem import Result, WrappedFile, WrappedFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem


class ScratchPeak(WrappedFileSystem):
    """A disk in memory that notes the most bytes in a directory. Not thread-safe: one test uses it."""

    def __init__(self, directory: str) -> None:
        super().__init__(MemoryFileSystem())
        self.peak_bytes = 0
        self._directory = directory

    def measure(self) -> None:
        """Note the bytes that are in the directory now."""
        names = self._inner.list_directory(self._directory)
        sizes = (self._inner.file_size(f"{self._directory}/{name}") for name in names)
        self.peak_bytes = max(self.peak_bytes, sum(sizes))

    def _run(
        self, name: str, path: str, operation: Callable[[], Result], target: str | None = None
    ) -> Result:
        return operation()

    def _opened(self, path: str, file: AppendFile) -> AppendFile:
        return _MeasuredFile(file, self.measure)


class _MeasuredFile(WrappedFile):
    """A file whose appends are measured. Guarded as its file system."""

    __slots__ = ("_measure",)

    def __init__(self, inner: AppendFile, measure: Callable[[], None]) -> None:
        super().__init__(inner)
        self._measure = measure

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        result = operation()
        if name == "append":
            self._measure()
        return result
