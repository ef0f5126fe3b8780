"""Codecs of the indexes of a segment.

An index has no checksum. An entry is right if it fits this index and ascends from the entry before it, and,
if the options say so, if the segment agrees. Kafka preallocates the offset and time index of the active
segment: zeros behind the last entry are no entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import gt
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.cli.log_dump.dump_rows import Codec, CorruptPlace, DumpItem, DumpOptions, Row
from stratalog.cli.log_dump.dumped_file import DumpedFile
from stratalog.cli.log_dump.index_comparison import SegmentComparison
from stratalog.cli.records.record_json import JsonValue
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
    """Compares the entry with the segment."""

    def follows(self, before: _Entry) -> bool:
        return self.offset >= before.offset and all(map(gt, self.rising, before.rising))


_Decoder = Callable[[int, bytes], _Entry]
"""Decodes one entry of an index with this base offset. Raises CorruptRecordError."""


def _codec(row_type: str, entry_size: int, decode: _Decoder, *, is_preallocated: bool) -> Codec:
    def dump(file: DumpedFile, options: DumpOptions) -> Iterator[DumpItem]:
        comparison = SegmentComparison(file) if options.compares_indexes else None
        data_file = file.filesystem.open_read(file.path)
        try:
            tail_position = _tail_position(data_file, entry_size) if is_preallocated else None
            before: _Entry | None = None
            for position, data in _entries(data_file, entry_size):
                if position == tail_position:
                    fields: dict[str, JsonValue] = {
                        "position": position,
                        "size_bytes": data_file.size() - position,
                    }
                    yield Row("preallocated", fields)
                    return
                if len(data) < entry_size:
                    yield CorruptPlace(position, "the file ends inside an entry", len(data))
                    return
                try:
                    entry = decode(file.offset, data)
                except CorruptRecordError as failure:
                    yield CorruptPlace(position, f"this cannot be an entry of this index: {failure}")
                    continue
                if entry.offset >= options.from_offset:
                    yield Row(row_type, entry.fields)
                if before is not None and not entry.follows(before):
                    yield CorruptPlace(position, "this entry does not ascend from the one before it")
                elif comparison is not None and (difference := entry.difference(comparison)) is not None:
                    yield CorruptPlace(position, difference)
                before = entry
        finally:
            data_file.close()
            if comparison is not None:
                comparison.close()

    return dump


def _entries(file: AppendFile, entry_size: int) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each entry; the last may be cut."""
    position = 0
    while data := file.read_at(position, entry_size * _READ_ENTRY_COUNT):
        for start in range(0, len(data), entry_size):
            yield position + start, data[start : start + entry_size]
        position += len(data)


def _tail_position(file: AppendFile, entry_size: int) -> int | None:
    """Position of the first entry from which on the file is zero; None if there is none."""
    piece_bytes = entry_size * _READ_ENTRY_COUNT
    size_bytes = file.size()
    end = size_bytes
    while end > 0:
        start = max(0, end - piece_bytes)
        used_bytes = len(file.read_at(start, end - start).rstrip(b"\0"))
        end = start + used_bytes
        if used_bytes:
            break
    tail_position = -(-end // entry_size) * entry_size
    # The first entry of an index may be all zeros.
    has_tail = size_bytes - tail_position >= (entry_size if tail_position else 2 * entry_size)
    return tail_position if has_tail else None


def _offset_position(base_offset: int, data: bytes) -> _Entry:
    entry = OffsetIndex(base_offset, data).entry(0)
    return _Entry(
        {"offset": entry.offset, "position": entry.position},
        entry.offset,
        (entry.offset, entry.position),
        partial(SegmentComparison.offset_position, entry=entry),
    )


def _timestamp_offset(base_offset: int, data: bytes) -> _Entry:
    entry = TimeIndex(base_offset, data).entry(0)
    return _Entry(
        {"offset": entry.offset, "timestamp": entry.timestamp_ms},
        entry.offset,
        (entry.timestamp_ms,),
        partial(SegmentComparison.timestamp_offset, entry=entry),
    )


def _aborted_transaction(base_offset: int, data: bytes) -> _Entry:
    entry = TransactionIndex(base_offset, data).entry(0)
    return _Entry(
        {**entry._asdict()},
        entry.last_offset,
        (entry.last_offset,),
        partial(SegmentComparison.aborted_transaction, entry=entry),
    )


dump_offset_index = _codec(
    "offset_index_entry", offset_index.ENTRY_SIZE, _offset_position, is_preallocated=True
)
dump_time_index = _codec("time_index_entry", time_index.ENTRY_SIZE, _timestamp_offset, is_preallocated=True)
dump_transaction_index = _codec(
    "aborted_transaction", transaction_index.ENTRY_SIZE, _aborted_transaction, is_preallocated=False
)
