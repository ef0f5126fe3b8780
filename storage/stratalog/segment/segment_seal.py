"""The seal of a segment: a file beside it that proves its indexes and the headers of its batches.

Kafka's index files have no checksums, and the checksum of a batch leaves out its base offset and its leader
epoch. A damaged entry of the offset index shows at the batch that it points
at. A damaged transaction index is worse: if it lets a transaction begin too late, readers see aborted records
as committed, and only a walk over the whole log could show it. So the process that seals a segment, or closes
the log, writes the sizes and checksums of all that it has written::

    version             int16   2
    crc                 uint32  CRC-32C of the bytes after it
    log_size_bytes      int64   size of the .log file
    end_offset          int64   offset after the last batch; the base offset if there is none
    offset_index_bytes  int64   size of the .index file
    time_index_bytes    int64   size of the .timeindex file
    aborted_bytes       int64   size of the .txnindex file, 0 if there is none
    epoch_count         int32   leader epochs in the next field; -1 if the headers are unknown
    headers             4 + 20 bytes for each epoch: the sum over the batch headers, see `batch_headers`;
                                none if they are unknown
    page_crcs           uint32  CRC-32C of each page of the three files, in this order

A page of an index has as many whole entries as fit into 4096 bytes. Checksums by page let a look-up prove the
page that it reads, whenever it reads it, without reading the rest of the file.

The sum over the headers is compared when all batches of the segment are read anyway, by a recovery, a clean
or a copy, and before an upload reads the first of them. A difference is damage that the checksums of the
batches do not see. Then the segment is refused, because the damaged field is not known. The leader epochs
prove the log's file of epochs, which has no checksum either, at each start.

Each append changes the size of the log. So the size in the seal shows a seal that is older than the data, or
that was put back together with an index of another time.

Where a segment becomes shorter, its seal is removed before the next append. Otherwise the segment could grow
back to the sealed size, with other batches.

Crash: the seal is written after the indexes, and synced with them. Recovery walks a segment without a sound
seal and makes its indexes again. Only a segment that has aborted transactions needs its seal before the next
segment may exist: see `local_log`. A broker ignores the file, and its own logs have none until an import has
checked every batch (`segment_adoption`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.segment.batch_headers import UNKNOWN_HEADERS, crc_of, epoch_count, packed_bytes
from stratalog.segment.file_names import SEAL_SUFFIX, segment_path
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import TransactionIndex

_VERSION = 2
_HEAD = struct.Struct(">hI")
_FIELDS = struct.Struct(">qqqqqi")


class _Fields(NamedTuple):
    """The fields of fixed size."""

    log_size_bytes: int
    end_offset: int
    offset_index_bytes: int
    time_index_bytes: int
    aborted_bytes: int
    epoch_count: int

    @property
    def headers_end(self) -> int:
        """The position of the first checksum of a page."""
        return _FIELDS.size + packed_bytes(self.epoch_count)

    @property
    def body_bytes(self) -> int:
        """The size of all fields."""
        crcs_bytes = OffsetIndex.crcs_bytes(self.offset_index_bytes) + TimeIndex.crcs_bytes(
            self.time_index_bytes
        )
        return self.headers_end + crcs_bytes + TransactionIndex.crcs_bytes(self.aborted_bytes)


class SegmentSeal(NamedTuple):
    """Sizes and checksums of the files of a sealed segment, or of the last segment of a closed log.

    All of it stays packed as it is in the file, because a process holds one seal for each segment.
    """

    body: bytes
    """The bytes of the file after its checksum, of the size that its fields give."""

    @classmethod
    def of(
        cls,
        log_size_bytes: int,
        end_offset: int,
        headers: bytes,
        offset_index: IndexSeal,
        time_index: IndexSeal,
        transaction_index: IndexSeal,
    ) -> Self:
        """Make the seal of a segment with these indexes. `headers` is the packed sum over its batches."""
        indexes = offset_index, time_index, transaction_index
        sizes = (index.size_bytes for index in indexes)
        fields = _FIELDS.pack(log_size_bytes, end_offset, *sizes, epoch_count(headers))
        return cls(fields + headers + b"".join(index.page_crcs for index in indexes))

    @property
    def _fixed_fields(self) -> _Fields:
        return _Fields._make(_FIELDS.unpack_from(self.body))

    @property
    def log_size_bytes(self) -> int:
        """The size of the data file."""
        return self._fixed_fields.log_size_bytes

    @property
    def end_offset(self) -> int:
        """The offset after the last batch; a hole may follow it."""
        return self._fixed_fields.end_offset

    @property
    def headers(self) -> bytes:
        """The packed sum over the batch headers, see `batch_headers`."""
        return self.body[_FIELDS.size : self._fixed_fields.headers_end]

    @property
    def offset_index(self) -> IndexSeal:
        """The part that proves the offset index."""
        fields = self._fixed_fields
        start = fields.headers_end
        end = start + OffsetIndex.crcs_bytes(fields.offset_index_bytes)
        return IndexSeal(fields.offset_index_bytes, self.body[start:end])

    @property
    def time_index(self) -> IndexSeal:
        """The part that proves the time index."""
        fields = self._fixed_fields
        start = fields.headers_end + OffsetIndex.crcs_bytes(fields.offset_index_bytes)
        end = start + TimeIndex.crcs_bytes(fields.time_index_bytes)
        return IndexSeal(fields.time_index_bytes, self.body[start:end])

    @property
    def transaction_index(self) -> IndexSeal:
        """The part that proves the transaction index."""
        aborted_bytes = self._fixed_fields.aborted_bytes
        start = len(self.body) - TransactionIndex.crcs_bytes(aborted_bytes)
        return IndexSeal(aborted_bytes, self.body[start:])

    @property
    def headers_crc(self) -> int | None:
        """The checksum of the base offsets and leader epochs of all batches; None if they are unknown."""
        return None if self.headers == UNKNOWN_HEADERS else crc_of(self.headers)

    @property
    def has_aborted(self) -> bool:
        """The segment has a transaction index."""
        return self._fixed_fields.aborted_bytes > 0

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return _HEAD.pack(_VERSION, crc32c(self.body)) + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a seal. Raises CorruptRecordError if the bytes are not one."""
        if len(data) < _HEAD.size + _FIELDS.size:
            raise CorruptRecordError("a segment's seal is too short", size_bytes=len(data))
        version, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if version != _VERSION:
            raise CorruptRecordError("a segment's seal has an unknown version", version=version)
        if crc32c(body) != crc:
            raise CorruptRecordError("a segment's seal does not match its checksum", crc=crc)
        if len(body) != _Fields._make(_FIELDS.unpack_from(body)).body_bytes:
            raise CorruptRecordError(
                "a segment's seal does not have the size that its fields give", size_bytes=len(data)
            )
        return cls(body)

    @classmethod
    def read(cls, filesystem: FileSystem, directory: str, base_offset: int) -> Self | None:
        """Read the seal of that segment; None if the file is missing or damaged. Raises OSError."""
        try:
            return cls.from_bytes(filesystem.read_file(segment_path(directory, base_offset, SEAL_SUFFIX)))
        except (FileNotFoundError, CorruptRecordError):
            return None


def require_sealed_headers(seal: SegmentSeal | None, size_bytes: int, headers: bytes, path: str) -> None:
    """Check the sum over the headers of all batches of a segment, which has `size_bytes`. A seal of another
    size, or with unknown headers, says nothing about these batches. Raises CorruptRecordError."""
    if seal is None or seal.log_size_bytes != size_bytes or seal.headers == UNKNOWN_HEADERS:
        return
    if seal.headers != headers:
        raise contradicts_seal(path)


def contradicts_seal(path: str) -> CorruptRecordError:
    """The error for a segment whose sound batches have other headers than its seal."""
    return CorruptRecordError(
        "the batches of a segment contradict its seal, so the header of a batch was altered;"
        " restore the segment from a copy, or move its files away if the store has its records",
        path=path,
    )
