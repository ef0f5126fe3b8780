"""The records of one batch in sections of whole records, for walks whose memory is bounded by some megabytes,
or by the largest record.

A batch that is small after decompression is one section. A larger one is decompressed again by each walk, and
is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import records_payload
from stratalog.record.codecs.compressed_pieces import decompressed_pieces
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, BatchHeader
from stratalog.record.native import kernels
from stratalog.record.reading.record_portions import PORTION_BYTES, PORTION_COUNT
from stratalog.record.varint import MAX_VARINT_BYTES, MAX_VARLONG_BYTES, read_varint, read_varlong

WHOLE_BYTES = 8 * 1024 * 1024
"""The largest decompressed size of a batch that is one section."""

# More than the usual section, so that a section does not end with the buffered bytes.
_FILLED_BYTES = 2 * PORTION_BYTES
# Size, attributes, timestamp and offset of a record.
_MAX_HEAD_BYTES = MAX_VARINT_BYTES + 1 + MAX_VARLONG_BYTES + MAX_VARINT_BYTES


class RecordSections:
    """The sections of one batch, which must not change. Can be iterated any number of times. Used by one
    thread."""

    def __init__(
        self, batch: Buffer, header: BatchHeader, on_large_record: Callable[[int], None] | None = None
    ) -> None:
        """`batch` is the whole batch, with this header and a true checksum. `on_large_record` is called with
        the size in bytes before a record is collected that is larger than a section; it may raise."""
        self._section = memoryview(batch)[HEADER_SIZE : header.size_in_bytes]
        self._header = header
        self._on_large_record = on_large_record
        try:
            self._payload: Buffer | None = records_payload(batch, 0, header, max_bytes=WHOLE_BYTES)
        except CorruptRecordError:
            # The batch is larger; or it is damaged, and the first walk raises the error.
            self._payload = None

    @property
    def is_whole(self) -> bool:
        """The batch is one section."""
        return self._payload is not None

    @property
    def held_bytes(self) -> int:
        """About the decompressed bytes that are in memory during a walk, unless a record is larger."""
        if self._payload is None:
            return 2 * _FILLED_BYTES
        return len(self._payload) if self._header.codec is not Codec.NONE else 0

    def __iter__(self) -> Iterator[tuple[Buffer, int]]:
        """Yield each section with its record count. A section is valid until the next one.

        Raises CorruptRecordError, after the sound sections, if the records do not make up the batch.
        """
        if self._payload is not None:
            yield self._payload, self._header.records_count
            return
        buffer = bytearray()
        pieces = decompressed_pieces(self._header.codec, self._section)
        left_count, last_delta, wanted_bytes = self._header.records_count, -1, _FILLED_BYTES
        while left_count > 0:
            is_end = _fill(buffer, pieces, wanted_bytes)
            position = 0
            while left_count > 0:
                count, end_position = _whole_records(buffer, position, left_count)
                if count == 0:
                    break
                last_delta = self._last_delta(buffer, position, count, last_delta)
                with memoryview(buffer)[position:end_position] as section:
                    yield section, count
                left_count, position = left_count - count, end_position
                if not is_end and len(buffer) - position < _FILLED_BYTES:
                    break
            del buffer[:position]
            if left_count > 0 and is_end:
                raise self._wrong("the batch ends before its last record")
            record_bytes = _next_bytes(buffer)
            if record_bytes > _FILLED_BYTES and self._on_large_record is not None:
                self._on_large_record(record_bytes)
            wanted_bytes = max(_FILLED_BYTES, record_bytes)
        if buffer or any(len(piece) for piece in pieces):
            raise self._wrong("bytes are left after the last record")

    def _last_delta(self, buffer: bytearray, position: int, count: int, former_delta: int) -> int:
        """The offset delta of the last of `count` records from `position` on. Raises CorruptRecordError
        unless the first one's is above `former_delta`; within a section the kernels prove the order."""
        if _offset_delta(buffer, position) <= former_delta:
            raise self._wrong("the offsets of the records do not increase")
        if count > 1:
            _, position = kernels.span_records(buffer, position, count - 1, len(buffer))
        return _offset_delta(buffer, position)

    def _wrong(self, message: str) -> CorruptRecordError:
        return CorruptRecordError(message, base_offset=self._header.base_offset)


def _fill(buffer: bytearray, pieces: Iterator[Buffer], wanted_bytes: int) -> bool:
    """Fill the buffer up to `wanted_bytes`, or with all remaining pieces. True if no piece is left."""
    while len(buffer) < wanted_bytes:
        piece = next(pieces, None)
        if piece is None:
            return True
        buffer += piece
    return False


def _whole_records(buffer: bytearray, position: int, max_count: int) -> tuple[int, int]:
    """The number of whole records at `position` that make a section, and its end; 0 if not even the first is
    whole."""
    count = min(max_count, PORTION_COUNT)
    while count > 0 and position < len(buffer):
        try:
            return kernels.span_records(buffer, position, count, PORTION_BYTES)
        except CorruptRecordError:
            # One of these is incomplete or invalid; if it is the first, the caller raises the error.
            count //= 2
    return 0, position


def _next_bytes(buffer: bytearray) -> int:
    """The size of the first record, by its size field; 0 if the buffer is too short for that field."""
    if len(buffer) < MAX_VARINT_BYTES:
        return 0
    size_bytes, position = read_varint(bytes(buffer[:MAX_VARINT_BYTES]), 0, MAX_VARINT_BYTES)
    if size_bytes < 1:
        raise CorruptRecordError("a record's size does not fit the batch", size_bytes=size_bytes)
    return position + size_bytes


def _offset_delta(buffer: bytearray, position: int) -> int:
    head = bytes(buffer[position : position + _MAX_HEAD_BYTES])
    _, at = read_varint(head, 0, len(head))
    _, at = read_varlong(head, at + 1, len(head))
    return read_varint(head, at, len(head))[0]
