"""The kernels of CRC-32C: what they join and what they leave out gives the same as a look at every byte."""

from __future__ import annotations

from random import Random

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.builder import encode_batch
from stratalog.record.native import pure_batch_kernels, pure_kernels
from stratalog.record.record import Record
from tests.support.kernels import native, needs_native

SEEDS = st.integers(0, 2**32)


@needs_native
@given(st.binary(max_size=40), st.integers(0, 70_000), SEEDS)
def test_joined_checksums_are_those_of_the_joined_bytes(first: bytes, next_size: int, seed: int) -> None:
    following = Random(seed).randbytes(next_size)
    whole = crc32c.crc32c(first + following)
    parts = crc32c.crc32c(first), crc32c.crc32c(following), next_size
    assert native.joined_crc(*parts) == whole
    assert pure_kernels.joined_crc(*parts) == whole


@needs_native
@given(SEEDS, st.integers(0, 2**48 - 1))
def test_a_checksum_moves_over_any_number_of_bytes(crc: int, size: int) -> None:
    crc &= 0xFFFFFFFF
    assert native.joined_crc(crc, 0, size) == pure_kernels.joined_crc(crc, 0, size)


@needs_native
@given(SEEDS)
def test_the_checksum_of_batches_comes_from_their_own(seed: int) -> None:
    random = Random(seed)
    rows: list[bytes] = []
    for number in range(random.randrange(4)):
        size = random.choice((0, 100, 8_000, 8_300, 40_000))
        rows.append(encode_batch([Record(number, 0, b"key", random.randbytes(size))], base_offset=number))
    # Behind whole batches all bytes count.
    rows.append(rows[-1][: random.randrange(len(rows[-1]))] if rows and random.random() < 0.5 else b"")
    data, before = b"".join(rows), random.randrange(2**32)
    assert native.batches_crc(data, before) == crc32c.crc32c(data, before)
    assert pure_batch_kernels.batches_crc(data, before) == crc32c.crc32c(data, before)


@needs_native
def test_the_records_of_a_large_batch_are_not_summed_again() -> None:
    batch = bytearray(encode_batch([Record(0, 0, b"key", bytes(20_000))]))
    crc = native.batches_crc(batch)
    batch[-1] ^= 1
    assert native.batches_crc(batch) == crc, "the caller has proved it"
    batch[0] ^= 1
    assert native.batches_crc(batch) != crc, "the header before the checksum counts"
