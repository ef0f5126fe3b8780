"""The aborted transactions of one segment, in Kafka's format.

Entries of 34 bytes, big-endian, one for each transaction whose abort marker lies in the segment, in the order
of the markers::

    version             int16  0
    producer_id         int64  whose transaction
    first_offset        int64  its first record, which may lie in an earlier segment
    last_offset         int64  its marker; strictly ascending
    last_stable_offset  int64  of the log, once the marker was there: nothing below was undecided

A reader of committed records is told which transactions to leave out of what it fetched. The marker of a
transaction lies behind its records, so the search goes on into the segments that follow, until an entry's
`last_stable_offset` shows that everything below the end of the fetch was decided by then.

As with the other indexes: no checksum, made again from the log after a crash. Unlike them it is seldom
needed, so a segment without an abort has no file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer, FileSystem
from stratalog.segment.file_names import TRANSACTION_INDEX_SUFFIX, segment_path

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 34


class AbortedTransaction(NamedTuple):
    """One entry. Both offsets are inclusive; `last_offset` is the abort marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedInRange(NamedTuple):
    """What one segment's index knows about a range of offsets."""

    transactions: tuple[AbortedTransaction, ...]
    is_complete: bool
    """No later segment has another one."""


class TransactionIndex:
    """Not thread-safe for changes: guarded by UnifiedLog.lock. Look-ups run beside an append.

    They may, because entries are only ever added at the end and a look-up works on a copy.
    """

    __slots__ = ("_data", "base_offset")

    def __init__(self, base_offset: int, data: Buffer = b"") -> None:
        """Raises CorruptRecordError where `data` cannot be the file of an index with this base."""
        self.base_offset = base_offset
        self._data = bytearray(data)
        self.check()

    @staticmethod
    def load(filesystem: FileSystem, directory: str, base_offset: int) -> TransactionIndex:
        """From the file, or empty where there is none. Raises CorruptRecordError, OSError."""
        try:
            data = filesystem.read_file(segment_path(directory, base_offset, TRANSACTION_INDEX_SUFFIX))
        except FileNotFoundError:
            data = b""
        return TransactionIndex(base_offset, data)

    def save(self, filesystem: FileSystem, directory: str) -> None:
        """Write the file; none where there is no entry. Not synced. Raises OSError."""
        path = segment_path(directory, self.base_offset, TRANSACTION_INDEX_SUFFIX)
        if not self._data:
            # One may be left of before a truncation, or of before a crash.
            if filesystem.exists(path):
                filesystem.unlink(path)
            return
        file = filesystem.open_append(path)
        try:
            file.truncate(0)
            file.append([self._data])
        finally:
            file.close()

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    def append(self, aborted: AbortedTransaction) -> None:
        # Invariant: markers are entered as they are written, and a transaction begins before its end.
        assert self.base_offset <= aborted.last_offset
        assert 0 <= aborted.first_offset < aborted.last_offset
        assert not self._data or self.entry(len(self) - 1).last_offset < aborted.last_offset
        self._data += _ENTRY.pack(_VERSION, *aborted)

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions whose marker lies at or above `offset`."""
        del self._data[self._ordinal_from(self._data, offset) * ENTRY_SIZE :]

    def entry(self, ordinal: int) -> AbortedTransaction:
        return _entry(self._data, ordinal)

    @property
    def last(self) -> AbortedTransaction | None:
        return self.entry(len(self) - 1) if self._data else None

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> AbortedInRange:
        """The aborted transactions that overlap [fetch_offset, upper_bound_offset).

        Complete where an entry says that all below the bound was decided when its transaction was aborted;
        else go on in the next segment.
        """
        data = bytes(self._data)
        found: list[AbortedTransaction] = []
        for ordinal in range(self._ordinal_from(data, fetch_offset), len(data) // ENTRY_SIZE):
            aborted = _entry(data, ordinal)
            if aborted.first_offset < upper_bound_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_bound_offset:
                return AbortedInRange(tuple(found), is_complete=True)
        return AbortedInRange(tuple(found), is_complete=False)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def to_bytes(self) -> bytes:
        """The contents of the file."""
        return bytes(self._data)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for _, *fields in _ENTRY.iter_unpack(bytes(self._data)):
            yield AbortedTransaction._make(fields)

    def check(self) -> None:
        """Raises CorruptRecordError where the entries are not whole, not of this segment, or do not
        ascend."""
        if len(self._data) % ENTRY_SIZE:
            raise CorruptRecordError(
                "a transaction index does not consist of whole entries", size=len(self._data)
            )
        last_offset_before = self.base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(bytes(self._data)):
            entry = AbortedTransaction._make(fields)
            if version != _VERSION:
                raise CorruptRecordError(
                    "an entry of a transaction index has an unknown version", version=version
                )
            if entry.last_offset <= last_offset_before:
                raise CorruptRecordError(
                    "the entries of a transaction index do not ascend", entry=tuple(entry)
                )
            if not 0 <= entry.first_offset < entry.last_offset or min(entry) < 0:
                raise CorruptRecordError(
                    "an entry of a transaction index is out of range", entry=tuple(entry)
                )
            last_offset_before = entry.last_offset

    @staticmethod
    def _ordinal_from(data: Buffer, offset: int) -> int:
        """Ordinal of the first entry whose marker lies at or above `offset`."""

        def last_offset_at(ordinal: int) -> int:
            return _entry(data, ordinal).last_offset

        return bisect_left(range(len(data) // ENTRY_SIZE), offset, key=last_offset_at)


def _entry(data: Buffer, ordinal: int) -> AbortedTransaction:
    _, *fields = _ENTRY.unpack_from(data, ordinal * ENTRY_SIZE)
    return AbortedTransaction._make(fields)
