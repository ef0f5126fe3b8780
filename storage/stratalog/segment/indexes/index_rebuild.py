"""Indexes from the batches of a log file: all of them again, or those behind the last that has an entry."""

from __future__ import annotations

from itertools import chain, takewhile
from typing import NamedTuple

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.record.header import NO_TIMESTAMP
from stratalog.segment.batch_walk import damaged_batch
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_search import position_since


class IndexedBatches(NamedTuple):
    """The indexes of some batches, and the offset behind the last of these."""

    indexes: SegmentIndexes
    end_offset: int


def index_batches(
    file: AppendFile, extent: SegmentExtent, interval_bytes: int, *, may_end: bool = False
) -> IndexedBatches:
    """Index all batches, in memory and without transactions. Where one is damaged the offsets are those of
    the headers, and no time is to be looked up. `may_end`: where these contradict each other, it is those
    before: nobody can tell where the others lie.

    Raises CorruptRecordError where the headers contradict each other, OSError.
    """
    indexes, end_offset, end_position = SegmentIndexes.empty(extent.base_offset), extent.base_offset, 0
    try:
        for rows in extent.rows(file):
            indexes.add_rows(rows, interval_bytes)
            end_offset, end_position = rows[-1].last_offset + 1, rows[-1].end_position
    except CorruptRecordError:
        indexes, end_offset = _index_headers(file, extent, interval_bytes, may_end=may_end)
        indexes.damaged_position = end_position
    return IndexedBatches(indexes, end_offset)


def _index_headers(
    file: AppendFile, extent: SegmentExtent, interval_bytes: int, *, may_end: bool
) -> IndexedBatches:
    """The same without a look at any checksum. Raises CorruptRecordError, OSError."""
    indexes, end_offset = SegmentIndexes.empty(extent.base_offset), extent.base_offset
    try:
        for position, header in extent.walk(file):
            indexes.add(
                position=position,
                size_bytes=header.size_in_bytes,
                last_offset=header.last_offset,
                max_timestamp_ms=header.max_timestamp,
                interval_bytes=interval_bytes,
            )
            end_offset = header.next_offset
    except CorruptRecordError:
        if not may_end:
            raise
    return IndexedBatches(indexes, end_offset)


def rebuild_indexes(
    resources: SegmentResources,
    directory: str,
    extent: SegmentExtent,
    *,
    interval_bytes: int,
    replaces_files: bool,
    may_end: bool,
) -> SegmentIndexes:
    """Make the indexes of a sealed segment from its data, and replace the files, but for where the data is
    damaged. That of aborted transactions cannot be made so, and stays. `may_end`: see `index_batches`.

    Raises CorruptRecordError, OSError.
    """
    base_offset = extent.base_offset
    with resources.files.use(segment_path(directory, base_offset, LOG_SUFFIX)) as file:
        indexes, _ = index_batches(file, extent, interval_bytes, may_end=may_end)
    indexes.time_index.maybe_append(indexes.max_timestamp)
    indexes.leave_aborted(resources.index_pages, directory, extent.size_bytes)
    if not replaces_files or indexes.damaged_position is not None:
        return indexes
    try:
        for index, suffix in (
            (indexes.offset_index, OFFSET_INDEX_SUFFIX),
            (indexes.time_index, TIME_INDEX_SUFFIX),
        ):
            path = segment_path(directory, base_offset, suffix)
            replace_file(resources.filesystem, path, index.to_bytes())
            resources.files.forget(path)
        return SegmentIndexes.open(resources.index_pages, directory, base_offset, extent.size_bytes)
    except OSError:
        # The disk may be full or read-only. The copy in memory serves; the next process tries again.
        return indexes


def resume_indexes(known: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> IndexedBatches:
    """The same, transactions included, out of indexes that know these batches and perhaps more: only what
    lies behind the last entry is walked.

    Raises CorruptRecordError where the last entries are not of the batches that they lead to, or the time
    index misses some, OSError.
    """
    indexes, end_offset = known.until(extent.size_bytes), extent.base_offset
    last = indexes.offset_index.last
    for position, header in extent.walk(file, 0 if last is None else last.position):
        is_entered = last is not None and position == last.position
        if is_entered and last is not None and header.last_offset != last.offset:
            raise CorruptRecordError("an offset index points at another batch", path=file.path, entry=last)
        if header.last_offset - extent.base_offset > MAX_RELATIVE_OFFSET:
            raise CorruptRecordError("an offset is too far from its segment's base", path=file.path)
        end_offset = header.next_offset
        indexes.resume_with(header.size_in_bytes, header.last_offset, header.max_timestamp)
    indexes.transaction_index = indexes.transaction_index.below(end_offset)
    _require_newest(indexes, file, extent)
    return IndexedBatches(indexes, end_offset)


def _require_newest(indexes: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> None:
    """The time index got the highest timestamp so far with every offset entry: hold its last one against the
    batches up to there, which are few where timestamps ascend. One that is newer, and proven, had an entry,
    which is gone. What a damaged one says is held against nobody.

    Raises CorruptRecordError, OSError.
    """
    last, newest = indexes.offset_index.last, indexes.time_index.last
    newest_ms, position = NO_TIMESTAMP, 0
    if newest is not None:
        newest_ms = newest.timestamp_ms
        # All entries before it lead to older batches.
        position = position_since(file, extent, indexes, newest_ms + 1)
    if last is None or position == last.position:
        return
    try:
        located = takewhile(lambda batch: batch.position <= last.position, extent.walk(file, position))
        if all(header.max_timestamp <= newest_ms for _, header in located):
            return
        proven = chain.from_iterable(extent.rows(file, position, is_search=True))
        rows = takewhile(lambda row: row.position <= last.position, proven)
        is_missing = any(row.max_timestamp_ms > newest_ms for row in rows)
    except CorruptRecordError:
        return
    if is_missing:
        raise CorruptRecordError("a time index misses a batch", path=file.path, newest=newest)


def indexes_until(
    known: SegmentIndexes, file: AppendFile, extent: SegmentExtent, interval_bytes: int
) -> IndexedBatches:
    """The same, made again from the batches where what is known is wrong. Raises CorruptRecordError, too
    where the highest timestamp is not known for damage, OSError."""
    try:
        resumed = resume_indexes(known, file, extent)
        if resumed.indexes.max_timestamp != known.max_timestamp:
            _prove_tail(resumed.indexes, file, extent)
        return resumed
    except (CorruptRecordError, FileNotFoundError):
        made = index_batches(file, extent, interval_bytes)
        if made.indexes.damaged_position is not None:
            raise damaged_batch(file.path, made.indexes.damaged_position) from None
        made.indexes.transaction_index = known.transaction_index.below(made.end_offset)
        return made


def resume_closed(opened: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> IndexedBatches:
    """The same out of the files of a log that was closed: these end with the highest timestamp of all.

    Where the headers have another one, and one of them is damaged, the files are right. Raises as
    `resume_indexes` does.
    """
    resumed = resume_indexes(opened, file, extent)
    if resumed.indexes.max_timestamp != opened.max_timestamp:
        try:
            _prove_tail(resumed.indexes, file, extent)
        except CorruptRecordError:
            resumed.indexes.max_timestamp = opened.max_timestamp
    return resumed


def _prove_tail(indexes: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> None:
    """Compare the checksums of what was walked behind the last entry. Raises CorruptRecordError, OSError."""
    last = indexes.offset_index.last
    for _ in extent.rows(file, 0 if last is None else last.position):
        pass
