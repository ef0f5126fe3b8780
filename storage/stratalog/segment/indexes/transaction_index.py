"""The aborted transactions of one segment, in Kafka's format.

Entries of 34 bytes, big-endian, one for each transaction whose abort marker lies in the segment, in the order
of the markers::

    version             int16  0
    producer_id         int64  the transaction's producer
    first_offset        int64  its first record, which may lie in an earlier segment
    last_offset         int64  its marker; strictly ascending
    last_stable_offset  int64  of the log after the marker: everything below it was decided

A fetch of committed records lists the transactions that the reader must leave out. The marker of a
transaction follows its records, so the search goes on into the next segments until an entry's
`last_stable_offset` shows that everything below the end of the fetch was decided.

As with the other indexes, the format has no checksum, and recovery makes the index again from the log. Few
segments need it, so a segment without an abort has no file. An entry cannot be compared with one or two
batches, so only the segment's seal proves it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from itertools import chain
from typing import ClassVar, NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.record.native.batch_kernels import rank_entries
from stratalog.segment.file_names import TRANSACTION_INDEX_SUFFIX, segment_path
from stratalog.segment.indexes.abstract_index import AbstractIndex, IndexKey
from stratalog.segment.indexes.index_file import IndexSeal

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 34
_LAST_OFFSET_KEY = IndexKey(struct.calcsize(">hqq"), 8)


class AbortedTransaction(NamedTuple):
    """One entry. Both offsets are inclusive; `last_offset` is the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedInRange(NamedTuple):
    """The aborted transactions of a range of offsets that one segment's index knows."""

    transactions: tuple[AbortedTransaction, ...]
    is_complete: bool
    """No later segment has an aborted transaction of the range."""


class TransactionIndex(AbstractIndex[AbortedTransaction]):
    """Aborted transactions by marker. Guarded by UnifiedLog.lock, with look-ups beside an append, as every
    `AbstractIndex`."""

    __slots__ = ()

    KIND: ClassVar[str] = "a transaction index"
    ENTRY_SIZE: ClassVar[int] = ENTRY_SIZE

    @staticmethod
    def load(filesystem: FileSystem, directory: str, base_offset: int) -> TransactionIndex:
        """Read the file into memory; an empty index if it is missing. Raises CorruptRecordError, OSError."""
        try:
            data = filesystem.read_file(segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX))
        except FileNotFoundError:
            data = b""
        return TransactionIndex(base_offset, data)

    def append(self, aborted: AbortedTransaction) -> None:
        # Invariant: markers are entered as they are written, and a transaction begins before its end.
        assert self.base_offset <= aborted.last_offset
        assert 0 <= aborted.first_offset < aborted.last_offset
        assert self.last is None or self.last.last_offset < aborted.last_offset
        self._extend(_ENTRY.pack(_VERSION, *aborted), aborted)

    def extend(self, entries: bytes) -> None:
        """Append whole entries of other indexes, in order."""
        if entries:
            assert self.last is None or self.last.last_offset < self._decode(entries[:ENTRY_SIZE]).last_offset
            self._extend(entries, self._decode(entries[-ENTRY_SIZE:]))

    def below(self, offset: int) -> TransactionIndex:
        """The transactions whose marker lies below `offset`, as a growing index."""
        return self.first(self._find(offset - 1, _LAST_OFFSET_KEY)[0])

    def save_or_remove(self) -> IndexSeal:
        """Write the file, or remove it if there is no entry. Not synced. Raises OSError."""
        if len(self):
            return self.save()
        # A truncation or a crash may have left a file.
        self.remove_file()
        return IndexSeal()

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        """The aborted transactions that overlap [fetch_offset, upper_bound_offset).

        The result is complete if an entry shows that everything below the bound was decided when its
        transaction was aborted; otherwise go on in the next segment. Raises CorruptRecordError, OSError.
        """
        found: list[AbortedTransaction] = []
        first, _ = self._find(fetch_offset - 1, _LAST_OFFSET_KEY)
        for aborted in self._entries(first):
            if aborted.first_offset < upper_bound_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_bound_offset:
                return AbortedInRange(tuple(found), is_complete=True)
        return AbortedInRange(tuple(found), is_complete=False)

    def between(self, start_offset: int, end_offset: int) -> Iterator[bytes]:
        """Yield the entries whose markers are in [start_offset, end_offset) in pieces, as bytes of the file.
        Raises CorruptRecordError, OSError."""
        first, _ = self._find(start_offset - 1, _LAST_OFFSET_KEY)
        end, _ = self._find(end_offset - 1, _LAST_OFFSET_KEY)
        left_bytes = (end - first) * ENTRY_SIZE
        for chunk in self.chunks(first):
            if left_bytes <= 0:
                return
            yield chunk[:left_bytes]
            left_bytes -= len(chunk)

    def check(self) -> None:
        """Raise CorruptRecordError if the entries are not of this segment or do not ascend. Raises
        OSError."""
        last_offset_before = self.base_offset - 1
        for entry in self:
            if entry.last_offset <= last_offset_before:
                raise CorruptRecordError(
                    "the entries of a transaction index do not ascend", entry=tuple(entry)
                )
            last_offset_before = entry.last_offset

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return self._entries(0)

    def _entries(self, first: int) -> Iterator[AbortedTransaction]:
        # Fast, because opening a log reads all entries, which may be many.
        return map(_entry_of, chain.from_iterable(map(_ENTRY.iter_unpack, self.chunks(first))))

    def _decode(self, data: Buffer) -> AbortedTransaction:
        return _entry_of(_ENTRY.unpack(data))


def bytes_below(entries: bytes, offset: int) -> int:
    """The size of the entries, which ascend, whose markers lie below `offset`."""
    return rank_entries(entries, ENTRY_SIZE, *_LAST_OFFSET_KEY, offset - 1) * ENTRY_SIZE


def without_markers(entries: bytes, last_offsets: Collection[int]) -> bytes:
    """The entries without those that have these markers."""
    return b"".join(
        _ENTRY.pack(*fields) for fields in _ENTRY.iter_unpack(entries) if fields[3] not in last_offsets
    )


def _entry_of(fields: tuple[int, ...]) -> AbortedTransaction:
    version, producer_id, first_offset, last_offset, last_stable_offset = fields
    entry = AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset)
    if version != _VERSION:
        raise CorruptRecordError("an entry of a transaction index has an unknown version", version=version)
    if not 0 <= first_offset < last_offset or producer_id < 0 or last_stable_offset < 0:
        raise CorruptRecordError("an entry of a transaction index is out of range", entry=tuple(entry))
    return entry
