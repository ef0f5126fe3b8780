"""Hash, sort and merge of keys: the compiled kernels and their twins, both against plain dictionaries."""

from __future__ import annotations

import random
from array import array
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.native import pure_kernels, pure_key_kernels
from stratalog.record.native.key_entries import (
    KEYS_NOT_SORTED,
    ORDINAL_TOO_HIGH,
    TOMBSTONE_NOT_A_BIT,
    HashPair,
    KeyEntries,
    KeyWindow,
    RankedSurvivors,
)
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import encode_key_stream
from tests.support.kernels import each_kind

UINT64 = st.integers(0, 2**64 - 1)
# Few different numbers, so that the halves of hashes meet in all combinations.
HALVES = st.one_of(st.integers(0, 3), st.sampled_from([2**32, 2**63, 2**64 - 2, 2**64 - 1]), UINT64)
HASHES: st.SearchStrategy[HashPair] = st.tuples(HALVES, HALVES)

each_kernel = each_kind(pure_key_kernels)


def entries_of(rows: list[tuple[HashPair, int, bool]]) -> KeyEntries:
    entries = KeyEntries()
    for (high, low), ordinal, tombstone in rows:
        entries.hash_high.append(high)
        entries.hash_low.append(low)
        entries.ordinal.append(ordinal)
        entries.tombstone.append(tombstone)
    entries.check()
    return entries


def rows_of(entries: KeyEntries) -> list[tuple[HashPair, int, bool]]:
    entries.check()
    columns = (entries.hash_high, entries.hash_low, entries.ordinal, entries.tombstone)
    return [
        ((high, low), ordinal, tombstone != 0) for high, low, ordinal, tombstone in zip(*columns, strict=True)
    ]


# Keys of all sizes, and keys of about one size, which may be hashed side by side.
KEYS = st.one_of(
    st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=10),
    st.lists(st.binary(max_size=3), max_size=10),
    st.lists(st.binary(min_size=15, max_size=17) | st.none(), max_size=20),
    st.lists(st.binary(min_size=32, max_size=39), min_size=4, max_size=20),
)


@each_kernel
@given(st.binary(min_size=16, max_size=16), KEYS)
def test_each_key_gets_its_hash(kernels: Any, key16: bytes, keys: list[bytes | None]) -> None:
    records = [Record(0, 0, key, None if index % 3 == 0 else b"v") for index, key in enumerate(keys)]
    payload = pure_kernels.encode_records(records, 0)
    entries = entries_of([((1, 2), 3, True)])
    kernels.hash_keys(payload, len(records), key16, 100, entries)
    hashed = [
        (index, key, kernels.siphash128(key16, key)) for index, key in enumerate(keys) if key is not None
    ]
    assert all(pair == pure_key_kernels.siphash128(key16, key) for _, key, pair in hashed)
    expected = [(pair, 100 + index, index % 3 == 0) for index, _, pair in hashed]
    assert rows_of(entries) == [((1, 2), 3, True), *expected]


@each_kernel
@given(st.binary(max_size=60), st.integers(-1, 10))
def test_garbage_leaves_the_entries_alone(kernels: Any, payload: bytes, count: int) -> None:
    entries = entries_of([((1, 2), 3, True)])
    expected = entries_of([((1, 2), 3, True)])
    refused = [False, False]
    for index, (module, target) in enumerate(((kernels, entries), (pure_key_kernels, expected))):
        try:
            module.hash_keys(payload, count, bytes(16), 0, target)
        except CorruptRecordError:
            refused[index] = True
            assert rows_of(target) == [((1, 2), 3, True)]
    assert refused[0] == refused[1]
    assert rows_of(entries) == rows_of(expected)


@each_kernel
def test_ordinals_end_where_32_bits_end(kernels: Any) -> None:
    payload = pure_kernels.encode_records([Record(0, 0, b"a", b""), Record(0, 0, b"b", b"")], 0)
    entries = KeyEntries()
    kernels.hash_keys(payload, 2, bytes(16), 2**32 - 2, entries)
    assert list(entries.ordinal) == [2**32 - 2, 2**32 - 1]
    for first_ordinal in (2**32 - 1, 2**40, -1):
        with pytest.raises(CorruptRecordError):
            kernels.hash_keys(payload, 2, bytes(16), first_ordinal, entries)
    with pytest.raises(AssertionError):
        kernels.hash_keys(payload, 2, bytes(15), 0, entries)


@each_kernel
@given(st.lists(st.tuples(HASHES, st.integers(0, 2**32 - 1), st.booleans()), max_size=60))
def test_sorting_keeps_the_last_of_each_hash(kernels: Any, rows: list[tuple[HashPair, int, bool]]) -> None:
    newest: dict[HashPair, tuple[int, bool]] = {}
    for pair, ordinal, tombstone in sorted(rows):
        newest[pair] = (ordinal, tombstone)
    expected = [(pair, *newest[pair]) for pair in sorted(newest)]
    assert rows_of(kernels.sort_key_entries(entries_of(rows))) == expected


@each_kernel
@pytest.mark.parametrize(
    ("count", "key_count", "shared_bits"),
    [
        (20_000, 20_000, 0),
        (20_000, 3_000, 0),
        (20_000, 1, 0),
        (20_000, 5, 0),
        (9_000, 9_000, 20),
        (9_000, 9_000, 64),
    ],
)
def test_sorting_many(kernels: Any, count: int, key_count: int, shared_bits: int) -> None:
    """Large enough for every path of the bucket sort, with hashes that no hash function would give, too."""
    chance = random.Random(count + key_count + shared_bits)
    hashes = [(chance.getrandbits(64) >> shared_bits, chance.getrandbits(64)) for _ in range(key_count)]
    rows = [(chance.choice(hashes), ordinal, chance.random() < 0.1) for ordinal in range(count)]
    newest = {pair: (pair, ordinal, tombstone) for pair, ordinal, tombstone in rows}
    chance.shuffle(rows)
    assert rows_of(kernels.sort_key_entries(entries_of(rows))) == [newest[pair] for pair in sorted(newest)]


@each_kernel
def test_columns_of_different_lengths_are_refused(kernels: Any) -> None:
    entries = entries_of([((1, 2), 3, True)])
    entries.tombstone.append(0)
    with pytest.raises(AssertionError):
        kernels.sort_key_entries(entries)


class Stream(NamedTuple):
    """A slice's sorted key stream, and how many records the slice has."""

    hashes: list[HashPair]
    ordinals: list[int]
    records_count: int


def window_of(stream: Stream, start: int, end: int, lead: int = 0) -> KeyWindow:
    """Entries [start, end) as columns that hold `lead` others before them."""
    columns = entries_of(
        [((7, 7), 7, False)] * lead
        + [(stream.hashes[index], stream.ordinals[index], False) for index in range(start, end)]
    )
    return KeyWindow(
        hash_high=columns.hash_high.tobytes(),
        hash_low=memoryview(columns.hash_low),
        ordinal=columns.ordinal,
        tombstone=columns.tombstone,
        start=lead,
        count=end - start,
    )


def expected_survivors(streams: list[Stream]) -> list[bytearray]:
    """One dictionary over everything, newest last."""
    newest: dict[HashPair, tuple[int, int]] = {}
    for index, stream in enumerate(streams):
        for pair, ordinal in zip(stream.hashes, stream.ordinals, strict=True):
            newest[pair] = (index, ordinal)
    bitmaps = [bytearray((stream.records_count + 7) // 8) for stream in streams]
    for index, ordinal in newest.values():
        bitmaps[index][ordinal >> 3] |= 1 << (ordinal & 7)
    return bitmaps


def merge_in_steps(kernels: Any, streams: list[Stream], window_entries: int, lead: int) -> list[bytearray]:
    """Merge as a compactor does: a window of each stream at a time, up to what all windows have reached."""
    bitmaps = [bytearray((stream.records_count + 7) // 8) for stream in streams]
    positions = [0] * len(streams)
    while any(position < len(stream.hashes) for position, stream in zip(positions, streams, strict=True)):
        ends = [
            min(position + window_entries, len(stream.hashes))
            for position, stream in zip(positions, streams, strict=True)
        ]
        unfinished = [
            stream.hashes[end - 1]
            for end, stream in zip(ends, streams, strict=True)
            if end < len(stream.hashes)
        ]
        limit = min(unfinished) if unfinished else None
        windows = [
            window_of(stream, position, end, lead)
            for stream, position, end in zip(streams, positions, ends, strict=True)
        ]
        taken = kernels.merge_windows(windows, limit, bitmaps)
        assert sum(taken) > 0
        for index, stream in enumerate(streams):
            window = stream.hashes[positions[index] : ends[index]]
            assert taken[index] == sum(1 for pair in window if limit is None or pair <= limit)
        positions = [position + count for position, count in zip(positions, taken, strict=True)]
    return bitmaps


@st.composite
def stream_lists(draw: st.DrawFn) -> list[Stream]:
    universe = draw(st.lists(HASHES, unique=True, max_size=40))
    streams: list[Stream] = []
    for _ in range(draw(st.integers(0, 5))):
        hashes = sorted(draw(st.sets(st.sampled_from(universe), max_size=30))) if universe else []
        records_count = len(hashes) + draw(st.integers(0, 9))
        ordinals = draw(st.permutations(range(records_count)))[: len(hashes)]
        streams.append(Stream(hashes, ordinals, records_count))
    return streams


@each_kernel
@given(stream_lists(), st.integers(1, 12), st.integers(0, 2))
def test_the_last_record_of_each_key_survives(
    kernels: Any, streams: list[Stream], window_entries: int, lead: int
) -> None:
    assert merge_in_steps(kernels, streams, window_entries, lead) == expected_survivors(streams)


@each_kernel
@pytest.mark.parametrize("window_entries", [700, 100_000])
@pytest.mark.parametrize("layout", ["even", "clustered", "one high half", "dense", "disjoint"])
def test_merging_many(kernels: Any, layout: str, window_entries: int) -> None:
    """Large enough for many ranges, and for ranges that overflow and are begun again."""
    chance = random.Random(layout)
    match layout:
        case "even" | "disjoint":
            universe = [(chance.getrandbits(64), chance.getrandbits(64)) for _ in range(6_000)]
        case "clustered":
            universe = [
                (5 * 2**60 + (index % 3 << 40), chance.getrandbits(20) << 44) for index in range(6_000)
            ]
        case "one high half":
            universe = [(2**64 - 1, chance.getrandbits(64)) for _ in range(6_000)] + [
                (2**64 - 1, 2**64 - 1),
                (0, 0),
            ]
        case _:
            universe = [(0, low) for low in range(3_000)] + [(1, low) for low in range(3_000)]
    universe = list(dict.fromkeys(universe))
    streams: list[Stream] = []
    for index in range(7):
        part = universe[index::7] if layout == "disjoint" else universe
        hashes = sorted(chance.sample(part, len(part) * chance.choice([1, 2, 4]) // 4))
        records_count = len(hashes) * 2
        streams.append(Stream(hashes, chance.sample(range(records_count), len(hashes)), records_count))
    assert merge_in_steps(kernels, streams, window_entries, 0) == expected_survivors(streams)


@each_kernel
@given(
    st.lists(st.lists(st.tuples(HASHES, st.integers(0, 20)), max_size=8), max_size=4),
    st.one_of(st.none(), HASHES),
)
def test_unsorted_streams_are_refused_alike(
    kernels: Any, streams: list[list[tuple[HashPair, int]]], limit: HashPair | None
) -> None:
    """The kernel accepts the streams that the twin accepts, with the same result, and no others."""
    windows = [
        window_of(Stream([pair for pair, _ in rows], [ordinal for _, ordinal in rows], 16), 0, len(rows))
        for rows in streams
    ]
    results: list[object] = []
    for module in (kernels, pure_key_kernels):
        bitmaps = [bytearray(2) for _ in windows]
        try:
            results.append((module.merge_windows(windows, limit, bitmaps), bitmaps))
        except CorruptRecordError:
            results.append("refused")
    assert results[0] == results[1]


@each_kernel
def test_windows_that_end_early_are_refused(kernels: Any) -> None:
    sound = window_of(Stream([(1, 1), (2, 2)], [0, 1], 2), 0, 2)
    columns = (sound.hash_high, sound.hash_low, sound.ordinal, sound.tombstone)
    short = array("Q", [1])
    for window in (
        KeyWindow(*columns, 1, 2),
        KeyWindow(*columns, 0, 3),
        KeyWindow(*columns, 2**62, 2),
        KeyWindow(*columns, 0, 2**61),
        KeyWindow(*columns, -1, 1),
        KeyWindow(*columns, 0, -1),
        KeyWindow(
            hash_high=short,
            hash_low=sound.hash_low,
            ordinal=sound.ordinal,
            tombstone=sound.tombstone,
            start=0,
            count=2,
        ),
        KeyWindow(
            hash_high=sound.hash_high,
            hash_low=short,
            ordinal=sound.ordinal,
            tombstone=sound.tombstone,
            start=0,
            count=2,
        ),
        KeyWindow(
            hash_high=sound.hash_high,
            hash_low=sound.hash_low,
            ordinal=b"1234567",
            tombstone=sound.tombstone,
            start=0,
            count=2,
        ),
    ):
        with pytest.raises(CorruptRecordError):
            kernels.merge_windows([window], None, [bytearray(1)])
    with pytest.raises(AssertionError):
        kernels.merge_windows([sound], None, [])
    with pytest.raises(CorruptRecordError):
        kernels.merge_windows([sound], None, [bytearray()])


@each_kernel
@given(
    st.lists(st.tuples(HASHES, st.integers(0, 12), st.sampled_from([0, 1, 1, 0, 2])), max_size=9),
    st.booleans(),
    st.integers(0, 12),
)
def test_what_is_wrong_with_a_block(
    kernels: Any, rows: list[tuple[HashPair, int, int]], is_sorted: bool, record_count: int
) -> None:
    if is_sorted:
        rows = sorted({row[0]: row for row in rows}.values())
    entries = entries_of([(pair, ordinal, False) for pair, ordinal, _ in rows])
    entries.tombstone[:] = bytes(tombstone for _, _, tombstone in rows)
    columns = (entries.hash_high, entries.hash_low, entries.ordinal, entries.tombstone)
    # At odd places, as in a block that begins anywhere.
    shifted = [memoryview(b"x" + bytes(memoryview(column).cast("B")))[1:] for column in columns]
    expected: str | None = None
    if [row[0] for row in rows] != sorted({row[0] for row in rows}):
        expected = KEYS_NOT_SORTED
    elif any(ordinal >= record_count for _, ordinal, _ in rows):
        expected = ORDINAL_TOO_HIGH
    elif any(tombstone > 1 for _, _, tombstone in rows):
        expected = TOMBSTONE_NOT_A_BIT
    assert kernels.key_columns_fault(*columns, record_count) == expected
    assert kernels.key_columns_fault(*shifted, record_count) == expected
    with pytest.raises(AssertionError):
        kernels.key_columns_fault(columns[0], b"1234567", columns[2], columns[3], record_count)


@st.composite
def ranked_streams(draw: st.DrawFn) -> tuple[list[tuple[HashPair, int, bool]], RankedSurvivors]:
    """Sorted entries of a slice, and the records of it that stay."""
    hashes = sorted(draw(st.sets(HASHES, max_size=40)))
    records_count = len(hashes) + draw(st.integers(0, 1200))
    ordinals = draw(st.permutations(range(records_count)))[: len(hashes)]
    tombstones = draw(st.lists(st.booleans(), min_size=len(hashes), max_size=len(hashes)))
    first_rank = draw(st.sampled_from([0, 1, 2**31]))
    rows = list(zip(hashes, ordinals, tombstones, strict=True))
    if draw(st.booleans()):
        return rows, RankedSurvivors.of_all(records_count, first_rank)[0]
    bits = random.Random(draw(st.integers(0, 99))).randbytes((records_count + 7) // 8)
    return rows, RankedSurvivors.of(bits, first_rank)[0]


def expected_translation(
    rows: list[tuple[HashPair, int, bool]], kept: RankedSurvivors, limit: HashPair | None
) -> list[tuple[HashPair, int, bool]]:
    """One bit after another."""
    found: list[tuple[HashPair, int, bool]] = []
    for pair, ordinal, tombstone in rows:
        if limit is not None and pair > limit:
            continue
        if kept.survivors is None:
            found.append((pair, kept.first_rank + ordinal, tombstone))
            continue
        bits = [kept.survivors[index >> 3] >> (index & 7) & 1 for index in range(ordinal + 1)]
        if bits[-1]:
            found.append((pair, kept.first_rank + sum(bits[:-1]), tombstone))
    return found


@each_kernel
@given(ranked_streams(), st.one_of(st.none(), HASHES), st.integers(0, 3))
def test_entries_are_translated_to_the_records_that_stay(
    kernels: Any,
    case: tuple[list[tuple[HashPair, int, bool]], RankedSurvivors],
    limit: HashPair | None,
    lead: int,
) -> None:
    rows, kept = case
    columns = entries_of([((7, 7), 7, False)] * lead + rows)
    window = KeyWindow(
        hash_high=columns.hash_high,
        hash_low=columns.hash_low.tobytes(),
        ordinal=columns.ordinal,
        tombstone=columns.tombstone,
        start=lead,
        count=len(rows),
    )
    entries = entries_of([((1, 1), 1, True)])
    taken = kernels.translate_keys(window, limit, kept, entries)
    assert taken == sum(1 for pair, _, _ in rows if limit is None or pair <= limit)
    expected = expected_translation(rows, kept, limit)
    assert rows_of(entries) == [((1, 1), 1, True), *expected]

    whole = KeyEntries()
    encoded = b"".join(encode_key_stream(entries_of(rows)).parts)
    kernels.translate_key_stream(encoded, kept, whole)
    assert rows_of(whole) == expected_translation(rows, kept, None)
    if encoded:
        with pytest.raises(CorruptRecordError):
            kernels.translate_key_stream(encoded[:-1], kept, whole)
    assert rows_of(whole) == expected_translation(rows, kept, None), "an error leaves the entries alone"


@each_kernel
def test_entries_behind_their_slice_are_refused(kernels: Any) -> None:
    window = window_of(Stream([(1, 1)], [8], 9), 0, 1)
    for kept in (
        RankedSurvivors.of(bytearray(1), 0)[0],
        RankedSurvivors(bytearray(2), array("I"), 0),
        RankedSurvivors(None, array("I"), 2**32 - 8),
    ):
        entries = KeyEntries()
        with pytest.raises(CorruptRecordError):
            kernels.translate_keys(window, None, kept, entries)
        assert len(entries) == 0


@each_kind(pure_kernels)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20), st.data())
def test_bits_of_dropped_records_are_cleared(
    kernels: Any, fates: list[tuple[bool, bool]], data: st.DataObject
) -> None:
    """Exactly those that a copy by the same rule has left out."""
    records = [Record(0, 0, b"k%d" % index, None if gone else b"v") for index, (gone, _) in enumerate(fates)]
    payload = kernels.encode_records(records, 0)
    lead = data.draw(st.integers(0, 9))
    bits = bytearray((lead + len(fates) + 7) // 8)
    for index, (_, survives) in enumerate(fates):
        bits[lead + index >> 3] |= survives << (lead + index & 7)
    first = data.draw(st.integers(0, len(fates)))
    drops = data.draw(st.booleans())
    kernels.clear_dropped(
        payload,
        len(fates),
        bits,
        lead,
        first_offset_delta=first,
        end_offset_delta=len(fates),
        drop_tombstones=drops,
    )
    left = [bits[lead + index >> 3] >> (lead + index & 7) & 1 == 1 for index in range(len(fates))]
    assert left == [
        survives and index >= first and not (gone and drops) for index, (gone, survives) in enumerate(fates)
    ]
    with pytest.raises(CorruptRecordError):
        kernels.clear_dropped(
            payload,
            len(fates),
            bits,
            lead + 8 * len(bits),
            first_offset_delta=0,
            end_offset_delta=1,
            drop_tombstones=False,
        )
