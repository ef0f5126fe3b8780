"""LZ4 frames: what Kafka's readers take, what other writers may set, and what is refused."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from typing import Any

import lz4.frame  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # has no types
import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.record.codecs.lz4_frame import compress_lz4, decompress_lz4

codec: Any = lz4.frame

DATA = b"".join(b"%d record " % number for number in range(30_000))
JAVA_HEADER = bytes.fromhex("04224d18604082")
"""Version 1, independent blocks of 64 KiB, no checksum, no content size; and the descriptor's checksum."""


def test_frames_are_those_of_kafka_s_java_client() -> None:
    frame = compress_lz4(DATA, None)
    assert frame[:7] == JAVA_HEADER
    position, count = 7, 0
    while size_bytes := struct.unpack_from("<I", frame, position)[0]:
        position, count = position + 4 + (size_bytes & 0x7FFFFFFF), count + 1
    assert position + 4 == len(frame)
    assert count == len(DATA) // 65536 + 1
    assert compress_lz4(b"", None) == JAVA_HEADER + bytes(4)


def test_a_higher_level_is_smaller() -> None:
    sizes = [len(compress_lz4(DATA, level)) for level in (None, 3, 12)]
    assert sizes[0] > sizes[1] >= sizes[2]
    assert compress_lz4(DATA, 12)[:7] == JAVA_HEADER


@pytest.mark.parametrize("size_bytes", [2**16, 2**16 + 1, 2**18, 2**22 + 3])
def test_what_grows_much_comes_out_whole(size_bytes: int) -> None:
    """In several pieces, the last of which may be all that is left, or nothing."""
    data = bytes(size_bytes)
    assert decompress_lz4(compress_lz4(data, None), size_bytes) == data


@pytest.mark.parametrize(
    ("linked", "block_checksum", "content_checksum", "store_size", "block_size"),
    list(itertools.product((False, True), (False, True), (False, True), (False, True), (4, 5, 6, 7))),
)
def test_every_kind_of_frame_is_read(
    linked: bool, block_checksum: bool, content_checksum: bool, store_size: bool, block_size: int
) -> None:
    frame: bytes = codec.compress(
        DATA,
        block_linked=linked,
        block_checksum=block_checksum,
        content_checksum=content_checksum,
        store_size=store_size,
        block_size=block_size,
    )
    assert decompress_lz4(frame, len(DATA)) == DATA
    assert decompress_lz4(memoryview(bytearray(frame)), len(DATA)) == DATA
    for cut in (1, 4, 5, len(frame) // 2, len(frame) - 8, len(frame) - 2):
        with pytest.raises(CorruptRecordError):
            decompress_lz4(frame[:-cut], len(DATA))
    with pytest.raises(CorruptRecordError):
        decompress_lz4(frame, len(DATA) - 1)
    if block_checksum or content_checksum:
        changed = bytearray(frame)
        changed[-9] ^= 1
        with pytest.raises(CorruptRecordError):
            decompress_lz4(changed, len(DATA))


@pytest.mark.parametrize(
    "data",
    [
        compress_lz4(b"one", None) * 2,
        compress_lz4(b"one", None) + b"\0",
        compress_lz4(b"one", None) + struct.pack("<II", 0x184D2A50, 0),
        struct.pack("<II", 0x184D2A50, 0),
        struct.pack("<II", 0x184D2A50, 0) + compress_lz4(b"one", None),
        struct.pack("<II", 0x184C2102, 4) + b"\x30one",
        JAVA_HEADER[:6] + b"\x83" + bytes(4),
        JAVA_HEADER,
        b"\x04\x22\x4d",
        b"",
    ],
    ids=lambda data: data[:12].hex(),
)
def test_one_frame_and_nothing_else(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decompress_lz4(data, 1000)


def test_a_claimed_content_size_takes_no_memory() -> None:
    frame = bytearray(codec.compress(b"x" * 1000, store_size=True))
    # The size is the eight bytes behind flags and block size; the descriptor's checksum follows it.
    assert int.from_bytes(frame[6:14], "little") == 1000
    frame[6:14] = (2**40).to_bytes(8, "little")
    tracemalloc.start()
    try:
        # Of the 256 checksums that the descriptor could have, one fits.
        for checksum in range(256):
            frame[14] = checksum
            with pytest.raises(CorruptRecordError):
                decompress_lz4(frame, 2**41)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**20
