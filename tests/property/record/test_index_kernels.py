"""Entries and look-ups of index kernels: the compiled ones, their twins and lists give the same."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.native import pure_batch_kernels
from stratalog.record.native.batch_row import BatchRow, IndexProgress
from tests.support.kernels import each_kind, native, needs_native

SEGMENT_BASE_OFFSET = 2**61
ENTRY_NUMBERS = st.sampled_from([0, 1, 2**31 - 2, 2**31 - 1]) | st.integers(0, 2**31 - 1)
ROWS = st.lists(
    st.builds(
        BatchRow,
        ENTRY_NUMBERS,
        st.integers(61, 3000),
        st.integers(0, 2**63 - 1),
        ENTRY_NUMBERS.map(lambda relative_offset: SEGMENT_BASE_OFFSET + relative_offset),
        st.integers(-1, 5) | st.integers(-(2**63), 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.booleans(),
    ),
    max_size=20,
)
PROGRESS = st.builds(
    IndexProgress,
    st.integers(0, 5000),
    st.integers(-1, 5),
    ENTRY_NUMBERS.map(lambda relative_offset: SEGMENT_BASE_OFFSET + relative_offset),
    st.integers(-1, 5),
    st.integers(0, 2**32 - 1),
)


@needs_native
@given(ROWS, st.sampled_from([0, 1, 4096, 2**31 - 1]), PROGRESS)
def test_both_kinds_enter_the_same_batches(
    rows: list[BatchRow], interval_bytes: int, progress: IndexProgress
) -> None:
    expected = pure_batch_kernels.index_rows(rows, interval_bytes, SEGMENT_BASE_OFFSET, progress)
    assert native.index_rows(rows, interval_bytes, SEGMENT_BASE_OFFSET, progress) == expected


@each_kind(pure_batch_kernels)
@pytest.mark.parametrize(
    ("position", "last_offset"), [(2**31, 10), (-1, 10), (0, 9), (0, 10 + 2**31)], ids=str
)
def test_what_an_entry_cannot_say_is_not_entered(kernels: Any, position: int, last_offset: int) -> None:
    row = BatchRow(
        position=position,
        size_bytes=100,
        base_offset=10,
        last_offset=last_offset,
        max_timestamp_ms=5,
        leader_epoch=0,
        is_noted=False,
    )
    with pytest.raises(AssertionError):
        kernels.index_rows([row], 0, 10, IndexProgress(1, -1, -1, -1, 0))


@each_kind(pure_batch_kernels)
@given(
    st.sampled_from([(8, 0, 4), (8, 4, 4), (12, 0, 8), (12, 8, 4), (34, 18, 8)]),
    st.lists(ENTRY_NUMBERS, max_size=40),
    st.integers(-2, 2**31 + 1),
    st.integers(0, 33),
)
def test_as_many_entries_as_a_list_finds(
    kernels: Any, layout: tuple[int, int, int], keys: list[int], limit: int, torn_bytes: int
) -> None:
    entry_size, key_position, key_size = layout
    keys.sort()
    data = b"".join(
        key.to_bytes(key_size, "big").rjust(key_position + key_size, b"\xff").ljust(entry_size, b"\xff")
        for key in keys
    )
    torn = bytes(torn_bytes % entry_size)
    for one in (limit, *keys):
        found = kernels.rank_entries(data + torn, entry_size, key_position, key_size, one)
        assert found == bisect_right(keys, one)


@needs_native
@given(st.binary(max_size=400), st.sampled_from([(8, 0, 4), (12, 0, 8)]), st.integers(-1, 2**63 - 1))
def test_both_kinds_end_at_the_same_entry_of_garbage(
    data: bytes, layout: tuple[int, int, int], limit: int
) -> None:
    assert native.rank_entries(data, *layout, limit) == pure_batch_kernels.rank_entries(data, *layout, limit)
