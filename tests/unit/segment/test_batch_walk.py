"""Walks over batches: what is whole, what is valid, and where each stops."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.header import HEADER_SIZE, LAST_OFFSET_DELTA_POSITION, RECORDS_COUNT_POSITION
from stratalog.record.native.batch_kernels import headers_crc
from stratalog.record.native.batch_row import BatchRow
from stratalog.record.record import Record
from stratalog.segment.batch_walk import fetchable_batches, seek, summed_headers, valid_rows, walk
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.plain_batches import batch

RECORD = Record(0, 1000, b"key", b"value")


def placed(base_offset: int, count: int = 2, value_bytes: int = 30) -> bytes:
    return batch(count, base_offset=base_offset, timestamp_ms=1000 + base_offset, value_bytes=value_bytes)


def file_of(*parts: Buffer) -> AppendFile:
    file = MemoryFileSystem().open_append("/a")
    file.append(parts)
    return file


def rows_of(file: AppendFile, end_position: int) -> list[BatchRow]:
    return [row for rows, _ in valid_rows(file, end_position, 0, -1) for row in rows]


def no_check() -> None:
    """Nothing ends the walk early."""


SIZES = st.lists(st.sampled_from([1, 30, 5000, 20_000, 1_100_000]), min_size=1, max_size=5)


@given(
    sizes=st.lists(
        st.sampled_from([1, 5000, 16_250, 20_000, 200_000, 300_000]) | st.integers(0, 17_000), max_size=40
    )
)
def test_headers_are_summed_up_whatever_the_size_of_their_batches(sizes: list[int]) -> None:
    written = b"".join(placed(number, 1, size) for number, size in enumerate(sizes))
    file = file_of(written)
    assert summed_headers(file, len(written), no_check) == headers_crc(written, 0)
    if sizes:
        with pytest.raises(CorruptRecordError):
            summed_headers(file, len(written) - 1, no_check)
    file.append([bytes(HEADER_SIZE)])
    with pytest.raises(CorruptRecordError):
        summed_headers(file, file.size(), no_check)


def test_the_bodies_of_large_batches_are_not_read_for_the_sum_over_their_headers() -> None:
    written = b"".join(placed(number, 1, 1_100_000) for number in range(3))
    file = file_of(written)
    with patch.object(file, "read_at", wraps=file.read_at) as read_at:
        summed_headers(file, len(written), no_check)
    assert sum(size for (_, size), _ in read_at.call_args_list) == 3 * HEADER_SIZE


@given(sizes=SIZES)
def test_both_walks_see_every_batch_whatever_its_size(sizes: list[int]) -> None:
    written = [placed(number, 1, size) for number, size in enumerate(sizes)]
    file = file_of(*written)
    positions = [sum(map(len, written[:number])) for number in range(len(written))]
    rows = rows_of(file, file.size())
    assert [(row.position, row.size_bytes) for row in rows] == [
        (position, len(one)) for position, one in zip(positions, written, strict=True)
    ]
    found = list(walk(file, 0, file.size()))
    assert [located.position for located in found] == positions
    assert [located.header.base_offset for located in found] == list(range(len(sizes)))


@given(
    sizes=st.lists(st.sampled_from([1, 30, 5000, 20_000]), min_size=1, max_size=12),
    offset=st.integers(0, 30),
    bounds=st.tuples(st.integers(0, 2), st.sampled_from([0, 3, 12, 24, 2**62])),
    damage=st.tuples(st.integers(0, 2**20), st.integers(1, 255)) | st.none(),
    lost_bytes=st.integers(0, 100) | st.just(0),
)
def test_a_seek_ends_where_a_walk_does(
    sizes: list[int],
    offset: int,
    bounds: tuple[int, int],
    damage: tuple[int, int] | None,
    lost_bytes: int,
) -> None:
    data = bytearray(b"".join(placed(2 * number, 2, size) for number, size in enumerate(sizes)))
    if damage is not None:
        data[damage[0] % min(len(data), 3 * HEADER_SIZE)] ^= damage[1]
    file = file_of(data)
    end_position = len(data) - lost_bytes
    first_offset, limit_offset = bounds

    def walked() -> int | None:
        for position, header in walk(file, 0, end_position, first_offset, limit_offset):
            if header.last_offset >= offset:
                return position
        return None

    def sought() -> int | None:
        return seek(file, 0, end_position, offset, first_offset=first_offset, limit_offset=limit_offset)

    assert outcome(sought) == outcome(walked)


def outcome(find: Callable[[], int | None]) -> int | str | None:
    try:
        return find()
    except CorruptRecordError as error:
        return str(error)


def test_a_seek_does_not_believe_an_index_that_points_elsewhere() -> None:
    file = file_of(placed(0), placed(2), placed(4))
    second = len(placed(0))
    assert seek(file, second, file.size(), 5, indexed_offset=3) == 2 * second
    assert seek(file, second, file.size(), 3, indexed_offset=3) == second
    for position, indexed_offset in ((second, 2), (second, 4), (0, 3), (second + 1, 3), (file.size() - 9, 5)):
        with pytest.raises(CorruptRecordError):
            seek(file, position, file.size(), 5, indexed_offset=indexed_offset)


@pytest.mark.parametrize("follower_offset", [9, None], ids=["within", "at the end"])
@pytest.mark.parametrize("value_bytes", [30, 20_000])
def test_a_hole_is_one_behind_a_batch_that_says_so_for_certain(
    follower_offset: int | None, value_bytes: int
) -> None:
    """A batch whose end was changed looks like one with a hole behind it."""
    written = [placed(0), placed(2, 4, value_bytes), *([] if follower_offset is None else [placed(9)])]
    found = None if follower_offset is None else len(written[0] + written[1])
    for change in (0, 1, 2, 3):
        data = bytearray(b"".join(written))
        # It covers [2, 6), or less. Its count would contradict, as it does not where a clean left fewer.
        data[len(written[0]) + LAST_OFFSET_DELTA_POSITION + 3] ^= change
        data[len(written[0]) + RECORDS_COUNT_POSITION + 3] = 1
        file = file_of(data)
        assert seek(file, 0, file.size(), 7) == found, "its producer does not matter"
        assert seek(file, 0, file.size(), 6 - change - 1, proves_hole=True) == len(written[0])
        with pytest.raises(CorruptRecordError):
            seek(file, 0, file.size(), 7, proves_hole=True)
    file = file_of(*written)
    assert seek(file, 0, file.size(), 7, proves_hole=True) == found


def test_a_walk_does_not_read_large_bodies() -> None:
    file = file_of(*(placed(number, 1, 1_000_000) for number in range(5)))
    with patch.object(file, "read_at", wraps=file.read_at) as read_at:
        assert len(list(walk(file, 0, file.size()))) == 5
    assert sum(size for (_, size), _ in read_at.call_args_list) < 100_000


def test_the_trusting_walk_refuses_a_file_that_ends_inside_a_batch() -> None:
    whole = placed(0) + placed(2)
    for size in range(1, len(whole)):
        file = file_of(whole[:size])
        if size == len(placed(0)):
            assert len(list(walk(file, 0, size))) == 1
        else:
            with pytest.raises(CorruptRecordError):
                list(walk(file, 0, size))


def test_the_valid_part_of_a_torn_file_is_its_whole_batches() -> None:
    whole = placed(0) + placed(2) + placed(4)
    sizes = [len(placed(0)), len(placed(2)), len(placed(4))]
    for size in range(len(whole) + 1):
        expected = max(count for count in range(4) if sum(sizes[:count]) <= size)
        assert len(rows_of(file_of(whole[:size]), size)) == expected
        # What lies behind the end that was given is not looked at, as far as it is there.
        assert len(rows_of(file_of(whole), size)) == expected


@given(position=st.integers(0, 10_000), change=st.integers(1, 255), garbage=st.binary(max_size=200))
def test_the_valid_part_ends_where_a_byte_was_changed(position: int, change: int, garbage: bytes) -> None:
    written = [placed(0), placed(2), placed(4)]
    data = bytearray(b"".join(written))
    position %= len(data)
    data[position] ^= change
    data += garbage
    rows = rows_of(file_of(data), len(data))
    ordinal = sum(position >= sum(map(len, written[: number + 1])) for number in range(3))
    start = sum(map(len, written[:ordinal]))
    # The base offset and the leader epoch of a batch are not covered by its checksum; all else is.
    if 12 <= position - start < 16:
        return
    if position - start < 8:
        assert [row.position for row in rows][:ordinal] == [0, len(written[0])][:ordinal]
        return
    assert len(rows) == ordinal


def test_offsets_that_do_not_ascend_end_the_valid_part() -> None:
    data = placed(0) + placed(2) + placed(3)
    assert len(rows_of(file_of(data), len(data))) == 2
    assert list(valid_rows(file_of(placed(5)), len(placed(5)), 6, -1)) == []
    # A hole is no fault: compaction leaves them.
    assert len(rows_of(file_of(placed(0), placed(9)), len(placed(0) + placed(9)))) == 2


def test_headers_come_with_the_batches_that_say_more() -> None:
    plain, producer = placed(0), encode_batch([RECORD], base_offset=2, producer=BatchProducer(5, 0, 0))
    later = [encode_batch([RECORD], base_offset=offset, leader_epoch=3) for offset in (3, 4)]
    older = encode_batch([RECORD], base_offset=5, leader_epoch=2)
    file = file_of(plain, producer, *later, older)
    ((rows, noted),) = valid_rows(file, file.size(), 0, -1)
    assert [row.is_noted for row in rows] == [False, True, True, False]
    assert [located.position for located in noted] == [rows[1].position, rows[2].position]
    assert noted[0].header.producer_id == 5
    assert noted[1].header.leader_epoch == 3
    # In the epoch of the log so far there is nothing to be said of it; one before that ends the log.
    ((rows, noted),) = valid_rows(file_of(later[0]), len(later[0]), 0, 3)
    assert (len(rows), noted) == (1, [])
    assert list(valid_rows(file_of(later[0]), len(later[0]), 0, 4)) == []


def test_many_small_batches_come_in_several_goes() -> None:
    one = encode_batch([Record(0, 0, None, b"")])
    count = 31_000
    file = file_of(*(offset.to_bytes(8, "big") + one[8:] for offset in range(count)))
    assert file.size() > 2 << 20
    assert [row.last_offset for row in rows_of(file, file.size())] == list(range(count))


def test_a_length_beyond_the_file_is_torn_and_not_read() -> None:
    data = bytearray(placed(0) + placed(2))
    data[len(placed(0)) + 8 : len(placed(0)) + 12] = (2**31 - 1).to_bytes(4, "big")
    assert len(rows_of(file_of(data), len(data))) == 1


def test_fetchable_batches_stops_at_the_end_offset_and_at_a_torn_batch() -> None:
    data = placed(0) + placed(2) + placed(4)
    size = len(placed(0))
    assert fetchable_batches(data, 6) == (3 * size, 6)
    assert fetchable_batches(data, 5) == (2 * size, 4)
    assert fetchable_batches(data, 4) == (2 * size, 4)
    assert fetchable_batches(data, 1) == (0, -1)
    assert fetchable_batches(data[:-1], 6) == (2 * size, 4)
    assert fetchable_batches(data[: HEADER_SIZE - 1], 6) == (0, -1)
    assert fetchable_batches(b"", 6) == (0, -1)


@given(position=st.integers(0, 10_000), change=st.integers(1, 255))
def test_fetchable_batches_never_hands_out_a_changed_batch(position: int, change: int) -> None:
    size = len(placed(0))
    data = bytearray(placed(0) + placed(2))
    position %= len(data)
    data[position] ^= change
    inside = position % size
    try:
        size_bytes, _ = fetchable_batches(bytes(data), 2**62)
    except CorruptRecordError:
        return
    # What is left is a length that makes the batch look torn, or what the checksum does not cover.
    assert inside < 16 or size_bytes <= position
