"""Reads slices from the object store as Arrow record batches, on an executor.

Slices that lie side by side in an object are one GET, a stream that only moves forward. Batches of the log
are verified (CRC-32C), decompressed and decoded by the native kernels, large ones piece by piece; single
records never become Python objects, and columns that are not wanted are not decoded. Rows are returned in
batches of about a megabyte, which measured best on the way into the JVM, whatever the size of the slices.

Transaction markers are never rows. A batch belongs to one transaction, so a scan of committed records leaves
out whole batches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence

import pyarrow as pa

from stratalog.base.errors import (
    CorruptRecordError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from stratalog.objectstore.protocol import ObjectStore, ReadStream
from stratalog.pipeline.source.aborted_batches import AbortedBatches
from stratalog.pipeline.source.arrow_rows import ArrowRows, RowOrigin
from stratalog.pipeline.source.slice_span import SliceSpan
from stratalog.record.batch import crc_matches, records_payload, whole_header
from stratalog.record.columns import ColumnLimits
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    RECORDS_COUNT_POSITION,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.batch_kernels import decode_column_batches, whole_batches
from stratalog.record.reading.column_portions import append_columns
from stratalog.record.reading.record_portions import RecordReading, payload_spans

ROW_LIMITS = ColumnLimits(data_bytes=1 << 20, row_count=1 << 16)
READ_BYTES = 1 << 20
MAX_SKIPPED_BYTES = 256 << 10
"""Bytes between two spans of an object that are read and dropped, because another GET costs more."""

_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def scan(store: ObjectStore, spans: Sequence[SliceSpan], names: tuple[str, ...]) -> Generator[pa.RecordBatch]:
    """All records of the spans, in their order, as batches with the columns `names`.

    Raises StoreError, CorruptRecordError.
    """
    rows = ArrowRows(names)
    for stretch in adjacent_spans(spans):
        yield from _scan_stretch(store, stretch, rows)
    if rows.columns.row_count:
        yield rows.take()


def adjacent_spans(spans: Sequence[SliceSpan]) -> list[list[SliceSpan]]:
    """Divide spans into stretches that one GET covers: of one object, in order, with little between them."""
    stretches: list[list[SliceSpan]] = []
    for span in spans:
        last = stretches[-1][-1] if stretches else None
        is_next = last is not None and last.object_key == span.object_key
        if is_next and last is not None and 0 <= span.position - last.end_position <= MAX_SKIPPED_BYTES:
            stretches[-1].append(span)
        else:
            stretches.append([span])
    return stretches


def _scan_stretch(
    store: ObjectStore, stretch: Sequence[SliceSpan], rows: ArrowRows
) -> Iterator[pa.RecordBatch]:
    first, position = stretch[0], stretch[0].position
    span = first
    try:
        stream = store.open_range(first.object_key, position, stretch[-1].end_position - position)
        try:
            for span in stretch:
                _skip(stream, span.position - position)
                aborted = AbortedBatches(store, span)
                wanted = RecordReading(span.topic, span.partition, span.first_offset, span.end_offset)
                for buffer in _whole_batches(stream, span):
                    yield from decode_batches(buffer, wanted, aborted.has, rows)
                position = span.end_position
        finally:
            stream.close()
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            "the object was replaced and deleted since this scan was planned; run the query again, and set "
            "lease to more seconds than it takes if it reads a snapshot or outlasts the grace period",
            **{**span.error_fields, **error.fields},
        ) from error
    except (StoreError, CorruptRecordError) as error:
        error.fields = {**span.error_fields, **error.fields}
        raise


def _skip(stream: ReadStream, size_bytes: int) -> None:
    while size_bytes > 0:
        skipped = len(stream.read(min(size_bytes, READ_BYTES)))
        if not skipped:
            raise StoreUnavailableError("the object store ended a read early; run the query again")
        size_bytes -= skipped


def _whole_batches(stream: ReadStream, span: SliceSpan) -> Iterator[memoryview]:
    """The bytes of a span, in pieces of whole batches. No byte is copied more than a few times, however large
    a batch is."""
    remaining = span.size_bytes
    pending = b""
    while remaining:
        # The rest of a batch is a read of its own: then only that batch is copied.
        piece = stream.read(min(_missing_bytes(pending) or READ_BYTES, remaining))
        if not piece:
            raise StoreUnavailableError("the object store ended a read early; run the query again")
        remaining -= len(piece)
        buffer = pending + piece if pending else piece
        size_bytes, _ = whole_batches(buffer)
        if size_bytes:
            yield memoryview(buffer)[:size_bytes]
        pending = buffer[size_bytes:]
        if len(pending) >= HEADER_SIZE:
            # Raises if it is no header: then no more bytes make a batch of it.
            parse_header(pending)
    if pending:
        raise CorruptRecordError("a slice ends inside a record batch; restore the object from a copy")


def _missing_bytes(pending: bytes) -> int:
    """The size of the rest of the batch that begins with `pending`; 0 if that is too short to say."""
    if len(pending) < HEADER_SIZE:
        return 0
    return parse_header(pending).size_in_bytes - len(pending)


def decode_batches(
    buffer: memoryview, wanted: RecordReading, is_aborted: Callable[[BatchHeader], bool], rows: ArrowRows
) -> Iterator[pa.RecordBatch]:
    """Decode whole batches; yields the rows whenever there are enough of them. Raises StoreError,
    CorruptRecordError."""
    stretches = _timestamp_stretches(buffer) if rows.has_timestamp_type else [(len(buffer), 0)]
    position = 0
    for end_position, timestamp_type in stretches:
        origin = RowOrigin(wanted.topic, wanted.partition, timestamp_type)
        piece = buffer[:end_position]
        while position < end_position:
            before = position
            # A large batch leaves in pieces.
            if _batch_bytes(piece, position) <= ROW_LIMITS.data_bytes:
                room = _room_bytes(piece, position, rows)
                position, _ = decode_column_batches(
                    piece, position, room, wanted.first_offset, wanted.end_offset, rows.columns
                )
            if position > before:
                rows.note_origin(origin)
                if rows.columns.is_full(ROW_LIMITS):
                    yield rows.take()
                continue
            header = whole_header(piece, position)
            yield from _decode_batch(piece, position, header, wanted, is_aborted, rows, origin)
            position += header.size_in_bytes


def _timestamp_stretches(buffer: memoryview) -> list[tuple[int, int]]:
    """Stretches of whole batches with one timestamp type: the end position of each, and its type."""
    stretches: list[tuple[int, int]] = []
    position = 0
    while position < len(buffer):
        attributes = _SHORT.unpack_from(buffer, position + ATTRIBUTES_POSITION)[0]
        position += _batch_bytes(buffer, position)
        timestamp_type = int(bool(attributes & TIMESTAMP_TYPE_BIT))
        if stretches and stretches[-1][1] == timestamp_type:
            stretches.pop()
        stretches.append((position, timestamp_type))
    return stretches


def _batch_bytes(buffer: memoryview, position: int) -> int:
    length: int = _INT.unpack_from(buffer, position + BATCH_LENGTH_POSITION)[0]
    return LOG_OVERHEAD + length


def _decode_batch(
    buffer: memoryview,
    position: int,
    header: BatchHeader,
    wanted: RecordReading,
    is_aborted: Callable[[BatchHeader], bool],
    rows: ArrowRows,
    origin: RowOrigin,
) -> Iterator[pa.RecordBatch]:
    """Decode one batch of any kind."""
    # First, because a flipped bit in the header must not leave the batch out.
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "a record batch fails its checksum; restore its object, or its segment, from a copy",
            base_offset=header.base_offset,
        )
    if not _is_inside(header, wanted) or is_aborted(header):
        return
    payload = records_payload(buffer, position, header)
    for section, count in payload_spans(payload, header.records_count):
        if rows.columns.is_full(ROW_LIMITS):
            yield rows.take()
        append_columns(section, count, header, wanted.first_offset, wanted.end_offset, rows.columns)
        rows.note_origin(origin)
        # Release the section before the next batch is decompressed.
        del section


def _room_bytes(buffer: memoryview, position: int, rows: ArrowRows) -> int:
    """Bytes of batches that fill the rows at once, if all batches are like the next one: buffers that grow
    step by step are copied again and again."""
    columns = rows.columns
    count: int = _INT.unpack_from(buffer, position + RECORDS_COUNT_POSITION)[0]
    room_count = ROW_LIMITS.row_count - columns.row_count
    return min(
        ROW_LIMITS.data_bytes - columns.data_bytes,
        room_count * _batch_bytes(buffer, position) // max(count, 1),
    )


def _is_inside(header: BatchHeader, wanted: RecordReading) -> bool:
    is_inside = header.last_offset >= wanted.first_offset and header.base_offset < wanted.end_offset
    return is_inside and not header.is_control and header.records_count > 0
