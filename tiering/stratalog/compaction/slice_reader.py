"""The record batches of one slice, read forward in chunks and proved by the slice's checksum.

Whole batches are handed out where they lie in a chunk; one that straddles two chunks is put together on its
own, so that no chunk is copied. Memory is one chunk, or one batch where that is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.base.errors import StoreCorruptError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.remote.object_format import crc_of
from stratalog.remote.slice_entry import SliceEntry


class PlacedBatch(NamedTuple):
    """A whole batch at `position` of `buffer`."""

    buffer: Buffer
    position: int
    header: BatchHeader

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_in_bytes


class SliceReader:
    """Reads a slice once, forward. Not thread-safe: guarded by the job.

    `read(size)` gives at least one byte and at most `size` of the slice, none only at the end of what it
    reads from. Best is as many as lie in one piece: nothing is copied then but batches that straddle two.
    """

    def __init__(self, entry: SliceEntry, read: Callable[[int], Buffer], chunk_bytes: int) -> None:
        self._entry = entry
        self._read = read
        self._chunk_bytes = chunk_bytes
        self._left_bytes = entry.data_bytes
        self._crc = 0
        self._record_count = 0

    def batches(self) -> Iterator[PlacedBatch]:
        """Every batch of the slice. What was read is known to be true only when this has ended.

        Raises StoreCorruptError where the slice is not what the directory says, CorruptRecordError for a
        header that cannot be.
        """
        while self._left_bytes > 0:
            chunk = self._take_some(self._chunk_bytes)
            position = 0
            while len(chunk) - position >= HEADER_SIZE:
                header = parse_header(chunk, position)
                size_in_bytes = header.size_in_bytes
                if size_in_bytes > len(chunk) - position:
                    break
                yield self._counted(PlacedBatch(chunk, position, header))
                position += size_in_bytes
            if position < len(chunk):
                yield self._counted(self._straddling(bytes(memoryview(chunk)[position:])))
        self._require_promised()

    def _straddling(self, begin: bytes) -> PlacedBatch:
        if len(begin) < HEADER_SIZE:
            begin += self._take(HEADER_SIZE - len(begin))
        if len(begin) < HEADER_SIZE:
            raise self._corrupt("ends inside a batch")
        header = parse_header(begin)
        batch = b"".join((begin, self._take(header.size_in_bytes - len(begin))))
        if len(batch) != header.size_in_bytes:
            raise self._corrupt("ends inside a batch")
        return PlacedBatch(batch, 0, header)

    def _counted(self, batch: PlacedBatch) -> PlacedBatch:
        self._record_count += batch.header.records_count
        if self._record_count > self._entry.record_count:
            raise self._corrupt("has more records than the directory says")
        return batch

    def _take(self, size: int) -> bytes:
        """As many bytes, or all that are left."""
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
