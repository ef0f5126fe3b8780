"""Files whose contents take little room on the disk, for measurements with more bytes than it has room for.

A file is a row of frames of 64 KiB, each packed by itself at the beginning of a slot of its own; the file
system stores nothing for the rest of the slot. Memory is a frame or two for each open file. Nothing is
durable.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final

import zstandard

from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.base.posix_filesystem import PosixFileSystem

_FRAME_BYTES: Final = 64 << 10
_SLOT_BYTES: Final = _FRAME_BYTES + 4096
_HEADER: Final = struct.Struct("<II")
"""Size of the frame, and of what is stored of it: the same where packing gains nothing."""


class PackedFile:
    """An `AppendFile` over a descriptor. Not thread-safe: one user at a time, as in the measured process."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._cached: tuple[int, bytes] = (-1, b"")
        self._tail = bytearray()
        """The frame that is not full. It is on the disk once the file is synced or closed."""
        slots = -(-os.fstat(descriptor).st_size // _SLOT_BYTES)
        self._frame_count = max(slots - 1, 0)
        if slots:
            last = self._load(slots - 1)
            if len(last) == _FRAME_BYTES:
                self._frame_count = slots
            else:
                self._tail += last

    @property
    def path(self) -> str:
        return self._path

    def append(self, parts: Sequence[Buffer]) -> int:
        size_bytes = 0
        for part in parts:
            view = memoryview(part).cast("B")
            size_bytes += len(view)
            position = 0
            while position < len(view):
                taken = view[position : position + _FRAME_BYTES - len(self._tail)]
                self._tail += taken
                position += len(taken)
                if len(self._tail) == _FRAME_BYTES:
                    self._store()
                    self._frame_count += 1
                    self._tail.clear()
        return size_bytes

    def read_at(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size())
        parts: list[bytes] = []
        while position < end:
            number, begin = divmod(position, _FRAME_BYTES)
            parts.append(self._frame(number)[begin : begin + end - position])
            position += len(parts[-1])
        return b"".join(parts)

    def read_into(self, position: int, buffer: bytearray | memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, size: int) -> Buffer | None:
        return None

    def size(self) -> int:
        return self._frame_count * _FRAME_BYTES + len(self._tail)

    def truncate(self, size: int) -> None:
        assert size == self.size(), "what is measured cuts nothing off"

    def reserve(self, size: int) -> bool:
        return False

    def bypass_cache(self) -> None:
        """Frames are small."""

    def sync(self) -> None:
        if self._tail:
            self._store()

    def close(self) -> None:
        self.sync()
        os.close(self._descriptor)

    def _frame(self, number: int) -> bytes:
        if number == self._frame_count:
            return bytes(self._tail)
        if self._cached[0] != number:
            self._cached = number, self._load(number)
        return self._cached[1]

    def _load(self, number: int) -> bytes:
        slot = os.pread(self._descriptor, _SLOT_BYTES, number * _SLOT_BYTES)
        size_bytes, stored_bytes = _HEADER.unpack_from(slot)
        stored = slot[_HEADER.size : _HEADER.size + stored_bytes]
        return stored if stored_bytes == size_bytes else zstandard.decompress(stored)

    def _store(self) -> None:
        """The tail, into the next slot."""
        data = bytes(self._tail)
        packed = zstandard.ZstdCompressor(level=1).compress(data)
        stored = packed if len(packed) < len(data) else data
        slot = _HEADER.pack(len(data), len(stored)) + stored
        os.pwrite(self._descriptor, slot, self._frame_count * _SLOT_BYTES)


class PackedFileSystem(PosixFileSystem):
    """The files of the operating system, packed. Thread-safe as far as its files are."""

    def open_append(self, path: str) -> AppendFile:
        return PackedFile(path, os.open(path, os.O_RDWR | os.O_CREAT, 0o644))

    def open_read(self, path: str) -> AppendFile:
        return PackedFile(path, os.open(path, os.O_RDWR))

    def read_file(self, path: str) -> bytes:
        file = self.open_read(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def file_size(self, path: str) -> int:
        file = self.open_read(path)
        try:
            return file.size()
        finally:
            file.close()
