"""Records as consumers get them: compiled and in plain Python the same, from batches of all kinds, and the
same as rows of columns. The oracle decodes batch by batch. Damaged and torn batches are refused, and the
error names the place.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.columns import ColumnBuffers
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.native import pure_batch_kernels, pure_consumer_records, pure_kernels
from stratalog.record.reading import column_portions as columns_module
from stratalog.record.reading import record_portions as portions_module
from stratalog.record.reading.column_portions import column_portions
from stratalog.record.reading.record_portions import RecordReading, record_portions
from stratalog.record.record import Record
from tests.property.record.test_record_kernels import TIMESTAMPS, payloads
from tests.support.kernels import each_kind, native, needs_native
from tests.support.logs.plain_batches import with_section

PRODUCER = 7
"""Its transactions are aborted."""


@contextmanager
def kind_of(kernels: Any) -> Generator[None]:
    """Decode with these kernels inside of the block."""
    is_pure = kernels is pure_consumer_records
    with (
        mock.patch.object(portions_module, "decode_consumer_batches", kernels.decode_consumer_batches),
        mock.patch.object(portions_module, "decode_consumer_records", kernels.decode_consumer_records),
        mock.patch.object(
            columns_module,
            "decode_column_batches",
            (pure_batch_kernels if is_pure else kernels).decode_column_batches,
        ),
        mock.patch.object(columns_module, "kernels", pure_kernels if is_pure else kernels),
    ):
        yield


def fields(record: Any) -> tuple[object, ...]:
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
    )


def outcome_of(portions: Iterator[Any]) -> tuple[list[Any], list[int], dict[str, object] | None]:
    """The records of the portions, the epochs, and the fields of the error at the end, if there is one."""
    records: list[Any] = []
    epochs: list[int] = []
    try:
        for portion in portions:
            assert portion.records
            records += portion.records
            epochs.append(portion.last_epoch)
    except CorruptRecordError as error:
        return records, epochs, error.fields
    return records, epochs, None


def row_of_batches(random: Random) -> bytes:
    """Batches of all codecs and kinds, with gaps in their offsets."""
    data, offset = b"", random.randrange(3)
    for _ in range(random.randrange(6)):
        count = random.choice([1, 2, 5, 40])
        records = [random_record(random) for _ in range(count)]
        epoch = random.randrange(3)
        kind = random.choice(["plain", "plain", "plain", "transactional", "marker"])
        if kind == "marker":
            marker = EndTransactionMarker(ControlType.ABORT, 0)
            data += marker.to_batch(PRODUCER, 0, 0, base_offset=offset, leader_epoch=epoch)
            count = 1
        else:
            producer = BatchProducer()
            if kind == "transactional":
                producer = BatchProducer(random.choice([PRODUCER, 8]), 0, 0, is_transactional=True)
            data += encode_batch(
                records,
                base_offset=offset,
                leader_epoch=epoch,
                codec=random.choice([Codec.NONE, Codec.NONE, *Codec]),
                producer=producer,
            )
        offset += count + random.choice([0, 0, 3])
    return data


def random_record(random: Random) -> Record:
    def part() -> bytes | None:
        return None if random.random() < 0.2 else random.randbytes(random.choice([0, 1, 30]))

    headers = tuple((f"näme{number}", part()) for number in range(random.choice([0, 0, 0, 1, 3])))
    return Record(0, random.randrange(1000), part(), part(), headers)


def is_wanted(header: BatchHeader) -> bool:
    return not header.is_control and header.producer_id != PRODUCER


@needs_native
@given(
    payloads(),
    st.integers(0, 2**63 - 1),
    TIMESTAMPS,
    st.booleans(),
    st.integers(0, 12),
    st.integers(0, 2**63 - 1),
)
def test_sections_decode_alike(
    payload_and_count: tuple[bytes, int],
    base_offset: int,
    base_timestamp: int,
    has_append_time: bool,
    skipped_count: int,
    end_offset: int,
) -> None:
    payload, count = payload_and_count
    header = parse_header(encode_batch([Record(0, 1, None, None)]))._replace(
        base_offset=base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=99,
        attributes=8 if has_append_time else 0,
    )
    reading = RecordReading(
        topic="t",
        partition=4,
        first_offset=base_offset + skipped_count,
        end_offset=end_offset,
        decode_key=None,
        decode_value=bytes.hex,
    )
    found: list[Any] = []
    for kernels in (native, pure_consumer_records):
        try:
            if reading.first_offset > 2**63 - 1:
                reading = reading._replace(first_offset=2**63 - 1)
            found.append(
                [fields(one) for one in kernels.decode_consumer_records(payload, count, header, reading)]
            )
        except CorruptRecordError:
            found.append("refused")
    assert found[0] == found[1]


@each_kind(pure_consumer_records)
@given(seed=st.integers(0, 2**32))
def test_the_records_are_those_of_single_batches(kernels: Any, seed: int) -> None:
    random = Random(seed)
    data = row_of_batches(random)
    first, end = sorted(random.choice([random.randrange(150), 1000]) for _ in range(2))
    reading = RecordReading("topic", 3, first, end)
    expected = [
        ("topic", 3, *record)
        for position, header in batches(data)
        if is_wanted(header)
        for record in decode(data, position)
        if first <= record.offset < end
    ]
    with kind_of(kernels), mock.patch.object(portions_module, "CONSUMED_COUNT", random.choice([3, 16, 2048])):
        records, epochs, error = outcome_of(record_portions(data, reading, is_wanted))
        assert error is None
        assert [fields(record) for record in records] == expected
        if records:
            [epoch] = [
                header.leader_epoch
                for _, header in batches(data)
                if header.base_offset <= records[-1].offset <= header.last_offset
            ]
            # Behind the end there may be more batches.
            assert epochs[-1] == epoch or end <= parse_last(data)
        rows = [
            row
            for portion in column_portions(data, reading, is_wanted, ColumnBuffers)
            for row in rows_of(portion.rows)
        ]
    assert rows == [one[2:] for one in expected]


def parse_last(data: bytes) -> int:
    """The last offset of the batches."""
    return max(header.last_offset for _, header in batches(data))


def rows_of(columns: ColumnBuffers) -> Iterator[tuple[object, ...]]:
    columns.check()

    def part(offsets: Any, data: bytearray, validity: bytearray | None, index: int) -> bytes | None:
        if validity is not None and not validity[index]:
            return None
        return bytes(data[offsets[index] : offsets[index + 1]])

    for row in range(columns.row_count):
        first, end = columns.header_list_offsets[row], columns.header_list_offsets[row + 1]
        headers = tuple(
            (
                (part(columns.header_name_offsets, columns.header_name_data, None, at) or b"").decode(),
                part(
                    columns.header_value_offsets, columns.header_value_data, columns.header_value_validity, at
                ),
            )
            for at in range(first, end)
        )
        yield (
            columns.offset[row],
            columns.timestamp_ms[row],
            part(columns.key_offsets, columns.key_data, columns.key_validity, row),
            part(columns.value_offsets, columns.value_data, columns.value_validity, row),
            headers,
        )


def rows_until_error(
    data: bytes, reading: RecordReading
) -> tuple[list[tuple[object, ...]], dict[str, object] | None]:
    """The rows of the columns, and the fields of the error at the end, if there is one."""
    rows: list[tuple[object, ...]] = []
    try:
        for portion in column_portions(data, reading, is_wanted, ColumnBuffers):
            rows += rows_of(portion.rows)
    except CorruptRecordError as error:
        return rows, error.fields
    return rows, None


@needs_native
@given(seed=st.integers(0, 2**32))
def test_damaged_and_torn_batches_are_refused_alike(seed: int) -> None:
    random = Random(seed)
    data = bytearray(row_of_batches(random) + encode_batch([random_record(random)] * 3, base_offset=200))
    if random.random() < 0.3:
        del data[-random.randrange(1, 40) :]
    else:
        # The base offset and the leader epoch of a batch are not below its checksum.
        position, header = random.choice(list(batches(bytes(data))))
        data[position + random.randrange(16, header.size_in_bytes)] ^= 1 << random.randrange(8)
    reading = RecordReading("topic", 3)
    found: list[object] = []
    for kernels in (native, pure_consumer_records):
        with kind_of(kernels):
            records, _, error = outcome_of(record_portions(bytes(data), reading, is_wanted))
            columns, column_error = rows_until_error(bytes(data), reading)
        assert error is not None
        assert (error["topic"], error["partition"]) == ("topic", 3)
        assert {"base_offset", "position"} & error.keys()
        assert column_error == error
        assert columns == [fields(record)[2:] for record in records]
        found.append(([fields(record) for record in records], error))
    assert found[0] == found[1]


@each_kind(pure_consumer_records)
def test_a_sound_checksum_over_a_bad_record_names_the_record(kernels: Any) -> None:
    sound = encode_batch([Record(0, 1, b"key", b"value")] * 2)
    reading = RecordReading("topic", 3)
    bad = with_section(sound, sound[61:-1] + b"\x07")
    with kind_of(kernels):
        records, _, error = outcome_of(record_portions(sound + bad, reading, is_wanted))
    assert [record.offset for record in records] == [0, 1]
    assert error is not None
    assert error["base_offset"] == 0
    assert "record_position" in error


@each_kind(pure_consumer_records)
def test_keys_and_values_are_decoded(kernels: Any) -> None:
    data = encode_batch([Record(0, 1, "ä".encode(), b"2"), Record(0, 1, None, None)])
    reading = RecordReading("t", 0, decode_key=b"utf-8".decode(), decode_value=int)
    with kind_of(kernels):
        [portion] = record_portions(data, reading, is_wanted)
        assert [(record.key, record.value) for record in portion.records] == [("ä", 2), (None, None)]
        for wrong in (reading._replace(decode_key=int), reading._replace(decode_value="utf-8")):
            damaged = encode_batch([Record(0, 1, "ä".encode(), b"\xff")])
            with pytest.raises(ValueError):  # noqa: PT011 - the decoder's own
                list(record_portions(damaged, wrong, is_wanted))


@each_kind(pure_consumer_records)
def test_a_record_is_a_value(kernels: Any) -> None:
    def made(**changes: Any) -> Any:
        values = {
            "topic": "t",
            "partition": 1,
            "offset": 2,
            "timestamp_ms": 1_500,
            "key": b"k",
            "value": None,
        }
        return kernels.ConsumerRecord(**{**values, **changes})

    one = made(headers=(("h", None),))
    assert one == made(headers=[("h", None)])
    assert hash(one) == hash(made())
    assert one != made()
    assert one != made(headers=(("h", None),), offset=3)
    assert one != "t"
    assert copy.copy(one) == one
    assert eval(repr(one), {"ConsumerRecord": kernels.ConsumerRecord}) == one
    assert one.timestamp == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert (made(timestamp_ms=-1).timestamp, made(timestamp_ms=2**62).timestamp) == (None, None)
    assert (one.is_tombstone, made(value=b"").is_tombstone) == (True, False)


def test_a_record_is_pickled() -> None:
    [portion] = record_portions(
        encode_batch([Record(0, 5, b"k", b"v", (("h", b"x"),))]), RecordReading("t", 0), is_wanted
    )
    [record] = portion.records
    assert pickle.loads(pickle.dumps(record)) == record


@each_kind(pure_consumer_records)
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=5), st.integers(0, 8))
def test_a_cursor_hands_out_each_record_once(kernels: Any, lists: list[list[int]], taken_count: int) -> None:
    upcoming = iter([list(one) for one in lists])

    async def next_list() -> list[Any]:
        await asyncio.sleep(0)
        for one in upcoming:
            return one
        raise StopAsyncIteration

    async def use() -> list[int]:
        cursor = kernels.RecordCursor(next_list)
        assert aiter(cursor) is cursor
        found: list[int] = []
        if taken_count:
            async for one in cursor:
                found.append(one)
                if len(found) == taken_count:
                    break
        if (peeked := cursor.peek()) is not None:
            rest = cursor.take_rest()
            assert rest[0] == peeked
            found += rest
        assert cursor.peek() is None
        assert cursor.take_rest() == []
        while True:
            try:
                # As a task: its coroutine awaits the cursor in another way than `async for`.
                found.append(await asyncio.wait_for(anext(cursor), 60))
            except StopAsyncIteration:
                break
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(cursor)
        return found

    assert asyncio.run(use()) == [number for one in lists for number in one]
