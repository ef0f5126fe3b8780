"""Offset and time index against plain lists, and against bytes that are no index."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.indexes.offset_index import ENTRY_SIZE, OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.timestamp_offset import TimestampOffset

BASES = st.sampled_from([0, 1, 147_001, 2**62])
STEPS = st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 100_000)), max_size=40)


@given(base_offset=BASES, steps=STEPS, wanted=st.integers(-1, 50_000))
def test_the_offset_index_finds_the_greatest_entry_at_or_below(
    base_offset: int, steps: list[tuple[int, int]], wanted: int
) -> None:
    index = OffsetIndex(base_offset)
    entries: list[tuple[int, int]] = []
    offset, position = base_offset - 1, 0
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        index.append(offset, position)
        entries.append((offset, position))
    below = [entry for entry in entries if entry[0] <= base_offset + wanted]
    assert index.floor(base_offset + wanted) == (below[-1] if below else None)
    assert list(index) == entries
    assert list(OffsetIndex(base_offset, index.to_bytes())) == entries
    assert index.last == (entries[-1] if entries else None)


@given(steps=STEPS, position=st.integers(0, 100_000), size_bytes=st.integers(0, 10**6))
def test_a_read_ends_where_a_batch_begins_if_that_loses_little(
    steps: list[tuple[int, int]], position: int, size_bytes: int
) -> None:
    index = OffsetIndex(0)
    positions: list[int] = []
    for number, (_, step) in enumerate(steps):
        positions.append(positions[-1] + step if positions else step)
        index.append(number, positions[-1])
    end = position + size_bytes
    nearest = max((found for found in positions if found <= end), default=-1)
    expected = nearest if 16 * (end - nearest) <= size_bytes else end
    assert position + index.whole_size(position, size_bytes) == expected
    assert len(index) * ENTRY_SIZE == index.size_bytes == len(index.to_bytes())


@given(
    base_offset=BASES,
    steps=st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 9)), max_size=40),
    wanted=st.integers(-1, 500),
)
def test_the_time_index_keeps_news_only_and_finds_what_is_older(
    base_offset: int, steps: list[tuple[int, int]], wanted: int
) -> None:
    index = TimeIndex(base_offset)
    entries: list[TimestampOffset] = []
    timestamp, offset = 100, base_offset
    for time_step, offset_step in steps:
        timestamp, offset = timestamp + time_step, offset + offset_step
        is_news = timestamp >= 0 and all(timestamp > entry.timestamp_ms for entry in entries)
        assert index.maybe_append(TimestampOffset(timestamp, offset)) == is_news
        if is_news:
            entries.append(TimestampOffset(timestamp, offset))
    older = [entry for entry in entries if entry.timestamp_ms < wanted]
    assert index.before(wanted) == (older[-1] if older else None)
    assert list(TimeIndex(base_offset, index.to_bytes())) == entries


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        # Half an entry, equal keys, equal values, a negative key, a negative value.
        (OffsetIndex, "00000000000000"),
        (OffsetIndex, "0000000500000001 0000000500000002"),
        (OffsetIndex, "0000000500000001 0000000600000001"),
        (OffsetIndex, "ffffffff00000001"),
        (OffsetIndex, "00000001ffffffff"),
        (TimeIndex, "00000000000000000000000000"),
        (TimeIndex, "000000000000000500000001 000000000000000500000002"),
        (TimeIndex, "000000000000000500000002 000000000000000600000001"),
        (TimeIndex, "ffffffffffffffff00000001"),
        (TimeIndex, "0000000000000001ffffffff"),
    ],
)
def test_bytes_that_are_no_index_are_refused(kind: type[OffsetIndex | TimeIndex], data: str) -> None:
    with pytest.raises(CorruptRecordError):
        kind(0, bytes.fromhex(data))


@given(data=st.binary(max_size=60))
def test_garbage_is_an_index_or_refused(data: bytes) -> None:
    for kind in (OffsetIndex, TimeIndex):
        try:
            index = kind(7, data)
        except CorruptRecordError:
            continue
        assert index.to_bytes() == data


def test_an_entry_is_made_for_the_batch_behind_the_interval() -> None:
    indexes = SegmentIndexes.empty(0)
    for number in range(5):
        time_ms = [5, 50, 20, 60, 1][number]
        row = BatchRow(
            position=100 * number,
            size_bytes=100,
            base_offset=10 * number,
            last_offset=10 * number + 9,
            max_timestamp_ms=time_ms,
            leader_epoch=0,
            is_noted=False,
        )
        indexes.add_rows([row], 150)
    # 200 bytes lie before the third batch: more than 150 for the first time. The fifth is the next such one.
    assert list(indexes.offset_index) == [(29, 200), (49, 400)]
    assert list(indexes.time_index) == [(50, 19), (60, 39)]
    assert indexes.max_timestamp == (60, 39)


@given(
    sizes=st.lists(st.tuples(st.integers(61, 300), st.integers(-1, 50)), max_size=30),
    cuts=st.sets(st.integers(0, 30)),
    interval_bytes=st.sampled_from([0, 100, 1000]),
)
def test_many_batches_at_once_make_the_entries_of_one_at_a_time(
    sizes: list[tuple[int, int]], cuts: set[int], interval_bytes: int
) -> None:
    rows: list[BatchRow] = []
    position = 0
    for number, (size_bytes, timestamp_ms) in enumerate(sizes):
        rows.append(
            BatchRow(
                position=position,
                size_bytes=size_bytes,
                base_offset=2 * number,
                last_offset=2 * number + 1,
                max_timestamp_ms=timestamp_ms,
                leader_epoch=3,
                is_noted=False,
            )
        )
        position += size_bytes
    # The rule as it is documented, over all batches.
    offsets: list[tuple[int, int]] = []
    times: list[TimestampOffset] = []
    entered_position = 0
    for number, row in enumerate(rows):
        if row.position - entered_position > interval_bytes:
            entered_position = row.position
            offsets.append((row.last_offset, row.position))
            newest = max(rows[: number + 1], key=lambda seen: seen.max_timestamp_ms)
            if newest.max_timestamp_ms > max((time.timestamp_ms for time in times), default=-1):
                times.append(TimestampOffset(newest.max_timestamp_ms, newest.last_offset))
    indexes = SegmentIndexes.empty(0)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for begin, end in pairwise(bounds):
        indexes.add_rows(rows[begin:end], interval_bytes)
    assert list(indexes.offset_index) == offsets
    assert list(indexes.time_index) == times
    assert indexes.max_timestamp.timestamp_ms == max((one for _, one in sizes), default=-1)


@pytest.mark.parametrize(("max_index_bytes", "is_full"), [(24, True), (35, True), (36, False)])
def test_an_index_is_full_while_there_is_room_for_the_last_entry(
    max_index_bytes: int, *, is_full: bool
) -> None:
    indexes = SegmentIndexes.empty(0)
    indexes.time_index.maybe_append(TimestampOffset(1, 1))
    assert indexes.is_full(max_index_bytes) is is_full
