"""Pieces against the whole: the same comes out, and the same is refused."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator

import cramjam
import pytest
import zstandard

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.record.codecs.compressed_pieces import compress_pieces, decompressed_pieces
from stratalog.record.codecs.compression import Codec, compress, decompress

MIB = 1024 * 1024
SIZES = (0, 1, 100, 70_000, 3 * MIB)


def data_of(size_bytes: int) -> bytes:
    chance = random.Random(size_bytes)
    return b"".join(b"%d," % chance.randrange(10**6) for _ in range(size_bytes // 4 + 1))[:size_bytes]


def split(data: bytes, chance: random.Random) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size_bytes = chance.choice([1, 1000, 40_000, MIB])
        yield data[position : position + size_bytes]
        position += size_bytes


def outcome(codec: Codec, data: bytes) -> bytes | None:
    """The decompressed bytes, None where they are refused: the same in pieces."""
    try:
        whole: bytes | None = bytes(decompress(codec, data))
    except CorruptRecordError:
        whole = None
    try:
        pieces: bytes | None = b"".join(decompressed_pieces(codec, data))
    except CorruptRecordError:
        pieces = None
    assert pieces == whole
    return whole


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("codec", list(Codec))
def test_what_was_compressed_in_pieces_comes_out_again(codec: Codec, size_bytes: int) -> None:
    data = data_of(size_bytes)
    compressed = compress_pieces(codec, split(data, random.Random(1)), size_bytes)
    assert outcome(codec, compressed) == data
    assert outcome(codec, compress(codec, data)) == data


def test_several_members_frames_and_a_bare_block() -> None:
    one, other = data_of(100_000), data_of(70_000)
    for codec in (Codec.GZIP, Codec.ZSTD):
        assert outcome(codec, compress(codec, one) + compress(codec, other)) == one + other
        assert outcome(codec, compress(codec, one) + b"x" * 20) is None
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(one)
    assert outcome(Codec.ZSTD, unsized) == one
    assert outcome(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(one))) == one
    assert outcome(Codec.LZ4, compress(Codec.LZ4, one) + compress(Codec.LZ4, other)) is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_is_refused_is_refused_in_pieces(codec: Codec) -> None:
    compressed = compress(codec, data_of(2000))
    refused_count = sum(outcome(codec, compressed[:size]) is None for size in range(len(compressed)))
    assert refused_count > len(compressed) - 30
    for position in range(len(compressed)):
        flipped = bytearray(compressed)
        flipped[position] ^= 1 << position % 8
        outcome(codec, bytes(flipped))
    assert outcome(codec, compressed + b"\0") is None


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_little_comes_out_at_once(codec: Codec) -> None:
    """A few kilobytes stand for more than any reader takes as a whole."""
    compressed = compress_pieces(codec, (bytes(MIB) for _ in range(200)), 200 * MIB)
    sizes = [len(piece) for piece in decompressed_pieces(codec, compressed)]
    assert sum(sizes) == 200 * MIB
    assert max(sizes) <= max(8 * MIB, len(compressed))


def test_a_member_that_ends_where_the_input_is_cut_is_followed_by_the_next() -> None:
    """The input is looked at in parts of its own size."""
    noise = random.Random(3).randbytes(64 * 1024)
    for size_bytes in range(65_450, 65_536):
        member = zlib.compressobj(0, zlib.DEFLATED, 31)
        first = member.compress(noise[:size_bytes]) + member.flush()
        if len(first) == 64 * 1024:
            assert outcome(Codec.GZIP, first + compress(Codec.GZIP, b"more")) == noise[:size_bytes] + b"more"
            return
    raise AssertionError("no member has that size")


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 9), (Codec.ZSTD, 1)])
def test_levels_are_those_of_the_codec(codec: Codec, level: int) -> None:
    data = data_of(200_000)
    compressed = compress_pieces(codec, [data], len(data), level)
    assert outcome(codec, compressed) == data
    assert compressed != compress_pieces(codec, [data], len(data))
    with pytest.raises(InvalidRequestError):
        compress_pieces(codec, [data], len(data), 99)
