"""Snappy as Kafka's clients write it: a stream of blocks, or one bare block.

Java's clients, and those that follow them, write the stream of snappy-java; librdkafka writes a bare block.
The first eight bytes tell them apart. We write streams, in blocks of snappy-java's size::

    stream = magic "\\x82SNAPPY\\0" | version int32 | oldest compatible version int32 | (size int32 | block)*
    block  = uncompressed size, varint | literals and copies

The integers of the stream are big-endian. A block's own size field asks for memory, and a forged batch can
have any value there. So the value must be possible for the block's length: no element of a block makes more
than 64 bytes out of three. All blocks are checked before the first is decompressed.

A stream has no end mark. A stream that is cut between two blocks decompresses; the count of records shows the
loss.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import cramjam

from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression_fault import malformed, too_large

_NAME = "SNAPPY"
_MAGIC = b"\x82SNAPPY\0"
_VERSION = 1
_HEADER = struct.Struct(">8sii")
_BLOCK_SIZE = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024
# The best copy element: 64 bytes in three.
_MOST_BYTES_PER_COPY = 64
_LEAST_COPY_BYTES = 3


def compress_snappy(data: Buffer) -> bytes:
    """Compress `data` into a stream."""
    return b"".join(compress_snappy_pieces([data]))


def compress_snappy_pieces(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the parts of a stream that holds the concatenated pieces."""
    yield _HEADER.pack(_MAGIC, _VERSION, _VERSION)
    for piece in pieces:
        view = memoryview(piece)
        for position in range(0, len(view), _BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[position : position + _BLOCK_BYTES]))
            yield _BLOCK_SIZE.pack(len(block))
            yield block


def decompress_snappy(data: Buffer, max_bytes: int) -> bytearray:
    """Decompress a stream or a bare block.

    Raises CorruptRecordError if it is malformed, cut short, or larger than `max_bytes`.
    """
    view = memoryview(data)
    size_bytes = sum(_uncompressed_bytes(block) for block in _blocks(view))
    if size_bytes > max_bytes:
        raise too_large(_NAME, max_bytes)
    payload = bytearray(size_bytes)
    position = 0
    with memoryview(payload) as target:
        for block in _blocks(view):
            try:
                position += cramjam.snappy.decompress_raw_into(block, target[position:])
            except cramjam.DecompressionError as error:
                raise malformed(_NAME) from error
    assert position == size_bytes
    return payload


def snappy_pieces(data: Buffer) -> Iterator[bytearray]:
    """Yield the decompressed data a block at a time, without a bound on the sum. Raises
    CorruptRecordError."""
    for block in _blocks(memoryview(data)):
        piece = bytearray(_uncompressed_bytes(block))
        try:
            cramjam.snappy.decompress_raw_into(block, piece)
        except cramjam.DecompressionError as error:
            raise malformed(_NAME) from error
        yield piece


def _blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of a stream, or the bare block. A generator, because forged blocks can be many."""
    if data[: len(_MAGIC)].tobytes() != _MAGIC:
        yield data
        return
    if len(data) < _HEADER.size:
        raise malformed(_NAME)
    _, _, oldest_compatible_version = _HEADER.unpack_from(data)
    if oldest_compatible_version > _VERSION:
        raise malformed(_NAME)
    position = _HEADER.size
    while position < len(data):
        if len(data) - position < _BLOCK_SIZE.size:
            raise malformed(_NAME)
        (size_bytes,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        if not 0 <= size_bytes <= len(data) - position:
            raise malformed(_NAME)
        yield data[position : position + size_bytes]
        position += size_bytes


def _uncompressed_bytes(block: memoryview) -> int:
    """The size that the block claims. Raises CorruptRecordError if the block cannot hold so much."""
    try:
        size_bytes = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise malformed(_NAME) from error
    # The library accepts no bytes at all as a block of nothing.
    if len(block) == 0 or size_bytes * _LEAST_COPY_BYTES > len(block) * _MOST_BYTES_PER_COPY:
        raise malformed(_NAME)
    return size_bytes
