"""Walks, proves, stamps and decodes consecutive record batches in a buffer.

Log files, fetch answers and slices of objects are batches one after the other, with nothing between them.
Positions are bytes in the buffer. All functions are thread-safe; `stamp` changes its buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.codecs.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, decompress
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
from stratalog.record.record_frame import frame_fault
from stratalog.record.records_summary import RecordsSummary

DEFAULT_MAX_DECOMPRESSED = DEFAULT_MAX_DECOMPRESSED_BYTES
"""The most bytes of records that one batch may decompress to, unless the caller gives another bound."""

_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


def batches(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch in [position, end), which must hold whole batches only.

    Raises CorruptRecordError if a header is invalid or the last batch does not end at `end`.
    """
    end = len(buffer) if end is None else end
    assert 0 <= position <= end <= len(buffer)
    while position < end:
        header = parse_header(buffer, position)
        _require_whole(header, position, end)
        yield position, header
        position += header.size_in_bytes


def whole_header(buffer: Buffer, position: int) -> BatchHeader:
    """The header of the batch at `position`. Raises CorruptRecordError if it is invalid, or the buffer ends
    inside the batch."""
    header = parse_header(buffer, position)
    _require_whole(header, position, len(buffer))
    return header


def complete_prefix_size(buffer: Buffer) -> int:
    """The size of the whole batches at the beginning of the buffer; a torn batch after them does not count.

    Raises CorruptRecordError if a header is invalid.
    """
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        size_bytes = parse_header(buffer, position).size_in_bytes
        if size_bytes > len(buffer) - position:
            break
        position += size_bytes
    return position


def crc_matches(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Return whether the batch's bytes match its checksum. Raises CorruptRecordError if the buffer ends
    inside it."""
    end = position + LOG_OVERHEAD + header.batch_length
    if end > len(buffer):
        _require_whole(header, position, len(buffer))
    return kernels.crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def verify(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> RecordsSummary:
    """Prove a batch: its checksum, the framing of every record, and timestamps that agree with the header.

    Raises CorruptRecordError.
    """
    require_crc(buffer, position, header)
    return verify_records(records_payload(buffer, position, header, max_bytes=max_bytes), header)


def require_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Compare the batch's bytes with its checksum: the first half of `verify`. Raises CorruptRecordError."""
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "the batch's checksum does not match its bytes; send or restore it again",
            field="crc",
            value=header.crc,
            base_offset=header.base_offset,
            position=position,
        )


def verify_records(payload: Buffer, header: BatchHeader) -> RecordsSummary:
    """Prove a records section that is already decompressed: the second half of `verify`. Raises
    CorruptRecordError."""
    summary = verify_frames(payload, header)
    latest = header.base_timestamp + summary.max_timestamp_delta
    if header.append_time_ms is None and header.records_count > 0 and latest != header.max_timestamp:
        raise CorruptRecordError(
            "the batch's header has another highest timestamp than its records; encode the batch again",
            field="max_timestamp",
            value=header.max_timestamp,
            base_offset=header.base_offset,
            records_max_timestamp=latest,
        )
    return summary


def verify_frames(payload: Buffer, header: BatchHeader) -> RecordsSummary:
    """Prove the records section as `verify_records` does, without a look at the header's highest timestamp.
    Raises CorruptRecordError."""
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
    """Write base offset and leader epoch, which the log decides, into a batch in place. The checksum covers
    neither."""
    assert base_offset >= 0
    assert 0 <= position <= len(buffer) - HEADER_SIZE
    _INT64.pack_into(buffer, position + BASE_OFFSET_POSITION, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def records_payload(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = DEFAULT_MAX_DECOMPRESSED
) -> Buffer:
    """The records section, decompressed; an uncompressed one is a view of the buffer.

    Raises CorruptRecordError if it exceeds `max_bytes` or cannot be decompressed.
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
    """Decode the records of the batch at `position`, after comparing its checksum. The records of a control
    batch are markers.

    Raises CorruptRecordError.
    """
    header = parse_header(buffer, position)
    payload = checked_payload(buffer, position, header, max_bytes)
    return kernels.decode_records(
        payload, header.records_count, header.base_offset, header.base_timestamp, header.append_time_ms
    )


def checked_payload(buffer: Buffer, position: int, header: BatchHeader, max_bytes: int) -> Buffer:
    """Compare the checksum, then return the `records_payload`. Raises CorruptRecordError."""
    require_crc_as_read(buffer, position, header)
    return records_payload(buffer, position, header, max_bytes=max_bytes)


def require_crc_as_read(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Compare the checksum of a batch that is read, not stored: the error says to fetch it again. Raises
    CorruptRecordError."""
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "the batch's checksum does not match its bytes; fetch it again", base_offset=header.base_offset
        )


def _require_whole(header: BatchHeader, position: int, end: int) -> None:
    if header.size_in_bytes > end - position:
        raise CorruptRecordError(
            "the bytes end inside a batch; fetch or read on from its beginning",
            base_offset=header.base_offset,
            position=position,
            missing_bytes=header.size_in_bytes - (end - position),
        )
