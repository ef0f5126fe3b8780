"""Proving that batches lie where they were appended, as far as it shows when nothing lies behind them.

The checksum of a batch leaves out its base offset. Where another batch follows, or another segment, that one
tells when it was altered. Nothing follows the last batch of a log; but two things are known of it:

* The recovery point is where the log ended when all below it had been fsynced, so a batch ended or a segment
  began there. What was appended since begins there or above, and a hole that reaches over it is none of old:
  before a clean exchanges segments, the checkpoint says that all of them are durable, and a truncation lowers
  it to the end of a batch. A leader numbers without a hole, and a follower leaves one at the log's end only.
* No batch is appended farther from its segment's base than its indexes can say.

Neither is known of a log that a broker wrote: its recovery point may not have come with it, and old ones
merged segments that are too far apart (`segment_split`).
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
    "which no crash does; restore the file from a copy, or, to go on without it, move the partition's"
    " directory away and make an empty one in its place"
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
    """`rows` of sound batches, not none, follow in the segment's file what ends at `end_offset`: another
    batch, or what is before the segment. `cleaned_offset`: below it holes are no loss.

    Raises DataDirectoryError where one of them cannot have been appended there, OSError.
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
            "a sound batch and the one before it leave a hole at the recovery point, where a batch had ended "
            "when all below it was fsynced, and no crash does that: restore the file from a copy, or, if the "
            "checkpoint is wrong, set the partition's offset in it to 0",
            path=segment.path,
            base_offset=base_offset,
            end_before=end_offset,
            recovery_point=recovery_point,
            checkpoint=RECOVERY_POINT_FILE,
        )


def require_end_below(segment: LogSegment, end_offset: int, next_base_offset: int) -> None:
    """A sound batch of the segment ends there, and what begins at `next_base_offset` lies behind it: another
    batch, or the next segment. Raises DataDirectoryError where they overlap."""
    if end_offset > next_base_offset:
        raise DataDirectoryError(
            f"a sound batch ends above the offset at which the one behind it begins, {_ADVICE}",
            path=segment.path,
            end_offset=end_offset,
            base_offset=next_base_offset,
        )


def _too_far(file: AppendFile, segment: LogSegment, row: BatchRow) -> DataDirectoryError:
    return DataDirectoryError(
        f"a sound batch lies farther from its segment's base than any is appended, {_ADVICE}",
        path=segment.path,
        base_offset=_base_offset(file, row),
        segment_base_offset=segment.base_offset,
    )


def _base_offset(file: AppendFile, row: BatchRow) -> int:
    return parse_header(file.read_at(row.position, HEADER_SIZE)).base_offset
