"""Reads slices from the object store as Arrow record batches: what an executor does.

One GET a slice, a stream that only moves forward. Batches of the log are checked (CRC-32C), decompressed and
decoded by the native kernels, a large one piece by piece; single records never become Python objects. Rows
leave in batches of about a megabyte, which measured best on the way into the JVM.

Markers of transactions are never rows. A batch belongs to one transaction, so where only committed records
are wanted, batches are left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from stratalog.base.errors import CorruptRecordError, ObjectNotFoundError, StoreUnavailableError
from stratalog.base.filesystem import Buffer
from stratalog.objectstore.protocol import ObjectStore, ReadStream
from stratalog.pipeline.aborted_batches import AbortedBatches
from stratalog.pipeline.arrow_rows import ArrowRows
from stratalog.pipeline.topic_snapshot import SliceSpan
from stratalog.record.batch import batches, complete_prefix_size, crc_matches, records_payload
from stratalog.record.columns import ColumnBuffers
from stratalog.record.header import BatchHeader, TimestampType
from stratalog.record.native import kernels
from stratalog.record.record_runs import payload_spans

ROWS_BYTES = 1 << 20
ROWS_COUNT = 1 << 16
"""What is as much to hold where records are nearly empty."""
READ_BYTES = 1 << 20


def scan(
    store: ObjectStore, topic: str, spans: Sequence[SliceSpan], names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """All records of the spans, in their order, as batches with the columns `names`.

    Raises StoreError, CorruptRecordError; for committed records UnsupportedOperationError where an early
    version uploaded transactions, which did not tell how they ended.
    """
    for span in spans:
        try:
            yield from _scan_slice(store, topic, span, names)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                "the object was replaced and deleted since this scan was planned: run the query again",
                **error.fields,
            ) from error


def _scan_slice(
    store: ObjectStore, topic: str, span: SliceSpan, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    to_arrow = ArrowRows(topic, span.partition, names)
    rows = ColumnBuffers()
    rows_type = TimestampType.CREATE_TIME
    aborted = AbortedBatches(store, span)
    for buffer in _whole_batches(store, span):
        for position, header in batches(buffer):
            # First: what a flipped bit makes of a header must not leave the batch out.
            _require_crc(buffer, position, header, span)
            if not _is_wanted(header, span) or header in aborted:
                continue
            payload = records_payload(buffer, position, header)
            for section, count in payload_spans(payload, header.records_count):
                if rows.row_count and (header.timestamp_type != rows_type or _is_full(rows)):
                    yield to_arrow.batch(rows, rows_type)
                    rows.clear()
                rows_type = header.timestamp_type
                _decode(section, count, header, span, rows)
                # A view of what is not to be in memory beside that of the next batch.
                del section
            del payload
    if rows.row_count:
        yield to_arrow.batch(rows, rows_type)


def _is_full(rows: ColumnBuffers) -> bool:
    return rows.data_bytes >= ROWS_BYTES or rows.row_count >= ROWS_COUNT


def _is_wanted(header: BatchHeader, span: SliceSpan) -> bool:
    """Whether the batch has records of users in the span's range."""
    is_inside = header.last_offset >= span.first_offset and header.base_offset < span.end_offset
    return is_inside and not header.is_control and header.records_count > 0


def _whole_batches(store: ObjectStore, span: SliceSpan) -> Iterator[bytes]:
    """The slice in pieces that end with a batch."""
    stream = store.open_range(span.object_key, span.position, span.size_bytes)
    try:
        yield from _pieces(stream, span)
    finally:
        stream.close()


def _pieces(stream: ReadStream, span: SliceSpan) -> Iterator[bytes]:
    remaining = span.size_bytes
    pending = b""
    while remaining:
        piece = stream.read(min(READ_BYTES, remaining))
        if not piece:
            raise StoreUnavailableError("the object store ended a read early", key=span.object_key)
        remaining -= len(piece)
        pending += piece
        end = complete_prefix_size(pending)
        if end:
            yield pending[:end]
            pending = pending[end:]
    if pending:
        raise CorruptRecordError(
            "a slice ends inside a record batch", key=span.object_key, position=span.position
        )


def _require_crc(buffer: bytes, position: int, header: BatchHeader, span: SliceSpan) -> None:
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "a record batch in the object store does not match its checksum: keep the object and restore it",
            key=span.object_key,
            partition=span.partition,
            base_offset=header.base_offset,
        )


def _decode(section: Buffer, count: int, header: BatchHeader, span: SliceSpan, rows: ColumnBuffers) -> None:
    kernels.decode_columns(
        section,
        count,
        header.base_offset,
        header.base_timestamp,
        header.append_time_ms,
        span.first_offset,
        span.end_offset,
        rows,
    )
