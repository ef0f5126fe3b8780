"""The kernels for rows of batches: compiled and in plain Python they give the same, and what a reader sees.

The kernels that have no twin are compared with their callers, once with the kernel and once the long way.
Rows have batches of all kinds, whole, changed in a few bytes, cut off, or random bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock
from uuid import UUID

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, LogStoreError
from stratalog.compaction import partition_rewriter, small_runs
from stratalog.compaction.keys.key_cursor import KeyCursor
from stratalog.compaction.keys.survivor_bits import new_bitmap
from stratalog.compaction.keys.survivor_plan import SurvivorPlan, merge_keys
from stratalog.compaction.output.verifier import PartsReader
from stratalog.compaction.partition_rewriter import PartitionRewriter
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.compaction.slice_reader import SliceReader
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.batch import batches
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    parse_header,
)
from stratalog.record.native import pure_batch_kernels, pure_kernels
from stratalog.record.native.batch_filter import BatchFilter
from stratalog.record.native.batch_row import MAX_ROW_COUNT, BatchRow
from stratalog.record.native.key_entries import KeyEntries
from stratalog.record.native.pure_key_kernels import hash_keys, sort_key_entries
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects import key_stream, slice_builder
from stratalog.remote.objects.key_stream import KeyHashing, encode_key_stream
from stratalog.remote.objects.slice_builder import SliceBuilder, SliceEnd, SliceStart
from stratalog.remote.objects.slice_entry import KeyStreamRef, SliceEntry
from stratalog.segment.batch_headers import row_of
from tests.support.decoded_records import decode_all
from tests.support.kernels import each_kind, native, needs_native
from tests.support.logs.damaged_batches import damaged, sound_headers, sum_again
from tests.support.tiered.sample_entry import sample_entry

SEEDS = st.integers(0, 2**32)
END = 2**62
HASH_KEY = b"0123456789abcdef"


class Row(NamedTuple):
    """Batches one after the other, and the records of the plain ones among them."""

    data: bytes
    records_count: int
    is_plain: bool


def some_batch(random: Random, base_offset: int, *, is_plain: bool) -> bytes:
    """A batch with gaps, horizons, append times and whatever else compaction can meet."""
    if not is_plain and random.random() < 0.3:
        marker = EndTransactionMarker(random.choice((ControlType.COMMIT, *ControlType)), 0)
        return marker.to_batch(random.choice((1, 2)), 0, 1000, base_offset=base_offset, leader_epoch=1)
    count = random.randrange(1, 6)
    records = [
        Record(
            0,
            random.choice((-1, 5, 1000, 10**12)) + random.randrange(3),
            random.choice((b"a", b"b", b"cc", None if random.random() < 0.1 else b"d")),
            random.choice((None, b"", b"v" * random.randrange(90))),
            random.choice(((), (("name", b"value"), ("other", None)))),
        )
        for _ in range(count)
    ]
    base_timestamp = records[0].timestamp_ms
    payload = pure_kernels.encode_records(records, base_timestamp)
    kept = random.choice((2**count - 1, random.randrange(2**count)))
    copied = pure_kernels.copy_records(
        payload,
        count,
        bytes([kept]),
        0,
        first_offset_delta=0,
        end_offset_delta=count,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    header = parse_header(
        encode_batch(records, base_offset=base_offset, leader_epoch=random.choice((1, 1, 2)))
    )
    attributes = random.choice((0, 0, TIMESTAMP_TYPE_BIT)) | random.choice((0, 0, DELETE_HORIZON_BIT))
    if not is_plain:
        attributes |= random.choice((0, Codec.ZSTD, CONTROL_BIT, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT))
        header = header._replace(producer_id=random.choice((1, 2)))
    return rebuild_batch(
        header._replace(attributes=attributes),
        copied.payload,
        records_count=copied.count,
        max_timestamp=base_timestamp + copied.max_timestamp_delta + (random.random() < 0.03),
    )


def some_row(random: Random, *, is_plain: bool | None = None) -> Row:
    if is_plain is None:
        is_plain = random.random() < 0.6
    parts: list[bytes] = []
    offset, records_count = random.choice((0, 7, 2**40)), 0
    for _ in range(random.randrange(6)):
        batch = some_batch(random, offset, is_plain=is_plain)
        header = parse_header(batch)
        if is_plain and header.records_count == 0:
            continue
        parts.append(batch)
        records_count += header.records_count
        offset = header.next_offset + random.choice((0, 0, 3, -1 if offset else 0))
    return Row(b"".join(parts), records_count, is_plain)


def some_rule(random: Random, data: bytes) -> BatchFilter:
    ends = [header.next_offset for _, header in batches(data)]
    return BatchFilter(
        first_offset=random.choice([0, 0, *(end - random.randrange(4) for end in ends)]),
        end_offset=random.choice([2**63 - 1, 2**63 - 1, *ends]),
        has_tombstones=random.random() < 0.7,
        drop_until_ms=random.choice((None, 0, 2000, 2**62)),
        stamp_ms=random.choice((None, 0, 5000, 2**62)),
        settled_end_offset=random.choice([2**63 - 1, 2**63 - 1, 0, *ends]),
    )


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        result = function(*arguments)
    except CorruptRecordError:
        return "corrupt"
    if hasattr(result, "data"):
        result = result._replace(data=bytes(result.data))
    return result


@needs_native
@given(SEEDS)
def test_both_kinds_agree_on_any_bytes(seed: int) -> None:
    random = Random(seed)
    row = some_row(random)
    rule = some_rule(random, row.data)
    data = damaged(random, row.data)
    position = random.choice([0, *(position for position, _ in batches(row.data))])
    position = min(position, len(data))
    limit = random.choice((len(data), random.randrange(position, len(data) + 1)))
    bits = random.choice((row.records_count, row.records_count, row.records_count + 9))
    survivors = random.choice((random.randbytes((bits + 7) // 8), b"\xff" * ((bits + 7) // 8), None))
    ordinal = 0 if survivors is None else random.choice((0, 0, random.randrange(8 * len(survivors) + 1)))
    fingerprint = random.choice((0, random.getrandbits(32)))
    offset = random.choice([0, *(header.base_offset for _, header in batches(row.data))])
    file_position = random.choice((0, 2**40))
    for name, arguments in (
        ("whole_batches", (data,)),
        (
            "sound_batches",
            (data, random.choice((2**63 - 1, rule.end_offset)), offset, random.choice((-1, -1, 1, 2))),
        ),
        ("skip_batches", (data[position:], rule.end_offset, offset, random.choice((-1, 1, 2)))),
        ("skip_batches", (data[position:limit], 2**63 - 1, 0, -1)),
        ("walk_batches", (data, position, file_position, offset, random.choice((-1, 1, 2)))),
    ):
        expected = outcome(getattr(pure_batch_kernels, name), *arguments)
        assert expected != "corrupt"
        assert outcome(getattr(native, name), *arguments) == expected, name
    # Whatever these find: they stay inside of their memory and come to an end.
    native.scan_batches(data, position, limit, fingerprint)
    writable = None if survivors is None else bytearray(survivors)
    native.filter_batches(data, position, writable, ordinal, rule, fingerprint)
    outcome(native.hash_batches, data, HASH_KEY, random.choice((0, 5, 2**32 - 3)), KeyEntries())


def entry_of(data: bytes, **fields: Any) -> SliceEntry:
    """The entry of a slice with all batches of the data, whatever their offsets are."""
    return sample_entry(
        0,
        END,
        data_bytes=len(data),
        data_crc=crc32c.crc32c(data),
        record_count=sum(header.records_count for _, header in sound_headers(data)),
        **fields,
    )


def whole(data: bytes) -> bytes:
    """The part that consists of whole batches, in ascending order as a slice has them."""
    end = 0
    for position, header in sound_headers(data):
        end = position + header.size_in_bytes
    return data[:end]


@contextmanager
def long_way() -> Generator[None]:
    """The callers of row kernels take each batch by itself."""
    with ExitStack() as patches:
        for module, name in (
            (slice_builder, "scan_batches"),
            (slice_builder, "hash_batches"),
            (partition_rewriter, "filter_batches"),
            (small_runs, "decide_runs"),
            (key_stream, "merge_key_streams"),
        ):
            patches.enter_context(mock.patch.object(module, name, getattr(pure_batch_kernels, name)))
        yield


def both_outcomes(work: Callable[[], object]) -> tuple[object, object]:
    """The result of the work, or the class of its error: with the row kernels, and the long way."""
    found: list[object] = []
    for way in (nullcontext, long_way):
        with way():
            try:
                found.append(work())
            except LogStoreError as error:
                found.append(type(error))
    return found[0], found[1]


def built_slice(data: bytes, interval_bytes: int) -> object:
    builder = SliceBuilder(
        SliceStart(UUID(int=1), "topic", 0, 0, KeyHashing(HASH_KEY)),
        data_position=0,
        index_interval_bytes=interval_bytes,
        max_record_count=100,
    )
    position = 0
    while position < len(data):
        position = builder.add(data, position)
    builder.sum_up(data)
    built = builder.build(SliceEnd(builder.next_offset))
    keys = built.key_stream
    return built.entry, built.encoded_index, None if keys is None else [bytes(part) for part in keys.parts]


@needs_native
@given(SEEDS)
def test_a_slice_is_built_alike_from_rows_and_from_single_batches(seed: int) -> None:
    random = Random(seed)
    data = some_row(random).data
    if random.random() < 0.5:
        data = whole(damaged(random, data))
    if random.random() < 0.7:
        data = sum_again(data)
    interval_bytes = random.choice((1, 100, 300, 4096))
    row, single = both_outcomes(lambda: built_slice(data, interval_bytes))
    assert row == single


class Sink:
    """Collects what a rewriter writes. Used by one thread."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.may_have_keys = False

    def begin_slice(self, *_: object, **__: object) -> None: ...

    def append(self, data: Any, payload: object = None) -> None:
        self.data += data

    def end_slice(self, end: object, keys: object) -> None: ...


def rewritten(data: bytes, survivors: bytearray, rule: BatchFilter) -> object:
    """The result of phase 2, the output, and the bits of what is left."""
    entry = entry_of(data, tombstone_count=int(rule.has_tombstones))._replace(end_offset=rule.end_offset)
    live = LiveSlice("object", 0, rule.end_offset, entry)
    topic = TopicPolicy(
        topic_id=UUID(int=1),
        name="topic",
        hashing=KeyHashing(HASH_KEY),
        is_compacted=True,
        delete_retention_ms=0,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=0,
    )
    run = PartitionRun(
        topic_id_partition=entry.topic_id_partition,
        topic=topic,
        mode=RunMode.COMPACT,
        covers=False,
        log_start_offset=rule.first_offset,
        slices=RunSlices((live,)),
    )
    plan = SurvivorPlan()
    plan.survivors = [bytearray(survivors)]
    sink: Any = Sink()

    def reader_of(_: object) -> SliceReader:
        return SliceReader(entry, PartsReader([data]).read, 1 << 20)

    def without_producers(_: object) -> bool:
        return True

    streams: Any = SimpleNamespace(slice_reader=reader_of, has_plain_index=without_producers)
    settling = TombstoneRule(rule.drop_until_ms, rule.stamp_ms, rule.settled_end_offset)
    rewriter = PartitionRewriter(run, plan, settling, sink)
    return rewriter.rewrite({"object": streams}, 1 << 20), bytes(sink.data), bytes(plan.survivors[0])


@needs_native
@given(SEEDS)
def test_a_slice_is_rewritten_alike_in_rows_and_in_single_batches(seed: int) -> None:
    random = Random(seed)
    row = some_row(random).data
    rule = some_rule(random, row)
    data = sum_again(whole(damaged(random, row) if random.random() < 0.5 else row))
    count = entry_of(data).record_count
    if not 0 <= count < 1000:
        return
    bits = bytearray(random.choice((random.randbytes(count // 8 + 1), b"\xff" * (count // 8 + 1))))
    found, single = both_outcomes(lambda: rewritten(data, bits, rule))
    assert found == single


def some_producer(random: Random, batch: bytes) -> bytes:
    """The batch as a producer, a coordinator or neither would have sent it, in another leader epoch."""
    header = parse_header(batch)
    attributes = header.attributes | random.choice((0, 0, CONTROL_BIT, TRANSACTIONAL_BIT))
    changed = header._replace(
        leader_epoch=random.choice((1, 2)), attributes=attributes, producer_id=random.choice((-1, -1, 0, 77))
    )
    records = batch[HEADER_SIZE:]
    return (
        changed._replace(crc=crc32c.crc32c(changed.pack()[ATTRIBUTES_POSITION:] + records)).pack() + records
    )


@each_kind(pure_batch_kernels)
@given(SEEDS)
def test_a_walk_ends_where_the_row_is_not_what_it_should_be(kernels: Any, seed: int) -> None:
    random = Random(seed)
    written: list[bytes] = []
    offset = 0
    for _ in range(random.randrange(8)):
        written.append(some_producer(random, some_batch(random, offset, is_plain=False)))
        offset = parse_header(written[-1]).next_offset + random.choice((0, 0, 3, -1))
    broken = random.randrange(2 * len(written) + 1)
    data = bytearray(b"".join(written))
    if broken < len(written):
        start = sum(map(len, written[:broken]))
        data[random.randrange(start + ATTRIBUTES_POSITION, start + len(written[broken]))] ^= 1
    cut = random.choice((len(data), random.randrange(len(data) + 1)))
    position, next_offset, epoch = 0, 0, 1
    expected: list[BatchRow] = []
    headers_crc = 0
    for number, header in enumerate(map(parse_header, written)):
        if number == broken or position + header.size_in_bytes > cut:
            break
        if header.base_offset < next_offset or header.leader_epoch < epoch:
            break
        bits = header.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)
        is_noted = header.producer_id >= 0 or bits != 0 or header.leader_epoch > epoch
        last_offset = header.base_offset + header.last_offset_delta
        expected.append(row_of(1000 + position, header)._replace(is_noted=is_noted))
        headers_crc = crc32c.crc32c(header.pack()[:8] + header.pack()[12:16], headers_crc)
        position, next_offset, epoch = position + header.size_in_bytes, last_offset + 1, header.leader_epoch
    assert kernels.walk_batches(bytes(data[:cut]), 0, 1000, 0, 1) == expected
    assert kernels.headers_crc(bytes(data[:position]), 0) == headers_crc


@each_kind(pure_batch_kernels)
@given(SEEDS)
def test_what_is_skipped_ends_below_the_offset(kernels: Any, seed: int) -> None:
    random = Random(seed)
    written: list[bytes] = []
    offset = 0
    for _ in range(random.randrange(1, 8)):
        written.append(some_producer(random, some_batch(random, offset, is_plain=False)))
        offset = parse_header(written[-1]).next_offset + random.choice((0, 0, 3, -1))
    data = b"".join(written)
    sought = random.randrange(offset + 2)
    cut = random.choice((len(data), random.randrange(len(data) + 1)))
    position, next_offset, epoch = 0, random.choice((0, 1)), random.choice((-1, 1, 2))
    expected = (position, next_offset, epoch)
    for header in map(parse_header, written):
        # The header is all that has to be there.
        if position + HEADER_SIZE > cut or header.last_offset >= sought:
            break
        if header.base_offset < expected[1] or header.leader_epoch < expected[2]:
            break
        position += header.size_in_bytes
        expected = (position, header.last_offset + 1, header.leader_epoch)
    assert kernels.skip_batches(data[:cut], sought, next_offset, epoch) == expected


@each_kind(pure_batch_kernels)
def test_a_walk_gives_so_many_rows_at_once(kernels: Any) -> None:
    one = encode_batch([Record(0, 0, None, b"")])
    data = b"".join(offset.to_bytes(8, "big") + one[8:] for offset in range(MAX_ROW_COUNT + 2))
    rows = kernels.walk_batches(data, 0, 0, 0, -1)
    assert [row.last_offset for row in rows] == list(range(MAX_ROW_COUNT))
    rest = kernels.walk_batches(data, rows[-1].end_position, 0, MAX_ROW_COUNT, -1)
    assert [row.last_offset for row in rest] == [MAX_ROW_COUNT, MAX_ROW_COUNT + 1]


@needs_native
@given(SEEDS)
def test_a_scan_tells_what_records_say(seed: int) -> None:
    random = Random(seed)
    data = some_row(random, is_plain=True).data
    scanned = native.scan_batches(data, 0, len(data), 0)
    taken = data[: scanned.end_position]
    headers = [header for _, header in batches(taken)]
    records = decode_all(taken)
    assert scanned.records_count == len(records)
    if records:
        latest = max(record.timestamp_ms for record in records)
        assert (scanned.first_offset, scanned.last_offset) == (records[0].offset, records[-1].offset)
        assert (scanned.min_timestamp, scanned.max_timestamp) == (
            min(record.timestamp_ms for record in records),
            latest,
        )
        assert scanned.max_timestamp_offset == next(
            one.offset for one in records if one.timestamp_ms == latest
        )
        assert scanned.tombstone_count == sum(record.value is None for record in records)
        assert scanned.null_key_count == sum(record.key is None for record in records)
        assert scanned.next_offset == headers[-1].next_offset
        assert {header.leader_epoch for header in headers} == {scanned.leader_epoch}
        horizons = [one.delete_horizon_ms for one in headers if one.delete_horizon_ms is not None]
        assert scanned.delete_horizon_ms == min(horizons, default=None)
    # The scan stops for a reason: what follows cannot be put together with what it took.
    if scanned.end_position < len(data):
        following = parse_header(data, scanned.end_position)
        left = decode_all(data[scanned.end_position :][: following.size_in_bytes])
        assert (
            max(record.timestamp_ms for record in left) != following.max_timestamp
            or (headers and following.leader_epoch != headers[-1].leader_epoch)
            or (headers and following.base_offset < headers[-1].next_offset)
        )


@needs_native
@given(SEEDS)
def test_a_filter_keeps_the_records_that_are_to_stay(seed: int) -> None:
    random = Random(seed)
    row = some_row(random, is_plain=True)
    rule = some_rule(random, row.data)._replace(has_tombstones=True)
    bitmap_bytes = (row.records_count + 7) // 8
    survivors = random.choice((random.randbytes(bitmap_bytes), b"\xff" * bitmap_bytes))
    bits = bytearray(survivors)
    filtered = native.filter_batches(row.data, 0, bits, 0, rule, 0)
    expected: list[Record] = []
    dropped_count = ordinal = 0
    kept_ordinals: list[int] = []
    for position, header in batches(row.data[: filtered.end_position]):
        drops = (
            rule.drop_until_ms is not None
            and header.delete_horizon_ms is not None
            and header.delete_horizon_ms <= rule.drop_until_ms
            and header.next_offset <= rule.settled_end_offset
        )
        for record in decode_all(row.data[position : position + header.size_in_bytes]):
            survives = survivors[ordinal >> 3] >> (ordinal & 7) & 1
            ordinal += 1
            if survives and record.offset >= rule.first_offset:
                if drops and record.value is None:
                    dropped_count += 1
                else:
                    expected.append(record)
                    kept_ordinals.append(ordinal - 1)
    left = [number for number in range(ordinal) if bits[number >> 3] >> (number & 7) & 1]
    assert left == kept_ordinals, "the bits of dropped records are cleared"
    kept = bytes(filtered.data)
    assert decode_all(kept) == expected
    assert filtered.records_count == len(expected)
    assert filtered.next_ordinal == ordinal
    assert filtered.dropped_tombstone_count == dropped_count
    if expected:
        assert (filtered.first_offset, filtered.last_offset) == (expected[0].offset, expected[-1].offset)
    # What was made anew is sound: a scan in pieces gets through all of it, and has the same fingerprint.
    position = fingerprint = 0
    while position < len(kept):
        scanned = native.scan_batches(kept, position, len(kept), fingerprint)
        if scanned.end_position == position:
            # Only a batch that was kept as it is may have a header with another highest timestamp.
            size = parse_header(kept, position).size_in_bytes
            assert kept[position : position + size] in row.data
            return
        position, fingerprint = scanned.end_position, scanned.fingerprint
    assert fingerprint == filtered.fingerprint


@needs_native
@given(st.binary(max_size=40) | st.integers(0, 20_000).map(lambda size: Random(size).randbytes(size)), SEEDS)
def test_the_checksum_is_that_of_the_library(data: bytes, begin: int) -> None:
    crc = begin & 0xFFFFFFFF
    assert native.crc32c(data, crc) == crc32c.crc32c(data, crc)
    assert native.crc32c(data, crc, by_tables=True) == crc32c.crc32c(data, crc)
    assert native.crc32c(data, crc, by_lanes=True) == crc32c.crc32c(data, crc)


def some_key_stream(random: Random, keys: list[bytes]) -> tuple[bytes, int, int, int]:
    records = [
        Record(0, 0, random.choice(keys), random.choice((None, b"value")))
        for _ in range(random.choice((0, 1, 5, 40)))
    ]
    entries = KeyEntries()
    hash_keys(pure_kernels.encode_records(records, 0), len(records), HASH_KEY, 0, entries)
    stream = encode_key_stream(sort_key_entries(entries))
    return b"".join(stream.parts), stream.entry_count, stream.crc, len(records)


@needs_native
@given(SEEDS)
def test_a_stream_of_several_blocks_is_one_stream(seed: int) -> None:
    """Blocks of 4,096 entries are many for a test, so these are put together from short ones."""
    random = Random(seed)
    hashes = sorted({(random.randrange(4), random.randrange(2**64)) for _ in range(30)})
    parts: list[bytes] = []
    for start in range(0, len(hashes), 7):
        entries = KeyEntries()
        for offset, (high, low) in enumerate(hashes[start : start + 7]):
            entries.hash_high.append(high)
            entries.hash_low.append(low)
            entries.ordinal.append(start + offset)
            entries.tombstone.append(0)
        parts += [bytes(part) for part in encode_key_stream(entries).parts]
    count = len(hashes)
    whole = b"".join(parts)
    (bitmap,) = native.merge_key_streams([(whole, count, crc32c.crc32c(whole), count)])
    assert int.from_bytes(bitmap, "little") == (1 << count) - 1
    random.shuffle(parts)
    shuffled = b"".join(parts)
    merged = native.merge_key_streams([(shuffled, count, crc32c.crc32c(shuffled), count)])
    assert (merged is None) == (shuffled != whole)


@needs_native
@given(SEEDS)
def test_a_stream_that_is_not_what_it_must_be_is_left_alone(seed: int) -> None:
    random = Random(seed)
    streams = [some_key_stream(random, [b"a", b"b", b"c", b"d"]) for _ in range(1 + random.randrange(3))]
    place = random.randrange(len(streams))
    data, entry_count, crc, record_count = streams[place]
    match random.randrange(5):
        case 0:
            changed = damaged(random, data)
            # A checksum that was made of the damage, so that something else has to notice.
            crc = random.choice((crc, crc32c.crc32c(changed)))
            streams[place] = changed, entry_count, crc, record_count
        case 1:
            streams[place] = data, entry_count + 1, crc, record_count
        case 2:
            streams[place] = data, entry_count, crc ^ 1, record_count
        case 3:
            streams[place] = data, entry_count, crc, max(0, record_count - random.randrange(3))
        case _:
            pass
    merged = native.merge_key_streams(streams)
    assert merged == survivors_in_windows(streams)
    if streams[place][0] != data or streams[place][1:3] != (entry_count, crc):
        assert merged is None


def survivors_in_windows(streams: list[tuple[bytes, int, int, int]]) -> list[bytearray] | None:
    """The same the long way, block by block."""
    bitmaps = [new_bitmap(record_count) for *_, record_count in streams]
    try:
        merge_keys(
            [
                KeyCursor(
                    key_stream.key_blocks(
                        data,
                        KeyStreamRef(
                            position=0,
                            size_bytes=len(data),
                            entry_count=entry_count,
                            crc=crc,
                            hash_key_id=0,
                        ),
                        record_count,
                    ),
                    bitmap,
                )
                for (data, entry_count, crc, record_count), bitmap in zip(streams, bitmaps, strict=True)
            ]
        )
    except LogStoreError:
        return None
    return bitmaps
