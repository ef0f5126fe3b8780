"""Checks that batches follow each other, where the offset of a damaged one would show.

A crash loses bytes or leaves garbage, and the checksum of a batch shows both. A crash does not leave a sound
batch with offsets below the end of the sound batch before it. So a base offset or a leader epoch was altered
then, which the checksum leaves out. It is unknown which one, so the log is refused and nothing is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import AppendFile
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.batch_walk import valid_rows
from stratalog.segment.log_segment import LogSegment

_ADVICE = (
    "restore the segment from a copy, or, to go on without it, move the partition's directory away and make"
    " an empty one in its place"
)


def require_end_below(segment: LogSegment, end_offset: int, next_base_offset: int) -> None:
    """Raise DataDirectoryError if a sound batch that ends at `end_offset` overlaps the next segment."""
    if end_offset > next_base_offset:
        raise DataDirectoryError(
            f"a sound batch overlaps the next segment, so a base offset was damaged; {_ADVICE}",
            path=segment.path,
            end_offset=end_offset,
            base_offset=next_base_offset,
        )


def require_fit(segment: LogSegment, last_offset: int) -> None:
    """Raise DataDirectoryError if a sound batch is farther from its segment's base than indexes reach."""
    if not segment.fits(last_offset):
        raise DataDirectoryError(
            f"a sound batch is too far from its segment's base, so its base offset was damaged; {_ADVICE}",
            path=segment.path,
            last_offset=last_offset,
            segment_base_offset=segment.base_offset,
        )


def require_no_hole(
    segment: LogSegment,
    rows: Sequence[BatchRow],
    end_offset: int,
    *,
    recovery_point: int,
    cleaned_offset: int,
) -> None:
    """Raise DataDirectoryError if sound batches, which follow `end_offset`, leave a hole over the recovery
    point. The log ended there at a flush, so a batch ends or begins there. A clean may leave a hole below
    `cleaned_offset`."""
    if not end_offset < recovery_point <= rows[-1].last_offset:
        return
    ordinal = bisect_left(rows, recovery_point, key=lambda row: row.last_offset)
    row = rows[ordinal]
    if ordinal:
        end_offset = rows[ordinal - 1].last_offset + 1
    if end_offset < recovery_point and row.base_offset > max(end_offset, cleaned_offset):
        raise DataDirectoryError(
            "batches below the recovery point are missing; restore the segment from a copy, or, if the"
            " checkpoint is wrong, set the partition's offset in it to 0",
            path=segment.path,
            base_offset=row.base_offset,
            end_before=end_offset,
            recovery_point=recovery_point,
            checkpoint=RECOVERY_POINT_FILE,
        )


def require_no_follower(segment: LogSegment, file: AppendFile, position: int, end_offset: int) -> None:
    """Raise DataDirectoryError if a sound batch begins at `position`, where the batches in order end.
    `end_offset`: the offset after them. Raises OSError."""
    behind = next(valid_rows(file, segment.size_bytes, 0, NO_LEADER_EPOCH, position, is_search=True), None)
    if behind is not None:
        raise DataDirectoryError(
            "a sound batch has a lower offset or leader epoch than the one before it allows, so one of the"
            f" two was damaged; {_ADVICE}",
            path=segment.path,
            position=position,
            end_offset=end_offset,
            base_offset=behind.rows[0].base_offset,
        )
