"""Makes indexes from the batches of a log file: all entries, or those after the last known entry."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.segment.batch_headers import row_of
from stratalog.segment.batch_walk import damaged_batch
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal, require_sealed_headers


class IndexedBatches(NamedTuple):
    """The indexes of some batches, and the offset after the last batch."""

    indexes: SegmentIndexes
    end_offset: int


def index_batches(
    file: AppendFile, extent: SegmentExtent, interval_bytes: int, *, may_end: bool = False
) -> IndexedBatches:
    """Index all batches, in memory and without transactions. If a batch is damaged, the offsets come from the
    headers, and `damaged_position` forbids look-ups by time. If the headers contradict each other and
    `may_end` is true, only the batches before the contradiction are indexed, because the positions of the
    others are unknown.

    Raises CorruptRecordError if the headers contradict each other and `may_end` is false; OSError.
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
    """Index the batches without comparing checksums. Raises CorruptRecordError, OSError."""
    indexes, end_offset = SegmentIndexes.empty(extent.base_offset), extent.base_offset
    try:
        for position, header in extent.walk(file):
            indexes.add_rows([row_of(position, header)], interval_bytes)
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
    sealed: SegmentSeal | None,
    replaces_files: bool,
    may_end: bool,
) -> SegmentIndexes:
    """Make the offset and time indexes of a sealed segment from its data, and replace their files and the
    seal, which was `sealed`. If the data is damaged, or `replaces_files` is false, the files stay. The
    transaction index does not follow from the segment, so it stays. `may_end`: see `index_batches`.

    Raises CorruptRecordError, also if the batches contradict the seal; OSError.
    """
    base_offset = extent.base_offset
    with resources.files.use(segment_path(directory, base_offset, LOG_SUFFIX)) as file:
        indexes, end_offset = index_batches(file, extent, interval_bytes, may_end=may_end)
    if indexes.damaged_position is None:
        require_sealed_headers(sealed, extent.size_bytes, indexes.headers.packed(), file.path)
    aborted = IndexSeal() if sealed is None else sealed.transaction_index
    indexes.leave_aborted(resources.index_pages, directory, aborted)
    files = indexes.closing_files()
    if not replaces_files or indexes.damaged_position is not None:
        return indexes
    offset_index, time_index = OffsetIndex.seal_of(files[0]), TimeIndex.seal_of(files[1])
    headers = indexes.headers.packed()
    seal = SegmentSeal.of(extent.size_bytes, end_offset, headers, offset_index, time_index, aborted)
    suffixes = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX)
    try:
        for data, suffix in zip((*files, seal.to_bytes()), suffixes, strict=True):
            path = segment_path(directory, base_offset, suffix)
            replace_file(resources.filesystem, path, data)
            resources.files.forget(path)
        return SegmentIndexes.open(resources.index_pages, directory, base_offset, seal)
    except OSError:
        # The disk may be full or read-only. The copy in memory serves; the next process tries again.
        return indexes


def resume_indexes(known: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> IndexedBatches:
    """The indexes of the extent's batches, transactions included, made from `known`, which covers these
    batches and perhaps more. Walks only the batches from the last entry on.

    Raises CorruptRecordError if the last entry does not match its batch, OSError.
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
    return IndexedBatches(indexes, end_offset)


def indexes_until(
    known: SegmentIndexes, file: AppendFile, extent: SegmentExtent, interval_bytes: int
) -> IndexedBatches:
    """The indexes of the extent's batches, made from them, and from `known` for its transactions. Raises
    CorruptRecordError if a batch is damaged, OSError."""
    made = index_batches(file, extent, interval_bytes)
    if made.indexes.damaged_position is not None:
        raise damaged_batch(file.path, made.indexes.damaged_position)
    made.indexes.transaction_index = known.transaction_index.below(made.end_offset)
    return made


def resume_closed(opened: SegmentIndexes, file: AppendFile, extent: SegmentExtent) -> SegmentIndexes:
    """Do the same as `resume_indexes` with the files of a closed log, which end with its highest timestamp.

    Raises CorruptRecordError if the batches do not end where the seal says, or as `resume_indexes` does;
    OSError.
    """
    assert opened.seal is not None
    indexes, end_offset = resume_indexes(opened, file, extent)
    if end_offset != opened.seal.end_offset:
        raise CorruptRecordError(
            "a closed log does not end at the offset in its seal; restore the segment and its .seal file from"
            " a copy",
            path=file.path,
            end_offset=end_offset,
            expected_offset=opened.seal.end_offset,
        )
    indexes.headers.resume(opened.seal.headers, end_offset)
    indexes.max_timestamp, indexes.seal = opened.max_timestamp, opened.seal
    return indexes
