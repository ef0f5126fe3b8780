"""Snappy's two forms, and what a forger could claim in them."""

from __future__ import annotations

import struct
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.codecs.snappy_stream import compress_snappy, decompress_snappy

HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def bare(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def stream(*blocks: bytes) -> bytes:
    return HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def claiming(size_bytes: int, rest: bytes = b"") -> bytes:
    """A block that says it is so large."""
    varint = bytearray()
    while size_bytes > 0x7F:
        varint.append(size_bytes & 0x7F | 0x80)
        size_bytes >>= 7
    return bytes(varint) + bytes([size_bytes]) + rest


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_both_forms_are_read(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert decompress_snappy(stream(*map(bare, parts)), len(whole)) == whole
    assert decompress_snappy(bare(whole), len(whole)) == whole


def test_the_stream_is_java_s() -> None:
    """Header, then blocks of 32 KiB, each with its length; nothing else."""
    data = bytes(range(256)) * 300
    blocks = [bare(data[start : start + 32768]) for start in range(0, len(data), 32768)]
    assert len(blocks) == 3
    assert compress_snappy(data) == stream(*blocks)
    assert compress_snappy(b"") == HEADER


@pytest.mark.parametrize(
    "data",
    [
        HEADER[:8],
        HEADER[:15],
        b"\x82SNAPPY\0" + struct.pack(">ii", 2, 2),
        HEADER + b"\0\0\0",
        HEADER + struct.pack(">i", 0),
        HEADER + struct.pack(">i", -1) + bare(b"abc"),
        HEADER + struct.pack(">i", 100) + bare(b"abc"),
        stream(bare(b"abc")) + b"\0",
        stream(bare(b"abc") + b"\0"),
        bare(b"abc") + b"\0",
        bare(b"abc")[:-1],
        b"\xff" * 12,
        b"",
    ],
)
def test_a_broken_stream_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decompress_snappy(data, 1000)


def test_a_newer_version_that_old_readers_may_read_is_read() -> None:
    data = b"\x82SNAPPY\0" + struct.pack(">ii", 2, 1) + stream(bare(b"abc"))[16:]
    assert decompress_snappy(data, 3) == b"abc"


def test_the_densest_block_is_believed() -> None:
    """A literal, then copies of 64 bytes at three bytes each; anything denser cannot be."""
    copies = 10_000
    size_bytes = 4 + 64 * copies
    block = claiming(size_bytes, b"\x0cabcd" + b"\xfe\x04\x00" * copies)
    assert decompress_snappy(block, size_bytes) == b"abcd" * (size_bytes // 4)
    with pytest.raises(CorruptRecordError):
        decompress_snappy(block, size_bytes - 1)


@pytest.mark.parametrize(
    "data",
    [
        claiming(2**32 - 1, bytes(1000)),
        stream(*[claiming(2**26, b"x")] * 50),
        stream(bare(bytes(1000)), claiming(2**32 - 1, bytes(1000))),
        stream(*[claiming(300, bytes(9))] * 50_000),
    ],
)
def test_a_claim_takes_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            decompress_snappy(data, 2**34)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**17
