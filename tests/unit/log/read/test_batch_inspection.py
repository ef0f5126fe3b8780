"""The walk over batches holds a part of the file, and leaves the rest alone."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from unittest.mock import patch

import pytest

from stratalog.base.posix_filesystem import PosixAppendFile
from stratalog.log.read.batch_inspection import InspectedBatch, UnreachedBytes, inspect_batches
from stratalog.record.header import BATCH_LENGTH_POSITION, LOG_OVERHEAD
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.plain_batches import batch

CHUNK_BYTES = 256 * 1024


@pytest.fixture
def file(tmp_path: Path) -> Generator[PosixAppendFile]:
    """Three batches of 3 MB."""
    path = tmp_path / "segment"
    path.write_bytes(b"".join(batch(base_offset=offset, value_bytes=3_000_000) for offset in range(3)))
    file = PosixAppendFile(str(path), os.O_RDONLY)
    yield file
    file.close()


def inspected(
    file: PosixAppendFile, size_bytes: int, from_offset: int = 0
) -> tuple[list[InspectedBatch | UnreachedBytes], list[int]]:
    """The found batches, and the size of each read."""
    with patch.object(
        PosixAppendFile, "read_at", autospec=True, side_effect=PosixAppendFile.read_at
    ) as read_at:
        found = list(inspect_batches(file, size_bytes, 0, from_offset=from_offset))
    return found, [size for (_, _, size), _ in read_at.call_args_list]


def test_large_batches_are_proved_a_chunk_at_a_time(file: PosixAppendFile) -> None:
    found, sizes = inspected(file, file.size())
    assert [item.crc_matches for item in found if isinstance(item, InspectedBatch)] == [True] * 3
    assert max(sizes) <= CHUNK_BYTES
    assert sum(sizes) < file.size() + 6 * CHUNK_BYTES


def test_bodies_below_the_wanted_offset_are_not_read(file: PosixAppendFile) -> None:
    found, sizes = inspected(file, file.size(), from_offset=3)
    assert found == []
    assert len(sizes) == 3


def test_a_length_that_is_wrong_costs_no_memory(file: PosixAppendFile) -> None:
    size_bytes = 256 * 1024 * 1024
    os.truncate(file.path, size_bytes)
    with open(file.path, "r+b") as altered:
        altered.seek(BATCH_LENGTH_POSITION)
        altered.write((size_bytes - LOG_OVERHEAD).to_bytes(4, "big"))
    [only], sizes = inspected(file, size_bytes)
    assert isinstance(only, InspectedBatch)
    assert not only.crc_matches
    assert max(sizes) <= CHUNK_BYTES


def test_a_file_that_is_cut_during_the_walk_is_damaged_from_there_on() -> None:
    file = MemoryFileSystem().open_append("/segment")
    data = [batch(base_offset=offset, value_bytes=1_000_000) for offset in range(3)]
    file.append(data)
    walk = inspect_batches(file, file.size(), 0)
    first = next(walk)
    file.truncate(len(data[0]) + 500_000)
    second, rest = walk
    assert isinstance(first, InspectedBatch)
    assert isinstance(second, InspectedBatch)
    assert (first.crc_matches, second.crc_matches) == (True, False)
    assert isinstance(rest, UnreachedBytes)
    assert (rest.position, rest.end_position) == (2 * len(data[0]), 3 * len(data[0]))
