"""Key streams give back what they were given, block by block, and never hand out what is damaged, unsorted
or foreign.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.record.keep_rules import VersionRule
from stratalog.record.key_block import MAX_BLOCK_ENTRY_COUNT, block_size_bytes
from stratalog.record.native.kernels import KeyEntries, siphash128
from stratalog.remote.objects.key_stream import (
    EncodedKeyStream,
    KeyBlock,
    KeyHashing,
    KeyStreamEncoder,
    encode_key_stream,
    key_blocks,
    read_key_stream,
    verify_key_stream,
)
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import KeyStreamRef

DAMAGE = (StoreCorruptError, StoreNotUsableError)

u64 = st.integers(0, 2**64 - 1)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """One byte changed, or a piece put in the place of another."""
    position = draw(st.integers(0, len(data) - 1))
    if draw(st.booleans()):
        changed = bytearray(data)
        changed[position] ^= draw(st.integers(1, 255))
        return bytes(changed)
    return data[:position] + draw(st.binary(max_size=16)) + data[position + draw(st.integers(0, 16)) :]


def key_entries(hashes: list[tuple[int, int]], *, has_versions: bool = False) -> KeyEntries:
    """An entry for each hash, in order; ordinals run backwards so that they are not the same as positions."""
    found = KeyEntries(has_versions=has_versions)
    if has_versions:
        found.version = array("q", [(-1) ** number * (2**63 - 1 - number) for number in range(len(hashes))])
    found.hash_high = array("Q", [high for high, _ in hashes])
    found.hash_low = array("Q", [low for _, low in hashes])
    found.ordinal = array("I", range(len(hashes) - 1, -1, -1))
    found.tombstone = bytearray(number % 2 for number in range(len(hashes)))
    return found


def stream_ref(encoded: EncodedKeyStream) -> KeyStreamRef:
    return KeyStreamRef(0, encoded.size_bytes, encoded.entry_count, encoded.crc, 7)


def rows(blocks: Iterator[KeyBlock]) -> list[tuple[int, int, int, int]]:
    """All entries as tuples, read through the widths that the format promises."""
    found: list[tuple[int, int, int, int]] = []
    for block in blocks:
        columns = (
            block.hash_high.cast("Q").tolist(),
            block.hash_low.cast("Q").tolist(),
            block.ordinal.cast("I").tolist(),
            block.tombstone.tolist(),
        )
        found += zip(*columns, strict=True)
    return found


@given(st.sets(st.tuples(st.integers(0, 3) | u64, st.integers(0, 3) | u64), max_size=40))
def test_a_key_stream_comes_back(hashes: set[tuple[int, int]]) -> None:
    found = key_entries(sorted(hashes))
    encoded = encode_key_stream(found)
    data = b"".join(encoded.parts)
    expected = list(zip(found.hash_high, found.hash_low, found.ordinal, found.tombstone, strict=True))
    assert len(data) == encoded.size_bytes
    assert rows(key_blocks(data, stream_ref(encoded), len(hashes))) == expected


@given(st.integers(0, 3), st.sampled_from((-1, 0, 1)))
def test_blocks_are_bounded_and_aligned(blocks: int, more: int) -> None:
    count = max(blocks * MAX_BLOCK_ENTRY_COUNT + more, 0)
    found = key_entries([(number, 0) for number in range(count)])
    encoded = encode_key_stream(found)
    assert encoded.size_bytes % 8 == 0
    stream = b"".join(encoded.parts) + b"the next stream"
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return stream[position - size : position]

    ref = stream_ref(encoded)
    sizes = [block.entry_count for block in read_key_stream(read, ref, count)]
    assert position == encoded.size_bytes, "nothing behind the stream was read"
    assert sum(sizes) == count
    assert all(size == MAX_BLOCK_ENTRY_COUNT for size in sizes[:-1])
    assert encoded.size_bytes == sum(block_size_bytes(size) for size in sizes)


@pytest.mark.parametrize("count", [0, 1, 3, MAX_BLOCK_ENTRY_COUNT, MAX_BLOCK_ENTRY_COUNT + 2])
def test_versions_are_a_column_behind_the_others(count: int) -> None:
    hashes = [(number, 0) for number in range(count)]
    found, without = key_entries(hashes, has_versions=True), key_entries(hashes)
    assert found.version is not None
    encoder = KeyStreamEncoder()
    parts = [part for entries in halves(found) for part in encoder.add(entries)] + list(encoder.end())
    data, ref = b"".join(parts), stream_ref(encoder.encoded())
    assert data == b"".join(encode_key_stream(found).parts)
    blocks = list(key_blocks(data, ref, count))
    assert rows(iter(blocks)) == rows(key_blocks(*whole(without), count))
    versions = [
        version for block in blocks if block.version is not None for version in block.version.cast("q")
    ]
    assert versions == list(found.version)
    assert ref.size_bytes == encode_key_stream(without).size_bytes + 8 * count
    assert verify_key_stream(reader_of(data), ref, count) == count
    for block in blocks[:1]:
        assert data[4:8] == (1).to_bytes(4, "little")
        end = block_size_bytes(block.entry_count, has_versions=True)
        assert data[end - 8 * block.entry_count : end] == found.version[: block.entry_count].tobytes()


def test_some_blocks_with_versions_are_refused() -> None:
    mixed = KeyStreamEncoder()
    parts = [*mixed.add(key_entries(FULL, has_versions=True)), *mixed.add(key_entries([(1 << 20, 0)]))]
    parts += mixed.end()
    data = b"".join(parts)
    with pytest.raises(StoreCorruptError):
        list(key_blocks(data, stream_ref(mixed.encoded()), MAX_BLOCK_ENTRY_COUNT))


def test_other_flags_are_those_of_a_newer_format() -> None:
    data = bytearray(b"".join(encode_key_stream(key_entries([(1, 1)])).parts))
    for flags in (2, 3):
        data[4] = flags
        with pytest.raises(StoreNotUsableError):
            list(key_blocks(bytes(data), stream_ref(encode_key_stream(key_entries([(1, 1)]))), 1))


def test_a_stream_tells_by_which_strategy_it_was_made() -> None:
    rules = (None, VersionRule(None), VersionRule(b""), VersionRule(b"a"), VersionRule(b"timestamp"))
    numbers = {KeyHashing(bytes(16), rule).hash_key_id for rule in rules}
    assert len(numbers) == len(rules)
    assert KeyHashing(bytes(16)).hash_key_id == siphash128(bytes(16), b"stratalog/hash-key-id")[0]


def halves(entries: KeyEntries) -> list[KeyEntries]:
    """The first entry, and the others."""
    first = entries.ordinal[:1]
    return [entries.of_ordinals(first), entries.of_ordinals(set(entries.ordinal) - set(first))]


def whole(entries: KeyEntries) -> tuple[bytes, KeyStreamRef]:
    encoded = encode_key_stream(entries)
    return b"".join(encoded.parts), stream_ref(encoded)


def reader_of(data: bytes) -> Callable[[int], bytes]:
    """Reads forward, and short at the end."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    return read


@given(st.data(), st.booleans())
def test_a_damaged_key_stream_is_refused(data: st.DataObject, has_versions: bool) -> None:
    hashes = data.draw(st.sets(st.tuples(u64, u64), min_size=1, max_size=20))
    encoded = encode_key_stream(key_entries(sorted(hashes), has_versions=has_versions))
    whole = b"".join(encoded.parts)
    changed = data.draw(damaged(whole))
    with nullcontext() if changed == whole else pytest.raises(DAMAGE):
        list(key_blocks(changed, stream_ref(encoded), len(hashes)))
    # Forward only: the bytes behind the stream belong to others.
    is_whole = changed.startswith(whole)
    with nullcontext() if is_whole else pytest.raises(DAMAGE):
        list(read_key_stream(reader_of(changed), stream_ref(encoded), len(hashes)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8))
def test_a_stream_that_is_not_sorted_is_refused(hashes: list[tuple[int, int]]) -> None:
    encoded = encode_key_stream(key_entries(hashes))
    is_sorted = all(earlier < later for earlier, later in itertools.pairwise(hashes))
    with nullcontext() if is_sorted else pytest.raises(StoreCorruptError):
        list(key_blocks(b"".join(encoded.parts), stream_ref(encoded), len(hashes)))


def test_a_damaged_block_is_not_handed_out() -> None:
    """Its own checksum shows it: the stream's would come too late for a reader that acts on each block."""
    encoded = encode_key_stream(key_entries([(number, 0) for number in range(MAX_BLOCK_ENTRY_COUNT + 1)]))
    changed = bytearray(b"".join(encoded.parts))
    changed[-8] ^= 1  # the tombstone of the last block's only entry
    blocks = key_blocks(bytes(changed), stream_ref(encoded), MAX_BLOCK_ENTRY_COUNT + 1)
    assert next(blocks).entry_count == MAX_BLOCK_ENTRY_COUNT
    with pytest.raises(StoreCorruptError):
        next(blocks)


def test_padding_is_zero() -> None:
    encoded = encode_key_stream(key_entries([(1, 1)]))
    changed = bytearray(b"".join(encoded.parts))
    changed[-1] = 1
    block_crc = crc_of(changed[16:], crc_of(changed[:12]))
    changed[12:16] = block_crc.to_bytes(4, "little")
    ref = stream_ref(encoded)._replace(crc=crc_of(changed))
    with pytest.raises(StoreCorruptError):
        list(key_blocks(bytes(changed), ref, 1))


FULL = [(number, 0) for number in range(MAX_BLOCK_ENTRY_COUNT)]


@pytest.mark.parametrize(
    ("hashes", "record_count", "tombstone", "lost_bytes"),
    [
        ([*FULL, (MAX_BLOCK_ENTRY_COUNT - 1, 0)], MAX_BLOCK_ENTRY_COUNT + 1, 0, 0),
        ([(1, 1), (2, 2)], 1, 0, 0),
        ([(1, 1)], 1, 2, 0),
        (
            [*FULL, (MAX_BLOCK_ENTRY_COUNT, 0)],
            MAX_BLOCK_ENTRY_COUNT + 1,
            0,
            block_size_bytes(1),
        ),
    ],
    ids=["order between blocks", "ordinal behind the slice", "tombstone is a bit", "missing last block"],
)
def test_a_contradiction_is_refused(
    hashes: list[tuple[int, int]], record_count: int, tombstone: int, lost_bytes: int
) -> None:
    found = key_entries(hashes)
    found.tombstone[0] = tombstone
    encoded = encode_key_stream(found)
    size_bytes = encoded.size_bytes - lost_bytes
    ref = stream_ref(encoded)._replace(size_bytes=size_bytes)
    with pytest.raises(StoreCorruptError):
        list(key_blocks(b"".join(encoded.parts)[:size_bytes], ref, record_count))
