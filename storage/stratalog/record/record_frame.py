"""Finds the parts of a record: the walk that all pure-Python kernels share.

A records section is a row of records, each of this form (varint and varlong as in ``varint``)::

    size              varint   bytes that follow this field
    attributes        1 byte   unused, kept as it is
    timestamp_delta   varlong  timestamp - base_timestamp of the batch
    offset_delta      varint   offset - base_offset of the batch; strictly increasing from record to record
    key_size          varint   -1 for no key
    key               bytes
    value_size        varint   -1 for no value: a tombstone
    value             bytes
    headers_count     varint
    headers           for each: name_size varint, name UTF-8, value_size varint (-1 for none), value

The walk proves the frame of each record up to its value, that offsets increase and that the records fill the
section exactly. `header_frames` proves the headers, for the callers that use them.

The kernels answer for whole sections, with sound or broken only. For a broken one, `frame_fault` walks again
and finds the position and the field, up to a limit: a section that is broken at its far end must not keep the
interpreter busy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader
from stratalog.record.varint import read_varint, read_varlong

MIN_RECORD_BYTES = 7
MIN_HEADER_BYTES = 2
MAX_RECORDS_WALKED = 10_000
"""Records that the search for a fault looks at."""


class RecordFrame(NamedTuple):
    """The positions of a record's parts in the records section. A size of -1 stands for null."""

    start: int
    body: int
    """The position after the size field."""
    end: int
    timestamp_delta: int
    offset_delta_position: int
    offset_delta: int
    key_position: int
    key_size: int
    value_position: int
    value_size: int
    headers_position: int


def record_frames(payload: bytes, records_count: int) -> Iterator[RecordFrame]:
    """Yield the frame of each record. Raises CorruptRecordError at the first record with a bad frame."""
    require_room(payload, records_count)
    position = 0
    last_delta = -1
    for _ in range(records_count):
        frame = _record_frame(payload, position)
        if frame.offset_delta <= last_delta:
            raise _fault(
                "the offsets of the records do not increase", position, "offset_delta", frame.offset_delta
            )
        last_delta = frame.offset_delta
        position = frame.end
        yield frame
    if position != len(payload):
        raise _fault("bytes are left after the last record", position, "records_count", records_count)


def require_room(payload: Buffer, records_count: int) -> None:
    """Raise CorruptRecordError if the payload is too short for so many records."""
    if records_count < 0 or records_count > len(payload) // MIN_RECORD_BYTES:
        raise CorruptRecordError(
            "the record count does not fit the bytes of the batch", field="records_count", value=records_count
        )


def header_frames(payload: bytes, frame: RecordFrame) -> Iterator[tuple[int, int, int, int]]:
    """Yield each header of a record: name position and size, value position and size (-1 for null). Raises
    CorruptRecordError."""
    count, position = read_varint(payload, frame.headers_position, frame.end)
    if count < 0 or count > (frame.end - position) // MIN_HEADER_BYTES:
        raise _fault("the header count does not fit the record", frame.start, "headers_count", count)
    for _ in range(count):
        name_position, name_size = _sized(payload, position, frame.end)
        if name_size < 0:
            raise _fault("a header has no name", frame.start, "header_name_size", name_size)
        value_position, value_size = _sized(payload, name_position + name_size, frame.end)
        position = value_position + max(0, value_size)
        yield name_position, name_size, value_position, value_size
    if position != frame.end:
        raise _fault("bytes are left after a record's last header", frame.start, "headers_count", count)


def header_name(payload: bytes, position: int, size: int) -> str:
    """A header's name as text. Raises CorruptRecordError if it is not UTF-8."""
    try:
        return payload[position : position + size].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError("a header's name is not UTF-8", record_position=position) from error


def frame_fault(payload: Buffer, header: BatchHeader) -> CorruptRecordError | None:
    """The error for the first fault among the first 10,000 records; None if the fault lies after them.

    Fields: record_position (in the decompressed section), field and value, as far as they apply.
    """
    data = bytes(payload)
    try:
        for frame in islice(record_frames(data, header.records_count), MAX_RECORDS_WALKED):
            for name_position, name_size, _, _ in header_frames(data, frame):
                header_name(data, name_position, name_size)
            if frame.offset_delta > header.last_offset_delta:
                return CorruptRecordError(
                    "a record lies behind the last offset of its batch",
                    record_position=frame.start,
                    field="offset_delta",
                    value=frame.offset_delta,
                )
    except CorruptRecordError as fault:
        return fault
    return None


def section_fault(failure: CorruptRecordError, section: Buffer, header: BatchHeader) -> CorruptRecordError:
    """The error for a section that a kernel refused with `failure`: that of `frame_fault`, if it finds one,
    with the base offset of the batch."""
    fault = frame_fault(section, header) or failure
    return CorruptRecordError(fault.message, **{**fault.fields, "base_offset": header.base_offset})


def _record_frame(payload: bytes, start: int) -> RecordFrame:
    size, body = read_varint(payload, start, len(payload))
    end = body + size
    if size < 0 or end > len(payload):
        raise _fault("a record's size does not fit the batch", start, "record_size", size)
    # The attributes byte is skipped; in an empty record the next read finds that it is beyond the end.
    timestamp_delta, delta_position = read_varlong(payload, body + 1, end)
    offset_delta, position = read_varint(payload, delta_position, end)
    key_position, key_size = _sized(payload, position, end)
    value_position, value_size = _sized(payload, key_position + max(0, key_size), end)
    headers_position = value_position + max(0, value_size)
    if headers_position >= end:
        raise _fault("a record ends before its headers", start, "record_size", size)
    return RecordFrame(
        start=start,
        body=body,
        end=end,
        timestamp_delta=timestamp_delta,
        offset_delta_position=delta_position,
        offset_delta=offset_delta,
        key_position=key_position,
        key_size=key_size,
        value_position=value_position,
        value_size=value_size,
        headers_position=headers_position,
    )


def _sized(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """Position and size of bytes that follow their size; -1 is null, a lower size is corruption."""
    size, position = read_varint(payload, position, end)
    if size < -1 or position + size > end:
        raise _fault("the size of a key, value or header does not fit its record", position, "size", size)
    return position, size


def _fault(problem: str, record_position: int, field: str, value: int) -> CorruptRecordError:
    """The error for a record, or a part of one, that begins at `record_position` of the records section."""
    return CorruptRecordError(problem, record_position=record_position, field=field, value=value)
