"""Slices as Arrow: the columns are those of Spark's Kafka source, and the rows are exactly the records."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, ObjectNotFoundError, StoreUnavailableError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.source import slice_scan
from stratalog.pipeline.source.arrow_rows import arrow_schema
from stratalog.pipeline.source.scan_plan import group_spans
from stratalog.pipeline.source.schema import COLUMNS
from stratalog.pipeline.source.slice_scan import READ_BYTES, ROW_LIMITS, scan
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import ATTRIBUTES_POSITION, CONTROL_BIT, TRANSACTIONAL_BIT
from stratalog.record.native.batch_kernels import decode_column_batches
from stratalog.record.native.kernels import NATIVE
from stratalog.record.reading.record_portions import PORTION_COUNT
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from tests.support.tiered.stores.away_store import AwayStore
from tests.support.tiered.stores.ranged_store import RangedStore

ALL = tuple(column.name for column in COLUMNS)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
plain_records = st.builds(
    Record,
    st.just(0),
    st.integers(min_value=-1, max_value=2**63 - 1) | st.integers(min_value=-1, max_value=4_000_000_000_000),
    st.none() | st.binary(max_size=12),
    st.none() | st.binary(max_size=40),
    headers,
)
logs = st.lists(
    st.tuples(
        st.lists(plain_records, min_size=1, max_size=8),
        st.sampled_from(Codec),
        st.none() | st.integers(0, 2**63 - 1),
    ),
    min_size=1,
    max_size=6,
)


def instant(timestamp_ms: int) -> dt.datetime | None:
    """None where Python has no datetime for it, and so Spark no row."""
    try:
        return EPOCH + dt.timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def store_with(data: bytes) -> MemoryObjectStore:
    store = MemoryObjectStore(ManualClock())
    store.put("object", b"header!!" + data)
    return store


def span(data: bytes, first_offset: int, end_offset: int, partition: int = 3) -> SliceSpan:
    return placed(8, len(data), first_offset, end_offset, partition)


def placed(
    position: int,
    size_bytes: int,
    first_offset: int = 0,
    end_offset: int = 1,
    partition: int = 3,
    key: str = "object",
) -> SliceSpan:
    """A span at this place of an object."""
    return SliceSpan(
        topic="t",
        partition=partition,
        shard=0,
        object_key=key,
        position=position,
        size_bytes=size_bytes,
        first_offset=first_offset,
        end_offset=end_offset,
        slice_base_offset=first_offset,
        slice_end_offset=end_offset,
    )


@given(logs, st.integers(min_value=0, max_value=50), st.integers(min_value=0, max_value=50))
def test_rows_are_the_records_of_the_range(
    log: list[tuple[list[Record], Codec, int | None]], first: int, end: int
) -> None:
    data, expected = b"", list[dict[str, object]]()
    offset = 0
    for records, codec, append_time_ms in log:
        data += encode_batch(records, codec=codec, base_offset=offset, append_time_ms=append_time_ms)
        for record in records:
            stamp = record.timestamp_ms if append_time_ms is None else append_time_ms
            if first <= offset < end:
                expected.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "t",
                        "partition": 3,
                        "offset": offset,
                        "timestamp": instant(stamp),
                        "timestampType": int(append_time_ms is not None),
                        "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
                        "tombstone": record.key is not None and record.value is None,
                    }
                )
            offset += 1
    rows = list[dict[str, object]]()
    for batch in scan(store_with(data), [span(data, first, end)], ALL):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(ALL))
        rows += batch.to_pylist()
    assert rows == expected


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (253_402_300_799_999, dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, dt.UTC)),
        (253_402_300_800_000, None),
        (2**63 // 1000 + 1, None),
        (1_700_000_000_000_000_000, None),
        (2**63 - 1, None),
    ],
)
def test_a_time_that_spark_cannot_hold_is_null_and_harms_no_other(
    timestamp_ms: int, expected: dt.datetime | None
) -> None:
    data = encode_batch([Record(0, 5, b"k", b"v"), Record(0, timestamp_ms, b"k", b"v")])
    (batch,) = scan(store_with(data), [span(data, 0, 2)], ("timestamp",))
    assert batch.to_pylist() == [{"timestamp": instant(5)}, {"timestamp": expected}]


def test_only_the_columns_that_were_asked_for_in_that_order() -> None:
    data = encode_batch([Record(0, 5, b"k", b"v"), Record(0, 6, b"k", None)])
    (batch,) = scan(store_with(data), [span(data, 0, 2)], ("offset", "key"))
    assert batch.to_pylist() == [{"offset": 0, "key": b"k"}, {"offset": 1, "key": b"k"}]


def test_a_changed_byte_ends_the_scan_with_its_place() -> None:
    data = bytearray(encode_batch([Record(0, 5, b"key", b"value")]))
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError) as error:
        list(scan(store_with(bytes(data)), [span(bytes(data), 0, 1)], ALL))
    assert error.value.fields["key"] == "object"


@pytest.mark.parametrize("bit", [CONTROL_BIT, TRANSACTIONAL_BIT])
def test_a_flipped_bit_leaves_no_batch_out(bit: int) -> None:
    """A batch of the log itself has no rows, and one of an aborted transaction has none either."""
    data = bytearray(encode_batch([Record(0, 1, None, b"v")]))
    data[ATTRIBUTES_POSITION + 1] ^= bit
    with pytest.raises(CorruptRecordError):
        list(scan(store_with(bytes(data)), [span(bytes(data), 0, 1)], ALL))


def test_a_slice_that_ends_inside_a_batch_is_corrupt() -> None:
    data = encode_batch([Record(0, 5, b"key", b"value")])[:-3]
    with pytest.raises(CorruptRecordError):
        list(scan(store_with(data), [span(data, 0, 1)], ALL))


def test_an_object_that_compaction_deleted_is_named() -> None:
    store = MemoryObjectStore(ManualClock())
    with pytest.raises(ObjectNotFoundError) as error:
        list(scan(store, [placed(0, 10, 5, 7, key="gone")], ALL))
    fields = error.value.fields
    assert (fields["topic"], fields["partition"], fields["slice"], fields["key"]) == ("t", 3, "5-7", "gone")


def test_a_store_that_is_away_is_named_with_the_place() -> None:
    data = encode_batch([Record(0, 5, b"key", b"value")])
    store = AwayStore(store_with(data))
    store.is_away = True
    with pytest.raises(StoreUnavailableError) as error:
        list(scan(store, [span(data, 0, 1)], ALL))
    assert error.value.fields.items() >= span(data, 0, 1).error_fields.items()


@given(
    st.lists(st.integers(min_value=1, max_value=100), max_size=20), st.integers(min_value=1, max_value=150)
)
def test_tasks_hold_every_slice_once_and_stay_small(sizes: list[int], max_bytes: int) -> None:
    spans = [placed(0, size, partition=index) for index, size in enumerate(sizes)]
    groups = group_spans(spans, max_bytes)
    assert [span for group in groups for span in group] == spans
    for group in groups:
        assert group
        assert len(group) == 1 or sum(span.size_bytes for span in group) <= max_bytes


def test_a_large_batch_leaves_in_pieces() -> None:
    count = 150_000
    data = encode_batch([Record(0, 5, b"k%d" % index, b"v") for index in range(count)], codec=Codec.ZSTD)
    found = list(scan(store_with(data), [span(data, 3, count - 2)], ("offset", "key")))
    assert max(batch.num_rows for batch in found) < ROW_LIMITS.row_count + PORTION_COUNT
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(3, count - 2))
    assert rows[-1]["key"] == b"k%d" % (count - 3)


def test_records_without_bytes_leave_as_often_as_others() -> None:
    data, count = b"", 10_000
    for number in range(20):
        data += encode_batch([Record(0, 5, None, None)] * count, base_offset=number * count)
    found = list(scan(store_with(data), [span(data, 0, 20 * count)], ("offset",)))
    assert sum(batch.num_rows for batch in found) == 20 * count
    assert max(batch.num_rows for batch in found) < ROW_LIMITS.row_count + count


def test_tombstones_need_no_values() -> None:
    data = encode_batch([Record(0, 5, b"k", b"v"), Record(0, 6, b"k", None), Record(0, 7, None, None)])
    (batch,) = scan(store_with(data), [span(data, 0, 3)], ("tombstone",))
    assert batch.to_pylist() == [{"tombstone": False}, {"tombstone": True}, {"tombstone": False}]


def test_timestamp_types_and_partitions_share_a_record_batch() -> None:
    created = encode_batch([Record(0, 5, b"a", b"v")])
    appended = encode_batch([Record(0, 5, b"b", b"v")], base_offset=1, append_time_ms=9)
    other = encode_batch([Record(0, 7, b"c", b"v")])
    data = created + appended + other
    two = len(created + appended)
    spans = [placed(8, two, 0, 2), placed(8 + two, len(other), 0, 1, partition=4)]
    (batch,) = scan(store_with(data), spans, ("partition", "offset", "timestampType"))
    assert [tuple(row.values()) for row in batch.to_pylist()] == [(3, 0, 0), (3, 1, 1), (4, 0, 0)]


def test_a_batch_of_many_mebibytes_is_read_in_few_pieces() -> None:
    """Each read copies what is there of the batch already."""
    data = encode_batch([Record(0, 5, b"k", b"v" * (1 << 20))] * 24)
    store = RangedStore(ManualClock())
    store.put("object", b"header!!" + data)
    found = list(scan(store, [span(data, 0, 24)], ("offset", "value")))
    assert sum(batch.num_rows for batch in found) == 24
    assert len(store.read_sizes) <= 3
    assert max(batch.nbytes for batch in found) < 6 << 20


def test_rows_are_filled_by_few_calls_from_reads_that_end_with_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call makes the buffers of the rows grow, and a batch that lies across two reads is copied."""
    data = b"".join(
        encode_batch([Record(0, 5, b"k", b"v" * 1_000)] * 16, base_offset=16 * n) for n in range(256)
    )
    store = RangedStore(ManualClock())
    store.put("object", b"header!!" + data)
    sizes: list[int] = []

    def counted(buffer: memoryview, position: int, *rest: Any) -> tuple[int, int]:
        end_position, epoch = decode_column_batches(buffer, position, *rest)
        sizes.append(end_position - position)
        return end_position, epoch

    monkeypatch.setattr(slice_scan, "decode_column_batches", counted)
    found = list(scan(store, [span(data, 0, 4096)], ("offset", "value")))
    assert sum(batch.num_rows for batch in found) == 4096
    assert store.read_sizes[:-1:2] == [READ_BYTES] * 3
    assert max(store.read_sizes[1::2]) < len(data) // 256, "the rest of a batch"
    if NATIVE:
        assert sum(sizes) == len(data)
        assert len(sizes) <= 4 * len(found), "two for each piece, with the rest of its last batch"


def test_pieces_may_end_anywhere_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(encode_batch([Record(0, 5, b"k", b"v%d" % n)], base_offset=n) for n in range(40))
    for read_bytes in range(1, 150):
        monkeypatch.setattr(slice_scan, "READ_BYTES", read_bytes)
        rows = list(scan(store_with(data), [span(data, 0, 40)], ("offset",)))
        assert [row["offset"] for batch in rows for row in batch.to_pylist()] == list(range(40))
