"""Compresses and decompresses a piece at a time, for batches that are never in memory as a whole.

A batch of a few kilobytes may hold gigabytes. A reader of pieces needs no bound on the whole output, only on
one piece: about as large as the input, but at least 8 MiB (plus the window of a zstd frame, at most 128 MiB).
The formats are those of ``compression``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import zstandard

from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression import (
    GZIP_WINDOW_BITS,
    ZSTD_LEVEL,
    ZSTD_MAX_WINDOW_BYTES,
    Codec,
    require_level,
)
from stratalog.record.codecs.compression_fault import malformed
from stratalog.record.codecs.lz4_frame import Lz4Compressor, lz4_pieces
from stratalog.record.codecs.snappy_stream import compress_snappy_pieces, snappy_pieces

_PIECE_BYTES = 1024 * 1024
_GZIP_INPUT_BYTES = 64 * 1024
# A zstd block of 4 bytes can stand for 128 KiB.
_ZSTD_INPUT_BYTES = 256


def decompressed_pieces(codec: Codec, data: Buffer) -> Iterator[Buffer]:
    """Yield the decompressed data in pieces, in order. Raises CorruptRecordError, after the sound pieces, if
    the data is malformed, cut short or followed by other bytes."""
    match codec:
        case Codec.NONE:
            yield data
        case Codec.GZIP:
            yield from _gunzipped(data)
        case Codec.SNAPPY:
            yield from snappy_pieces(data)
        case Codec.LZ4:
            yield from lz4_pieces(data, max(_PIECE_BYTES, len(data)))
        case Codec.ZSTD:
            yield from _unzstded(data)


def _gunzipped(data: Buffer) -> Iterator[bytes]:
    member = zlib.decompressobj(GZIP_WINDOW_BITS)
    for position in range(0, len(data), _GZIP_INPUT_BYTES):
        rest = bytes(data[position : position + _GZIP_INPUT_BYTES])
        is_full = False
        while rest or is_full:
            if member.eof:
                member = zlib.decompressobj(GZIP_WINDOW_BITS)
            try:
                piece = member.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise malformed(Codec.GZIP.name) from error
            # The input so far may still have more output.
            is_full = len(piece) == _PIECE_BYTES and not member.eof
            rest = member.unused_data if member.eof else member.unconsumed_tail
            if piece:
                yield piece
    if not member.eof:
        raise malformed(Codec.GZIP.name)


def _unzstded(data: Buffer) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    for position in range(0, len(data), _ZSTD_INPUT_BYTES):
        rest = bytes(data[position : position + _ZSTD_INPUT_BYTES])
        while rest:
            if frame.eof:
                frame = decompressor.decompressobj()
            try:
                piece = frame.decompress(rest)
            except zstandard.ZstdError as error:
                raise malformed(Codec.ZSTD.name) from error
            rest = frame.unused_data if frame.eof else b""
            if piece:
                yield piece
    if not frame.eof:
        raise malformed(Codec.ZSTD.name)


def compress_pieces(
    codec: Codec, pieces: Iterable[Buffer], size_bytes: int, level: int | None = None
) -> bytes:
    """Compress the concatenated pieces. The result may differ from `compress` in form, not in content.
    `size_bytes` is the size of all pieces.

    Raises InvalidRequestError if the codec does not know the level.
    """
    require_level(codec, level)
    match codec:
        case Codec.NONE:
            return b"".join(pieces)
        case Codec.SNAPPY:
            return b"".join(compress_snappy_pieces(pieces))
        case Codec.LZ4:
            return _compressed(Lz4Compressor(level), pieces)
        case Codec.GZIP:
            gzip_level = -1 if level is None else level
            return _compressed(zlib.compressobj(gzip_level, zlib.DEFLATED, GZIP_WINDOW_BITS), pieces)
        case Codec.ZSTD:
            compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL if level is None else level)
            return _compressed(compressor.compressobj(size=size_bytes), pieces)


class _Compressor(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressed(compressor: _Compressor, pieces: Iterable[Buffer]) -> bytes:
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(compressor.compress(piece))
        del piece
    parts.append(compressor.flush())
    return b"".join(parts)
