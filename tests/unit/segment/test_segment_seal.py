"""Seals as bytes: what was written is read, and nothing else is a seal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.segment.file_names import SEAL_SUFFIX, segment_path
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.memory_filesystem import MemoryFileSystem

OFFSETS = st.integers(0, 2**63 - 1)
HEADERS = st.integers(-1, 3).map(lambda count: bytes(range(4 + 20 * count)) if count >= 0 else b"")
FILES = st.integers(0, 3 * OffsetIndex.page_bytes).map(bytes)


@given(
    log_size_bytes=OFFSETS,
    end_offset=OFFSETS,
    headers=HEADERS,
    offset_index=FILES,
    time_index=FILES,
    aborted=FILES,
)
def test_what_was_written_is_read(
    log_size_bytes: int,
    end_offset: int,
    headers: bytes,
    offset_index: bytes,
    time_index: bytes,
    aborted: bytes,
) -> None:
    transactions = TransactionIndex.seal_of(aborted)
    seal = SegmentSeal.of(
        log_size_bytes,
        end_offset,
        headers,
        OffsetIndex.seal_of(offset_index),
        TimeIndex.seal_of(time_index),
        transactions,
    )
    assert SegmentSeal.from_bytes(seal.to_bytes()) == seal
    assert seal.has_aborted == bool(aborted)


def test_each_flip_and_each_other_size_is_found() -> None:
    data = SegmentSeal.of(
        5647,
        147_070,
        bytes(24),
        OffsetIndex.seal_of(bytes(5000)),
        TimeIndex.seal_of(bytes(12)),
        IndexSeal(),
    ).to_bytes()
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                SegmentSeal.from_bytes(bytes(flipped))
    for other in (b"", data[:-1], data[:-4], data + b"\0", data + data[-4:], bytes(len(data))):
        with pytest.raises(CorruptRecordError):
            SegmentSeal.from_bytes(other)


@given(st.binary(max_size=200))
def test_garbage_is_no_seal(data: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        SegmentSeal.from_bytes(data)


def test_a_file_that_is_missing_or_damaged_is_no_seal() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    assert SegmentSeal.read(disk, "/d", 7) is None
    seal = SegmentSeal.of(0, 7, bytes(4), IndexSeal(), IndexSeal(), IndexSeal())
    file = disk.open_append(segment_path("/d", 7, SEAL_SUFFIX))
    file.append([seal.to_bytes()])
    assert SegmentSeal.read(disk, "/d", 7) == seal
    file.append([b"\0"])
    assert SegmentSeal.read(disk, "/d", 7) is None
