"""Compression of a batch's records section, always with an upper bound on what comes out.

The codec is bits 0 to 2 of the batch's attributes. Gzip data may have several members and zstd data several
frames, one after the other, as the clients of Kafka write them; anything behind the last one is corruption.
All functions are thread-safe and release the interpreter lock while they work.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from typing import Protocol

import zstandard

from stratalog.base.errors import CorruptRecordError, UnsupportedOperationError
from stratalog.base.filesystem import Buffer

DEFAULT_MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024
"""What one batch may grow to unless the caller says otherwise; topics bound the compressed size."""

_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_ZSTD_MAX_WINDOW_BYTES = 1 << 27
# A zstd block of 4 bytes can stand for 128 KiB, so a piece of this size overshoots the bound by 32 MiB at
# most. It also bounds what is copied again for each of many tiny members.
_PIECE_BYTES = 1024


class _Member(Protocol):
    """One gzip member or zstd frame on its way."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Codec(enum.IntEnum):
    """The numbers are those of the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's form; `level` as the codec counts it, None for its default.

    Raises UnsupportedOperationError for snappy and lz4.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
        case Codec.SNAPPY | Codec.LZ4:
            raise _unsupported(codec)


def decompress(codec: Codec, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
    """What was compressed, at most `max_bytes` of it; the data itself for Codec.NONE.

    Raises CorruptRecordError where the data are malformed, cut short, continued by something else or larger
    than `max_bytes`, UnsupportedOperationError for snappy and lz4.
    """
    assert max_bytes >= 0
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise _too_large(codec, max_bytes)
            return data
        case Codec.GZIP:
            return _in_pieces(codec, data, max_bytes, lambda: zlib.decompressobj(_GZIP_WINDOW_BITS))
        case Codec.ZSTD:
            return _unzstd(data, max_bytes)
        case Codec.SNAPPY | Codec.LZ4:
            raise _unsupported(codec)


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    try:
        size_bytes = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise _malformed(Codec.ZSTD) from error
    if size_bytes > max_bytes:
        raise _too_large(Codec.ZSTD, max_bytes)
    # A frame that says it is empty is believed by the decompressor without a look at the rest of it.
    if size_bytes > 0:
        try:
            return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError:
            # Several frames, or bytes that are wrong: the way in pieces tells the two apart.
            pass
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
    return _in_pieces(Codec.ZSTD, data, max_bytes, decompressor.decompressobj)


def _in_pieces(codec: Codec, data: Buffer, max_bytes: int, new_member: Callable[[], _Member]) -> bytes:
    """Decompress member after member, looking at the bound after every piece of input."""
    member = new_member()
    parts: list[bytes] = []
    size_bytes = 0
    for position in range(0, len(data), _PIECE_BYTES):
        piece = bytes(data[position : position + _PIECE_BYTES])
        while piece:
            if member.eof:
                member = new_member()
            try:
                part = member.decompress(piece)
            except (zlib.error, zstandard.ZstdError) as error:
                raise _malformed(codec) from error
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise _too_large(codec, max_bytes)
            parts.append(part)
            piece = member.unused_data if member.eof else b""
    if not member.eof:
        raise _malformed(codec)
    return b"".join(parts)


def _malformed(codec: Codec) -> CorruptRecordError:
    return CorruptRecordError(
        "the compressed records cannot be decompressed; send the batch again", codec=codec.name
    )


def _too_large(codec: Codec, max_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        "the records are larger than a batch may be once decompressed; put fewer records into a batch",
        codec=codec.name,
        max_bytes=max_bytes,
    )


def _unsupported(codec: Codec) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        "this codec is not supported yet; use none, gzip or zstd", codec=codec.name
    )
