"""Finds batches in a segment by offset and by time: an index gives a position, and a walk goes on from there.

An index entry is compared with the batch that it points at. Without indexes the walk begins at the start of
the file, which is slow and still right.
"""

from __future__ import annotations

from functools import partial

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.segment.batch_walk import damaged_batch
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.segment_extent import SegmentExtent


def position_of(
    file: AppendFile,
    extent: SegmentExtent,
    indexes: SegmentIndexes | None,
    offset: int,
    *,
    proves_hole: bool = False,
) -> int | None:
    """The position of the first batch that ends at or above `offset`; None if there is none. `proves_hole`:
    see `batch_walk.seek`.

    Raises CorruptRecordError if an index or the file is wrong; OSError.
    """
    entry = None if indexes is None else indexes.offset_index.floor(offset)
    if entry is None:
        return extent.seek(file, offset, proves_hole=proves_hole)
    return extent.seek(file, offset, entry.position, entry.offset, proves_hole=proves_hole)


proven_position_of = partial(position_of, proves_hole=True)
"""`position_of` for a caller that takes the result for the first record at or above the offset."""


def position_since(
    file: AppendFile, extent: SegmentExtent, indexes: SegmentIndexes | None, timestamp_ms: int
) -> int:
    """The beginning of a batch before which every record is older than `timestamp_ms`.

    Raises CorruptRecordError if an index or the file is wrong; OSError.
    """
    if indexes is not None and indexes.damaged_position is not None:
        raise damaged_batch(file.path, indexes.damaged_position)
    entry = None if indexes is None else indexes.time_index.before(timestamp_ms)
    if entry is None:
        return 0
    position = position_of(file, extent, indexes, entry.offset)
    if position is None:
        raise CorruptRecordError("a time index points beyond its log", path=file.path, entry=entry)
    header = parse_header(file.read_at(position, HEADER_SIZE))
    if (header.max_timestamp, header.last_offset) != entry:
        raise CorruptRecordError("a time index points at another batch", path=file.path, entry=entry)
    return position
