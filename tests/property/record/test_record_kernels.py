"""The compiled record kernels and their pure-Python twins: same results byte for byte, same refusals.

Payloads are valid ones, valid ones with a few bytes changed, inserted or cut off, and plain garbage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, InvalidRequestError, LogStoreError
from stratalog.record.columns import COLUMN_NAMES, ColumnBuffers
from stratalog.record.native import pure_kernels
from stratalog.record.record import Record
from tests.support.kernels import native

if native is None:
    pytest.skip("the compiled kernels were not built", allow_module_level=True)

Outcome: TypeAlias = "tuple[str, object]"

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMESTAMPS = st.one_of(st.integers(-1, 2**41), INT64)
PARTS = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=12), PARTS), max_size=4).map(tuple)
RECORDS = st.lists(st.builds(Record, st.just(0), TIMESTAMPS, PARTS, PARTS, HEADERS), max_size=12)
# Small numbers are what frames are made of, so bytes like these get further than others.
FRAME_BYTES = st.lists(
    st.one_of(st.integers(0, 16), st.sampled_from([0x7F, 0x80, 0xFF]), st.integers(0, 255)), max_size=80
).map(bytes)


@st.composite
def mutated(draw: st.DrawFn, source: bytes) -> bytes:
    """`source` with up to four changes."""
    data = bytearray(source)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["set", "flip", "insert", "delete", "cut"])):
            case "set" if data:
                data[place] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                data.insert(place, draw(st.integers(0, 255)))
            case "delete":
                del data[place : place + draw(st.integers(1, 3))]
            case _:
                del data[place:]
    return bytes(data)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """A records section, sound or not, and a record count that mostly fits."""
    records = draw(RECORDS)
    base_timestamp = records[0].timestamp_ms if records else 0
    try:
        payload = pure_kernels.encode_records(records, base_timestamp)
    except LogStoreError:
        payload = b""
    match draw(st.sampled_from(["valid", "mutated", "mutated", "garbage"])):
        case "mutated":
            payload = draw(mutated(payload))
        case "garbage":
            payload = draw(FRAME_BYTES)
        case _:
            pass
    count = draw(st.one_of(st.just(len(records)), st.just(len(records)), st.integers(-1, 20), INT64))
    return payload, count


def outcome(function: Callable[..., object], *arguments: object, **options: object) -> Outcome:
    """The result of a kernel, or its refusal. No other exception is allowed out."""
    try:
        return "result", function(*arguments, **options)
    except LogStoreError as error:
        return "refused", type(error)


def column_bytes(columns: ColumnBuffers) -> dict[str, bytes]:
    return {name: bytes(memoryview(getattr(columns, name)).cast("B")) for name in COLUMN_NAMES}


@given(RECORDS, st.one_of(st.none(), TIMESTAMPS))
def test_encoded_bytes_are_the_same(records: list[Record], base_timestamp: int | None) -> None:
    if base_timestamp is None:
        base_timestamp = records[0].timestamp_ms if records else 0
    ours = outcome(native.encode_records, records, base_timestamp)
    assert ours == outcome(pure_kernels.encode_records, records, base_timestamp)


@given(RECORDS)
def test_what_was_encoded_decodes(records: list[Record]) -> None:
    kinds: list[Any] = [native, pure_kernels]
    for kernels in kinds:
        payload = outcome(kernels.encode_records, records, 0)[1]
        if isinstance(payload, bytes):
            decoded = kernels.decode_records(payload, len(records), 7, 0, None)
            assert decoded == [record._replace(offset=7 + index) for index, record in enumerate(records)]


@given(payloads(), st.one_of(st.integers(0, 12), INT64))
@example((b"", 0), -1)
@example((b"\x0c\x00\x00\x00\x01\x01\x00", 1), 0)
def test_scan_judges_the_same(payload_and_count: tuple[bytes, int], last_offset_delta: int) -> None:
    payload, count = payload_and_count
    expected = outcome(pure_kernels.scan_records, payload, count, last_offset_delta)
    assert outcome(native.scan_records, payload, count, last_offset_delta) == expected
    if expected[0] == "result" and count > 0:
        summary = pure_kernels.scan_records(payload, count, last_offset_delta)
        records = pure_kernels.decode_records(payload, count, 0, 0, None)
        latest = max(record.timestamp_ms for record in records)
        first_latest = next(record.offset for record in records if record.timestamp_ms == latest)
        offsets = (records[0].offset, records[-1].offset, first_latest)
        assert summary[-3:] == offsets
    assert expected[0] == "result" or expected[1] is CorruptRecordError


@given(payloads(), st.one_of(st.integers(0, 2**63 - 1), st.just(5)), INT64, st.one_of(st.none(), TIMESTAMPS))
def test_decoded_records_are_the_same(
    payload_and_count: tuple[bytes, int], base_offset: int, base_timestamp: int, append_time_ms: int | None
) -> None:
    arguments = (*payload_and_count, base_offset, base_timestamp, append_time_ms)
    expected = outcome(pure_kernels.decode_records, *arguments)
    assert outcome(native.decode_records, *arguments) == expected
    assert expected[0] == "result" or expected[1] is CorruptRecordError


@given(payloads(), st.integers(0, 40), st.integers(1, 5), st.integers(0, 120))
def test_spans_are_the_same(
    payload_and_count: tuple[bytes, int], position: int, max_count: int, max_bytes: int
) -> None:
    payload, _ = payload_and_count
    position = min(position, len(payload))
    expected = outcome(pure_kernels.span_records, payload, position, max_count, max_bytes)
    assert outcome(native.span_records, payload, position, max_count, max_bytes) == expected
    assert expected[0] == "result" or expected[1] is CorruptRecordError


@given(RECORDS, st.integers(1, 5), st.integers(0, 300))
def test_spans_are_as_many_records_as_fit(records: list[Record], max_count: int, max_bytes: int) -> None:
    kind, payload = outcome(pure_kernels.encode_records, records, 0)
    if kind == "refused":
        return
    assert isinstance(payload, bytes)
    # A record's size does not depend on its place among so few: their offset deltas take a byte.
    sizes = [len(pure_kernels.encode_records([record], 0)) for record in records]
    position, first = 0, 0
    while first < len(records):
        count = 1
        while (
            first + count < len(records)
            and count < max_count
            and sum(sizes[first:][: count + 1]) <= max_bytes
        ):
            count += 1
        end = position + sum(sizes[first:][:count])
        for kernels in (native, pure_kernels):
            assert kernels.span_records(payload, position, max_count, max_bytes) == (count, end)
        position, first = end, first + count
    assert position == len(payload)


@given(
    payloads(),
    st.binary(max_size=3),
    st.integers(-1, 9),
    st.integers(0, 4),
    st.one_of(st.just(2**31), st.integers(0, 12)),
    st.booleans(),
    st.one_of(st.just(0), st.integers(-300, 300), INT64),
)
def test_copies_are_the_same(
    payload_and_count: tuple[bytes, int],
    survivors: bytes,
    first_ordinal: int,
    first_offset_delta: int,
    end_offset_delta: int,
    drop_tombstones: bool,
    timestamp_shift: int,
) -> None:
    arguments = (*payload_and_count, survivors, first_ordinal)
    options = {
        "first_offset_delta": first_offset_delta,
        "end_offset_delta": end_offset_delta,
        "drop_tombstones": drop_tombstones,
        "timestamp_shift": timestamp_shift,
    }
    kind, expected = outcome(pure_kernels.copy_records, *arguments, **options)
    assert outcome(native.copy_records, *arguments, **options) == (kind, expected)
    assert kind == "result" or expected is CorruptRecordError
    if dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        result: Any = expected
        # Its headers were not looked at, all the rest must be sound.
        assert len(result.payload) <= len(payload_and_count[0]) + 13 * result.count


def is_tombstone(record: Record) -> bool:
    """Whether the record deletes its key: one without a key stays."""
    return record.value is None and record.key is not None


@example(
    [Record(0, 0, None, None, (("name", b"x"),)), Record(1, 0, b"k", None)], [True] * 12, 0, (0, 12), True, 0
)
@given(
    RECORDS,
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.integers(0, 9),
    st.tuples(st.integers(0, 4), st.integers(4, 12)),
    st.booleans(),
    st.sampled_from([0, 0, -7, 90_000]),
)
def test_survivors_are_copied_and_nothing_else(
    records: list[Record],
    is_kept: list[bool],
    lead: int,
    offsets: tuple[int, int],
    drop_tombstones: bool,
    timestamp_shift: int,
) -> None:
    """An oracle of its own: what is copied decodes to the records that a list comprehension picks."""
    records = [record._replace(timestamp_ms=record.timestamp_ms >> 20) for record in records]
    payload = pure_kernels.encode_records(records, 0)
    survivors = sum(kept << (lead + index) for index, kept in enumerate(is_kept)).to_bytes(3, "little")
    expected = [
        record._replace(offset=index, timestamp_ms=record.timestamp_ms + timestamp_shift)
        for index, record in enumerate(records)
        if is_kept[index]
        and offsets[0] <= index < offsets[1]
        and not (drop_tombstones and is_tombstone(record))
    ]
    kinds: list[Any] = [native, pure_kernels]
    for kernels in kinds:
        copied = kernels.copy_records(
            payload,
            len(records),
            survivors,
            lead,
            first_offset_delta=offsets[0],
            end_offset_delta=offsets[1],
            drop_tombstones=drop_tombstones,
            timestamp_shift=timestamp_shift,
        )
        assert kernels.decode_records(copied.payload, copied.count, 0, 0, None) == expected
        assert copied.count == len(expected)
        if expected:
            assert (copied.first_delta, copied.last_delta) == (expected[0].offset, expected[-1].offset)
            assert copied.max_timestamp_delta == max(record.timestamp_ms for record in expected)
            assert copied.tombstone_count == sum(map(is_tombstone, expected))


@given(
    payloads(),
    st.one_of(st.integers(0, 20), INT64.filter(lambda number: number >= 0)),
    INT64,
    st.one_of(st.none(), TIMESTAMPS),
    st.integers(0, 20),
    st.one_of(st.integers(0, 40), st.just(2**63 - 1)),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_columns_are_the_same(
    payload_and_count: tuple[bytes, int],
    base_offset: int,
    base_timestamp: int,
    append_time_ms: int | None,
    first_offset: int,
    end_offset: int,
    wanted: tuple[bool, bool, bool],
) -> None:
    arguments = (*payload_and_count, base_offset, base_timestamp, append_time_ms, first_offset, end_offset)
    seed = pure_kernels.encode_records(
        [Record(0, 1, b"key", None, (("name", None), ("", b"x"))), Record(0, 2, None, b"value")], 0
    )
    expected, actual = (ColumnBuffers(keys=wanted[0], values=wanted[1], headers=wanted[2]) for _ in range(2))
    for kernels, columns in ((pure_kernels, expected), (native, actual)):
        kernels.decode_columns(seed, 2, 0, 0, None, 0, 2, columns)
    before = column_bytes(expected)
    kind, value = outcome(pure_kernels.decode_columns, *arguments, expected)
    assert outcome(native.decode_columns, *arguments, actual) == (kind, value)
    assert column_bytes(actual) == column_bytes(expected)
    actual.check()
    if kind == "refused":
        assert value is CorruptRecordError
        assert column_bytes(actual) == before


def columns_of(records: list[Record]) -> ColumnBuffers:
    """The records as columns, whose room for garbage is used: a null has bytes of its own."""
    columns = ColumnBuffers()
    for record in records:
        columns.offset.append(7)
        columns.timestamp_ms.append(record.timestamp_ms)
        for part, offsets, data, validity in (
            (record.key, columns.key_offsets, columns.key_data, columns.key_validity),
            (record.value, columns.value_offsets, columns.value_data, columns.value_validity),
        ):
            data.extend(b"garbage" if part is None else part)
            offsets.append(len(data))
            validity.append(part is not None)
        for name, value in record.headers:
            columns.header_name_data += name.encode()
            columns.header_name_offsets.append(len(columns.header_name_data))
            columns.header_value_data += value or b""
            columns.header_value_offsets.append(len(columns.header_value_data))
            columns.header_value_validity.append(value is not None)
        columns.header_list_offsets.append(columns.header_count)
    columns.check()
    return columns


def is_encodable(record: Record) -> bool:
    return outcome(pure_kernels.encode_records, [record], record.timestamp_ms)[0] == "result"


@pytest.mark.parametrize(
    ("timestamp_ms", "base_timestamp"),
    [(2**63, 0), (-(2**63) - 1, 0), (2**80, 0), (2**63 - 1, -5), (5, 2**63)],
)
def test_a_timestamp_that_cannot_be_written_is_named_alike(timestamp_ms: int, base_timestamp: int) -> None:
    kinds: list[Any] = [native, pure_kernels]
    for kernels in kinds:
        with pytest.raises(InvalidRequestError) as failure:
            kernels.encode_records([Record(0, timestamp_ms, None, None)], base_timestamp)
        wrong = base_timestamp if base_timestamp >= 2**63 else timestamp_ms
        assert failure.value.fields == {"timestamp": wrong}, kernels


@given(RECORDS, st.integers(0, 12), st.integers(0, 12), st.one_of(st.none(), INT64))
def test_rows_are_written_as_their_records(
    records: list[Record], first_row: int, end_row: int, base_timestamp: int | None
) -> None:
    records = [record for record in records if is_encodable(record)]
    first_row, end_row = sorted((min(first_row, len(records)), min(end_row, len(records))))
    if base_timestamp is None:
        base_timestamp = records[0].timestamp_ms if records else 0
    columns = columns_of(records)
    expected = outcome(pure_kernels.encode_records, records[first_row:end_row], base_timestamp)
    kinds: list[Any] = [native, pure_kernels]
    for kernels in kinds:
        found = outcome(kernels.encode_columns, columns, first_row, end_row - first_row, base_timestamp)
        assert found == expected


@given(RECORDS, st.data())
def test_columns_that_do_not_fit_each_other_are_refused_alike(
    records: list[Record], data: st.DataObject
) -> None:
    columns = columns_of([record for record in records if is_encodable(record)])
    row_count = columns.row_count
    for _ in range(data.draw(st.integers(1, 3))):
        column = getattr(columns, data.draw(st.sampled_from(COLUMN_NAMES)))
        place = data.draw(st.integers(0, max(0, len(column) - 1)))
        match data.draw(st.sampled_from(["set", "set", "insert", "delete"])):
            case "set" if len(column):
                column[place] = data.draw(st.sampled_from([0, 1, 2, 5, 0x7F]))
            case "insert":
                column.insert(place, 1)
            case _:
                del column[place:]
    row_count = data.draw(st.integers(0, len(columns.timestamp_ms)))
    expected = outcome(pure_kernels.encode_columns, columns, 0, row_count, 0)
    assert outcome(native.encode_columns, columns, 0, row_count, 0) == expected
    assert expected[0] == "result" or expected[1] is InvalidRequestError


@given(RECORDS)
def test_decoded_columns_are_written_as_they_were(records: list[Record]) -> None:
    records = [record for record in records if is_encodable(record)]
    kind, payload = outcome(pure_kernels.encode_records, records, 0)
    if kind == "result":
        columns = ColumnBuffers()
        native.decode_columns(payload, len(records), 0, 0, None, 0, len(records), columns)
        assert native.encode_columns(columns, 0, len(records), 0) == payload


def test_unwanted_columns_keep_their_validity_and_lose_their_bytes() -> None:
    payload = pure_kernels.encode_records(
        [Record(0, 1, b"key", b"value"), Record(0, 2, b"key", None), Record(0, 3, None, b"")], 0
    )
    for kernels in (pure_kernels, native):
        columns = ColumnBuffers(keys=False, values=False)
        assert kernels.decode_columns(payload, 3, 0, 0, None, 0, 3, columns) == 3
        assert (columns.key_data, columns.value_data) == (bytearray(), bytearray())
        assert list(columns.key_validity) == [1, 1, 0]
        assert list(columns.value_validity) == [1, 0, 1]
        columns.check()
