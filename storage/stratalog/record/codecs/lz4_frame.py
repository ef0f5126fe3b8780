"""LZ4 as Kafka's clients write it: one frame of the LZ4 frame format, and nothing after it.

We write a form that every Kafka client can read: blocks of 64 KiB that do not refer to each other, no
checksums and no content size. (Java's reader decompresses each block by itself, and reads one frame only.) We
read everything that the frame format allows: linked blocks, any block size, content size, both checksums. A
second frame is refused, because Kafka's broker and clients would not see its records. So is a skippable one.

Output is taken in pieces, so memory follows the actual output and not the claim of a header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lz4.frame  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # has no types

from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression_fault import malformed, too_large

_lz4: Any = lz4.frame
_NAME = "LZ4"
_MAGIC = b"\x04\x22\x4d\x18"
# In the byte after the magic: version 01, independent blocks, and two bits of later versions.
_FLAGS_MASK = 0b1110_0011
_KAFKAS_FLAGS = 0b0110_0000
_FAST_LEVEL = 0
# A usual batch decompresses in one piece, and a bomb in pieces that are small against its bound.
_PIECE_FACTOR = 4
_MIN_PIECE_BYTES = 64 * 1024


def compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Compress `data` into a frame; `level` in LZ4's own numbers, None for its fast mode."""
    frame: bytes = _lz4.compress(
        data,
        compression_level=_FAST_LEVEL if level is None else level,
        block_size=_lz4.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return frame


class Lz4Compressor:
    """Compresses data that comes in pieces into one frame. Not thread-safe: guarded by its user."""

    def __init__(self, level: int | None) -> None:
        self._frame = _lz4.LZ4FrameCompressor(
            compression_level=_FAST_LEVEL if level is None else level,
            block_size=_lz4.BLOCKSIZE_MAX64KB,
            block_linked=False,
        )
        self._begun: bytes = self._frame.begin()

    def compress(self, data: Buffer) -> bytes:
        begun, self._begun = self._begun, b""
        compressed: bytes = self._frame.compress(data)
        return begun + compressed

    def flush(self) -> bytes:
        end: bytes = self._frame.flush()
        return self._begun + end


def is_lz4_of_kafka(data: Buffer) -> bool:
    """Return whether Java's reader accepts the frame, which must be a sound one."""
    return data[len(_MAGIC)] & _FLAGS_MASK == _KAFKAS_FLAGS


def decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    """Decompress a frame.

    Raises CorruptRecordError if it is malformed, cut short, followed by other bytes, or larger than
    `max_bytes`.
    """
    return b"".join(lz4_pieces(data, max(_MIN_PIECE_BYTES, _PIECE_FACTOR * len(data)), max_bytes))


def lz4_pieces(data: Buffer, piece_bytes: int, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed data in pieces of at most `piece_bytes`. The sum is unlimited if `max_bytes` is
    None. Raises as `decompress_lz4` does."""
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise malformed(_NAME)
    frame = _lz4.LZ4FrameDecompressor()
    size_bytes = 0
    rest: Buffer = data
    while not frame.eof:
        # One byte above the bound distinguishes too much from just enough.
        most_bytes = piece_bytes if max_bytes is None else min(piece_bytes, max_bytes - size_bytes + 1)
        try:
            part: bytes = frame.decompress(rest, max_length=most_bytes)
        except RuntimeError as error:
            raise malformed(_NAME) from error
        if not part and not frame.eof:
            raise malformed(_NAME)
        size_bytes += len(part)
        if max_bytes is not None and size_bytes > max_bytes:
            raise too_large(_NAME, max_bytes)
        yield part
        # The decompressor keeps the rest of its input.
        rest = b""
    if frame.unused_data:
        raise malformed(_NAME)
