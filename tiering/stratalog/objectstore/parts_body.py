"""A request body made of buffers that stay where they are.

The HTTP library reads it in small blocks, each sent under a timeout of its own: a large body that is handed
over as one buffer would have to be sent whole within a single socket timeout. Reading checks the deadline of
the whole call, so that a server which takes a block every few seconds cannot hold a caller for ever.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from stratalog.objectstore.protocol import Buffer


class PartsBody(io.RawIOBase):
    """Not thread-safe: belongs to one request. Seekable, because a retry sends it from the beginning."""

    def __init__(
        self, parts: Sequence[Buffer], start: int, end: int, check_deadline: Callable[[], None]
    ) -> None:
        """The bytes [start, end) of the concatenated parts; `check_deadline` raises once it is too late."""
        super().__init__()
        self._parts = [memoryview(part).cast("B") for part in parts]
        self._end_positions = list(accumulate(part.nbytes for part in self._parts))
        assert 0 <= start <= end <= (self._end_positions[-1] if self._parts else 0), (
            "a window lies inside its parts"
        )
        self._start = start
        self._size = end - start
        self._position = 0
        self._check_deadline = check_deadline

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        self._check_deadline()
        wanted = self._size - self._position if size < 0 else min(size, self._size - self._position)
        return b"".join(self.pieces(wanted))

    def pieces(self, size: int) -> list[memoryview]:
        """The next `size` bytes as they lie in the parts; moves on."""
        found: list[memoryview] = []
        while size > 0:
            at = self._start + self._position
            index = bisect_right(self._end_positions, at)
            part = self._parts[index]
            part_start = self._end_positions[index] - part.nbytes
            piece = part[at - part_start : at - part_start + size]
            found.append(piece)
            size -= piece.nbytes
            self._position += piece.nbytes
        return found
