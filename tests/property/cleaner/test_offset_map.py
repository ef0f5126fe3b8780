"""The kernels of the log cleaner: rows and single batches give the same, whatever the bytes.

An independent oracle, a dict and decoded records, says what is right for sound bytes.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.batch import batches, decode
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from stratalog.record.native import pure_clean_kernels, pure_kernels
from stratalog.record.native.aborted_spans import is_aborted, ordered
from stratalog.record.native.cleaned_batches import CleanRule
from stratalog.record.record import Record
from tests.support.cleaner.clean_ways import WAYS, native
from tests.support.logs.damaged_batches import damaged, sound_headers, sum_again

needs_native = pytest.mark.skipif(native is None, reason="the compiled kernels were not built")
both_ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
SEEDS = st.integers(0, 2**32)
END = 2**63 - 1


def some_key(random: Random, key_count: int) -> bytes | None:
    if random.random() < 0.05:
        return None
    number = random.randrange(key_count)
    return b"%d" % number * (1 if number % 5 else 9)


def some_batch(random: Random, base_offset: int, key_count: int, *, is_plain: bool) -> bytes:
    """A batch with gaps, tombstones, horizons, append times and whatever else a cleaner can meet."""
    count = random.choice((1, 2, 5, random.randrange(1, 150)))
    records = [
        Record(
            0,
            random.choice((-1, 5, 1000, 10**12)) + random.randrange(3),
            some_key(random, key_count),
            random.choice((None, b"", b"v" * random.randrange(90))),
            random.choice(((), (("name", b"value"), ("other", None)))),
        )
        for _ in range(count)
    ]
    base_timestamp = records[0].timestamp_ms
    payload = pure_kernels.encode_records(records, base_timestamp)
    kept = random.choice((2**count - 1, 2**count - 1, random.getrandbits(count), 0))
    copied = pure_kernels.copy_records(
        payload,
        count,
        kept.to_bytes(count // 8 + 1, "little"),
        0,
        first_offset_delta=0,
        end_offset_delta=count,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    header = parse_header(encode_batch(records, base_offset=base_offset))
    attributes = random.choice((0, 0, TIMESTAMP_TYPE_BIT)) | random.choice((0, 0, DELETE_HORIZON_BIT))
    if not is_plain:
        attributes |= random.choice((0, Codec.ZSTD, CONTROL_BIT, TRANSACTIONAL_BIT))
    return rebuild_batch(
        header._replace(attributes=attributes, producer_id=random.choice((-1, 7, 8))),
        copied.payload,
        records_count=copied.count,
        max_timestamp=base_timestamp + copied.max_timestamp_delta,
    )


def some_marker(random: Random, base_offset: int) -> bytes:
    """The end of a transaction, most often; some have a time at which they go, or were emptied."""
    marker = EndTransactionMarker(random.choice(list(ControlType)), random.randrange(3))
    batch = marker.to_batch(
        random.choice((7, 8)), 0, random.choice((5, 1000, 10**12)), base_offset=base_offset
    )
    header, payload = parse_header(batch), batch[HEADER_SIZE:]
    fate = random.random()
    if fate < 0.3:
        attributes = header.attributes | DELETE_HORIZON_BIT
    elif fate < 0.4:
        header, payload = header._replace(records_count=0), b""
        attributes = header.attributes
    elif fate < 0.5:
        # Of some other kind, or not quite a marker.
        key, value = random.choice(
            (
                (b"\0\0\0\2", bytes(6)),
                (b"\0\0\0\1", b""),
                (b"\0\0\0\1", None),
                (b"\0\1\0\1", bytes(6)),
                (None, None),
            )
        )
        payload = pure_kernels.encode_records([Record(0, 0, key, value)], 0)
        attributes = header.attributes
    else:
        attributes = header.attributes ^ random.choice((0, 0, 0, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT))
    return rebuild_batch(
        header._replace(attributes=attributes),
        payload,
        records_count=header.records_count,
        max_timestamp=header.max_timestamp,
    )


def some_row(random: Random, key_count: int, *, is_plain: bool) -> bytes:
    parts: list[bytes] = []
    offset = random.choice((0, 7, 2**40))
    for _ in range(random.randrange(9)):
        if is_plain or random.random() < 0.7:
            parts.append(some_batch(random, offset, key_count, is_plain=is_plain))
        else:
            parts.append(some_marker(random, offset))
        offset = parse_header(parts[-1]).next_offset + random.choice((0, 0, 3, -1))
    return b"".join(parts)


def maybe_summed(random: Random, data: bytes) -> bytes:
    """Damage that the checksums cover, most often."""
    return sum_again(data) if random.random() < 0.7 else data


def some_spans(random: Random, headers: list[BatchHeader]) -> array[int] | tuple[int, ...]:
    offsets = [header.base_offset for header in headers]
    if not offsets or random.random() < 0.3:
        return ()
    spans: list[tuple[int, int, int]] = []
    for _ in range(random.randrange(4)):
        first, last = sorted((random.choice(offsets), random.choice(offsets) + random.randrange(3)))
        spans.append((random.choice((7, 8)), first, last))
    return ordered(spans)


def some_rule(random: Random, data: bytes) -> CleanRule:
    headers = [header for _, header in batches(data)]
    kept_empty = sorted(header.last_offset for header in headers if random.random() < 0.3)
    return CleanRule(
        now_ms=random.choice((0, 1000, 2**62)),
        horizon_ms=random.choice((0, 5000, 10**12, 2**62, END)),
        aborted=some_spans(random, headers),
        kept_empty=random.choice((kept_empty, tuple(kept_empty), array("q", kept_empty))),
    )


def outcome(function: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return function(*arguments, **named)
    except CorruptRecordError:
        return CorruptRecordError


def assert_same_maps(ours: Any, twin: Any, key_count: int) -> None:
    ours.check()
    assert len(ours) == len(twin)
    assert ours.latest_offset == twin.latest_offset
    assert ours.is_full == twin.is_full
    for number in range(key_count):
        key = b"%d" % number * (1 if number % 5 else 9)
        assert ours.get(key) == twin.get(key)


def may_be_left(header: BatchHeader, rule: CleanRule, latest_offset: int) -> bool:
    """A row kernel may leave the batch to the long way."""
    if header.is_control or header.base_offset > latest_offset:
        return True
    is_plain = header.codec is Codec.NONE if header.records_count else header.is_bare
    return not is_plain and not is_aborted(rule.aborted, header)


@needs_native
@given(SEEDS)
def test_rows_and_single_batches_are_put_and_cleaned_alike(seed: int) -> None:
    random = Random(seed)
    key_count = random.choice((1, 4, 40, 400))
    capacity = random.choice((1, 2, 3, 9, 50, 1000))
    load_factor = random.choice((0.01, 0.5, 0.9, 1.0))
    batch_way, row_way = WAYS
    ours, twin = row_way.new_map(capacity, load_factor), batch_way.new_map(capacity, load_factor)
    assert (ours.max_entries, ours.memory_bytes) == (twin.max_entries, twin.memory_bytes)
    for _ in range(random.choice((1, 1, 3))):
        row = some_row(random, key_count, is_plain=random.random() < 0.6)
        rule = some_rule(random, row)
        offsets = [header.base_offset for _, header in batches(row)]
        data = maybe_summed(random, damaged(random, row)) if random.random() < 0.6 else row
        first_offset = random.choice([0, 0, *offsets, *(offset + 1 for offset in offsets)])
        stop_offset = random.choice([END, END, *offsets])
        end_position = row_way.put(ours, data, first_offset, stop_offset, rule.aborted)
        # A plain batch at which the kernel stopped is damaged, and in the map in part.
        put_bytes = end_position
        for position, header in sound_headers(data):
            if position == end_position and not may_be_left(header, rule, stop_offset - 1):
                put_bytes += header.size_in_bytes
        assert batch_way.put(twin, data[:put_bytes], first_offset, stop_offset, rule.aborted) == end_position
        assert_same_maps(ours, twin, key_count)
        if random.random() < 0.2 and not twin.is_full:
            offset = random.choice((0, 50, 2**41))
            ours.skip_to(offset)
            twin.skip_to(offset)
        transactions = row_way.transactions(), batch_way.transactions()
        for producer_id in random.choice(((), (7,), (8, 7), (3, 9))):
            is_kept = random.random() < 0.5
            for one in transactions:
                one.on_data(producer_id, is_kept=is_kept)
        cleaned = row_way.clean(data, ours, rule, transactions[0])
        assert batch_way.clean(data[: cleaned.end_position], twin, rule, transactions[1]) == cleaned
        assert len(transactions[0]) == len(transactions[1])
        for producer_id in (-1, 3, 7, 8, 9):
            assert len({one.on_marker(producer_id) for one in transactions}) == 1
        # A plain batch that the kernel does not clean is damaged.
        for position, header in sound_headers(data):
            if position == cleaned.end_position and not may_be_left(header, rule, twin.latest_offset):
                batch = data[position : position + header.size_in_bytes]
                assert batch_way.clean(batch, twin, rule, batch_way.transactions()).end_position == 0


@needs_native
@given(SEEDS)
def test_both_take_the_records_of_a_batch_alike(seed: int) -> None:
    random = Random(seed)
    key_count = random.choice((1, 4, 40))
    capacity = random.choice((1, 3, 100))
    twin, ours = (way.new_map(capacity, 1.0) for way in WAYS)
    for _ in range(3):
        batch = some_batch(random, 0, key_count, is_plain=True)
        payload = batch[HEADER_SIZE:]
        if random.random() < 0.5:
            payload = damaged(random, payload)
        records_count = parse_header(batch).records_count + random.choice((0, 0, 0, 1, -1))
        base_offset = random.choice((0, 0, 7, END - 3))
        first_offset = random.choice((0, 0, base_offset + 2))
        last_delta = random.choice((2**31 - 1, records_count - 1))
        put = [
            outcome(one.put_records, payload, records_count, base_offset, first_offset, last_delta)
            for one in (ours, twin)
        ]
        assert put[0] == put[1]
        assert_same_maps(ours, twin, key_count)
        shift, drops = random.choice((0, 0, 1, -(10**9), END)), random.random() < 0.5
        cleaned = [
            outcome(
                module.clean_records,
                payload,
                records_count,
                base_offset,
                one,
                last_offset_delta=last_delta,
                drop_tombstones=drops,
                timestamp_shift=shift,
            )
            for module, one in ((native, ours), (pure_clean_kernels, twin))
        ]
        assert cleaned[0] == cleaned[1]


def known_by_oracle(data: bytes) -> tuple[dict[bytes, int], int]:
    """The last offset of each key, and of all."""
    newest: dict[bytes, int] = {}
    latest = -1
    for position, header in batches(data):
        for record in decode(data, position):
            if record.key is not None:
                newest[record.key] = max(record.offset, newest.get(record.key, -1))
        latest = max(latest, header.last_offset)
    return newest, latest


def kept_by_oracle(
    records: list[Record], newest: dict[bytes, int], latest: int, *, drops: bool
) -> list[Record]:
    return [
        record
        for record in records
        if record.offset > latest
        or (
            record.key is not None
            and record.offset >= newest.get(record.key, -1)
            and not (record.value is None and drops)
        )
    ]


@both_ways
@given(seed=SEEDS)
def test_what_stays_is_what_a_reader_would_keep(way: Any, seed: int) -> None:
    random = Random(seed)
    data = some_row(random, random.choice((2, 30)), is_plain=True)
    offset_map = way.new_map()
    stop_offset = random.choice([END, *(header.base_offset for _, header in batches(data))])
    newest, latest = known_by_oracle(data[: way.put(offset_map, data, 0, stop_offset)])
    assert offset_map.latest_offset == latest
    assert len(offset_map) == len(newest)
    assert all(offset_map.get(key) == offset for key, offset in newest.items())

    if random.random() < 0.5:
        latest = random.randrange(latest, latest + 9)
        offset_map.skip_to(latest)
    rule = some_rule(random, data)._replace(horizon_ms=5000, aborted=())
    cleaned = way.clean(data, offset_map, rule, way.transactions())
    taken = [header for _, header in batches(data) if header.base_offset <= latest]
    assert cleaned.end_position == sum(header.size_in_bytes for header in taken)
    horizons_ms: list[int] = []
    left = list(batches(cleaned.data))
    for position, header in batches(data[: cleaned.end_position]):
        records = decode(data, position)
        drops = header.delete_horizon_ms is not None and header.delete_horizon_ms <= rule.now_ms
        kept = kept_by_oracle(records, newest, latest, drops=drops)
        if not kept and header.last_offset not in rule.kept_empty:
            continue
        after_position, after = left.pop(0)
        assert decode(cleaned.data, after_position) == kept
        assert (after.base_offset, after.last_offset, after.producer_id, after.leader_epoch) == (
            header.base_offset,
            header.last_offset,
            header.producer_id,
            header.leader_epoch,
        )
        gets_horizon = (
            header.delete_horizon_ms is None
            and header.last_offset <= latest
            and any(record.value is None for record in kept)
        )
        if gets_horizon:
            assert after.delete_horizon_ms == rule.horizon_ms
        elif kept:
            assert after.delete_horizon_ms == header.delete_horizon_ms
        horizon_ms = after.delete_horizon_ms
        if (
            any(record.value is None for record in kept)
            and horizon_ms is not None
            and (gets_horizon or horizon_ms > rule.now_ms)
        ):
            horizons_ms.append(horizon_ms)
    assert not left
    assert cleaned[-2:] == (min(horizons_ms, default=END), max(horizons_ms, default=-1))


@both_ways
def test_a_map_that_fills_up_stops_between_two_records(way: Any) -> None:
    records = [Record(index, 0, key, b"v") for index, key in enumerate((b"a", b"b", b"a", None, b"c", b"a"))]
    data = encode_batch(records[:2]) + encode_batch(records[2:], base_offset=2)
    offset_map = way.new_map(2, 1.0)
    assert way.put(offset_map, data, 0, END) == len(encode_batch(records[:2]))
    assert (len(offset_map), offset_map.latest_offset, offset_map.is_full) == (2, 3, True)
    assert (offset_map.get(b"a"), offset_map.get(b"b"), offset_map.get(b"c")) == (2, 1, None)
    # Later puts do nothing, not even for known keys.
    assert way.put(offset_map, data, 0, END) == 0
    offset_map.put_records(data[HEADER_SIZE:], 2, 90, 0, 9)
    assert offset_map.latest_offset == 3
    with pytest.raises(AssertionError):
        offset_map.skip_to(90)


@needs_native
@pytest.mark.parametrize(("capacity", "load_factor"), [(1, 1.0), (7, 1.0), (5000, 0.9), (5000, 1.0)])
def test_the_map_against_a_dict(capacity: int, load_factor: float) -> None:
    random = Random(capacity)
    offset_map = native.OffsetMap(bytes(16), capacity, load_factor)
    newest: dict[bytes, int] = {}
    offset = 0
    while not offset_map.is_full:
        keys = [b"%d" % random.randrange(capacity * 3) for _ in range(random.choice((1, 100)))]
        payload = pure_kernels.encode_records([Record(0, 0, key, b"") for key in keys], 0)
        offset_map.put_records(payload, len(keys), offset, 0, len(keys))
        for index, key in enumerate(keys[: offset_map.latest_offset + 1 - offset]):
            newest[key] = offset + index
        offset += len(keys)
    offset_map.check()
    assert len(offset_map) == len(newest) == offset_map.max_entries
    for number in range(capacity * 3):
        assert offset_map.get(b"%d" % number) == newest.get(b"%d" % number)


@needs_native
def test_a_large_map_takes_keys_until_nine_slots_of_ten_are_in_use() -> None:
    """Quickly: with long look-ups, this would take minutes."""
    capacity = 200_000
    offset_map = native.OffsetMap(bytes(16), capacity, 0.9)
    for base in range(0, offset_map.max_entries, 1000):
        records = [Record(0, 0, b"%d" % (base + index), b"") for index in range(1000)]
        offset_map.put_records(pure_kernels.encode_records(records, 0), 1000, base, 0, 1000)
    assert len(offset_map) == offset_map.max_entries == 180_000
    offset_map.check()


@needs_native
def test_a_call_keeps_no_more_batches_than_the_writer_can_take() -> None:
    data = b"".join(
        encode_batch([Record(index, 0, b"%d" % index, b"v")], base_offset=index) for index in range(1033)
    )
    offset_map = native.OffsetMap(bytes(16), 10_000, 0.9)
    assert offset_map.put_batches(data, 0, 0, END) == (len(data), 1033)
    rule, transactions = CleanRule(0, 0), native.OpenTransactions()
    first = native.clean_batches(data, 0, offset_map, rule, transactions)
    assert first.next_offset == 1024
    second = native.clean_batches(data, first.end_position, offset_map, rule, transactions)
    assert second.end_position == len(data)
    assert bytes(first.data) + bytes(second.data) == data


@both_ways
@pytest.mark.parametrize(
    ("now_ms", "left", "expected"),
    [(4, [0, 1], (5, 5)), (5, [1], (END, -1)), (9, [1], (END, -1))],
)
def test_a_horizon_that_has_passed_is_not_to_come(
    way: Any, now_ms: int, left: list[int], expected: tuple[int, int]
) -> None:
    """Tombstones stay in a batch whose end the map has not reached, though they were stamped."""
    data = encode_batch([Record(0, 0, b"a", None), Record(0, 0, b"b", None)], delete_horizon_ms=5)
    offset_map = way.new_map(9)
    offset_map.skip_to(0)
    cleaned = way.clean(data, offset_map, CleanRule(now_ms, 50), way.transactions())
    assert [one.offset for one in decode(cleaned.data, 0)] == left
    assert (cleaned.earliest_horizon_ms, cleaned.latest_horizon_ms) == expected


@both_ways
def test_a_map_is_as_large_as_its_memory(way: Any) -> None:
    for memory_bytes in (0, 24, 48, 1000, 128 << 20):
        slots = way.new_map().slots_for(memory_bytes)
        assert slots >= 1
        if slots > 1:
            assert (slots + 1) * 24 <= memory_bytes < (slots + 2) * 24
    assert way.new_map(10).memory_bytes == 11 * 24
    assert way.new_map(10).max_entries == 9
    assert way.new_map(10, 0.01).max_entries == 1
