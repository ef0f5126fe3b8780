"""Phase 1: key streams of any length, in blocks of any size, against a dictionary."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.survivor_bits import bits_between, new_bitmap, set_bit
from stratalog.compaction.keys.survivor_plan import merge_keys
from stratalog.remote.objects.key_stream import KeyBlock

Entry = tuple[tuple[int, int], int]
"""Hash and ordinal."""

HASHES = st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1) | st.integers(0, 3))
STREAMS = st.lists(st.dictionaries(HASHES, st.integers(0, 40), max_size=30), min_size=1, max_size=6)


def blocks_of(entries: list[Entry], block_size: int) -> Iterator[KeyBlock]:
    for start in range(0, len(entries), block_size):
        part = entries[start : start + block_size]
        yield KeyBlock(
            len(part),
            memoryview(array("Q", [pair[0] for pair, _ in part])).cast("B"),
            memoryview(array("Q", [pair[1] for pair, _ in part])).cast("B"),
            memoryview(array("I", [ordinal for _, ordinal in part])).cast("B"),
            memoryview(bytes(len(part))),
        )


@given(STREAMS, st.lists(st.integers(1, 7), min_size=6, max_size=6))
def test_the_newest_slice_of_a_hash_survives(
    streams: list[dict[tuple[int, int], int]], block_sizes: list[int]
) -> None:
    bitmaps = [new_bitmap(41) for _ in streams]
    cursors = [
        KeyCursor(blocks_of(sorted(stream.items()), block_size), bitmap)
        for stream, block_size, bitmap in zip(streams, block_sizes, bitmaps, strict=False)
    ]
    merge_keys(cursors)
    newest = {
        pair: (slice_index, stream[pair]) for slice_index, stream in enumerate(streams) for pair in stream
    }
    expected = [new_bitmap(41) for _ in streams]
    for slice_index, ordinal in newest.values():
        set_bit(expected[slice_index], ordinal)
    assert bitmaps == expected
    assert all(cursor.is_at_end for cursor in cursors)


@given(st.sets(st.integers(0, 99)), st.integers(0, 100), st.integers(0, 100))
def test_bits_of_a_range(ordinals: set[int], one: int, other: int) -> None:
    first, end = sorted((one, other))
    bitmap = new_bitmap(100)
    for ordinal in ordinals:
        set_bit(bitmap, ordinal)
    bits = bits_between(bitmap, first, end)
    assert {first + index for index in range(end - first) if bits >> index & 1} == {
        ordinal for ordinal in ordinals if first <= ordinal < end
    }
    assert bits < 1 << (end - first)
