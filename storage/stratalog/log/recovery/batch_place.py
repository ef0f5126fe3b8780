"""Detects batches with an altered base offset, and refuses the log.

The checksum of a batch does not cover its base offset. A changed one shows at the batch or the segment that
follows. The last batch of a log has no follower, but two rules hold for it:

* The recovery point is the end of the log at a flush, so a batch ends or a segment begins there. Later
batches
  begin there or above, so no hole reaches over it. (Before a clean exchanges segments, the checkpoint covers
  all of them. A truncation lowers it to the end of a batch. A leader leaves no holes, and a follower leaves
  one only at the log's end.)
* The distance of a batch from its segment's base fits into the indexes.

Neither rule holds for a broker's log: its recovery point may be missing, and old brokers merged segments that
are too far apart (`segment_split`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import AppendFile
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.log_segment import LogSegment

_ADVICE = (
    "restore the segment from a copy, or, to go on without it, move the partition's directory away and make"
    " an empty one in its place"
)


def require_place(
    file: AppendFile,
    segment: LogSegment,
    rows: Sequence[BatchRow],
    end_offset: int,
    *,
    recovery_point: int,
    cleaned_offset: int,
) -> None:
    """Check the places of sound batches, at least one, that follow each other from `end_offset` on.
    `cleaned_offset`: holes below it are no loss.

    Raises DataDirectoryError if one of them cannot have been appended there, OSError.
    """
    last_offset = rows[-1].last_offset
    if not segment.fits(last_offset):
        raise _too_far(file, segment, next(row for row in rows if not segment.fits(row.last_offset)))
    if not end_offset < recovery_point <= last_offset:
        return
    ordinal = bisect_left(rows, recovery_point, key=lambda row: row.last_offset)
    if ordinal:
        end_offset = rows[ordinal - 1].last_offset + 1
    base_offset = _base_offset(file, rows[ordinal])
    if end_offset < recovery_point and base_offset > max(end_offset, cleaned_offset):
        raise DataDirectoryError(
            "batches below the recovery point are missing; restore the segment from a copy, or, if the"
            " checkpoint is wrong, set the partition's offset in it to 0",
            path=segment.path,
            base_offset=base_offset,
            end_before=end_offset,
            recovery_point=recovery_point,
            checkpoint=RECOVERY_POINT_FILE,
        )


def require_end_below(segment: LogSegment, end_offset: int, next_base_offset: int) -> None:
    """Raise DataDirectoryError if a sound batch that ends at `end_offset` overlaps the next batch or
    segment."""
    if end_offset > next_base_offset:
        raise DataDirectoryError(
            f"a sound batch overlaps the one behind it, so a base offset was damaged; {_ADVICE}",
            path=segment.path,
            end_offset=end_offset,
            base_offset=next_base_offset,
        )


def _too_far(file: AppendFile, segment: LogSegment, row: BatchRow) -> DataDirectoryError:
    return DataDirectoryError(
        f"a sound batch is too far from the base of its segment, so its base offset was damaged; {_ADVICE}",
        path=segment.path,
        base_offset=_base_offset(file, row),
        segment_base_offset=segment.base_offset,
    )


def _base_offset(file: AppendFile, row: BatchRow) -> int:
    return parse_header(file.read_at(row.position, HEADER_SIZE)).base_offset
