"""A read stream over bytes in memory."""

from __future__ import annotations


class BufferStream:
    """Not thread-safe: one user at a time, as every `ReadStream`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, size: int) -> bytes:
        assert size >= 0, "the end of a stream is found by reading, not by asking for everything"
        chunk = self._data[self._position : self._position + size]
        self._position += len(chunk)
        return chunk

    def close(self) -> None:
        self._data = b""
        self._position = 0
