"""Bytes that are written once and then read anywhere: in memory up to a bound, else in a temporary file.

A job puts bytes here that it reads out of order, or later than they arrive. The file is never synced, and is
unlinked when it is closed. The next compactor removes the files of a crash (`clear_spool_directory`).
"""

from __future__ import annotations

import bisect
import posixpath
from types import TracebackType
from uuid import UUID

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem
from stratalog.remote.objects.spool import SCRATCH_SUFFIX


class Scratch:
    """Temporary bytes, first in memory, then in a file. Not thread-safe: guarded by the job that made it. As
    a context manager it releases memory and file at the end.
    """

    def __init__(
        self, filesystem: FileSystem, directory: str, scratch_id: UUID, memory_limit_bytes: int
    ) -> None:
        self._filesystem = filesystem
        self._path = f"{directory}/{scratch_id}{SCRATCH_SUFFIX}"
        self._memory_limit_bytes = memory_limit_bytes
        self._pieces: list[Buffer] = []
        self._ends: list[int] = []
        self._file: AppendFile | None = None
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, data: Buffer) -> None:
        """Append bytes, which must not change afterwards. Raises OSError if the disk is full."""
        if not len(data):
            return
        if self._file is None and self._size_bytes + len(data) <= self._memory_limit_bytes:
            self._pieces.append(data)
            self._ends.append(self._size_bytes + len(data))
        else:
            self._append_to_file(data)
        self._size_bytes += len(data)
        # All bytes lie in one place.
        assert self._file is None or not self._pieces

    def read_at(self, position: int, size: int) -> Buffer:
        """Exactly `size` bytes; not copied if they lie in one piece in memory."""
        assert position >= 0
        assert position + size <= self._size_bytes, "scratch is read where it was written"
        if self._file is None:
            return (
                memoryview(self._pieces[0])[position : position + size]
                if len(self._pieces) == 1
                else self._from_pieces(position, size)
            )
        data = self._file.read_at(position, size)
        if len(data) != size:
            raise OSError(f"the scratch file {self._path} lost its end")
        return data

    def read_some_at(self, position: int, size: int) -> Buffer:
        """At least one byte (of `size` > 0) and at most `size`, never put together from pieces."""
        if self._file is not None or size == 0:
            return self.read_at(position, size) if size else b""
        index = bisect.bisect_right(self._ends, position)
        begin = position - (self._ends[index - 1] if index else 0)
        return memoryview(self._pieces[index])[begin : begin + size]

    def close(self) -> None:
        """Forget the bytes. May be called again."""
        self._pieces, self._ends = [], []
        self._size_bytes = 0
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._filesystem.unlink(self._path)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append_to_file(self, data: Buffer) -> None:
        if self._file is None:
            self._filesystem.make_directories(posixpath.dirname(self._path))
            self._file = self._filesystem.open_append(self._path)
            self._file.append(self._pieces)
            self._pieces, self._ends = [], []
        self._file.append([data])

    def _from_pieces(self, position: int, size: int) -> Buffer:
        found = self.read_some_at(position, size)
        if len(found) == size:
            return found
        parts = [found]
        while size > len(found):
            position, size = position + len(found), size - len(found)
            found = self.read_some_at(position, size)
            parts.append(found)
        return b"".join(parts)


class ScratchReader:
    """Moves forward over [position, end) of a scratch. Not thread-safe: guarded by the job."""

    def __init__(self, scratch: Scratch, position: int, size_bytes: int) -> None:
        self._scratch = scratch
        self._position = position
        self._end_position = position + size_bytes

    def read(self, size: int) -> Buffer:
        """Up to `size` bytes; fewer only at the end."""
        size = min(size, self._end_position - self._position)
        data = self._scratch.read_at(self._position, size)
        self._position += size
        return data

    def read_some(self, size: int) -> Buffer:
        """At least one byte and at most `size`, not copied where memory holds it; none only at the end."""
        size = min(size, self._end_position - self._position)
        data = self._scratch.read_some_at(self._position, size)
        self._position += len(data)
        return data
