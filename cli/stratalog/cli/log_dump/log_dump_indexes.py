"""Indexes as entries of a dump. They have no checksum: an entry is right if it can be of this index and
follows the one before it, and, where that is asked for, if the segment beside says the same.

Entries are read a few at a time. A broker that runs, or that a crash has ended, leaves zeros behind the last
entry, because it preallocates its index files: these are no entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import gt
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, FileSystem
from stratalog.cli.log_dump.log_dump_comparison import (
    SegmentComparison,
    compare_aborted_transaction,
    compare_offset_position,
    compare_timestamp_offset,
)
from stratalog.cli.log_dump.log_dump_entries import CorruptPlace, DumpEntry, DumpItem, DumpOptions
from stratalog.cli.log_dump.log_dump_files import FileKind, LogFile
from stratalog.cli.record_json import JsonValue
from stratalog.segment.indexes import offset_index, time_index, transaction_index
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import TransactionIndex

_READ_ENTRY_COUNT = 8192


class _Entry(NamedTuple):
    """One entry of any index."""

    fields: dict[str, JsonValue]
    offset: int
    """Never falls from entry to entry."""
    rising: tuple[int, ...]
    """Each of these rises from entry to entry."""
    difference: Callable[[SegmentComparison], str | None]
    """What the segment says against it."""

    def follows(self, before: _Entry) -> bool:
        return self.offset >= before.offset and all(map(gt, self.rising, before.rising))


class _Format(NamedTuple):
    """What tells one kind of index from another."""

    type: str
    entry_size: int
    decode: Callable[[int, bytes], _Entry]
    """The one entry in these bytes, of an index with this base offset. Raises CorruptRecordError."""
    is_preallocated: bool
    """Kafka's files of this kind have zeros behind the last entry until the segment is rolled or closed."""


def dump_index(filesystem: FileSystem, log: LogFile, options: DumpOptions) -> Iterator[DumpItem]:
    """Raises OSError."""
    index_format = _FORMATS[log.kind]
    comparison = SegmentComparison(filesystem, log) if options.compares_indexes else None
    file = filesystem.open_read(log.path)
    try:
        tail_position = _tail_position(file, index_format)
        before: _Entry | None = None
        for position, data in _entries(file, index_format.entry_size):
            if position == tail_position:
                yield DumpEntry("preallocated", {"position": position, "size_bytes": file.size() - position})
                return
            if len(data) < index_format.entry_size:
                yield CorruptPlace(position, "the file ends inside an entry", len(data))
                return
            try:
                entry = index_format.decode(log.name_offset, data)
            except CorruptRecordError as failure:
                yield CorruptPlace(position, f"this cannot be an entry of this index: {failure}")
                continue
            if entry.offset >= options.from_offset:
                yield DumpEntry(index_format.type, entry.fields)
            if before is not None and not entry.follows(before):
                yield CorruptPlace(position, "this entry does not ascend from the one before it")
            elif comparison is not None:
                difference = entry.difference(comparison)
                if difference is not None:
                    yield CorruptPlace(position, difference)
            before = entry
    finally:
        file.close()
        if comparison is not None:
            comparison.close()


def indexed_offsets(filesystem: FileSystem, log: LogFile) -> Iterator[int]:
    """What the entries of an index speak of; none where there is no such file. Zeros, and what cannot be an
    entry, say nothing. Raises OSError."""
    index_format = _FORMATS[log.kind]
    try:
        file = filesystem.open_read(log.path)
    except FileNotFoundError:
        return
    try:
        tail_position = _tail_position(file, index_format)
        for position, data in _entries(file, index_format.entry_size):
            if position == tail_position:
                return
            if any(data):
                with suppress(CorruptRecordError):
                    yield index_format.decode(log.name_offset, data).offset
    finally:
        file.close()


def _entries(file: AppendFile, entry_size: int) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each entry; the last may be cut."""
    position = 0
    while data := file.read_at(position, entry_size * _READ_ENTRY_COUNT):
        for start in range(0, len(data), entry_size):
            yield position + start, data[start : start + entry_size]
        position += len(data)


def _tail_position(file: AppendFile, index_format: _Format) -> int | None:
    """The first entry of which, and behind which, all is zero; None where there is none."""
    if not index_format.is_preallocated:
        return None
    entry_size, piece_bytes = index_format.entry_size, index_format.entry_size * _READ_ENTRY_COUNT
    size_bytes = file.size()
    end = size_bytes
    while end > 0:
        start = max(0, end - piece_bytes)
        used_bytes = len(file.read_at(start, end - start).rstrip(b"\0"))
        end = start + used_bytes
        if used_bytes:
            break
    tail_position = -(-end // entry_size) * entry_size
    # The very first entry may be nothing but zeros.
    has_tail = size_bytes - tail_position >= (entry_size if tail_position else 2 * entry_size)
    return tail_position if has_tail else None


def _offset_position(base_offset: int, data: bytes) -> _Entry:
    entry = OffsetIndex(base_offset, data).entry(0)
    fields: dict[str, JsonValue] = {"offset": entry.offset, "position": entry.position}
    return _Entry(
        fields,
        entry.offset,
        (entry.offset, entry.position),
        partial(compare_offset_position, entry=entry),
    )


def _timestamp_offset(base_offset: int, data: bytes) -> _Entry:
    entry = TimeIndex(base_offset, data).entry(0)
    fields: dict[str, JsonValue] = {"offset": entry.offset, "timestamp": entry.timestamp_ms}
    return _Entry(
        fields,
        entry.offset,
        (entry.timestamp_ms,),
        partial(compare_timestamp_offset, entry=entry),
    )


def _aborted_transaction(base_offset: int, data: bytes) -> _Entry:
    entry = TransactionIndex(base_offset, data).entry(0)
    return _Entry(
        {**entry._asdict()},
        entry.last_offset,
        (entry.last_offset,),
        partial(compare_aborted_transaction, entry=entry),
    )


_FORMATS = {
    FileKind.OFFSET_INDEX: _Format(
        "offset_index_entry", offset_index.ENTRY_SIZE, _offset_position, is_preallocated=True
    ),
    FileKind.TIME_INDEX: _Format(
        "time_index_entry", time_index.ENTRY_SIZE, _timestamp_offset, is_preallocated=True
    ),
    FileKind.TRANSACTION_INDEX: _Format(
        "aborted_transaction", transaction_index.ENTRY_SIZE, _aborted_transaction, is_preallocated=False
    ),
}
