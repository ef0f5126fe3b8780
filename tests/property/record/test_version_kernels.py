"""Versions of records in the kernels: the compiled ones and their twins, both against plain Python."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.builder import encode_batch
from stratalog.record.header import parse_header
from stratalog.record.keep_rules import NO_VERSION, BatchVersions, VersionRule
from stratalog.record.native import kernels as used_kernels
from stratalog.record.native import pure_kernels, pure_key_kernels
from stratalog.record.native.batch_kernels import hash_batches
from stratalog.record.native.key_entries import KeyEntries, KeyWindow, RankedSurvivors
from stratalog.record.record import Record
from tests.support.compaction.versions import HEADER, place_of, random_versions
from tests.support.kernels import each_kind

each_kernel = each_kind(pure_key_kernels)
SEEDS = st.integers(0, 2**32)
RULES = {"timestamp": VersionRule(None), "header": VersionRule(HEADER.encode())}
VERSIONS = (-(2**63), -1, 0, 1, 2**63 - 1)


def random_records(random: Random) -> list[Record]:
    """Some with keys."""
    return [
        Record(
            0,
            random.randrange(-5, 10**6),
            random.choice((None, b"a", b"b", b"c" * 40)),
            random.choice((None, b"v")),
            random_versions(random),
        )
        for _ in range(random.randrange(20))
    ]


def expected_version(record: Record, strategy: str) -> int:
    has_version, version, _ = place_of(record, strategy)
    return version if has_version else NO_VERSION


@each_kernel
@given(SEEDS, st.sampled_from(sorted(RULES)), st.sampled_from([None, 77]))
def test_each_entry_has_the_version_of_its_record(
    kernels: Any, seed: int, strategy: str, append_time_ms: int | None
) -> None:
    records = random_records(Random(seed))
    payload = pure_kernels.encode_records(records, 1_000)
    entries = KeyEntries(has_versions=True)
    versions = BatchVersions(RULES[strategy].header, 1_000, append_time_ms)
    kernels.hash_keys(payload, len(records), bytes(16), 0, entries, versions)
    stamped = [
        record if append_time_ms is None else record._replace(timestamp_ms=append_time_ms)
        for record in records
    ]
    expected = [expected_version(record, strategy) for record in stamped if record.key is not None]
    assert entries.version == array("q", expected)
    entries.check()


@given(SEEDS, st.sampled_from(sorted(RULES)))
def test_rows_of_batches_have_the_versions_of_each(seed: int, strategy: str) -> None:
    if not used_kernels.NATIVE:
        pytest.skip("without compiled kernels no row is hashed")
    random, rule = Random(seed), RULES[strategy]
    rows, expected = b"", KeyEntries(has_versions=True)
    count = 0
    for _ in range(random.randrange(1, 4)):
        records = random_records(random) or [Record(0, 5, b"k", b"v")]
        batch = encode_batch(records)
        versions = rule.of_batch(parse_header(batch))
        pure_key_kernels.hash_keys(batch[61:], len(records), bytes(16), count, expected, versions)
        rows += batch
        count += len(records)
    found = KeyEntries(has_versions=True)
    hash_batches(rows, bytes(16), 0, found, rule)
    assert (found.hash_low, found.ordinal, found.version) == (
        expected.hash_low,
        expected.ordinal,
        expected.version,
    )


@each_kernel
@given(st.binary(max_size=40), st.integers(0, 4), st.sampled_from(sorted(RULES)))
def test_garbage_leaves_the_entries_alone(kernels: Any, garbage: bytes, cut: int, strategy: str) -> None:
    """Headers with a bad frame are refused where they have the versions."""
    record = pure_kernels.encode_records([Record(0, 0, b"k", b"v", ((HEADER, bytes(8)),))], 0)
    damaged = record[: len(record) - cut] + garbage
    versions = BatchVersions(RULES[strategy].header, 2**63 - 3, None)
    results: list[object] = []
    for module in (kernels, pure_key_kernels):
        entries = KeyEntries(has_versions=True)
        try:
            module.hash_keys(damaged, 1, bytes(16), 0, entries, versions)
            results.append(entries.version)
        except CorruptRecordError:
            assert len(entries) == 0
            results.append(None)
    assert results[0] == results[1]


def test_a_timestamp_out_of_range_is_refused() -> None:
    payload = pure_kernels.encode_records([Record(0, 5, b"k", b"v")], 0)
    for module in (used_kernels, pure_key_kernels):
        with pytest.raises(CorruptRecordError):
            module.hash_keys(
                payload, 1, bytes(16), 0, KeyEntries(has_versions=True), BatchVersions(None, 2**63 - 1, None)
            )


Row = tuple[tuple[int, int], int, int, int]
"""Hash, version, ordinal, tombstone."""


def entries_of(rows: list[Row]) -> KeyEntries:
    entries = KeyEntries(has_versions=True)
    assert entries.version is not None
    for (high, low), version, ordinal, tombstone in rows:
        entries.hash_high.append(high)
        entries.hash_low.append(low)
        entries.version.append(version)
        entries.ordinal.append(ordinal)
        entries.tombstone.append(tombstone)
    return entries


def rows_of(entries: KeyEntries) -> list[Row]:
    assert entries.version is not None
    pairs = zip(entries.hash_high, entries.hash_low, strict=True)
    return list(zip(pairs, entries.version, entries.ordinal, entries.tombstone, strict=True))


def random_rows(random: Random, hash_count: int) -> list[Row]:
    hashes = [(random.getrandbits(64), random.getrandbits(64)) for _ in range(hash_count)]
    hashes += [(0, 0), (2**64 - 1, 2**64 - 1)]
    count = random.randrange(4 * hash_count)
    return [
        (random.choice(hashes), random.choice(VERSIONS), ordinal, random.randrange(2))
        for ordinal in random.sample(range(1000), min(count, 1000))
    ]


@each_kernel
@given(SEEDS, st.sampled_from([1, 5, 60]))
def test_sorting_keeps_the_highest_version_of_each_hash(kernels: Any, seed: int, hash_count: int) -> None:
    rows = random_rows(Random(seed), hash_count)
    best: dict[tuple[int, int], Row] = {}
    for row in rows:
        best[row[0]] = max(best.get(row[0], row), row)
    assert rows_of(kernels.sort_key_entries(entries_of(rows))) == [best[pair] for pair in sorted(best)]


def window_of(entries: KeyEntries, *, has_versions: bool = True) -> KeyWindow:
    return KeyWindow(
        hash_high=entries.hash_high,
        hash_low=entries.hash_low,
        ordinal=entries.ordinal,
        tombstone=entries.tombstone,
        start=0,
        count=len(entries),
        version=entries.version if has_versions else None,
    )


@each_kernel
@given(SEEDS, st.integers(1, 5), st.booleans())
def test_merging_lets_the_highest_version_survive(
    kernels: Any, seed: int, window_count: int, has_limit: bool
) -> None:
    random = Random(seed)
    hashes = random_rows(random, 30) or [((1, 1), 0, 0, 0)]
    windows: list[KeyEntries] = []
    for _ in range(window_count):
        rows = {row[0]: (row[0], random.choice(VERSIONS), index, 0) for index, row in enumerate(hashes)}
        chosen = random.sample(sorted(rows), random.randrange(len(rows) + 1))
        windows.append(entries_of([rows[pair] for pair in sorted(chosen)]))
    limit = random.choice(hashes)[0] if has_limit else None
    bitmaps = [bytearray(len(hashes) // 8 + 1) for _ in windows]
    taken = kernels.merge_windows([window_of(one) for one in windows], limit, bitmaps)
    best: dict[tuple[int, int], tuple[int, int, int]] = {}
    for number, entries in enumerate(windows):
        below = [row for row in rows_of(entries) if limit is None or row[0] <= limit]
        assert taken[number] == len(below)
        for pair, version, ordinal, _ in below:
            rival = version, number, ordinal
            best[pair] = max(best.get(pair, rival), rival)
    expected = {(number, ordinal) for _, number, ordinal in best.values()}
    found = {
        (number, ordinal)
        for number, bits in enumerate(bitmaps)
        for ordinal in range(8 * len(bits))
        if bits[ordinal >> 3] >> (ordinal & 7) & 1
    }
    assert found == expected


@each_kernel
def test_a_merge_refuses_what_is_not_sorted_or_not_alike(kernels: Any) -> None:
    sound = entries_of([((1, 1), 0, 0, 0), ((2, 2), 0, 1, 0)])
    unsorted = entries_of([((2, 2), 0, 0, 0), ((2, 2), 0, 1, 0)])
    beyond = entries_of([((1, 1), 0, 8, 0)])
    for windows in (
        [window_of(unsorted)],
        [window_of(beyond)],
        [window_of(sound), window_of(sound, has_versions=False)],
    ):
        with pytest.raises(CorruptRecordError):
            kernels.merge_windows(windows, None, [bytearray(1) for _ in windows])
    kept, _ = RankedSurvivors.of_all(2, 0)
    with pytest.raises(CorruptRecordError):
        kernels.translate_keys(
            window_of(sound, has_versions=False), None, kept, KeyEntries(has_versions=True)
        )
    assert kernels.merge_windows([], None, []) == []


@each_kernel
@given(SEEDS)
def test_translated_entries_keep_their_versions(kernels: Any, seed: int) -> None:
    random = Random(seed)
    rows = rows_of(pure_key_kernels.sort_key_entries(entries_of(random_rows(random, 20))))
    bits = bytearray(random.randbytes(125))
    kept, _ = RankedSurvivors.of(bits, 3)
    found = KeyEntries(has_versions=True)
    assert kernels.translate_keys(window_of(entries_of(rows)), None, kept, found) == len(rows)
    ranks: dict[int, int] = {}
    for ordinal in range(8 * len(bits)):
        if bits[ordinal >> 3] >> (ordinal & 7) & 1:
            ranks[ordinal] = 3 + len(ranks)
    assert rows_of(found) == [
        (pair, version, ranks[ordinal], tombstone)
        for pair, version, ordinal, tombstone in rows
        if ordinal in ranks
    ]
