"""Reads the record batches of one slice forward in chunks, and proves them by the slice's checksum.

Whole batches of a chunk are returned as rows; a batch that straddles two chunks is joined by itself, so that
no chunk is copied. Memory is one chunk, or one larger batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.native.batch_kernels import whole_batches
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import SliceEntry


class PieceReader:
    """Moves forward over bytes in one piece. Not thread-safe: guarded by its user."""

    def __init__(self, data: Buffer) -> None:
        self._left = memoryview(data)

    def read_some(self, size: int) -> Buffer:
        """At least one byte and at most `size`, not copied; none only at the end."""
        piece, self._left = self._left[:size], self._left[size:]
        return piece


class SliceReader:
    """Reads a slice once, forward. Not thread-safe: guarded by the job.

    `read(size)` returns between one and `size` bytes of the slice, and none only at the end of its source. If
    it returns pieces as they lie in memory, only straddling batches are copied.
    """

    def __init__(self, entry: SliceEntry, read: Callable[[int], Buffer], chunk_bytes: int) -> None:
        self._entry = entry
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._left_bytes = entry.data_bytes
        self._crc = 0
        self._record_count = 0

    def rows(self) -> Iterator[Buffer]:
        """All batches of the slice, in rows of whole ones. They are proved only when the iteration has ended.

        Raises StoreCorruptError if the slice contradicts the directory, CorruptRecordError for an impossible
        header.
        """
        while self._left_bytes > 0:
            chunk = self._take_some(self._chunk_bytes)
            size_bytes, records_count = whole_batches(chunk)
            if size_bytes == len(chunk):
                yield self._counted(chunk, records_count)
                continue
            view = memoryview(chunk)
            if size_bytes > 0:
                yield self._counted(view[:size_bytes], records_count)
            batch = self._straddling(bytes(view[size_bytes:]))
            yield self._counted(batch, parse_header(batch).records_count)
        self._require_promised()

    def _straddling(self, begin: bytes) -> bytes:
        if len(begin) < HEADER_SIZE:
            begin += self._take(HEADER_SIZE - len(begin))
        if len(begin) < HEADER_SIZE:
            raise self._corrupt("ends inside a batch")
        size_in_bytes = parse_header(begin).size_in_bytes
        batch = b"".join((begin, self._take(size_in_bytes - len(begin))))
        if len(batch) != size_in_bytes:
            raise self._corrupt("ends inside a batch")
        return batch

    def _counted(self, row: Buffer, records_count: int) -> Buffer:
        self._record_count += records_count
        if self._record_count > self._entry.record_count:
            raise self._corrupt("has more records than the directory says")
        return row

    def _take(self, size: int) -> bytes:
        size = min(size, self._left_bytes)
        parts: list[Buffer] = []
        while size > 0:
            parts.append(self._take_some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def _take_some(self, size: int) -> Buffer:
        data = self._read(min(size, self._left_bytes))
        if not len(data):
            raise self._corrupt("is cut off")
        self._left_bytes -= len(data)
        self._crc = crc_of(data, self._crc)
        return data

    def _require_promised(self) -> None:
        if self._crc != self._entry.data_crc:
            raise self._corrupt("fails its checksum")
        if self._record_count != self._entry.record_count:
            raise self._corrupt("has fewer records than the directory says")

    def _corrupt(self, problem: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"the data of a slice {problem}; keep the object and find out what changed it",
            topic=self._entry.topic,
            partition=self._entry.partition,
            base_offset=self._entry.base_offset,
        )
