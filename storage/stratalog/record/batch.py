"""Record batches in a row of bytes: walk, prove, stamp and decode them.

Log files, fetch answers and slices of objects are batches one after the other, nothing between them.
Positions are bytes in the buffer. All functions are thread-safe; `stamp` changes the buffer that it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, decompress
from stratalog.record.frame_fault import frame_fault
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET_POSITION,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LOG_OVERHEAD,
    BatchHeader,
    parse_header,
)
from stratalog.record.native import kernels
from stratalog.record.record import Record
from stratalog.record.records_summary import RecordsSummary

DEFAULT_MAX_DECOMPRESSED = DEFAULT_MAX_DECOMPRESSED_BYTES
"""Bytes of records that one batch may decompress to unless the caller says otherwise."""

_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


def batches(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [position, end), which must hold whole batches only.

    Raises CorruptRecordError where a header is wrong or the last batch does not end at `end`.
    """
    end = len(buffer) if end is None else end
    assert 0 <= position <= end <= len(buffer)
    while position < end:
        header = parse_header(buffer, position)
        _require_whole(header, position, end)
        yield position, header
        position += header.size_in_bytes


def complete_prefix_size(buffer: Buffer) -> int:
    """Bytes of the whole batches that the buffer begins with, without what a torn read left of the next.

    Raises CorruptRecordError where a header is wrong.
    """
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        size_bytes = parse_header(buffer, position).size_in_bytes
        if size_bytes > len(buffer) - position:
            break
        position += size_bytes
    return position


def crc_matches(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """The batch's bytes are those that its checksum was made of."""
    end = position + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        _require_whole(header, position, len(buffer))
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def verify(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> RecordsSummary:
    """Prove a batch: its checksum, the framing of every record, and timestamps that agree with the header.

    Raises CorruptRecordError.
    """
    require_crc(buffer, position, header)
    return verify_records(records_payload(buffer, position, header, max_bytes=max_bytes), header)


def require_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """The first half of `verify`: raises CorruptRecordError where the checksum is not that of the bytes."""
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "the batch's checksum does not match its bytes; send or restore it again",
            field="crc",
            value=header.crc,
            base_offset=header.base_offset,
            position=position,
        )


def verify_records(payload: Buffer, header: BatchHeader) -> RecordsSummary:
    """The other half, for a records section that is decompressed already. Raises CorruptRecordError."""
    summary = verify_frames(payload, header)
    latest = header.base_timestamp + summary.max_timestamp_delta
    if header.append_time_ms is None and header.records_count > 0 and latest != header.max_timestamp:
        raise CorruptRecordError(
            "the batch's highest timestamp is not that of its records; look-ups by time would go wrong",
            field="max_timestamp",
            value=header.max_timestamp,
            base_offset=header.base_offset,
            records_max_timestamp=latest,
        )
    return summary


def verify_frames(payload: Buffer, header: BatchHeader) -> RecordsSummary:
    """The same, whatever the header says the highest timestamp is. Raises CorruptRecordError."""
    try:
        summary = kernels.scan_records(payload, header.records_count, header.last_offset_delta)
    except CorruptRecordError as failure:
        raise (frame_fault(payload, header) or failure) from None
    earliest = header.base_timestamp + summary.min_timestamp_delta
    latest = header.base_timestamp + summary.max_timestamp_delta
    if earliest < _MIN_INT64 or latest > _MAX_INT64:
        raise CorruptRecordError("a record's timestamp is out of range", base_offset=header.base_offset)
    return summary


def stamp(buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Write what the log decides into a batch, in place. Neither field is covered by the checksum."""
    assert base_offset >= 0
    assert 0 <= position <= len(buffer) - HEADER_SIZE
    _INT64.pack_into(buffer, position + BASE_OFFSET_POSITION, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def records_payload(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Buffer:
    """The records section, decompressed; a view of the buffer where it was not compressed.

    Raises CorruptRecordError where it would exceed `max_bytes` or cannot be decompressed.
    """
    end = position + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        _require_whole(header, position, len(buffer))
    section = memoryview(buffer)[position + HEADER_SIZE : end]
    if header.codec is Codec.NONE:
        if len(section) > max_bytes:
            raise CorruptRecordError("the batch is larger than the reader allows", max_bytes=max_bytes)
        return section
    return decompress(header.codec, section, max_bytes)


def decode(buffer: Buffer, position: int = 0, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED) -> list[Record]:
    """The records of the batch at `position`, after its checksum was compared. A control batch's are markers.

    Raises CorruptRecordError.
    """
    return _decode(buffer, position, parse_header(buffer, position), max_bytes)


def decode_all(buffer: Buffer, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED) -> list[Record]:
    """The records of all batches of a buffer of whole batches, without the markers of control batches.

    All at once, so the buffer has to be one whose batches are known: nothing bounds what many of them
    decompress to (see ``record_runs``). Raises as `decode` does. `max_bytes` bounds each batch.
    """
    records: list[Record] = []
    for position, header in batches(buffer):
        if not header.is_control:
            records += _decode(buffer, position, header, max_bytes)
    return records


def checked_payload(buffer: Buffer, position: int, header: BatchHeader, max_bytes: int) -> Buffer:
    """As `records_payload`, after the checksum was compared. Raises CorruptRecordError."""
    require_crc_as_read(buffer, position, header)
    return records_payload(buffer, position, header, max_bytes=max_bytes)


def require_crc_as_read(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """As `require_crc`, where the batch is read, not kept."""
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "the batch's checksum does not match its bytes; fetch it again", base_offset=header.base_offset
        )


def _decode(buffer: Buffer, position: int, header: BatchHeader, max_bytes: int) -> list[Record]:
    payload = checked_payload(buffer, position, header, max_bytes)
    return kernels.decode_records(
        payload, header.records_count, header.base_offset, header.base_timestamp, header.append_time_ms
    )


def _require_whole(header: BatchHeader, position: int, end: int) -> None:
    if header.size_in_bytes > end - position:
        raise CorruptRecordError(
            "the bytes end inside a batch; fetch or read on from its beginning",
            base_offset=header.base_offset,
            position=position,
            missing_bytes=header.size_in_bytes - (end - position),
        )
