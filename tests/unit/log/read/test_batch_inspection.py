"""The walk over batches holds a part of the file, and leaves the rest alone."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from stratalog.base.posix_filesystem import PosixAppendFile
from stratalog.log.read.batch_inspection import InspectedBatch, UnreachedBytes, inspect_batches
from stratalog.record.header import BATCH_LENGTH_POSITION, LOG_OVERHEAD
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.plain_batches import batch

CHUNK_BYTES = 256 * 1024


class NotingFile(PosixAppendFile):
    """Notes how much of it is asked for. For one user."""

    def __init__(self, path: str) -> None:
        super().__init__(path, os.O_RDONLY)
        self.sizes: list[int] = []

    def read_at(self, position: int, size: int) -> bytes:
        self.sizes.append(size)
        return super().read_at(position, size)


@pytest.fixture
def noted(tmp_path: Path) -> Generator[NotingFile]:
    """Three batches of 3 MB."""
    path = tmp_path / "segment"
    path.write_bytes(b"".join(batch(base_offset=offset, value_bytes=3_000_000) for offset in range(3)))
    file = NotingFile(str(path))
    yield file
    file.close()


def test_large_batches_are_proved_a_chunk_at_a_time(noted: NotingFile) -> None:
    found = list(inspect_batches(noted, noted.size(), 0))
    assert [item.crc_matches for item in found if isinstance(item, InspectedBatch)] == [True] * 3
    assert max(noted.sizes) <= CHUNK_BYTES
    assert sum(noted.sizes) < noted.size() + 6 * CHUNK_BYTES


def test_bodies_below_the_wanted_offset_are_not_read(noted: NotingFile) -> None:
    assert list(inspect_batches(noted, noted.size(), 0, from_offset=3)) == []
    assert len(noted.sizes) == 3


def test_a_length_that_is_wrong_costs_no_memory(noted: NotingFile) -> None:
    size_bytes = 256 * 1024 * 1024
    os.truncate(noted.path, size_bytes)
    with open(noted.path, "r+b") as file:
        file.seek(BATCH_LENGTH_POSITION)
        file.write((size_bytes - LOG_OVERHEAD).to_bytes(4, "big"))
    [only] = inspect_batches(noted, size_bytes, 0)
    assert isinstance(only, InspectedBatch)
    assert not only.crc_matches
    assert max(noted.sizes) <= CHUNK_BYTES


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
