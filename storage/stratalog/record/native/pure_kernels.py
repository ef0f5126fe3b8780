"""The record kernels in plain Python: the reference for the native ones and their replacement.

Each function here has a twin of the same name in the compiled module ``_kernels``, with the same arguments,
the same results byte for byte, and CorruptRecordError for the same bytes. ``kernels`` documents them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import crc32c as _library

from stratalog.base.errors import CorruptRecordError, InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.record.columns import MAX_COLUMN_BYTES, ColumnBuffers
from stratalog.record.keep_rules import RecordFate, record_fate
from stratalog.record.record import Record, RecordLike
from stratalog.record.record_frame import RecordFrame, header_frames, header_name, record_frames
from stratalog.record.records_summary import CopiedRecords, RecordsSummary
from stratalog.record.varint import MAX_VARINT_BYTES, append_varint, read_varint, varint_size

MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
MAX_INT32 = 2**31 - 1
_REVERSED_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
"""The polynomial 1: the powers of x go from the highest bit down."""


def scan_records(payload: Buffer, records_count: int, last_offset_delta: int) -> RecordsSummary:
    """The plain-Python form of ``kernels.scan_records``."""
    data = bytes(payload)
    tombstone_count = 0
    null_key_count = 0
    timestamp_deltas: list[int] = []
    offset_deltas: list[int] = []
    for frame in record_frames(data, records_count):
        for name_position, name_size, _, _ in header_frames(data, frame):
            header_name(data, name_position, name_size)
        tombstone_count += frame.value_size < 0
        null_key_count += frame.key_size < 0
        timestamp_deltas.append(frame.timestamp_delta)
        offset_deltas.append(frame.offset_delta)
    last_delta = offset_deltas[-1] if offset_deltas else -1
    if last_delta > last_offset_delta:
        raise CorruptRecordError("a record lies behind the last offset of its batch", offset_delta=last_delta)
    # Deltas increase strictly from 0 on, so they are dense if there are as many as numbers up to the last.
    is_dense = records_count == last_offset_delta + 1
    latest = max(timestamp_deltas, default=0)
    return RecordsSummary(
        tombstone_count=tombstone_count,
        null_key_count=null_key_count,
        max_timestamp_delta=latest,
        is_dense=is_dense,
        min_timestamp_delta=min(timestamp_deltas, default=0),
        first_offset_delta=offset_deltas[0] if offset_deltas else -1,
        last_offset_delta=last_delta,
        max_timestamp_offset_delta=offset_deltas[timestamp_deltas.index(latest)] if offset_deltas else -1,
    )


def encode_records(records: Sequence[RecordLike], base_timestamp: int) -> bytes:
    """The plain-Python form of ``kernels.encode_records``."""
    if not _is_int64(base_timestamp):
        raise InvalidRequestError("a record's timestamp is out of range", timestamp=base_timestamp)
    payload = bytearray()
    for offset_delta, record in enumerate(records):
        timestamp_delta = record.timestamp_ms - base_timestamp
        if not _is_int64(record.timestamp_ms) or not _is_int64(timestamp_delta):
            raise InvalidRequestError("a record's timestamp is out of range", timestamp=record.timestamp_ms)
        body = bytearray(1)
        append_varint(body, timestamp_delta)
        append_varint(body, offset_delta)
        _append_sized(body, record.key)
        _append_sized(body, record.value)
        append_varint(body, len(record.headers))
        for name, value in record.headers:
            try:
                _append_sized(body, name.encode())
            except UnicodeEncodeError as error:
                raise InvalidRequestError("a header's name cannot be written as UTF-8") from error
            _append_sized(body, value)
        append_varint(payload, len(body))
        payload += body
        if len(payload) > MAX_INT32:
            raise InvalidRequestError("the records are too large for one batch; send fewer at once")
    return bytes(payload)


def decode_records(
    payload: Buffer, records_count: int, base_offset: int, base_timestamp: int, append_time_ms: int | None
) -> list[Record]:
    """The plain-Python form of ``kernels.decode_records``."""
    data = bytes(payload)
    return [
        Record(
            _offset(base_offset, frame),
            _timestamp(base_timestamp, append_time_ms, frame),
            _part(data, frame.key_position, frame.key_size),
            _part(data, frame.value_position, frame.value_size),
            tuple(
                (header_name(data, name_position, name_size), _part(data, value_position, value_size))
                for name_position, name_size, value_position, value_size in header_frames(data, frame)
            ),
        )
        for frame in record_frames(data, records_count)
    ]


def span_records(payload: Buffer, position: int, max_count: int, max_bytes: int) -> tuple[int, int]:
    """The plain-Python form of ``kernels.span_records``."""
    view = memoryview(payload)
    start, count = position, 0
    while count == 0 or (count < max_count and position < len(view)):
        head = bytes(view[position : position + MAX_VARINT_BYTES])
        size, size_bytes = read_varint(head, 0, len(head))
        end = position + size_bytes + size
        if size < 1 or end > len(view):
            raise CorruptRecordError("a record's size does not fit the batch", record_position=position)
        if count > 0 and end - start > max_bytes:
            break
        position = end
        count += 1
    return count, position


def copy_records(
    payload: Buffer,
    records_count: int,
    survivors: Buffer,
    first_ordinal: int,
    *,
    first_offset_delta: int,
    end_offset_delta: int,
    drop_tombstones: bool,
    timestamp_shift: int,
) -> CopiedRecords:
    """The plain-Python form of ``kernels.copy_records``."""
    data = bytes(payload)
    bits = memoryview(survivors)
    if first_ordinal < 0 or first_ordinal + records_count > len(bits) * 8:
        raise CorruptRecordError(
            "the slice has more records than its survivor bits", first_ordinal=first_ordinal
        )
    copied = bytearray()
    deltas: list[int] = []
    timestamp_deltas: list[int] = []
    tombstone_count = 0
    dropped_tombstone_count = 0
    for ordinal, frame in enumerate(record_frames(data, records_count), first_ordinal):
        if not first_offset_delta <= frame.offset_delta < end_offset_delta:
            continue
        is_tombstone = _is_tombstone(frame)
        fate = record_fate(
            has_key=True,
            is_newest=bits[ordinal >> 3] >> (ordinal & 7) & 1 == 1,
            is_tombstone=is_tombstone,
            is_due=drop_tombstones,
        )
        dropped_tombstone_count += fate is RecordFate.TOMBSTONE_DUE
        if fate is not RecordFate.STAYS:
            continue
        tombstone_count += is_tombstone
        deltas.append(frame.offset_delta)
        timestamp_deltas.append(frame.timestamp_delta + timestamp_shift)
        append_shifted(copied, data, frame, timestamp_shift)
    return CopiedRecords(
        payload=bytes(copied),
        count=len(deltas),
        first_delta=deltas[0] if deltas else -1,
        last_delta=deltas[-1] if deltas else -1,
        max_timestamp_delta=max(timestamp_deltas, default=0),
        tombstone_count=tombstone_count,
        dropped_tombstone_count=dropped_tombstone_count,
    )


def clear_dropped(
    payload: Buffer,
    records_count: int,
    survivors: bytearray,
    first_ordinal: int,
    *,
    first_offset_delta: int,
    end_offset_delta: int,
    drop_tombstones: bool,
) -> None:
    """The plain-Python form of ``kernels.clear_dropped``."""
    if first_ordinal < 0 or first_ordinal + records_count > len(survivors) * 8:
        raise CorruptRecordError(
            "the slice has more records than its survivor bits", first_ordinal=first_ordinal
        )
    for ordinal, frame in enumerate(record_frames(bytes(payload), records_count), first_ordinal):
        is_outside = not first_offset_delta <= frame.offset_delta < end_offset_delta
        if is_outside or (drop_tombstones and _is_tombstone(frame)):
            survivors[ordinal >> 3] &= ~(1 << (ordinal & 7)) & 0xFF


def _is_tombstone(frame: RecordFrame) -> bool:
    """Whether the record deletes its key. One without a key deletes none, and stays."""
    return frame.value_size < 0 <= frame.key_size


def decode_columns(
    payload: Buffer,
    records_count: int,
    base_offset: int,
    base_timestamp: int,
    append_time_ms: int | None,
    first_offset: int,
    end_offset: int,
    columns: ColumnBuffers,
) -> int:
    """The plain-Python form of ``kernels.decode_columns``."""
    # Everything is decoded before the first row is appended, so that an error leaves the columns as they
    # were.
    decoded = decode_records(payload, records_count, base_offset, base_timestamp, append_time_ms)
    rows = [record for record in decoded if first_offset <= record.offset < end_offset]
    keys = [_shown(row.key, columns.wants_keys) for row in rows]
    values = [_shown(row.value, columns.wants_values) for row in rows]
    row_headers = [row.headers if columns.wants_headers else () for row in rows]
    headers = [header for one in row_headers for header in one]
    names: list[bytes | None] = [name.encode() for name, _ in headers]
    header_values = [value for _, value in headers]
    for old, new in (
        (columns.key_data, keys),
        (columns.value_data, values),
        (columns.header_name_data, names),
        (columns.header_value_data, header_values),
    ):
        if len(old) + sum(len(part or b"") for part in new) > MAX_COLUMN_BYTES:
            raise InvalidRequestError("a column would exceed 2 GiB; take the rows out more often")
    columns.offset.extend(row.offset for row in rows)
    columns.timestamp_ms.extend(row.timestamp_ms for row in rows)
    _append_column(columns.key_offsets, columns.key_data, columns.key_validity, keys)
    _append_column(columns.value_offsets, columns.value_data, columns.value_validity, values)
    for one in row_headers:
        columns.header_list_offsets.append(columns.header_list_offsets[-1] + len(one))
    _append_column(columns.header_name_offsets, columns.header_name_data, None, names)
    _append_column(
        columns.header_value_offsets, columns.header_value_data, columns.header_value_validity, header_values
    )
    return len(rows)


def encode_columns(columns: ColumnBuffers, first_row: int, row_count: int, base_timestamp: int) -> bytes:
    """The plain-Python form of ``kernels.encode_columns``."""
    rows, headers = len(columns.timestamp_ms), columns.header_count
    assert 0 <= first_row <= first_row + row_count <= rows, "rows are in the columns"
    keys = _parts(columns.key_offsets, columns.key_data, columns.key_validity, rows)
    values = _parts(columns.value_offsets, columns.value_data, columns.value_validity, rows)
    names = _parts(columns.header_name_offsets, columns.header_name_data, None, headers)
    header_values = _parts(
        columns.header_value_offsets, columns.header_value_data, columns.header_value_validity, headers
    )
    if len(columns.header_list_offsets) != rows + 1:
        raise InvalidRequestError("the columns do not have the same number of rows")
    records: list[Record] = []
    for row in range(first_row, first_row + row_count):
        begin, end = columns.header_list_offsets[row], columns.header_list_offsets[row + 1]
        if not 0 <= begin <= end <= headers:
            raise InvalidRequestError("a column's offsets do not ascend inside its data")
        records.append(
            Record(
                row,
                columns.timestamp_ms[row],
                keys(row),
                values(row),
                tuple((_name(names(index)), header_values(index)) for index in range(begin, end)),
            )
        )
    return encode_records(records, base_timestamp)


def _parts(
    offsets: array[int], data: bytearray, validity: bytearray | None, count: int
) -> Callable[[int], bytes | None]:
    """Return a function that reads a column of `count` values, one at a time. Raises InvalidRequestError."""
    if len(offsets) != count + 1 or (validity is not None and len(validity) != count):
        raise InvalidRequestError("the columns do not have the same number of rows")

    def part(index: int) -> bytes | None:
        begin, end = offsets[index], offsets[index + 1]
        if not 0 <= begin <= end <= len(data):
            raise InvalidRequestError("a column's offsets do not ascend inside its data")
        return None if validity is not None and not validity[index] else bytes(data[begin:end])

    return part


def _name(encoded: bytes | None) -> str:
    assert encoded is not None, "names are never null"
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("a header's name cannot be written as UTF-8") from error


def _shown(part: bytes | None, is_wanted: bool) -> bytes | None:
    """A key or value; of an unwanted one only whether there is one."""
    return part if is_wanted or part is None else b""


def _is_int64(number: int) -> bool:
    return MIN_INT64 <= number <= MAX_INT64


def _append_sized(target: bytearray, part: bytes | None) -> None:
    if part is None:
        append_varint(target, -1)
    else:
        append_varint(target, len(part))
        target += part


def _append_column(
    offsets: array[int], data: bytearray, validity: bytearray | None, parts: Sequence[bytes | None]
) -> None:
    for part in parts:
        if part is not None:
            data += part
        offsets.append(len(data))
        if validity is not None:
            validity.append(part is not None)


def append_shifted(target: bytearray, data: bytes, frame: RecordFrame, timestamp_shift: int) -> None:
    """Copy a record unchanged, except for its timestamp delta and, with it, its size.

    Raises CorruptRecordError if either becomes too large.
    """
    if timestamp_shift == 0:
        target += data[frame.start : frame.end]
        return
    timestamp_delta = frame.timestamp_delta + timestamp_shift
    if not _is_int64(timestamp_delta):
        raise CorruptRecordError("a record's timestamp is out of range", position=frame.start)
    size = 1 + varint_size(timestamp_delta) + frame.end - frame.offset_delta_position
    if size > MAX_INT32:
        raise CorruptRecordError("a record is too large", position=frame.start)
    append_varint(target, size)
    target.append(data[frame.body])
    append_varint(target, timestamp_delta)
    target += data[frame.offset_delta_position : frame.end]


def _part(data: bytes, position: int, size: int) -> bytes | None:
    return None if size < 0 else data[position : position + size]


def _offset(base_offset: int, frame: RecordFrame) -> int:
    offset = base_offset + frame.offset_delta
    if offset > MAX_INT64:
        raise CorruptRecordError("a record's offset is out of range", position=frame.start)
    return offset


def _timestamp(base_timestamp: int, append_time_ms: int | None, frame: RecordFrame) -> int:
    if append_time_ms is not None:
        return append_time_ms
    timestamp_ms = base_timestamp + frame.timestamp_delta
    if not _is_int64(timestamp_ms):
        raise CorruptRecordError("a record's timestamp is out of range", position=frame.start)
    return timestamp_ms


def crc32c(data: Buffer, crc: int = 0) -> int:
    """The library's form of ``kernels.crc32c``."""
    return _library.crc32c(data, crc)


def joined_crc(crc: int, next_crc: int, next_size: int) -> int:
    """The plain-Python form of ``kernels.joined_crc``."""
    power = _ONE >> 8
    while next_size > 0:
        if next_size & 1:
            crc = _product(power, crc)
        power = _product(power, power)
        next_size >>= 1
    # The inversions at both ends of a sum cancel out.
    return crc ^ next_crc


def _product(factor: int, other: int) -> int:
    total = 0
    while factor:
        if factor & _ONE:
            total ^= other
        factor = factor << 1 & (_ONE << 1) - 1
        other = other >> 1 ^ (_REVERSED_POLYNOMIAL if other & 1 else 0)
    return total
