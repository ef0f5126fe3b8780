"""Rows of Arrow as record batches of a log, with the offsets that they have.

A batch has the offsets from its first row to its last one, holes included. The kernel that encodes rows gives
them offsets without holes. So a row without key and value stands in each hole, and is taken out again, as a
compaction does. A wide hole ends the batch, and so does a time that is too far away from those before it for
the difference to be a number of 64 bits.
"""

# pyright: reportUnknownMemberType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.columns import ColumnBuffers
from stratalog.record.header import MAGIC, TIMESTAMP_TYPE_BIT, BatchHeader
from stratalog.record.native import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

BATCH_BYTES = 64 << 10
"""About the keys, values and headers of a batch. A reader decodes batches whole."""
BATCH_ROWS = 8 << 10
MAX_HOLE = 16
"""Offsets without a row that a batch may have side by side; the header of a batch has as many bytes as some
rows in a hole."""

_LOG_APPEND_TIME = 1
_NO_PRODUCER = BatchProducer()


class BatchStamp(NamedTuple):
    """The fields that batches have in common."""

    leader_epoch: int
    codec: Codec


class _Rows(NamedTuple):
    """The columns that decide on batches, as numbers."""

    offsets: Numbers
    times: Numbers
    """Milliseconds."""
    kinds: Numbers
    """Timestamp types."""


def encode_rows(rows: pa.RecordBatch, shift: int, stamp: BatchStamp) -> Iterator[bytes]:
    """Batches of the rows, whose offsets ascend; `shift` is added to them. The columns are those of
    ``parquet_file``. Raises InvalidRequestError if the rows fit no batch."""
    if not rows.num_rows:
        return
    numbers = _Rows(
        _numbers(rows.column("offset")) + shift,
        _numbers(rows.column("timestamp").cast(pa.int64())),
        _numbers(rows.column("timestampType").cast(pa.int64())),
    )
    for begin, end in _batches_of(numbers, _sizes(rows)):
        part = _Rows(*(column[begin:end] for column in numbers))
        yield _encode(rows.slice(begin, end - begin), part, stamp)


def _batches_of(rows: _Rows, sizes: Numbers) -> Iterator[tuple[int, int]]:
    """The first row of each batch, and the one behind its last."""
    filled = np.cumsum(sizes)
    is_full = np.diff(filled // BATCH_BYTES) > 0
    is_full |= np.arange(1, len(sizes)) % BATCH_ROWS == 0
    has_other_time = (np.diff(rows.times) != 0) & (rows.kinds[1:] == _LOG_APPEND_TIME)
    is_wide_hole = np.diff(rows.offsets) > MAX_HOLE + 1
    # -2 and 1 are far from each other, and so are they from -1 and 0, which are near.
    is_far_time = np.diff(np.where(np.isin(rows.times >> 62, (-1, 0)), 0, rows.times >> 62)) != 0
    is_end = is_full | has_other_time | (np.diff(rows.kinds) != 0) | is_wide_hole | is_far_time
    cuts = np.flatnonzero(is_end) + 1
    bounds = [0, *cuts.tolist(), len(sizes)]
    yield from itertools.pairwise(bounds)


def _encode(rows: pa.RecordBatch, numbers: _Rows, stamp: BatchStamp) -> bytes:
    """One batch of these rows."""
    offsets, times = numbers.offsets, numbers.times
    first_offset, last_offset = int(offsets[0]), int(offsets[-1])
    span = last_offset - first_offset + 1
    base_timestamp = int(times[0])
    places = offsets - first_offset
    if span > rows.num_rows:
        rows, times = _with_holes(rows, places, span, base_timestamp, times)
    payload = kernels.encode_columns(_columns(rows, times), 0, span, base_timestamp)
    if span > len(places):
        payload = _without_holes(payload, places, span)
    is_append_time = int(numbers.kinds[0]) == _LOG_APPEND_TIME
    header = BatchHeader(
        base_offset=first_offset,
        batch_length=0,
        leader_epoch=stamp.leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=stamp.codec | (TIMESTAMP_TYPE_BIT if is_append_time else 0),
        last_offset_delta=span - 1,
        base_timestamp=base_timestamp,
        max_timestamp=0,
        producer_id=_NO_PRODUCER.producer_id,
        producer_epoch=_NO_PRODUCER.producer_epoch,
        base_sequence=_NO_PRODUCER.base_sequence,
        records_count=0,
    )
    return rebuild_batch(header, payload, records_count=len(places), max_timestamp=int(numbers.times.max()))


def _with_holes(
    rows: pa.RecordBatch, places: Numbers, span: int, time_ms: int, times: Numbers
) -> tuple[pa.RecordBatch, Numbers]:
    """The rows, with an empty one in each hole."""
    taken = np.zeros(span, dtype=np.int64)
    taken[places] = np.arange(len(places))
    is_hole = np.ones(span, dtype=np.bool_)
    is_hole[places] = False
    spread = np.full(span, time_ms, dtype=np.int64)
    spread[places] = times
    indices: Any = pa.array(taken, mask=is_hole)
    return rows.take(indices), spread


def _without_holes(payload: bytes, places: Numbers, span: int) -> bytes:
    kept = np.zeros(span, dtype=np.bool_)
    kept[places] = True
    copied = kernels.copy_records(
        payload,
        span,
        np.packbits(kept, bitorder="little").tobytes(),
        0,
        first_offset_delta=0,
        end_offset_delta=span,
        drop_tombstones=False,
        timestamp_shift=0,
    )
    assert copied.count == len(places), "each row is kept"
    return copied.payload


def _columns(rows: pa.RecordBatch, times: Numbers) -> ColumnBuffers:
    """The rows in the form of the kernel. Buffers of Arrow are not copied."""
    columns = ColumnBuffers()
    shown: Any = columns
    shown.offset = shown.timestamp_ms = np.ascontiguousarray(times).data
    shown.key_offsets, shown.key_data, shown.key_validity = _parts(rows.column("key"))
    shown.value_offsets, shown.value_data, shown.value_validity = _parts(rows.column("value"))
    shown.header_list_offsets, pairs = _lists(rows.column("headers"))
    names, values = pairs.field(0), pairs.field(1)
    shown.header_name_offsets, shown.header_name_data, _ = _parts(names)
    shown.header_value_offsets, shown.header_value_data, shown.header_value_validity = _parts(values)
    return columns


def _lists(headers: Any) -> tuple[memoryview, Any]:
    """The offsets of a column of lists, and the values in them."""
    lists = _offsets(headers)
    counts = np.where(_validity(headers), np.diff(lists), 0)
    if int(counts.sum()) != int(lists[-1] - lists[0]):
        # A list that is null has values, which Arrow allows.
        return _lists(cast("Any", pa.array(headers.to_pylist(), type=headers.type)))
    return lists.data, headers.values


def _parts(column: Any) -> tuple[memoryview, memoryview, memoryview]:
    """Offsets, data and validity of a column of byte strings."""
    data = column.buffers()[2]
    return _offsets(column).data, memoryview(b"" if data is None else data), _validity(column).data


def _offsets(column: Any) -> NDArray[np.int32]:
    """The offsets of a column of strings or lists, one more than it has rows."""
    buffer = column.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int32)
    found = np.frombuffer(buffer, dtype=np.int32)
    return found[column.offset : column.offset + len(column) + 1]


def _validity(column: Any) -> NDArray[np.uint8]:
    """One byte a row, 1 if it has a value."""
    if not column.null_count:
        return np.ones(len(column), dtype=np.uint8)
    is_valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return is_valid.astype(np.uint8)


def _sizes(rows: pa.RecordBatch) -> Numbers:
    """The bytes of each row, without those of its headers."""
    return 8 + np.diff(_offsets(rows.column("key"))) + np.diff(_offsets(rows.column("value")))


def _numbers(column: Any) -> Numbers:
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    return numbers.astype(np.int64, copy=False)
