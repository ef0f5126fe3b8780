"""A spool gives back what was put in, from memory or from a file, and leaves nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.objects.spool import FilePart, Parts, Spool, SpoolReader, clear_spool_directory
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.testing.memory_filesystem import MemoryFileSystem


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(0, 60), st.data())
def test_memory_and_file_read_alike(parts: list[bytes], limit_bytes: int, data: st.DataObject) -> None:
    filesystem = MemoryFileSystem()
    clear_spool_directory(filesystem, "/scratch")
    whole = b"".join(parts)
    with Spool(filesystem, "/scratch/1.scratch", limit_bytes) as spool:
        for part in parts:
            spool.append(part)
        assert spool.size_bytes == len(whole)
        assert bool(filesystem.list_directory("/scratch")) == (len(whole) > limit_bytes)
        begin = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(begin, len(whole)))
        assert bytes(spool.read_at(begin, end - begin)) == whole[begin:end]
        reader = SpoolReader(spool, begin, end - begin)
        pieces = [bytes(reader.read(7)) for _ in range(len(whole) // 7 + 2)]
        assert b"".join(pieces) == whole[begin:end]
        assert pieces[-1] == b""
    assert filesystem.list_directory("/scratch") == []


def test_spools_share_a_memory_and_one_that_gets_none_has_a_file() -> None:
    filesystem, memory = MemoryFileSystem(), SpoolMemory(100)
    first, second = (Spool(filesystem, f"/scratch/{name}.data", 80, memory) for name in "12")
    first.append(b"a" * 60)
    second.append(b"b" * 30)
    assert (memory.left_bytes, filesystem.exists("/scratch")) == (10, False)
    second.append(b"c" * 20)
    assert (memory.left_bytes, filesystem.list_directory("/scratch")) == (40, ["2.data"])
    second.append(b"d" * 20)
    assert memory.left_bytes == 40, "what waits for the file is no matter of the memory"
    assert second.read_at(0, 70) == b"b" * 30 + b"c" * 20 + b"d" * 20
    # Its own bound holds, too.
    first.append(b"e" * 25)
    assert memory.left_bytes == 100
    assert b"".join(Parts(first.parts())) == b"a" * 60 + b"e" * 25
    third = Spool(filesystem, "/scratch/3.data", 80, memory)
    third.append(b"f" * 70)
    for spool in (first, second, third, third):
        spool.close()
    assert (memory.left_bytes, filesystem.list_directory("/scratch")) == (100, [])


def test_a_reserve_is_for_its_spools_alone_and_takes_what_else_is_left() -> None:
    memory = SpoolMemory(128)
    first, second = memory.reserve(1_000), memory.reserve(20)
    assert first is not None
    assert second is not None
    assert (first.left_bytes, second.left_bytes, memory.left_bytes) == (64, 20, 44)
    assert not memory.take(45), "what is reserved is not to be had"
    assert first.take(70)
    assert memory.left_bytes == 38, "the reserve was too small"
    assert not first.take(39)
    assert (first.left_bytes, memory.left_bytes) == (0, 38)
    second.end()
    assert memory.left_bytes == 58
    assert not second.take(1)
    first.end()
    assert memory.left_bytes == 58
    first.give_back(30)
    assert (memory.left_bytes, first.left_bytes) == (88, 0)
    first.give_back(40)
    assert memory.left_bytes == 128
    assert memory.take(126)
    assert memory.reserve(1_000) is None


def test_small_pieces_are_joined_a_few_at_a_time() -> None:
    """A mebibyte at a time: all at once would take the memory of the spool twice."""
    spool = Spool(MemoryFileSystem(), "/scratch/1.scratch", 1 << 30)
    pieces = [bytes([number]) * (100_000 if number == 5 else 1_000) for number in range(250)] * 10
    for piece in pieces:
        spool.append(piece)
    parts = [part for part in spool.parts() if not isinstance(part, FilePart)]
    assert b"".join(parts) == b"".join(pieces)
    sizes = [len(part) for part in parts]
    assert sizes == [5_000, *([100_000, 249_000] * 9), 100_000, 244_000]
    spool = Spool(MemoryFileSystem(), "/scratch/2.scratch", 1 << 30)
    for _ in range(3_000):
        spool.append(bytes(1_000))
    assert [len(part) for part in spool.parts() if not isinstance(part, FilePart)] == [
        1_049_000,
        1_049_000,
        902_000,
    ]


def test_a_file_is_read_in_pieces_that_fit_the_memory_of_others() -> None:
    """A quarter of a mebibyte at a time: with 2 MiB a compaction of 8 GiB took 27 MiB more at its end."""
    filesystem, data = MemoryFileSystem(), bytes(range(250)) * 4_000
    with Spool(filesystem, "/scratch/1.scratch", 0) as spool:
        spool.append(data)
        parts = spool.parts()
        assert [part.size_bytes for part in parts if isinstance(part, FilePart)] == [262_144] * 3 + [213_568]
        assert b"".join(Parts(parts)) == data


def test_files_of_others_are_left_where_a_spool_is_cleared() -> None:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/scratch/old.data")
    for name in ("1.scratch", "1.data", "1.keys", "notes.txt"):
        filesystem.open_append(f"/scratch/{name}").append([b"left behind"])
    clear_spool_directory(filesystem, "/scratch")
    assert sorted(filesystem.list_directory("/scratch")) == ["notes.txt", "old.data"]
