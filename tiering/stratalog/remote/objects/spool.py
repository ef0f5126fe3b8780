"""Bytes that are written once and then read anywhere: in memory while they are few, then in a temporary file.

The parts of an object cannot all be sent in the order in which they are made, so they wait here; the data of
an upload too, because its number of bytes is known only at its end. A compaction
also keeps bytes here that it reads out of order. Nothing is fsynced: a spool is worthless after a crash, and
the owner of the directory removes files of earlier processes (`clear_spool_directory`). A spool without a
file needs no directory, which a full disk would refuse.
"""

from __future__ import annotations

import bisect
import posixpath
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self, overload

from stratalog.base.filesystem import AppendFile, Buffer, FileSystem
from stratalog.remote.objects.spool_memory import SpoolMemory

DATA_SUFFIX = ".data"
KEYS_SUFFIX = ".keys"
SCRATCH_SUFFIX = ".scratch"
SPOOL_SUFFIXES = (DATA_SUFFIX, KEYS_SUFFIX, SCRATCH_SUFFIX)
"""Suffixes of all files in the directory."""
_WRITE_BYTES = 1 << 20
"""Smaller pieces are gathered into one system call."""
_READ_BYTES = 256 << 10
"""Bytes that are read from a file at a time while a spooled object is sent. A part that was read is in memory
until all of it was passed on. Larger ones find no room among the pieces that a compaction has used and freed,
so that the heap would grow at the end of a job."""
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


class DataSink(Protocol):
    """Takes the header and the data of an object while it is written. Guarded by its `ObjectWriter`."""

    size_bytes: int
    """All bytes so far."""

    def append(self, data: Buffer) -> None:
        """Add bytes at the end. The caller must not change the buffer afterwards."""
        ...

    def parts(self) -> list[Buffer | FilePart]:
        """The bytes that are still here, in order."""
        ...

    def close(self) -> None:
        """Discard the bytes. May be called repeatedly."""
        ...


class Spool:
    """Bytes that are written once and then read anywhere. Not thread-safe: one user at a time. `close` ends
    it and unlinks the file; parts are invalid then."""

    def __init__(
        self, filesystem: FileSystem, path: str, memory_bytes: int, memory: SpoolMemory | None = None
    ) -> None:
        """It keeps `memory_bytes` in memory, and less if there is less in the `memory` of several spools."""
        self.size_bytes = 0
        self._filesystem = filesystem
        self._path = path
        self._memory_bytes = memory_bytes
        self._memory = memory
        self._taken_bytes = 0
        """The part of the memory of several spools that this one has."""
        self._waiting: list[Buffer] = []
        """The pieces that are not in the file."""
        self._waiting_bytes = 0
        self._ends: list[int] = []
        """Exclusive ends of all pieces, while they are in memory."""
        self._file: AppendFile | None = None

    def append(self, data: Buffer) -> None:
        """Add bytes at the end. The caller must not change the buffer afterwards. Raises OSError if the disk
        is full."""
        if not len(data):
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.size_bytes += len(data)
        self._ends.append(self.size_bytes)
        if not self._may_wait(len(data)):
            self._write()

    def _may_wait(self, new_bytes: int) -> bool:
        """Whether all that waits may stay in memory, of which so many bytes are new."""
        if self._file is not None:
            return self._waiting_bytes <= _WRITE_BYTES
        if self._waiting_bytes > self._memory_bytes:
            return False
        if self._memory is not None:
            if not self._memory.take(new_bytes):
                return False
            self._taken_bytes += new_bytes
        return True

    def read_at(self, position: int, size: int) -> Buffer:
        """Exactly `size` bytes; not copied if they lie in one piece in memory."""
        assert 0 <= position <= position + size <= self.size_bytes, "a spool is read where it was written"
        found = self.read_some_at(position, size)
        if len(found) == size:
            return found
        parts = [found]
        while size > len(found):
            position, size = position + len(found), size - len(found)
            found = self.read_some_at(position, size)
            parts.append(found)
        return b"".join(parts)

    def read_some_at(self, position: int, size: int) -> Buffer:
        """At least one byte (of `size` > 0) and at most `size`, never put together from pieces."""
        if size == 0:
            return b""
        if self._file is not None:
            self._write()
            data = self._file.read_at(position, size)
            if len(data) != size:
                raise OSError(f"the spool file {self._path} lost its end")
            return data
        index = bisect.bisect_right(self._ends, position)
        begin = position - (self._ends[index - 1] if index else 0)
        return memoryview(self._waiting[index])[begin : begin + size]

    def in_one_piece(self) -> memoryview | None:
        """All bytes, if they lie in one piece in memory. They are gone after `close`."""
        return memoryview(self._waiting[0]) if self._file is None and len(self._waiting) == 1 else None

    def parts(self) -> list[Buffer | FilePart]:
        """All bytes, in order. Call it last."""
        file_bytes = self.size_bytes - self._waiting_bytes
        parts: list[Buffer | FilePart] = []
        for position in range(0, file_bytes, _READ_BYTES):
            assert self._file is not None
            parts.append(FilePart(self._file, position, min(_READ_BYTES, file_bytes - position)))
        self._waiting = _gathered(self._waiting)
        return [*parts, *self._waiting]

    def close(self) -> None:
        """Discard the bytes. May be called repeatedly."""
        self._waiting, self._ends = [], []
        self._give_back()
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._filesystem.unlink(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self) -> None:
        if self._file is None:
            self._filesystem.make_directories(posixpath.dirname(self._path))
            self._file = self._filesystem.open_append(self._path)
        if self._waiting:
            written_bytes = self._file.append(self._waiting)
            assert written_bytes == self._waiting_bytes
        self._waiting, self._ends = [], []
        self._waiting_bytes = 0
        self._give_back()

    def _give_back(self) -> None:
        taken_bytes, self._taken_bytes = self._taken_bytes, 0
        if self._memory is not None:
            self._memory.give_back(taken_bytes)


class SpoolReader:
    """Moves forward over a part of a spool. Not thread-safe: guarded by the user of the spool."""

    def __init__(self, spool: Spool, position: int, size_bytes: int) -> None:
        self._spool = spool
        self._position = position
        self._end_position = position + size_bytes

    def read(self, size: int) -> Buffer:
        """Up to `size` bytes; fewer only at the end."""
        data = self._spool.read_at(self._position, min(size, self._end_position - self._position))
        self._position += len(data)
        return data

    def read_some(self, size: int) -> Buffer:
        """At least one byte and at most `size`, not copied where memory holds it; none only at the end."""
        data = self._spool.read_some_at(self._position, min(size, self._end_position - self._position))
        self._position += len(data)
        return data


def _gathered(pieces: list[Buffer]) -> list[Buffer]:
    """The same bytes, with small neighbours joined. Takes them out of `pieces`, so that few are in memory
    twice."""
    gathered: list[Buffer] = []
    small: list[Buffer] = []
    small_bytes = 0
    pieces.reverse()
    while pieces:
        piece = pieces.pop()
        is_small = len(piece) < _SMALL_BYTES
        if small and (not is_small or small_bytes >= _WRITE_BYTES):
            gathered.append(b"".join(small))
            small, small_bytes = [], 0
        if is_small:
            small.append(piece)
            small_bytes += len(piece)
        else:
            gathered.append(piece)
    if small:
        gathered.append(b"".join(small))
    return gathered


def clear_spool_directory(filesystem: FileSystem, directory: str) -> None:
    """Make the directory if it is missing, and remove spool files of earlier processes. Raises OSError."""
    filesystem.make_directories(directory)
    for name in filesystem.list_directory(directory):
        if name.endswith(SPOOL_SUFFIXES) and not filesystem.is_directory(f"{directory}/{name}"):
            filesystem.unlink(f"{directory}/{name}")
