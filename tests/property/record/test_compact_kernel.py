"""The kernel that compacts a small run: the same as its steps one by one, and safe on any bytes."""

from __future__ import annotations

from random import Random
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError
from stratalog.compaction.keys.merged_keys import KeySource, merged_keys
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch
from stratalog.record.native.batch_filter import BatchFilter, CompactedSlices, SliceInput
from stratalog.record.native.batch_kernels import compact_slices, filter_batches
from stratalog.record.native.kernels import KeyEntries, hash_keys, sort_key_entries
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing, encode_key_stream
from stratalog.remote.objects.slice_builder import (
    BuiltSlice,
    MergedKeyStream,
    SliceBuilder,
    SliceEnd,
    SliceStart,
    compacted_slice,
)
from tests.support.kernels import needs_native
from tests.support.logs.damaged_batches import damaged, sum_again

SEEDS = st.integers(0, 2**32)
HASHING = KeyHashing(b"0123456789abcdef")
KEYS = [b"key-%d" % number for number in range(9)]


class Run(NamedTuple):
    """Slices, and what becomes of them."""

    slices: list[SliceInput]
    interval_bytes: int


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
    for _ in range(random.randrange(4)):
        parts: list[bytes] = []
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
            first_offset=random.choice((0, 0, 0, offset - 2)),
            end_offset=offset,
            has_tombstones=True,
            drop_until_ms=random.choice((None, 2000)),
            stamp_ms=random.choice((None, 0, 5000, 2**62)),
            settled_end_offset=random.choice((offset, offset, offset - 3)),
        )
        bits = bytearray(random.randbytes((count + 7) // 8))
        if count % 8:
            bits[-1] &= (1 << count % 8) - 1
        data = b"".join(parts)
        slices.append((data, crc32c(data), count, keys, bits, rule))
    return Run(slices, random.choice((1, 100, 300, 4096)))


def step_by_step(run: Run) -> tuple[BuiltSlice, bytes]:
    """The slice that a builder makes of the filtered batches, with the merged keys; and its data."""
    builder = SliceBuilder(
        SliceStart(UUID(int=1), "topic", 0, 0, None),
        data_position=0,
        index_interval_bytes=run.interval_bytes,
        max_record_count=2**32 - 1,
    )
    output, sources = b"", list[KeySource]()
    for data, _, count, keys, bits, rule in run.slices:
        survivors = bytearray(bits)
        filtered = filter_batches(data, 0, survivors, 0, rule, 0)
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


def at_once(run: Run) -> CompactedSlices | None:
    slices = [
        (data, crc, count, keys, bytearray(bits), rule) for data, crc, count, keys, bits, rule in run.slices
    ]
    return compact_slices(slices, 0, run.interval_bytes)


def built_of(compacted: CompactedSlices) -> BuiltSlice:
    start = SliceStart(UUID(int=1), "topic", 0, 0, HASHING)
    return compacted_slice(start, 0, compacted, SliceEnd(2**62))


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
    built = built_of(compacted)
    assert built == expected
    assert compacted.crc == crc32c(output)
    headers = [header for _, header in batches(output)]
    assert compacted.records_count == sum(header.records_count for header in headers)


def some_damage(random: Random, one: SliceInput) -> SliceInput:
    """The slice with other data, another key stream, or fewer records than it has bits."""
    data, _, count, keys, bits, rule = one
    kind = random.randrange(5)
    if kind <= 1:
        changed = damaged(random, bytes(data))
        changed = sum_again(changed) if kind else changed
        return changed, crc32c(changed), count, keys, bits, rule
    if kind == 2:
        count = random.randrange(count + 1)
    other = random.choice((damaged(random, bytes(keys)), random.randbytes(random.randrange(200))))
    return data, crc32c(data), count, other, bits, rule


@needs_native
@given(SEEDS)
def test_a_run_that_contradicts_itself_is_refused_or_sound(seed: int) -> None:
    """Bytes of a store may be anything: sizes, bits and streams do not fit then."""
    random = Random(seed)
    run = some_run(random)
    found = at_once(run._replace(slices=[some_damage(random, one) for one in run.slices]))
    if found is not None:
        assert sum(header.records_count for _, header in batches(found.data)) == found.records_count
        assert found.crc == crc32c(found.data)
        assert len(found.positions) == len(found.base_offsets) == len(found.max_timestamps)


@needs_native
def test_a_wrong_checksum_is_refused() -> None:
    run = next(run for run in map(some_run, map(Random, range(100))) if run.slices and at_once(run))
    data, crc, count, keys, bits, rule = run.slices[0]
    wrong = data, crc ^ 1, count, keys, bits, rule
    assert at_once(run._replace(slices=[wrong, *run.slices[1:]])) is None


@needs_native
def test_many_keys_make_several_blocks() -> None:
    records = [Record(number, 1000, b"key-%d" % number, b"v") for number in range(10_000)]
    data = encode_batch(records, base_offset=0, leader_epoch=1)
    entries = KeyEntries()
    hash_keys(data[61:], len(records), HASHING.hash_key, 0, entries)
    keys = b"".join(encode_key_stream(sort_key_entries(entries)).parts)
    bits = bytearray(b"\xff" * 1250)
    rule = BatchFilter(0, 10_000, False, None, None, settled_end_offset=10_000)
    run = Run([(data, crc32c(data), 10_000, keys, bits, rule)], 65536)
    compacted = at_once(run)
    assert compacted is not None
    assert compacted.keys == keys
    assert compacted.data == data
