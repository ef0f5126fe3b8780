"""Checksums and hashes against published numbers, compiled and not."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.key_partition import partition_for_key
from stratalog.record.native import pure_key_kernels
from tests.support.kernels import both_kinds, each_kind

KERNELS = both_kinds(pure_key_kernels)
each_kernel = each_kind(pure_key_kernels)

# RFC 3720, appendix B.4, and the usual check string.
CRC32C_VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]

# The 128-bit vectors of the reference implementation: key 00 to 0f, data 00 to n-1.
SIPHASH128_VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
}

# Apache Kafka's UtilsTest, as signed 32-bit numbers.
MURMUR2_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "checksum"), CRC32C_VECTORS)
def test_crc32c(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


@each_kernel
@pytest.mark.parametrize("size", SIPHASH128_VECTORS)
def test_siphash128(kernels: Any, size: int) -> None:
    result = bytes.fromhex(SIPHASH128_VECTORS[size])
    high, low = kernels.siphash128(bytes(range(16)), bytes(range(size)))
    assert (high, low) == (int.from_bytes(result[:8], "little"), int.from_bytes(result[8:], "little"))


@each_kernel
@pytest.mark.parametrize("key", MURMUR2_VECTORS)
def test_murmur2(kernels: Any, key: bytes) -> None:
    assert kernels.murmur2(key) == MURMUR2_VECTORS[key] & 0xFFFFFFFF
    assert partition_for_key(key, 7) == (kernels.murmur2(key) & 0x7FFFFFFF) % 7


@given(st.binary(max_size=40), st.binary(min_size=16, max_size=16))
def test_hashes_are_the_same(data: bytes, key16: bytes) -> None:
    assert len({kernels.murmur2(data) for kernels in KERNELS}) == 1
    assert len({kernels.siphash128(key16, data) for kernels in KERNELS}) == 1


def test_a_negative_hash_gives_a_partition() -> None:
    assert partition_for_key(b"21", 12) == (-973932308 & 0x7FFFFFFF) % 12
    assert partition_for_key(b"abc", 1) == 0
