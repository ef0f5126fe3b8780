"""A range of an object whose next bytes come while the last ones are worked on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stratalog.base.call_beside import CallBeside
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.objectstore.resuming_reads import ResumingStream

_END = CallBeside(run_here, bytes)
"""Behind the last block."""


class AheadStream:
    """Reads a range forward in blocks, with one block on its way. One user at a time; the stream below
    belongs to the call beside until its block is there."""

    def __init__(
        self,
        run_beside: RunBeside,
        open_stream: Callable[[], ResumingStream],
        size_bytes: int,
        first_bytes: int,
    ) -> None:
        """The request for the range, of `size_bytes`, is sent beside, now. `first_bytes` > 0 is the size of
        the first block."""
        self._run_beside = run_beside
        self._open_stream = open_stream
        self._unasked_bytes = size_bytes
        self._stream: ResumingStream | None = None
        self._next = self._ask(first_bytes)

    def read(self, next_bytes: int) -> bytes:
        """The block that is on its way, once it is there; b"" behind the end. The next one will have
        `next_bytes` > 0, less at the end. Raises as `ResumingReads.open_range` and `ResumingStream.read`."""
        block = self._next.result()
        self._next = self._ask(next_bytes)
        return block

    def close(self) -> None:
        """Release the connection, once the block on its way is there. May be called repeatedly."""
        self._unasked_bytes = 0
        self._next.end()
        if self._stream is not None:
            self._stream.close()

    def _ask(self, size: int) -> CallBeside[bytes]:
        size = min(size, self._unasked_bytes)
        if size == 0:
            return _END
        self._unasked_bytes -= size
        return CallBeside(self._run_beside, partial(self._read, size))

    def _read(self, size: int) -> bytes:
        if self._stream is None:
            self._stream = self._open_stream()
        return self._stream.read(size)
