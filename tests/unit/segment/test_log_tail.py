"""The bound of the memory for tails, and the reads that a tail leaves to the file."""

from __future__ import annotations

from typing import cast

from stratalog.log.fetch_data import whole_chunks
from stratalog.record.builder import encode_batch
from stratalog.record.header import MAGIC_POSITION
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.record.record import Record
from stratalog.segment.kept_bytes import MIN_PART_BYTES, KeptBytes
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.log_tail import MAX_BLOCKS_PER_READ, LogTail
from stratalog.segment.tail_memory import TailMemory

SEGMENT = cast("LogSegment", object())
OTHER_SEGMENT = cast("LogSegment", object())


def add(tail: LogTail, offset: int, *sizes: int, position: int = 0) -> bytes:
    """Batches of these sizes, with one record each, from that offset on."""
    rows = [AppendedBatch(size, offset + at, offset + at, 0, 1) for at, size in enumerate(sizes)]
    data = b"".join(bytes([row.base_offset % 251]) * row.size_bytes for row in rows)
    tail.add(SEGMENT, position, KeptBytes([data]), rows)
    return data


def test_the_oldest_blocks_of_all_logs_leave_first() -> None:
    memory = TailMemory(10_000)
    one, other = LogTail(memory), LogTail(memory)
    for offset in range(8):
        add(one if offset % 2 else other, offset, 1_500)
        memory.check()
    # Four blocks of 2,028 bytes have room.
    assert one.read(3, 10_000, 100, min_one=True) is None
    assert one.read(5, 10_000, 100, min_one=True) is not None
    assert other.read(2, 10_000, 100, min_one=True) is None
    assert other.read(4, 10_000, 100, min_one=True) is not None


def test_a_tail_begins_anew_behind_batches_that_it_does_not_admit() -> None:
    memory = TailMemory(10_000)
    tail = LogTail(memory)
    add(tail, 0, 100)
    assert tail.admits(4_000, 2)
    assert not tail.admits(6_000, 3)
    tail.clear()
    assert tail.read(0, 10_000, 100, min_one=True) is None
    assert memory.held_bytes == 0
    add(tail, 2, 100)
    assert tail.read(1, 10_000, 100, min_one=True) is None
    assert tail.read(2, 10_000, 100, min_one=True) is not None


def test_a_read_ends_with_whole_batches_below_its_end() -> None:
    tail = LogTail(TailMemory(100_000))
    data = add(tail, 10, 100, 200, 300) + add(tail, 13, 400)

    def read(
        offset: int, max_bytes: int, end_offset: int, *, min_one: bool = True
    ) -> tuple[bytes, int, bool]:
        found = tail.read(offset, max_bytes, end_offset, min_one=min_one)
        assert found is not None
        return b"".join(found.chunks), found.next_offset, found.lacks_room

    assert read(10, 1_000, 14) == (data, 14, False)
    assert read(11, 1_000, 14) == (data[100:], 14, False)
    assert read(10, 999, 14) == (data[:600], 13, True)
    assert read(10, 999, 13) == (data[:600], 13, False)
    assert read(10, 299, 14) == (data[:100], 11, True)
    assert read(10, 299, 11) == (data[:100], 11, False)
    assert read(12, 299, 14) == (data[300:600], 13, True)
    assert read(13, 399, 14) == (data[600:], 14, False)
    assert read(12, 299, 14, min_one=False) == (b"", 12, True)
    assert read(10, 1_000, 12) == (data[:300], 12, False)
    assert tail.read(12, 1_000, 12, min_one=True) is None
    assert tail.read(14, 1_000, 14, min_one=True) is None
    assert tail.read(9, 1_000, 14, min_one=True) is None


def test_many_small_blocks_are_left_to_the_file() -> None:
    tail = LogTail(TailMemory(1 << 20))
    for offset in range(MAX_BLOCKS_PER_READ + 1):
        add(tail, offset, 10)
    assert tail.read(0, 10_000, 1_000, min_one=True) is None
    found = tail.read(1, 10_000, 1_000, min_one=True)
    assert found is not None
    assert found.next_offset == MAX_BLOCKS_PER_READ + 1
    # Few of them are wanted.
    assert tail.read(0, 10_000, 5, min_one=True) is not None


def test_batches_of_a_place_in_a_file() -> None:
    tail = LogTail(TailMemory(100_000))
    data = add(tail, 0, 100, 200, position=50)
    for offset, position, size, wanted in (
        (0, 50, 1_000, data),
        (0, 50, 299, data[:100]),
        (1, 150, 1_000, data[100:]),
    ):
        found = tail.batches_at(SEGMENT, offset, position, size)
        assert isinstance(found, memoryview)
        assert bytes(found) == wanted
    assert tail.batches_at(SEGMENT, 0, 50, 99) is None
    assert tail.batches_at(SEGMENT, 0, 49, 1_000) is None
    assert tail.batches_at(SEGMENT, 1, 50, 1_000) is None
    assert tail.batches_at(OTHER_SEGMENT, 0, 50, 1_000) is None


def test_a_large_batch_stays_in_its_two_pieces() -> None:
    batch = encode_batch([Record(0, 0, None, bytes(2 * MIN_PART_BYTES))])
    tail = LogTail(TailMemory(1 << 20))
    pieces = (batch[:MAGIC_POSITION], memoryview(batch)[MAGIC_POSITION:])
    tail.add(SEGMENT, 0, KeptBytes(pieces), [AppendedBatch(len(batch), 0, 0, 0, 1)])
    data = add(tail, 1, 100, position=len(batch))
    found = tail.read(0, 1 << 20, 2, min_one=True)
    assert found is not None
    assert [id(chunk) for chunk in found.chunks[:2]] == [id(piece) for piece in pieces]
    assert list(whole_chunks(found.chunks)) == [batch, data]
    assert tail.batches_at(SEGMENT, 0, 0, len(batch)) == pieces
    assert tail.batches_at(SEGMENT, 0, 0, len(batch) - 1) is None


def test_readers_hold_at_most_twice_the_bytes_that_they_have_read() -> None:
    tail = LogTail(TailMemory(100_000))
    add(tail, 0, 100, 200, 300, 400)
    for max_bytes in range(100, 1_001, 50):
        found = tail.read(0, max_bytes, 4, min_one=True)
        assert found is not None
        for chunk in found.chunks:
            held = chunk.obj if isinstance(chunk, memoryview) else chunk
            assert isinstance(held, bytes)
            assert len(held) <= 2 * len(chunk)
