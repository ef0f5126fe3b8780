"""Compression of a batch's records section. Decompression always has an upper bound for its output.

The codec is bits 0 to 2 of the batch's attributes. Gzip data may have several members and zstd data several
frames, one after the other, as Kafka's clients write them; bytes after the last one are corruption.
``snappy_stream`` and ``lz4_frame`` describe the formats of snappy and lz4. All functions are thread-safe and
release the interpreter lock while they work.

Making a zstd compressor or decompressor takes longer than handling a small batch, so each thread keeps one of
each. They keep their memory too. So they serve only small data, and only windows that every reader of zstd
must accept; that bounds the memory.
"""

from __future__ import annotations

import enum
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import zstandard

from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression_fault import malformed, too_large
from stratalog.record.codecs.lz4_frame import compress_lz4, decompress_lz4
from stratalog.record.codecs.snappy_stream import compress_snappy, decompress_snappy

DEFAULT_MAX_DECOMPRESSED_BYTES = 1024 * 1024 * 1024
"""The most that one batch may decompress to when it is read, unless the caller gives another bound. A broker
accepts larger batches from clients than we do, and imported batches must be readable."""

MAX_SENT_BYTES = 128 * 1024 * 1024
"""The most that one batch from a client may decompress to; topics bound the compressed size."""

LEAST_SENT_BYTES = 16 * 1024 * 1024
"""A batch from a client, and all batches of a request together, may decompress to this, however small they
are."""

MAX_SENT_FACTOR = 100
"""A larger batch or request may decompress to so many times its size. Logs and text in JSON have factors of 5
to 30."""

MAX_REQUEST_BYTES = 1024 * 1024 * 1024
"""The most that all batches of a client's request together may decompress to: about four seconds of gzip."""

GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
ZSTD_MAX_WINDOW_BYTES = 1 << 27
# A zstd block of 4 bytes can stand for 128 KiB, so a piece of this size exceeds the bound by 32 MiB at most.
# The size also bounds the bytes that are copied again for each of many tiny members.
_PIECE_BYTES = 1024
ZSTD_LEVEL = 3
# RFC 8878, sections 3.1.1 and 3.1.1.2.
_ZSTD_BLOCK_HEADER_BYTES = 3
_ZSTD_REPEATED_BYTE = 1
_ZSTD_CHECKSUM_BYTES = 4
_KEPT_COMPRESSOR_BYTES = 128 * 1024
"""Larger data gets a compressor of its own."""
_KEPT_WINDOW_BYTES = 8 * 1024 * 1024
# The first guess for the content of a frame that does not give its size.
_USUAL_FACTOR = 8
_USUAL_BYTES = 64 * 1024


class _Zstd(threading.local):
    """A compressor and a decompressor for each thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.renew_decompressor()

    def renew_decompressor(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_KEPT_WINDOW_BYTES)


_zstd = _Zstd()


class _Member(Protocol):
    """A gzip member or zstd frame that is being decompressed."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Codec(enum.IntEnum):
    """A compression codec. The numbers are those of the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LEVELS = {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-(1 << 17), 23)}
"""The levels that Kafka's configuration accepts; a codec without levels is missing."""


_WORK_FACTORS: Mapping[Codec, Sequence[tuple[int, int]]] = {
    Codec.GZIP: ((4, 4), (6, 10), (9, 24)),
    Codec.LZ4: ((1, 1), (9, 6), (17, 16)),
    Codec.ZSTD: ((3, 2), (9, 8), (12, 16), (15, 64), (22, 128)),
}
"""For levels up to the first number of each pair, the time that compression takes, as a multiple of that for
decompression of gzip: measured with source code, rounded."""
_USUAL_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 1, Codec.ZSTD: ZSTD_LEVEL}


def compression_work_bytes(codec: Codec, size_bytes: int, level: int | None = None) -> int:
    """So many bytes take about as long to decompress as `size_bytes` take to compress. Some codecs decompress
    faster than gzip; they count as that."""
    if codec is Codec.NONE:
        return 0
    if codec not in _WORK_FACTORS:
        return size_bytes
    used_level = _USUAL_LEVELS[codec] if level is None else level
    return size_bytes * next(factor for last, factor in _WORK_FACTORS[codec] if used_level <= last)


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
    """Compress `data`; `level` in the codec's own numbers, None for its default.

    Raises InvalidRequestError if the codec does not know the level.
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
    """The decompressed data, at most `max_bytes`; the data itself for Codec.NONE.

    Raises CorruptRecordError if the data is malformed, cut short, followed by other bytes or larger than
    `max_bytes`.
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


def expected_bytes(codec: Codec, data: Buffer) -> int:
    """The size that the data declare, as a frame of zstd may, or else one that most data do not exceed. It
    may be wrong, but is not 0. Raises CorruptRecordError if the data are malformed, as far as that was looked
    at."""
    if codec is Codec.ZSTD and (size_bytes := _content_bytes(data)) > 0:
        return size_bytes
    return _usual_bytes(data)


def _content_bytes(data: Buffer) -> int:
    """The size that the first frame of zstd declares; negative if it does not."""
    try:
        return zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise malformed(Codec.ZSTD.name) from error


def _usual_bytes(data: Buffer) -> int:
    return max(_USUAL_BYTES, _USUAL_FACTOR * len(data))


def _unzstd(data: Buffer, max_bytes: int) -> bytes:
    size_bytes = _content_bytes(data)
    if size_bytes > max_bytes:
        raise too_large(Codec.ZSTD.name, max_bytes)
    # Java's clients do not give the size.
    room_bytes = size_bytes if size_bytes >= 0 else _usual_bytes(data)
    # The decompressor believes a frame that says it is empty, without looking at the rest of it.
    if min(room_bytes, max_bytes) > 0:
        try:
            whole = _zstd.decompressor.decompress(
                data, max_output_size=min(room_bytes, max_bytes), allow_extra_data=False
            )
            # For a frame without a size the decompressor does not report bytes after it.
            if size_bytes >= 0 or _is_one_zstd_frame(data):
                return whole
        except zstandard.ZstdError:
            # Several frames, a frame with more content, one with a larger window, or invalid bytes: the slow
            # way in pieces finds out which.
            _zstd.renew_decompressor()
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_MAX_WINDOW_BYTES)
    return _in_pieces(Codec.ZSTD, data, max_bytes, decompressor.decompressobj)


def _is_one_zstd_frame(data: Buffer) -> bool:
    """Return whether the data ends with its first frame, which was decompressed before."""
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
        # One byte above the bound distinguishes too much from just enough.
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
    """Decompress member after member, and check the bound after every piece of input."""
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
