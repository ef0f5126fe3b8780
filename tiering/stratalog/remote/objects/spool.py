"""Bytes that are written once and read back in order: in memory while they are few, then in a temporary file.

The parts of an object cannot all be sent in the order in which they are made, so they wait here. Nothing is
fsynced: a spool is worthless after a crash, and the owner of the directory removes files of earlier processes
(`clear_spool_directory`). A spool without a file needs no directory, which a full disk would refuse.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Sequence
from typing import NamedTuple, overload

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem

DATA_SUFFIX = ".data"
KEYS_SUFFIX = ".keys"
SCRATCH_SUFFIX = ".scratch"
SPOOL_SUFFIXES = (DATA_SUFFIX, KEYS_SUFFIX, SCRATCH_SUFFIX)
"""Suffixes of all files in the directory."""
_WRITE_BYTES = 1 << 20
"""Smaller pieces are gathered into one system call."""
_READ_BYTES = 8 << 20
"""Bytes in memory at a time while a spooled object is sent."""
_SMALL_BYTES = 64 << 10
"""Smaller pieces are joined before they are sent: each part costs the sender and the verifier."""


class FilePart(NamedTuple):
    """Bytes of a spool file, read on demand."""

    file: AppendFile
    position: int
    size_bytes: int

    def read(self) -> bytes:
        data = self.file.read_at(self.position, self.size_bytes)
        # Only this process writes the file, so it cannot have become shorter.
        assert len(data) == self.size_bytes
        return data


class Parts(Sequence[Buffer]):
    """Consecutive parts of an object; parts in a file are read on each access. Immutable."""

    def __init__(self, parts: Sequence[Buffer | FilePart]) -> None:
        self._parts = tuple(parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes if isinstance(part, FilePart) else len(part) for part in self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Parts: ...
    def __getitem__(self, index: int | slice) -> Buffer | Parts:
        if isinstance(index, slice):
            return Parts(self._parts[index])
        part = self._parts[index]
        return part.read() if isinstance(part, FilePart) else part


class Spool:
    """Bytes that are written once and read back in order. Not thread-safe: one user at a time. `close`
    removes the file; parts are invalid then."""

    def __init__(self, filesystem: FileSystem, path: str, memory_bytes: int) -> None:
        self.size_bytes = 0
        self._filesystem = filesystem
        self._path = path
        self._memory_bytes = memory_bytes
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._file: AppendFile | None = None

    def append(self, data: Buffer) -> None:
        """Add bytes at the end. The caller must not change the buffer afterwards."""
        if not len(data):
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.size_bytes += len(data)
        if self._waiting_bytes > (self._memory_bytes if self._file is None else _WRITE_BYTES):
            self._write()

    def cut(self, size_bytes: int) -> None:
        """Discard the bytes from there on."""
        file_bytes = self.size_bytes - self._waiting_bytes
        if self._file is not None and size_bytes < file_bytes:
            self._file.truncate(size_bytes)
            file_bytes = size_bytes
        self._waiting_bytes, self.size_bytes = size_bytes - file_bytes, size_bytes
        waiting = b"".join(self._waiting)[: self._waiting_bytes]
        self._waiting = [waiting] if waiting else []

    def parts(self) -> list[Buffer | FilePart]:
        """All bytes so far, in order."""
        file_bytes = self.size_bytes - self._waiting_bytes
        parts: list[Buffer | FilePart] = []
        for position in range(0, file_bytes, _READ_BYTES):
            assert self._file is not None
            parts.append(FilePart(self._file, position, min(_READ_BYTES, file_bytes - position)))
        self._waiting = _gathered(self._waiting)
        return [*parts, *self._waiting]

    def close(self) -> None:
        """Discard the bytes. May be called repeatedly."""
        self._waiting.clear()
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._filesystem.unlink(self._path)

    def _write(self) -> None:
        if self._file is None:
            self._filesystem.make_directories(posixpath.dirname(self._path))
            self._file = self._filesystem.open_append(self._path)
        written_bytes = self._file.append(self._waiting)
        assert written_bytes == self._waiting_bytes
        self._waiting = []
        self._waiting_bytes = 0


def _gathered(pieces: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes, with small neighbours joined."""
    gathered: list[Buffer] = []
    for is_small, group in itertools.groupby(pieces, lambda piece: len(piece) < _SMALL_BYTES):
        if is_small:
            gathered.append(b"".join(group))
        else:
            gathered += group
    return gathered


def clear_spool_directory(filesystem: FileSystem, directory: str) -> None:
    """Make the directory if it is missing, and remove spool files of earlier processes. Raises OSError."""
    filesystem.make_directories(directory)
    for name in filesystem.list_directory(directory):
        if name.endswith(SPOOL_SUFFIXES) and not filesystem.is_directory(f"{directory}/{name}"):
            filesystem.unlink(f"{directory}/{name}")
