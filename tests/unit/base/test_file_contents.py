"""Files that are written as a whole, and read in pieces."""

from __future__ import annotations

import errno

import pytest

from stratalog.base.file_contents import read_pieces, write_file
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival

PIECE_BYTES = 1 << 20
# Names live, contents only where they were synced.
SYNCED = Survival(Kept.NONE, Kept.ALL)


def test_a_file_holds_what_was_written_last_and_nothing_before() -> None:
    disk = MemoryFileSystem()
    for pieces in ([b"a longer one"], [b"ab", b"", b"c"], [b""], [], [b"x"]):
        write_file(disk, "/f", pieces)
        assert disk.read_file("/f") == b"".join(pieces)


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_not_durable_may_be_lost(durable: bool) -> None:
    disk = MemoryFileSystem()
    write_file(disk, "/f", [b"new"], durable=durable)
    assert disk.after_crash(SYNCED).read_file("/f") == (b"new" if durable else b"")


def test_a_write_that_failed_is_not_in_the_way_of_the_next() -> None:
    disk = FaultyFileSystem()
    write_file(disk, "/f", [b"old"])
    # It opens, truncates, and appends twice.
    disk.fail_at(disk.operation_count + 4, number=errno.ENOSPC, part=0.5)
    with pytest.RaisesExc(OSError, check=lambda error: error.errno == errno.ENOSPC):
        write_file(disk, "/f", [b"1234", b"5678"])
    assert disk.read_file("/f") == b"123456"
    write_file(disk, "/f", [b"new"])
    assert disk.read_file("/f") == b"new"


@pytest.mark.parametrize("end", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
@pytest.mark.parametrize("start", [0, 1, PIECE_BYTES - 1, PIECE_BYTES])
def test_pieces_are_the_bytes_between(start: int, end: int) -> None:
    disk = MemoryFileSystem()
    data = (bytes(range(251)) * (PIECE_BYTES // 80))[: 3 * PIECE_BYTES]
    write_file(disk, "/f", [data])
    file = disk.open_read("/f")
    pieces = list(read_pieces(file, start, end))
    file.close()
    assert b"".join(pieces) == data[start:end]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert len(pieces) == -(-max(0, end - start) // PIECE_BYTES)
