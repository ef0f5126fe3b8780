"""Compression of a batch's records section, always with an upper bound on what comes out.

The codec is bits 0 to 2 of the batch's attributes. Gzip data may have several members and zstd data several
frames, one after the other, as the clients of Kafka write them; anything behind the last one is corruption.
The forms of snappy and lz4 are those of ``snappy_stream`` and ``lz4_frame``. All functions are thread-safe
and release the interpreter lock while they work.

What zstd works with takes longer to be made than a small batch to be dealt with, so each thread keeps one for
either way. They keep their memory, so it is bounded by what they are used for: small data, and windows as all
readers of zstd are to take them.
"""

from __future__ import annotations

import enum
import threading
import zlib
from collections.abc import Callable
from typing import Protocol

import zstandard

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression_fault import malformed, too_large
from stratalog.record.codecs.lz4_frame import compress_lz4, decompress_lz4
from stratalog.record.codecs.snappy_stream import compress_snappy, decompress_snappy

DEFAULT_MAX_DECOMPRESSED_BYTES = 1024 * 1024 * 1024
"""What one batch may grow to where it is read, unless the caller says otherwise. A broker takes larger ones
than we do from clients, and what is imported is to be read."""

MAX_SENT_BYTES = 128 * 1024 * 1024
"""What one batch that a client sends may grow to; topics bound the compressed size."""

GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
ZSTD_MAX_WINDOW_BYTES = 1 << 27
# A zstd block of 4 bytes can stand for 128 KiB, so a piece of this size overshoots the bound by 32 MiB at
# most. It also bounds what is copied again for each of many tiny members.
_PIECE_BYTES = 1024
ZSTD_LEVEL = 3
# RFC 8878, sections 3.1.1 and 3.1.1.2.
_ZSTD_BLOCK_HEADER_BYTES = 3
_ZSTD_REPEATED_BYTE = 1
_ZSTD_CHECKSUM_BYTES = 4
_KEPT_COMPRESSOR_BYTES = 128 * 1024
"""Larger data is worth a compressor of its own."""
_KEPT_WINDOW_BYTES = 8 * 1024 * 1024
# What a frame is taken to hold at most that does not say it: so much room is made at first.
_USUAL_FACTOR = 8
_USUAL_BYTES = 64 * 1024


class _Zstd(threading.local):
    """Each thread sees its own."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.renew_decompressor()

    def renew_decompressor(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_KEPT_WINDOW_BYTES)


_zstd = _Zstd()


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


_LEVELS = {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-(1 << 17), 23)}
"""The levels that Kafka's configuration takes; the codecs without any are not here."""


def require_level(codec: Codec, level: int | None) -> None:
    """Raise InvalidRequestError unless the codec knows the level; None is every codec's default."""
    if level is None:
        return
    levels = _LEVELS.get(codec)
    if levels is None:
        raise InvalidRequestError("this codec has no levels; leave the level out", codec=codec.name)
    if level not in levels:
        raise InvalidRequestError(
            "the compression level is out of the codec's range",
            codec=codec.name,
            level=level,
            allowed=f"{levels[0]} to {levels[-1]}",
        )


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's form; `level` as the codec counts it, None for its default.

    Raises InvalidRequestError for a level that the codec does not know.
    """
    require_level(codec, level)
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return compress_snappy(data)
        case Codec.LZ4:
            return compress_lz4(data, level)
        case Codec.ZSTD:
            if level in (None, ZSTD_LEVEL) and len(data) <= _KEPT_COMPRESSOR_BYTES:
                return _zstd.compressor.compress(data)
            return zstandard.ZstdCompressor(level=ZSTD_LEVEL if level is None else level).compress(data)


def decompress(codec: Codec, data: Buffer, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
    """What was compressed, at most `max_bytes` of it; the data itself for Codec.NONE.

    Raises CorruptRecordError where the data are malformed, cut short, continued by something else or larger
    than `max_bytes`.
    """
    assert max_bytes >= 0
    match codec:
        case Codec.NONE:
            if len(data) > max_bytes:
                raise too_large(codec.name, max_bytes)
            return data
        case Codec.GZIP:
            return _gunzip(data, max_bytes)
        case Codec.SNAPPY:
            return decompress_snappy(data, max_bytes)
        case Codec.LZ4:
            return decompress_lz4(data, max_bytes)
        case Codec.ZSTD:
            return _unzstd(data, max_bytes)


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    try:
        size_bytes = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise malformed(Codec.ZSTD.name) from error
    if size_bytes > max_bytes:
        raise too_large(Codec.ZSTD.name, max_bytes)
    # Java's clients do not say it.
    room_bytes = size_bytes if size_bytes >= 0 else max(_USUAL_BYTES, _USUAL_FACTOR * len(data))
    # A frame that says it is empty is believed by the decompressor without a look at the rest of it.
    if min(room_bytes, max_bytes) > 0:
        try:
            whole = _zstd.decompressor.decompress(
                data, max_output_size=min(room_bytes, max_bytes), allow_extra_data=False
            )
            # Of a frame that does not say what it holds it does not tell what lies behind.
            if size_bytes >= 0 or _is_one_zstd_frame(data):
                return whole
        except zstandard.ZstdError:
            # Several frames, one with more in it, or with a larger window, or bytes that are wrong: the way
            # in pieces tells which.
            _zstd.renew_decompressor()
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    return _in_pieces(Codec.ZSTD, data, max_bytes, decompressor.decompressobj)


def _is_one_zstd_frame(data: Buffer) -> bool:
    """Nothing lies behind the frame that the data begin with, which was decompressed."""
    position, is_last = zstandard.frame_header_size(data), 0
    while not is_last and position < len(data):
        header = int.from_bytes(data[position : position + _ZSTD_BLOCK_HEADER_BYTES], "little")
        is_last, block_type, size_bytes = header & 1, header >> 1 & 3, header >> 3
        position += _ZSTD_BLOCK_HEADER_BYTES + (1 if block_type == _ZSTD_REPEATED_BYTE else size_bytes)
    if zstandard.get_frame_parameters(data).has_checksum:
        position += _ZSTD_CHECKSUM_BYTES
    return position == len(data)


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    member = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        # One byte more than is allowed tells too much from just enough.
        whole = member.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise malformed(Codec.GZIP.name) from error
    if len(whole) > max_bytes:
        raise too_large(Codec.GZIP.name, max_bytes)
    if not member.eof:
        raise malformed(Codec.GZIP.name)
    if not member.unused_data:
        return whole
    return _in_pieces(Codec.GZIP, data, max_bytes, lambda: zlib.decompressobj(GZIP_WINDOW_BITS))


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
                raise malformed(codec.name) from error
            size_bytes += len(part)
            if size_bytes > max_bytes:
                raise too_large(codec.name, max_bytes)
            parts.append(part)
            piece = member.unused_data if member.eof else b""
    if not member.eof:
        raise malformed(codec.name)
    return b"".join(parts)
