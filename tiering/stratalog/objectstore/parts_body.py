"""A request body over buffers that are not copied, and the windows in which a large object is sent.

The HTTP library reads a body in small blocks and sends each under its own timeout; a body that is one large
buffer would have to be sent within a single socket timeout. Each read checks the deadline of the whole call,
so a server that accepts a block every few seconds cannot hold a caller for ever.

The parts of an object may lie on a disk and be read on demand, each once. A window is held in memory until
the server has it, so that sending it again reads nothing again; it is released before the next one is
gathered.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from stratalog.objectstore.protocol import Buffer


def part_windows(parts: Iterable[Buffer], window_bytes: int) -> Iterator[tuple[list[memoryview], bool]]:
    """The bytes of `parts` in windows of exactly `window_bytes`, each with whether it is the last. The last
    may be smaller; without bytes it is empty. Taking the next window empties the one before.
    """
    window: list[memoryview] = []
    room_bytes = window_bytes
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            if room_bytes == 0:
                yield window, False
                window.clear()
                window, room_bytes = [], window_bytes
            piece = rest[:room_bytes]
            window.append(piece)
            room_bytes -= piece.nbytes
            rest = rest[piece.nbytes :]
    yield window, True


class PartsBody(io.RawIOBase):
    """The body of a request, read from several parts. Not thread-safe: belongs to one request. Seekable,
    because a retry starts from the beginning."""

    def __init__(self, window: Sequence[memoryview], check_deadline: Callable[[], None]) -> None:
        """The bytes of `window`, in order. `check_deadline` raises after the deadline."""
        super().__init__()
        self._window = tuple(window)
        self._end_positions = list(accumulate(view.nbytes for view in self._window))
        self._position = 0
        self._check_deadline = check_deadline

    @property
    def size_bytes(self) -> int:
        return self._end_positions[-1] if self._end_positions else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        self._check_deadline()
        left_bytes = self.size_bytes - self._position
        return b"".join(self._pieces(left_bytes if size < 0 else min(size, left_bytes)))

    def _pieces(self, size: int) -> list[memoryview]:
        found: list[memoryview] = []
        while size > 0:
            index = bisect_right(self._end_positions, self._position)
            view = self._window[index]
            begin = self._position - (self._end_positions[index] - view.nbytes)
            piece = view[begin : begin + size]
            found.append(piece)
            size -= piece.nbytes
            self._position += piece.nbytes
        return found
