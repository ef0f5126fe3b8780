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


class SegmentSeal(NamedTuple):
    """Sizes and checksums of the files of a sealed segment, or of the last segment of a closed log.

    The checksums of all pages stay packed as they are in the file, because a process holds one seal for each
    segment.
    """

    log_size_bytes: int
    end_offset: int
    """The offset after the last batch; a hole may follow it."""
    offset_index_bytes: int
    time_index_bytes: int
    aborted_bytes: int
    """0 if the segment has no transaction index."""
    headers: bytes
    """The packed sum over the batch headers."""
    page_crcs: bytes

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
        """Make the seal of a segment with these indexes."""
        sizes = offset_index.size_bytes, time_index.size_bytes, transaction_index.size_bytes
        crcs = offset_index.page_crcs + time_index.page_crcs + transaction_index.page_crcs
        return cls(log_size_bytes, end_offset, *sizes, headers, crcs)

    @property
    def offset_index(self) -> IndexSeal:
        """The part that proves the offset index."""
        end = OffsetIndex.crcs_bytes(self.offset_index_bytes)
        return IndexSeal(self.offset_index_bytes, self.page_crcs[:end])

    @property
    def time_index(self) -> IndexSeal:
        """The part that proves the time index."""
        start = OffsetIndex.crcs_bytes(self.offset_index_bytes)
        end = start + TimeIndex.crcs_bytes(self.time_index_bytes)
        return IndexSeal(self.time_index_bytes, self.page_crcs[start:end])

    @property
    def transaction_index(self) -> IndexSeal:
        """The part that proves the transaction index."""
        start = len(self.page_crcs) - TransactionIndex.crcs_bytes(self.aborted_bytes)
        return IndexSeal(self.aborted_bytes, self.page_crcs[start:])

    @property
    def headers_crc(self) -> int | None:
        """The checksum of the base offsets and leader epochs of all batches; None if they are unknown."""
        return None if self.headers == UNKNOWN_HEADERS else crc_of(self.headers)

    @property
    def has_aborted(self) -> bool:
        """The segment has a transaction index."""
        return self.aborted_bytes > 0

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        body = _FIELDS.pack(*self[:-2], epoch_count(self.headers)) + self.headers + self.page_crcs
        return _HEAD.pack(_VERSION, crc32c(body)) + body

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
        *fields, count = _FIELDS.unpack_from(body)
        log_size_bytes, end_offset, offset_bytes, time_bytes, aborted_bytes = fields
        headers_end = _FIELDS.size + packed_bytes(count)
        headers, page_crcs = body[_FIELDS.size : headers_end], body[headers_end:]
        crcs_bytes = OffsetIndex.crcs_bytes(offset_bytes) + TimeIndex.crcs_bytes(time_bytes)
        crcs_bytes += TransactionIndex.crcs_bytes(aborted_bytes)
        if len(body) != headers_end + crcs_bytes:
            raise CorruptRecordError(
                "a segment's seal does not have the size that its fields give", size_bytes=len(data)
            )
        return cls(
            log_size_bytes=log_size_bytes,
            end_offset=end_offset,
            offset_index_bytes=offset_bytes,
            time_index_bytes=time_bytes,
            aborted_bytes=aborted_bytes,
            headers=headers,
            page_crcs=page_crcs,
        )

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
