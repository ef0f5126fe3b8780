"""Every codec of the object file gives back what it was given, and meets damage with its own errors only.

The codecs whose checksum lies elsewhere (directory, index) are also fed damaged bytes directly: a caller
that got the checksum right by accident must not meet an IndexError.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.record.kernels import KeyEntries
from stratalog.remote.directory_codec import DIRECTORY_HEADER, ENTRY, decode_directory, encode_directory
from stratalog.remote.key_stream import (
    MAX_BLOCK_ENTRY_COUNT,
    EncodedKeyStream,
    KeyBlock,
    block_size_bytes,
    encode_key_stream,
    key_blocks,
    read_key_stream,
)
from stratalog.remote.object_format import (
    FOOTER,
    ObjectHeader,
    ObjectKind,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
)
from stratalog.remote.object_ref import ObjectRef, format_object_name
from stratalog.remote.slice_entry import (
    KeyStrategy,
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)
from stratalog.remote.slice_index import (
    AbortedTransaction,
    SliceIndex,
    decode_slice_index,
    encode_slice_index,
)

DAMAGE = (StoreCorruptError, StoreNotUsableError)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
offsets = st.integers(0, 2**63 - 2)
timestamps = st.integers(-(2**63), 2**63 - 1)
uuids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
names = st.builds(format_object_name, st.integers(0, 2**63), uuids)
texts = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


@st.composite
def headers(draw: st.DrawFn) -> ObjectHeader:
    kind = draw(st.sampled_from(ObjectKind))
    inputs = draw(st.lists(names, min_size=1, max_size=4)) if kind is ObjectKind.REPLACEMENT else []
    return ObjectHeader(
        store_id=draw(uuids),
        shard=draw(st.integers(0, 9999)),
        epoch=draw(offsets),
        kind=kind,
        name=draw(names),
        inputs=tuple(inputs),
    )


@st.composite
def refs(draw: st.DrawFn) -> ObjectRef:
    data_position = draw(st.integers(0, 2**40))
    directory_position = 8 * -(-(data_position + draw(st.integers(0, 2**40))) // 8)
    directory_bytes = draw(st.integers(0, 2**30))
    key_streams_end = directory_position + directory_bytes + draw(st.integers(0, 2**40))
    size_bytes = key_streams_end + draw(st.integers(0, 2**40)) + FOOTER.size_bytes
    return ObjectRef(
        draw(names),
        size_bytes,
        data_position,
        directory_position,
        directory_bytes,
        key_streams_end,
        draw(u32),
    )


def _ascending(draw: st.DrawFn, values: st.SearchStrategy[int], max_size: int) -> list[int]:
    return sorted(draw(st.sets(values, max_size=max_size)))


@st.composite
def entries(draw: st.DrawFn) -> SliceEntry:
    base_offset, end_offset = sorted((draw(offsets), draw(offsets)))
    has_data = end_offset > 0 and draw(st.booleans())
    record_count = draw(st.integers(1, 2**32 - 1)) if has_data else 0
    opens: list[OpenTransaction] = []
    if has_data and draw(st.booleans()):
        first_offsets = st.integers(0, end_offset - 1)
        opens = draw(st.lists(st.builds(OpenTransaction, offsets, first_offsets), min_size=1, max_size=3))
    tombstone_count = draw(st.integers(0, record_count))
    least, most = sorted((draw(timestamps), draw(timestamps)))
    epochs = _ascending(draw, st.integers(-1, 2**31), 4)
    starts = _ascending(draw, offsets, len(epochs))
    strategy = draw(st.sampled_from(KeyStrategy))
    stream = KeyStreamRef(
        position=draw(offsets),
        size_bytes=draw(offsets),
        entry_count=draw(st.integers(0, record_count)),
        crc=draw(u32),
        strategy=strategy,
        version_header=draw(texts) if strategy is KeyStrategy.HIGHEST_VERSION else "",
        hash_key_id=draw(u64),
    )
    return SliceEntry(
        topic_id=draw(uuids),
        topic=draw(texts),
        partition=draw(st.integers(0, 2**31 - 1)),
        base_offset=base_offset,
        end_offset=end_offset,
        data_position=draw(offsets),
        data_bytes=draw(st.integers(1, 2**40)) if has_data else 0,
        data_crc=draw(u32),
        record_count=record_count,
        min_timestamp=least if has_data else -1,
        max_timestamp=most if has_data else -1,
        max_timestamp_offset=draw(offsets) if has_data else -1,
        codec_mask=draw(st.integers(0, 31)),
        stable_end_offset=min((one.first_offset for one in opens), default=end_offset),
        has_aborted=draw(st.booleans()),
        open_transactions=tuple(opens),
        tombstone_count=tombstone_count,
        marker_count=draw(st.integers(0, record_count - tombstone_count)),
        earliest_delete_horizon_ms=draw(st.none() | timestamps),
        leader_epochs=tuple(map(LeaderEpoch, epochs, starts)),
        last_batch=LastBatch(
            draw(st.integers(0, end_offset - 1)), draw(st.integers(-1, 2**31 - 1)), draw(u32)
        )
        if has_data
        else None,
        key_stream=stream if not opens and draw(st.booleans()) else None,
        index=draw(st.none() | st.builds(PartRef, offsets, offsets, u32)),
    )


directories = st.lists(entries(), max_size=4, unique_by=lambda entry: entry.topic_id_partition).map(
    lambda found: tuple(sorted(found, key=lambda entry: entry.topic_id_partition))
)


@st.composite
def indexes(draw: st.DrawFn) -> SliceIndex:
    positions = [0, *_ascending(draw, st.integers(1, 2**40), 5)]
    base_offsets = sorted(draw(st.sets(offsets, min_size=len(positions), max_size=len(positions))))
    return SliceIndex(
        positions[-1] + draw(st.integers(1, 2**30)),
        positions,
        base_offsets,
        [draw(timestamps) for _ in positions],
        tuple(draw(st.lists(st.builds(AbortedTransaction, offsets, offsets, offsets, offsets), max_size=2))),
        draw(st.binary(max_size=20)),
    )


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """One byte changed, a piece cut out or put in."""
    position = draw(st.integers(0, max(len(data) - 1, 0)))
    match draw(st.sampled_from(("flip", "cut", "insert", "end"))):
        case "flip":
            changed = bytearray(data or b"\0")
            changed[position] ^= draw(st.integers(1, 255))
            return bytes(changed)
        case "cut":
            return data[:position] + data[position + draw(st.integers(1, 16)) :]
        case "insert":
            return data[:position] + draw(st.binary(min_size=1, max_size=16)) + data[position:]
        case _:
            return data[:position]


def key_entries(hashes: list[tuple[int, int]]) -> KeyEntries:
    """An entry for each hash, in order; ordinals run backwards so that they are not the same as positions."""
    found = KeyEntries()
    found.hash_high = array("Q", [high for high, _ in hashes])
    found.hash_low = array("Q", [low for _, low in hashes])
    found.ordinal = array("I", range(len(hashes) - 1, -1, -1))
    found.tombstone = bytearray(number % 2 for number in range(len(hashes)))
    return found


def stream_ref(encoded: EncodedKeyStream, *, has_version: bool = False) -> KeyStreamRef:
    strategy = KeyStrategy.HIGHEST_VERSION if has_version else KeyStrategy.LAST_OFFSET
    header = "version" if has_version else ""
    return KeyStreamRef(0, encoded.size_bytes, encoded.entry_count, encoded.crc, strategy, header, 7)


def rows(blocks: Iterator[KeyBlock]) -> list[tuple[int, int, int, int, int | None]]:
    """All entries as tuples, read through the widths that the format promises."""
    found: list[tuple[int, int, int, int, int | None]] = []
    for block in blocks:
        versions = [None] * block.entry_count if block.version is None else block.version.cast("q").tolist()
        columns = (
            block.hash_high.cast("Q").tolist(),
            block.hash_low.cast("Q").tolist(),
            block.ordinal.cast("I").tolist(),
            block.tombstone.tolist(),
            versions,
        )
        found += zip(*columns, strict=True)
    return found


@given(headers())
def test_a_header_comes_back(header: ObjectHeader) -> None:
    data = encode_header(header)
    assert len(data) % 8 == 0
    assert decode_header(data) == header
    assert decode_header(data + b"what follows") == header


@given(st.data())
def test_a_damaged_header_is_noticed(data: st.DataObject) -> None:
    header = data.draw(headers())
    changed = data.draw(damaged(encode_header(header)))
    try:
        # Bytes put in behind the header are not the header's.
        assert decode_header(changed) == header
        assert changed.startswith(encode_header(header))
    except DAMAGE:
        pass


@given(st.binary(max_size=400))
def test_garbage_is_no_header(garbage: bytes) -> None:
    with pytest.raises(DAMAGE):
        decode_header(garbage)


@given(refs())
def test_a_footer_comes_back(ref: ObjectRef) -> None:
    data = encode_footer(ref)
    assert len(data) == FOOTER.size_bytes
    assert decode_footer(data, ref.name) == ref


@given(st.data())
def test_a_damaged_footer_is_refused(data: st.DataObject) -> None:
    ref = data.draw(refs())
    changed = data.draw(damaged(encode_footer(ref)))
    if changed != encode_footer(ref):
        with pytest.raises(DAMAGE):
            decode_footer(changed, ref.name)


@given(directories)
def test_a_directory_comes_back(directory: tuple[SliceEntry, ...]) -> None:
    data = encode_directory(directory)
    assert len(data) % 8 == 0
    assert decode_directory(data) == directory


@given(directories, st.integers(1, 5))
def test_longer_entries_of_a_later_version_are_read(directory: tuple[SliceEntry, ...], words: int) -> None:
    """A later version appends fields to each entry; what lies behind the fixed part moves, and so do
    references.
    """
    data = encode_directory(directory)
    extra = 8 * words
    moved = extra * len(directory)
    fixed_end = DIRECTORY_HEADER.size_bytes + len(directory) * ENTRY.size_bytes
    longer = bytearray(
        DIRECTORY_HEADER.pack(len(directory), ENTRY.size_bytes + extra, 0, 0, len(data) + moved)
    )
    for number in range(len(directory)):
        fields = dict(
            zip(
                ENTRY.positions,
                ENTRY.unpack(data, DIRECTORY_HEADER.size_bytes + number * ENTRY.size_bytes),
                strict=True,
            )
        )
        for name in (
            "topic_position",
            "version_header_position",
            "leader_epochs_position",
            "open_transactions_position",
        ):
            fields[name] += moved
        longer += ENTRY.pack(*fields.values()) + b"\xff" * extra
    longer += data[fixed_end:]
    assert decode_directory(bytes(longer)) == directory


@given(st.data())
def test_a_damaged_directory_ends_in_the_right_errors(data: st.DataObject) -> None:
    changed = data.draw(damaged(encode_directory(data.draw(directories))))
    try:
        for entry in decode_directory(changed):
            entry.check()
    except DAMAGE:
        pass


@given(st.binary(max_size=600))
def test_garbage_is_no_directory(garbage: bytes) -> None:
    try:
        decode_directory(garbage)
    except DAMAGE:
        pass


@given(st.integers(0, 31))
def test_an_unknown_flag_of_an_entry_is_refused(bit: int) -> None:
    entry = SliceEntry(
        topic_id=UUID(int=1),
        topic="t",
        partition=0,
        base_offset=0,
        end_offset=1,
        data_position=0,
        data_bytes=0,
        data_crc=0,
        record_count=0,
        min_timestamp=-1,
        max_timestamp=-1,
        max_timestamp_offset=-1,
        codec_mask=0,
        stable_end_offset=1,
    )
    data = bytearray(encode_directory([entry]))
    position = DIRECTORY_HEADER.size_bytes + ENTRY.positions["flags"] + bit // 8
    data[position] |= 1 << bit % 8
    with pytest.raises(DAMAGE) if bit >= 5 or bit == 1 else nullcontext():
        decode_directory(bytes(data))


@given(st.sets(st.tuples(st.integers(0, 3) | u64, st.integers(0, 3) | u64), max_size=40), st.booleans())
def test_a_key_stream_comes_back(hashes: set[tuple[int, int]], has_version: bool) -> None:
    found = key_entries(sorted(hashes))
    versions = array("q", [ordinal - 5 for ordinal in found.ordinal]) if has_version else None
    encoded = encode_key_stream(found, versions)
    data = b"".join(encoded.parts)
    expected = [
        (high, low, ordinal, tombstone, None if versions is None else versions[number])
        for number, (high, low, ordinal, tombstone) in enumerate(
            zip(found.hash_high, found.hash_low, found.ordinal, found.tombstone, strict=True)
        )
    ]
    assert len(data) == encoded.size_bytes
    assert rows(key_blocks(data, stream_ref(encoded, has_version=has_version), len(hashes))) == expected


@given(st.integers(0, 3), st.sampled_from((-1, 0, 1)), st.booleans())
def test_blocks_are_bounded_and_aligned(blocks: int, more: int, has_version: bool) -> None:
    count = max(blocks * MAX_BLOCK_ENTRY_COUNT + more, 0)
    found = key_entries([(number, 0) for number in range(count)])
    versions = array("q", range(count)) if has_version else None
    encoded = encode_key_stream(found, versions)
    assert encoded.size_bytes % 8 == 0
    stream = b"".join(encoded.parts) + b"the next stream"
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return stream[position - size : position]

    ref = stream_ref(encoded, has_version=has_version)
    sizes = [block.entry_count for block in read_key_stream(read, ref, count)]
    assert position == encoded.size_bytes, "nothing behind the stream was read"
    assert sum(sizes) == count
    assert all(size == MAX_BLOCK_ENTRY_COUNT for size in sizes[:-1])
    assert encoded.size_bytes == sum(block_size_bytes(size, has_version=has_version) for size in sizes)


def reader_of(data: bytes) -> Callable[[int], bytes]:
    """Reads forward, and short at the end."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    return read


@given(st.data())
def test_a_damaged_key_stream_is_refused(data: st.DataObject) -> None:
    hashes = data.draw(st.sets(st.tuples(u64, u64), min_size=1, max_size=20))
    encoded = encode_key_stream(key_entries(sorted(hashes)))
    whole = b"".join(encoded.parts)
    changed = data.draw(damaged(whole))
    with nullcontext() if changed == whole else pytest.raises(DAMAGE):
        list(key_blocks(changed, stream_ref(encoded), len(hashes)))
    # Forward only: what lies behind the stream is somebody else's.
    is_whole = changed.startswith(whole)
    with nullcontext() if is_whole else pytest.raises(DAMAGE):
        list(read_key_stream(reader_of(changed), stream_ref(encoded), len(hashes)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=8))
def test_a_stream_that_is_not_sorted_is_refused(hashes: list[tuple[int, int]]) -> None:
    encoded = encode_key_stream(key_entries(hashes))
    is_sorted = all(earlier < later for earlier, later in itertools.pairwise(hashes))
    with nullcontext() if is_sorted else pytest.raises(StoreCorruptError):
        list(key_blocks(b"".join(encoded.parts), stream_ref(encoded), len(hashes)))


def test_order_is_checked_from_block_to_block() -> None:
    hashes = [(number, 0) for number in range(MAX_BLOCK_ENTRY_COUNT)]
    encoded = encode_key_stream(key_entries([*hashes, (MAX_BLOCK_ENTRY_COUNT - 1, 0)]))
    with pytest.raises(StoreCorruptError, match="block to block"):
        list(key_blocks(b"".join(encoded.parts), stream_ref(encoded), len(hashes) + 1))


def test_an_ordinal_behind_the_slice_is_refused() -> None:
    encoded = encode_key_stream(key_entries([(1, 1), (2, 2)]))
    with pytest.raises(StoreCorruptError, match="behind the end"):
        list(key_blocks(b"".join(encoded.parts), stream_ref(encoded), 1))


def test_a_damaged_block_is_not_handed_out() -> None:
    """Its own checksum tells: the stream's would come too late for whoever acts on each block."""
    encoded = encode_key_stream(key_entries([(number, 0) for number in range(MAX_BLOCK_ENTRY_COUNT + 1)]))
    changed = bytearray(b"".join(encoded.parts))
    changed[-8] ^= 1  # the tombstone of the last block's only entry
    blocks = key_blocks(bytes(changed), stream_ref(encoded), MAX_BLOCK_ENTRY_COUNT + 1)
    assert next(blocks).entry_count == MAX_BLOCK_ENTRY_COUNT
    with pytest.raises(StoreCorruptError, match="block that fails its checksum"):
        next(blocks)


def test_a_tombstone_is_a_bit() -> None:
    found = key_entries([(1, 1)])
    found.tombstone[0] = 2
    encoded = encode_key_stream(found)
    with pytest.raises(StoreCorruptError, match="tombstone"):
        list(key_blocks(b"".join(encoded.parts), stream_ref(encoded), 1))


def test_a_missing_block_is_noticed_in_the_end() -> None:
    encoded = encode_key_stream(key_entries([(number, 0) for number in range(MAX_BLOCK_ENTRY_COUNT + 1)]))
    first_bytes = block_size_bytes(MAX_BLOCK_ENTRY_COUNT, has_version=False)
    ref = stream_ref(encoded)._replace(size_bytes=first_bytes)
    with pytest.raises(StoreCorruptError, match="describes"):
        list(key_blocks(b"".join(encoded.parts)[:first_bytes], ref, MAX_BLOCK_ENTRY_COUNT + 1))


@given(indexes())
def test_an_index_comes_back(index: SliceIndex) -> None:
    data = encode_slice_index(index)
    found = decode_slice_index(data, index.data_bytes)
    assert len(data) % 8 == 0
    assert list(found.positions) == list(index.positions)
    assert list(found.base_offsets) == list(index.base_offsets)
    assert list(found.max_timestamps) == list(index.max_timestamps)
    assert (found.aborted, found.producer_snapshot) == (index.aborted, index.producer_snapshot)


@given(indexes(), offsets)
def test_an_offset_is_in_the_last_interval_that_begins_at_or_before_it(
    index: SliceIndex, offset: int
) -> None:
    number = index.index_for_offset(offset)
    expected = sum(base <= offset for base in index.base_offsets) - 1
    assert number == max(expected, 0)
    interval = index.interval(number)
    assert interval.position == index.positions[number]
    assert interval.end_position == [*index.positions[1:], index.data_bytes][number]


@given(st.data())
def test_a_damaged_index_ends_in_the_right_errors(data: st.DataObject) -> None:
    index = data.draw(indexes())
    changed = data.draw(damaged(encode_slice_index(index)))
    try:
        decode_slice_index(changed, index.data_bytes).check()
    except DAMAGE:
        pass


@given(st.binary(max_size=200))
def test_garbage_is_no_index(garbage: bytes) -> None:
    try:
        decode_slice_index(garbage, 100).check()
    except DAMAGE:
        pass
