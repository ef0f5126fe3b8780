"""Reads slices from the object store as Arrow record batches, on an executor.

Each slice is one GET, a stream that only moves forward. Batches of the log are verified (CRC-32C),
decompressed and decoded by the native kernels, large ones piece by piece; single records never become Python
objects. Rows are returned in batches of about a megabyte, which measured best on the way into the JVM.

Transaction markers are never rows. A batch belongs to one transaction, so a scan of committed records leaves
out whole batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from stratalog.base.errors import CorruptRecordError, ObjectNotFoundError, StoreUnavailableError
from stratalog.base.filesystem import Buffer
from stratalog.objectstore.protocol import ObjectStore, ReadStream
from stratalog.pipeline.arrow_rows import ArrowRows
from stratalog.pipeline.topic_snapshot import SliceSpan
from stratalog.record.batch import batches, complete_prefix_size, crc_matches, records_payload
from stratalog.record.columns import ColumnBuffers
from stratalog.record.header import BatchHeader, TimestampType
from stratalog.record.native import kernels
from stratalog.record.reading.record_portions import payload_spans
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.store_layout import StoreLayout

ROWS_BYTES = 1 << 20
ROWS_COUNT = 1 << 16
"""Limit for nearly empty records, which take as much memory."""
READ_BYTES = 1 << 20


def scan(
    store: ObjectStore, topic: str, spans: Sequence[SliceSpan], names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """All records of the spans, in their order, as batches with the columns `names`.

    Raises StoreError, CorruptRecordError.
    """
    for span in spans:
        try:
            yield from _scan_slice(store, topic, span, names)
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                "the object was replaced and deleted since this scan was planned; run the query again",
                **error.fields,
            ) from error


def _scan_slice(
    store: ObjectStore, topic: str, span: SliceSpan, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    to_arrow = ArrowRows(topic, span.partition, names)
    rows = ColumnBuffers()
    rows_type = TimestampType.CREATE_TIME
    aborted = _AbortedBatches(store, span)
    for buffer in _whole_batches(store, span):
        for position, header in batches(buffer):
            # First, because a flipped bit in the header must not leave the batch out.
            _require_crc(buffer, position, header, topic, span)
            if not _is_wanted(header, span) or header in aborted:
                continue
            payload = records_payload(buffer, position, header)
            for section, count in payload_spans(payload, header.records_count):
                if rows.row_count and (header.timestamp_type != rows_type or _is_full(rows)):
                    yield to_arrow.batch(rows, rows_type)
                    rows.clear()
                rows_type = header.timestamp_type
                _decode(section, count, header, span, rows)
                # Release the payload before the next batch is decompressed.
                del section
            del payload
    if rows.row_count:
        yield to_arrow.batch(rows, rows_type)


def _is_full(rows: ColumnBuffers) -> bool:
    return rows.data_bytes >= ROWS_BYTES or rows.row_count >= ROWS_COUNT


def _is_wanted(header: BatchHeader, span: SliceSpan) -> bool:
    is_inside = header.last_offset >= span.first_offset and header.base_offset < span.end_offset
    return is_inside and not header.is_control and header.records_count > 0


def _whole_batches(store: ObjectStore, span: SliceSpan) -> Iterator[bytes]:
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
            raise StoreUnavailableError(
                "the object store ended a read early; run the query again", key=span.object_key
            )
        remaining -= len(piece)
        pending += piece
        end = complete_prefix_size(pending)
        if end:
            yield pending[:end]
            pending = pending[end:]
    if pending:
        raise CorruptRecordError(
            "a slice ends inside a record batch; restore the object from a copy",
            key=span.object_key,
            position=span.position,
        )


def _require_crc(buffer: bytes, position: int, header: BatchHeader, topic: str, span: SliceSpan) -> None:
    if not crc_matches(buffer, position, header):
        raise CorruptRecordError(
            "a record batch in the object store fails its checksum; restore the object from a copy",
            key=span.object_key,
            topic=topic,
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


class _Aborted(NamedTuple):
    first_offset: int
    last_offset: int
    """Offset of the marker."""


class _AbortedBatches:
    """The batches of a span's aborted transactions. Not thread-safe: belongs to one scan.

    The slices with the markers name the aborted transactions: the span's own slice and those behind it, gaps
    included, which leave transactions undecided. Slices are read when the first batch of a transaction
    arrives, so a scan without transactions reads none.
    """

    def __init__(self, store: ObjectStore, span: SliceSpan) -> None:
        self._store = store
        self._span = span
        self._by_producer: dict[int, list[_Aborted]] | None = None
        """In the order of their markers; None before the first look-up."""

    def __contains__(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction. Raises StoreError."""
        if not header.is_transactional or not self._span.deciding:
            return False
        if self._by_producer is None:
            self._by_producer = self._load()
        aborted = self._by_producer.get(header.producer_id, [])
        # Transactions of a producer follow each other: the first one that ends behind the batch decides.
        next_index = bisect_right(aborted, header.base_offset, key=lambda one: one.last_offset)
        return next_index < len(aborted) and aborted[next_index].first_offset <= header.base_offset

    def _load(self) -> dict[int, list[_Aborted]]:
        span = self._span
        found = defaultdict[int, list[_Aborted]](list)
        for live in span.deciding:
            if live.gap is not None:
                aborted = live.abandoned_in(span.first_offset, span.end_offset)
            else:
                index = read_slice_index(self._store, StoreLayout(span.shard), live.object_name, live.entry)
                aborted = index.aborted_in(span.first_offset, span.end_offset)
            for one in aborted:
                found[one.producer_id].append(_Aborted(one.first_offset, one.last_offset))
        return found
