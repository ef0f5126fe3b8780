"""Splits a segment whose offsets are too far apart for its indexes.

An index holds offsets as distances from the segment's base, in 31 bits. Compaction in old brokers merged
segments over that limit. Such a segment is split before anything else is done with it.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from stratalog.base.file_contents import read_pieces, write_file
from stratalog.log.exchange.segment_swap import replace_segments
from stratalog.log.recovery.batch_order import require_no_follower
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.segment.batch_walk import valid_rows
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources


class _Part(NamedTuple):
    """The bytes of one of the new segments in the old one's file."""

    base_offset: int
    start_position: int
    end_position: int


def split_segment(resources: SegmentResources, directory: str, segment: LogSegment) -> None:
    """Replace the segment by as few as possible. They have no indexes: recovery makes these. Bytes behind the
    last valid batch stay in the last one. Durable when it returns.

    Raises DataDirectoryError if the batches do not follow each other, with nothing changed; OSError, and
    `settle_swaps` then goes on with it, or takes it back.
    """
    parts = _parts(resources, segment)
    with resources.files.use(segment.path) as file:
        for part in parts:
            path = segment_path(directory, part.base_offset, LOG_SUFFIX) + CLEANED_SUFFIX
            write_file(resources.filesystem, path, read_pieces(file, part.start_position, part.end_position))
    replace_segments(resources.filesystem, directory, [part.base_offset for part in parts], [segment])
    segment.unlink_deleted()


def _parts(resources: SegmentResources, segment: LogSegment) -> list[_Part]:
    parts = [_Part(segment.base_offset, 0, segment.size_bytes)]
    next_offset, end_position = segment.base_offset, 0
    with resources.files.use(segment.path) as file:
        found = valid_rows(file, segment.size_bytes, segment.base_offset, NO_LEADER_EPOCH)
        for row in chain.from_iterable(rows for rows, _ in found):
            if row.last_offset - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
                # Without a hole before it, if the distance allows that.
                fits = row.last_offset - next_offset <= MAX_RELATIVE_OFFSET
                base_offset = next_offset if fits else row.base_offset
                parts[-1] = parts[-1]._replace(end_position=row.position)
                parts.append(_Part(base_offset, row.position, segment.size_bytes))
            next_offset, end_position = row.last_offset + 1, row.end_position
        require_no_follower(segment, file, end_position, next_offset)
    return [part for part in parts if part.start_position < part.end_position]
