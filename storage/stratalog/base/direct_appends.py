"""Appends to an open file past the page cache (`O_DIRECT`), for files that are not read soon.

A buffered write costs a copy into the page cache, memory for it, and later a flush. A large file that is
written once and fsynced needs none of that, and takes the place of pages that are read. The system takes
whole blocks only, from memory that begins at a block: so the parts of an append are gathered in such memory.
A file that is done leaves it to the next one, because fresh memory has to be cleared.
What is left behind the last whole block is written through the page cache, and so is all that follows it.

The writes have a descriptor of their own, so that reads of the file need no blocks. Some file systems refuse
`O_DIRECT` when it is asked for, others with the first write; both leave a file that is written through the
page cache.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from stratalog.base.filesystem import Buffer

_BLOCK_BYTES = 4096
"""No device in use wants larger ones; where one does, its refusal is as good as that of a file system."""
_O_DIRECT: int | None = getattr(os, "O_DIRECT", None)
_NO_MEMORY = memoryview(bytearray())
_MAX_SPARE_COUNT = 2
_MAX_SPARE_BYTES = 2 << 20
_spare: list[memoryview] = []
"""Memory of files that are done. Threads take it and put it back with one step each."""


class DirectAppends:
    """The appends of one open file. Guarded by the user of the file."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is for direct writes, and the file ends at a block, see `begin_direct`."""
        self._descriptor = descriptor
        self._memory = _NO_MEMORY
        self.is_ended = False
        """The file does not end at a block any more, or the system has refused: write through the page cache
        from now on."""

    def append(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """Write the whole blocks of the parts. Returns what is to be written through the page cache. Raises
        OSError; a part of the blocks may be written then."""
        size_bytes = sum(map(len, parts))
        left_bytes = size_bytes - size_bytes % _BLOCK_BYTES
        blocks, rest = self._gathered(parts, left_bytes)
        while len(blocks):
            try:
                written_bytes = os.write(self._descriptor, blocks)
            except OSError as failure:
                if failure.errno != errno.EINVAL:
                    raise
                written_bytes = 0
            blocks = blocks[written_bytes:]
            if written_bytes % _BLOCK_BYTES or not written_bytes:
                rest = [blocks, *rest]
                # The caller still reads this memory.
                self._memory = _NO_MEMORY
                break
        if rest:
            self.close()
        return rest

    def close(self) -> None:
        """Write nothing more. May be called repeatedly."""
        if not self.is_ended:
            self.is_ended = True
            os.close(self._descriptor)
            memory, self._memory = self._memory, _NO_MEMORY
            if 0 < len(memory) <= _MAX_SPARE_BYTES and len(_spare) < _MAX_SPARE_COUNT:
                _spare.append(memory)

    def _gathered(self, parts: Sequence[Buffer], size_bytes: int) -> tuple[memoryview, list[Buffer]]:
        """The first bytes of the parts in memory that begins at a block, and the rest of the parts."""
        if len(self._memory) < size_bytes:
            self._memory = _block_memory(size_bytes)
        position = 0
        rest: list[Buffer] = []
        for part in parts:
            view = memoryview(part).cast("B")
            taken_bytes = min(len(view), size_bytes - position)
            self._memory[position : position + taken_bytes] = view[:taken_bytes]
            position += taken_bytes
            if taken_bytes < len(view):
                rest.append(view[taken_bytes:])
        return self._memory[:size_bytes], rest


def begin_direct(path: str, size_bytes: int) -> DirectAppends | None:
    """Let appends to a file of this size go past the page cache. None where the system cannot, or where the
    file does not end at a block."""
    if _O_DIRECT is not None and size_bytes % _BLOCK_BYTES == 0:
        with suppress(OSError):
            return DirectAppends(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | _O_DIRECT))
    return None


def _block_memory(size_bytes: int) -> memoryview:
    """At least so much memory that begins at a block, with any contents."""
    with suppress(IndexError):
        spare = _spare.pop()
        if len(spare) >= size_bytes:
            return spare
    memory = bytearray(size_bytes + _BLOCK_BYTES)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _BLOCK_BYTES
    return memoryview(memory)[begin : begin + size_bytes]
