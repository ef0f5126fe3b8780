"""The kernel that compacts small runs: the same as its steps one by one, and safe on any bytes."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from random import Random
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError
from stratalog.compaction.kept_records import KeptRecords, KeptTally
from stratalog.compaction.keys.merged_keys import KeySource, merged_keys
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.native import _kernels as native
from stratalog.record.native import pure_batch_kernels
from stratalog.record.native.batch_filter import BatchFilter, CompactedSlices, RunColumns, RunRule
from stratalog.record.native.batch_kernels import (
    compact_runs,
    decide_runs,
    filter_batches,
    merge_key_streams,
    prove_slices,
    scan_batches,
)
from stratalog.record.native.kernels import KeyEntries, hash_keys, sort_key_entries
from stratalog.record.native.scanned_batches import PROVED_COLUMNS, ScannedBatches
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing, encode_key_stream
from stratalog.remote.objects.slice_builder import (
    BuiltSlice,
    MergedKeyStream,
    SliceBuilder,
    SliceEnd,
    SliceStart,
    compacted_slices,
)
from tests.support.kernels import needs_native
from tests.support.logs.damaged_batches import damaged, sum_again

SEEDS = st.integers(0, 2**32)
HASHING = KeyHashing(b"0123456789abcdef")
MAX_STREAM_BYTES = 10_000
KEYS = [b"key-%d" % number for number in range(9)]


class SliceInput(NamedTuple):
    """A slice of which records may stay."""

    data: bytes
    crc: int
    record_count: int
    keys: bytes
    survivors: bytes
    rule: BatchFilter
    base_offset: int = 0


class Run(NamedTuple):
    """Slices, and what becomes of them."""

    slices: list[SliceInput]
    interval_bytes: int
    log_start_offset: int = 0


def some_records(random: Random, base_offset: int) -> list[Record]:
    return [
        Record(
            base_offset + index,
            random.choice((-1, 5, 1000, 10**12)) + random.randrange(3),
            random.choice(KEYS),
            random.choice((None, b"", b"v" * random.randrange(90))),
            random.choice(((), (("name", b"value"),))),
        )
        for index in range(random.randrange(1, 7))
    ]


def some_run(random: Random) -> Run:
    """Slices of plain batches with sound key streams, and any bits."""
    slices: list[SliceInput] = []
    offset = random.choice((0, 2**40))
    epoch = 1
    log_start_offset = random.choice((0, 0, 0, offset + random.randrange(30)))
    settled_end_offset = offset + random.choice((0, 20, 1000))
    drop_until_ms = random.choice((None, 2000))
    stamp_ms = random.choice((None, 0, 5000, 2**62))
    for _ in range(random.randrange(1, 4)):
        parts: list[bytes] = []
        slice_base = offset
        entries, count = KeyEntries(), 0
        for _ in range(random.randrange(1, 4)):
            records = some_records(random, offset)
            epoch += random.random() < 0.1
            parts.append(encode_batch(records, base_offset=offset, leader_epoch=epoch))
            hash_keys(parts[-1][61:], len(records), HASHING.hash_key, count, entries)
            count += len(records)
            offset += len(records)
        keys = b"".join(encode_key_stream(sort_key_entries(entries)).parts)
        rule = BatchFilter(
            first_offset=max(slice_base, log_start_offset),
            end_offset=offset,
            has_tombstones=True,
            drop_until_ms=drop_until_ms,
            stamp_ms=stamp_ms,
            settled_end_offset=settled_end_offset,
        )
        bits = bytearray(random.randbytes((count + 7) // 8))
        if count % 8:
            bits[-1] &= (1 << count % 8) - 1
        data = b"".join(parts)
        slices.append(
            SliceInput(
                data=data,
                crc=crc32c(data),
                record_count=count,
                keys=keys,
                survivors=bytes(bits),
                rule=rule,
                base_offset=slice_base,
            )
        )
    return Run(slices, random.choice((1, 100, 300, 4096)), log_start_offset)


def step_by_step(run: Run) -> tuple[BuiltSlice, bytes]:
    """The slice that a builder makes of the filtered batches, with the merged keys; and its data."""
    builder = SliceBuilder(
        SliceStart(UUID(int=1), "topic", 0, 0, None),
        data_position=0,
        index_interval_bytes=run.interval_bytes,
        max_record_count=2**32 - 1,
    )
    output, sources = b"", list[KeySource]()
    for one in run.slices:
        data, count, keys = one.data, one.record_count, one.keys
        survivors = bytearray(one.survivors)
        filtered = filter_batches(data, 0, survivors, 0, one.rule, 0)
        assert filtered.end_position == len(data)
        output += filtered.data
        sources.append(KeySource(survivors, count, keys, ()))
    position = 0
    while position < len(output):
        position = builder.add(output, position)
    builder.sum_up(output)
    (entries,) = merged_keys(HASHING, sources, builder.record_count)
    stream = encode_key_stream(entries)
    return builder.build(SliceEnd(2**62), MergedKeyStream(stream, HASHING)), output


def columns_of(
    names: Sequence[str], rows: Sequence[tuple[int, ...]], base_offsets: Sequence[int] | None = None
) -> RunColumns:
    """The columns of a run, in a table with a row before it and one behind it; three columns without rows."""
    bases = array("q", [-7, *(base_offsets or [0] * len(rows)), -7])
    columns: list[tuple[int, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 3
    numbers = [number for column in columns for number in (-7, *column, -7)]
    return ("", *names, ""), bases, array("q", numbers), 1, len(rows) + 1


PLACES = tuple(range(1, 11))
"""The columns of a run here; the first one is not looked at."""


def placed(runs: list[Run]) -> tuple[list[RunColumns], dict[str, bytes], dict[str, bytes], list[RunRule]]:
    """The runs as a job has them: each slice in the object of its number, behind those of the runs before."""
    data: dict[str, bytes] = {}
    keys: dict[str, bytes] = {}
    columns: list[RunColumns] = []
    rules: list[RunRule] = []
    for run in runs:
        rows: list[tuple[int, ...]] = []
        names = tuple(f"object-{number}" for number in range(len(run.slices)))
        for name, one in zip(names, run.slices, strict=True):
            data[name] = data.get(name, b"head") + b"x"
            keys[name] = keys.get(name, b"") + b"y"
            places = len(data[name]), len(keys[name])
            data[name] += one.data
            keys[name] += one.keys
            row = (-1, places[0], len(one.data), one.crc, one.record_count, one.rule.end_offset)
            rows.append((*row, 1, 1, places[1], len(one.keys), crc32c(one.keys)))
        columns.append(columns_of(names, rows, [one.base_offset for one in run.slices]))
        rule = run.slices[0].rule
        rules.append((run.log_start_offset, rule.drop_until_ms, rule.stamp_ms, rule.settled_end_offset))
    return columns, data, keys, rules


def all_at_once(runs: list[Run]) -> list[CompactedSlices | None]:
    """The results of one call; runs without slices are left out, and all have the first one's intervals."""
    columns, data, keys, rules = placed(runs)
    survivors = [bytearray().join(one.survivors for one in run.slices) for run in runs]
    before = list(map(bytes, survivors))
    found = compact_runs(
        columns,
        PLACES,
        survivors,
        {name: (0, whole) for name, whole in data.items()},
        {name: (0, whole) for name, whole in keys.items()},
        rules,
        runs[0].interval_bytes,
    )
    assert survivors == before, "the long way needs the bits as they are"
    return by_run(*found)


def by_run(taken: bytes, slices: CompactedSlices) -> list[CompactedSlices | None]:
    """The slice of each run; None for one that was not taken."""
    ends = list(itertools.accumulate(taken))
    assert slices.slice_count == sum(taken)
    parts = [slices.part(number, number + 1) for number in range(sum(taken))]
    assert b"".join(bytes(part.data) for part in parts) == slices.data
    return [parts[end - 1] if is_taken else None for is_taken, end in zip(taken, ends, strict=True)]


def at_once(run: Run) -> CompactedSlices | None:
    (found,) = all_at_once([run])
    return found


def one_of(compacted: CompactedSlices, column: str) -> int:
    """The number of a single slice."""
    (number,) = compacted.column(column)
    return number


@needs_native
@given(SEEDS)
def test_one_call_gives_the_same_as_its_steps(seed: int) -> None:
    run = some_run(Random(seed))
    compacted = at_once(run)
    try:
        expected, output = step_by_step(run)
    except LogStoreError:
        assert compacted is None
        return
    assert compacted is not None
    assert compacted.data == output
    start = SliceStart(UUID(int=1), "topic", 0, 0, HASHING)
    (entry,), (index,) = compacted_slices([start], 0, compacted, [SliceEnd(2**62)])
    assert (entry, index) == (expected.entry, expected.encoded_index)
    assert expected.key_stream is not None
    assert compacted.keys == b"".join(expected.key_stream.parts)
    assert one_of(compacted, "data_crc") == crc32c(output)
    headers = [header for _, header in batches(output)]
    assert one_of(compacted, "record_count") == sum(header.records_count for header in headers)


@needs_native
@given(SEEDS)
def test_whole_slices_are_proved_as_batch_by_batch(seed: int) -> None:
    random = Random(seed)
    slices = [one.data for one in some_run(random).slices]
    slices.insert(random.randrange(len(slices) + 1), b"")
    damaged_one = random.randrange(2 * len(slices))
    if damaged_one < len(slices) and slices[damaged_one]:
        slices[damaged_one] = damaged(random, slices[damaged_one])
    data, sizes = b"".join(slices), array("q", map(len, slices))
    numbers, crc = prove_slices(data, sizes)
    rows = list(zip(*[iter(numbers)] * len(PROVED_COLUMNS), strict=True))
    assert damaged_one < len(slices) or len(rows) == len(slices)
    for one, row in zip(slices, rows, strict=False):
        tally = KeptTally()
        scans: list[ScannedBatches] = []
        position = 0
        while position < len(one):
            scans.append(scan_batches(one, position, len(one), tally.fingerprint))
            position = scans[-1].end_position
            tally.add_proved(scans[-1])
        found: dict[str, int] = dict(zip(PROVED_COLUMNS, row, strict=True))
        assert KeptRecords._make(found[name] for name in KeptRecords._fields) == tally.result()
        assert found["tombstone_count"] == sum(scan.tombstone_count for scan in scans)
        assert found["marker_count"] == sum(scan.marker_count for scan in scans)
        assert found["keyless_count"] == sum(scan.null_key_count for scan in scans)
        assert found["data_crc"] == crc32c(one)
    assert crc == crc32c(b"".join(slices[: len(rows)]))
    if rows and sum(sizes):
        assert len(prove_slices(data[:-1], sizes)[0]) <= len(numbers), "the last byte is missing"


def some_damage(random: Random, one: SliceInput) -> SliceInput:
    """The slice with other data, another key stream, or fewer records than it has bits."""
    data, count, keys = one.data, one.record_count, one.keys
    kind = random.randrange(5)
    if kind <= 1:
        changed = damaged(random, bytes(data))
        changed = sum_again(changed) if kind else changed
        return one._replace(data=changed, crc=crc32c(changed))
    if kind == 2:
        count = random.randrange(count + 1)
    other = random.choice((damaged(random, bytes(keys)), random.randbytes(random.randrange(200))))
    return one._replace(record_count=count, keys=other, survivors=one.survivors[: (count + 7) // 8])


@needs_native
@given(SEEDS)
def test_a_run_that_contradicts_itself_is_refused_or_sound(seed: int) -> None:
    """Bytes of a store may be anything: sizes, bits and streams do not fit then."""
    random = Random(seed)
    run = some_run(random)
    found = at_once(run._replace(slices=[some_damage(random, one) for one in run.slices]))
    if found is not None:
        assert sum(header.records_count for _, header in batches(found.data)) == one_of(found, "record_count")
        assert one_of(found, "data_crc") == crc32c(found.data)
        assert len(found.index_columns) % 24 == 0


@needs_native
def test_a_wrong_checksum_is_refused() -> None:
    run = next(
        run for run in map(some_run, map(Random, range(100))) if any(run.slices[0].survivors) and at_once(run)
    )
    wrong = run.slices[0]._replace(crc=run.slices[0].crc ^ 1)
    assert at_once(run._replace(slices=[wrong, *run.slices[1:]])) is None


@needs_native
@given(SEEDS)
def test_runs_of_one_call_are_as_each_by_itself(seed: int) -> None:
    random = Random(seed)
    runs = [some_run(random)._replace(interval_bytes=100) for _ in range(random.randrange(1, 6))]
    damaged_one = random.randrange(len(runs))
    if random.random() < 0.5:
        slices = [some_damage(random, one) for one in runs[damaged_one].slices]
        runs[damaged_one] = runs[damaged_one]._replace(slices=slices)
    assert all_at_once(runs) == list(map(at_once, runs))


@needs_native
def test_bytes_that_are_not_in_the_pieces_are_refused() -> None:
    run = next(
        run for run in map(some_run, map(Random, range(100))) if any(run.slices[0].survivors) and at_once(run)
    )
    columns, data, keys, rules = placed([run])
    survivors = [bytearray().join(one.survivors for one in run.slices)]
    whole = {name: (0, one) for name, one in data.items()}, {name: (0, one) for name, one in keys.items()}

    def found(
        data: dict[str, tuple[int, bytes]], keys: dict[str, tuple[int, bytes]]
    ) -> list[CompactedSlices | None]:
        return by_run(*compact_runs(columns, PLACES, survivors, data, keys, rules, run.interval_bytes))

    (expected,) = found(*whole)
    assert expected is not None
    shifted = [{name: (3, one[3:]) for name, (_, one) in pieces.items()} for pieces in whole]
    assert found(shifted[0], whole[1]) == [expected]
    for number, pieces in enumerate(whole):
        for cut in (
            {},
            {name: (6, one[6:]) for name, (_, one) in pieces.items()},
            {name: (0, one[: len(data["object-0"]) - 1]) for name, (_, one) in pieces.items()}
            if number == 0
            else {},
            {name: (-(2**63), one) for name, (_, one) in pieces.items()},
        ):
            assert found(*(cut if number == at else whole[at] for at in range(2))) == [None]


def decided_at_once(random: Random, runs: list[Run]) -> tuple[list[bytearray | None], list[bytearray | None]]:
    """The survivors of the runs with one call, and those of the merge of each run's key streams; None where
    the columns of the run forbid it."""
    pieces: dict[str, tuple[int, bytes]] = {}
    columns: list[RunColumns] = []
    expected: list[bytearray | None] = []
    for run in runs:
        fault = random.choice(("none", "none", "none", "missing", "hashing", "size", "place"))
        names = tuple(f"object-{number}" for number in range(len(run.slices)))
        rows: list[tuple[int, ...]] = []
        streams: list[tuple[bytes, int, int, int]] = []
        for name, one in zip(names, run.slices, strict=True):
            first, piece = pieces.get(name, (7, b"head"))
            position, entry_count = first + len(piece), one.record_count - random.choice((0, 0, 0, 1))
            keys = one.keys + bytes(MAX_STREAM_BYTES) if fault == "size" and name == names[-1] else one.keys
            pieces[name] = first, piece + keys
            is_last = name == names[-1]
            has_keys = int(fault != "missing" or not is_last)
            hash_id = -1 - (fault == "hashing" and is_last)
            place = position + (2**40 if fault == "place" and is_last else 0)
            rows.append((has_keys, place, len(keys), entry_count, crc32c(keys), hash_id, one.record_count))
            streams.append((keys, entry_count, crc32c(keys), one.record_count))
        columns.append(columns_of(names, rows))
        merged = merge_key_streams(streams) if fault == "none" else None
        expected.append(None if merged is None else bytearray().join(merged))
    return decide_runs(columns, tuple(range(7)), 2**64 - 1, MAX_STREAM_BYTES, pieces), expected


@needs_native
@given(SEEDS)
def test_runs_are_decided_as_their_key_streams_are_merged(seed: int) -> None:
    random = Random(seed)
    runs = [some_keyed_run(random) for _ in range(random.randrange(6))]
    found, expected = decided_at_once(random, runs)
    assert found == expected


def some_keyed_run(random: Random) -> Run:
    """Slices whose records have different keys, so that each has an entry."""
    slices: list[SliceInput] = []
    for _ in range(random.randrange(1, 4)):
        count, entries = random.randrange(1, 20), KeyEntries()
        chosen = random.sample(range(30), count)
        records = [Record(number, 1000, b"key-%d" % key, b"v") for number, key in enumerate(chosen)]
        data = encode_batch(records, base_offset=0, leader_epoch=1)
        hash_keys(data[61:], count, HASHING.hash_key, 0, entries)
        keys = b"".join(encode_key_stream(sort_key_entries(entries)).parts)
        if random.random() < 0.1:
            keys = damaged(random, keys)
        rule = BatchFilter(0, count, False, None, None, settled_end_offset=count)
        slices.append(
            SliceInput(
                data=data,
                crc=crc32c(data),
                record_count=count,
                keys=keys,
                survivors=bytes((count + 7) // 8),
                rule=rule,
            )
        )
    return Run(slices, 100)


@needs_native
def test_most_runs_are_decided_at_once() -> None:
    random = Random(1)
    found, _ = decided_at_once(random, [some_keyed_run(random) for _ in range(100)])
    assert 10 < found.count(None) < 90


@needs_native
@given(SEEDS)
def test_ranges_and_sums_are_those_of_the_twin(seed: int) -> None:
    random = Random(seed)
    runs: list[RunColumns] = []
    survivors: list[bytes] = []
    for _ in range(random.randrange(5)):
        names = tuple(random.sample("abcd", random.randrange(5)))
        sizes = [random.choice((0, 1, 50)) for _ in names]
        counts = [random.choice((0, 1, 8, 9)) for _ in names]
        positions = map(random.randrange, [1000] * len(names))
        runs.append(columns_of(names, list(zip(positions, sizes, counts, strict=True))))
        survivors.append(bytes(random.choice((0, 0, 4)) for count in counts for _ in range((count + 7) // 8)))
    for bits in (None, survivors):
        assert native.run_ranges(runs, (0, 1, 2), bits) == pure_batch_kernels.run_ranges(
            runs, (0, 1, 2), bits
        )
    places = tuple(random.choices(range(3), k=random.randrange(4))) or (1,)
    assert native.run_sums(runs, places) == pure_batch_kernels.run_sums(runs, places)


@needs_native
def test_many_keys_make_several_blocks() -> None:
    records = [Record(number, 1000, b"key-%d" % number, b"v") for number in range(10_000)]
    data = encode_batch(records, base_offset=0, leader_epoch=1)
    entries = KeyEntries()
    hash_keys(data[61:], len(records), HASHING.hash_key, 0, entries)
    keys = b"".join(encode_key_stream(sort_key_entries(entries)).parts)
    bits = bytearray(b"\xff" * 1250)
    rule = BatchFilter(0, 10_000, False, None, None, settled_end_offset=10_000)
    run = Run(
        [
            SliceInput(
                data=data, crc=crc32c(data), record_count=10_000, keys=keys, survivors=bytes(bits), rule=rule
            )
        ],
        65536,
    )
    compacted = at_once(run)
    assert compacted is not None
    assert compacted.keys == keys
    assert compacted.data == data
