"""Detects contradictions between sound batches and the leader epochs of a log, and refuses the log.

A crash loses bytes or leaves garbage, and the checksum shows both. A crash does not change the base offset or
the leader epoch of a batch, which the checksum leaves out, and keep the rest. So if sound batches contradict
each other, the next segment or the leader epochs of the log (which are durable before a batch has them), one
of them was damaged. It is unknown which one, so nothing is cut, and the error says what to do.

The file of leader epochs has no checksum either. Walked batches are all compared with it. In other segments
the two batches around the beginning of each epoch are, because a changed number of the file shows there. Only
a first epoch that begins too late stays unseen: a log whose beginning was deleted looks the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, EpochEntry, LeaderEpochCache
from stratalog.log.recovery.batch_place import require_end_below
from stratalog.log.recovery.log_recovery import WalkedLog, WalkedSegment
from stratalog.record.batch import crc_matches
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import HEADER_SIZE, MAX_OFFSET, BatchHeader, parse_header
from stratalog.record.native.batch_row import BatchRow
from stratalog.segment.batch_walk import valid_rows, walk
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.open_files import OpenFiles


def require_lineage(
    files: OpenFiles, found: WalkedLog, known: LeaderEpochCache, followed: LeaderEpochCache
) -> None:
    """Check the walked batches. `known`: the leader epochs of the file. `followed`: those of the batches.

    Raises DataDirectoryError if they contradict each other, or if batches do, OSError.
    """
    last = found.walked[-1]
    if last.lost_bytes:
        require_no_shift(files, last.segment)
    if known.entries:
        _require_epochs(files, found.walked, known, followed)


def known_or_learnt(known: LeaderEpochCache, followed: LeaderEpochCache) -> tuple[EpochEntry, ...]:
    """The `known` epochs, and behind them newer ones of the batches: the file may be older than the batches.

    Changes nothing.
    """
    newest = known.entries[-1] if known.entries else EpochEntry(NO_LEADER_EPOCH, -1)
    learnt = [
        entry
        for entry in followed.entries
        if entry.epoch > newest.epoch and entry.start_offset > newest.start_offset
    ]
    return (*known.entries, *learnt)


def lower_epoch(path: str, header: BatchHeader, epoch_before: int) -> DataDirectoryError:
    """The error for a sound batch with a lower leader epoch than the one before it."""
    return DataDirectoryError(
        "a sound batch has a lower leader epoch than the one before it; restore the segment and the file of"
        f" epochs from a copy, or remove {LEADER_EPOCH_FILE} if the batches are right",
        path=path,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        epoch_before=epoch_before,
    )


def require_no_shift(files: OpenFiles, segment: LogSegment) -> int:
    """Check that no sound batch follows the last valid one and belongs into a hole before it.

    Then the base offset of the last valid one was damaged. A batch that begins still lower is a rest of an
    older use of the disk space. Returns the end of the valid batches. Raises DataDirectoryError, OSError.
    """
    with files.use(segment.path) as file:
        last_two: list[BatchRow] = []
        for rows, _ in valid_rows(file, segment.size_bytes, segment.base_offset, NO_LEADER_EPOCH):
            last_two = [*last_two, *rows][-2:]
        if not last_two:
            return segment.base_offset
        last = last_two[-1]
        end_offset = last.last_offset + 1
        end_before = last_two[0].last_offset + 1 if len(last_two) > 1 else segment.base_offset
        base_offset = parse_header(file.read_at(last.position, HEADER_SIZE)).base_offset
        follower = _header(file.read_at(last.end_position, HEADER_SIZE))
        if follower is None or last.end_position + follower.size_in_bytes > segment.size_bytes:
            return end_offset
        if not end_before <= follower.base_offset <= last.last_offset or base_offset == end_before:
            return end_offset
        if crc_matches(file.read_at(last.end_position, follower.size_in_bytes), 0, follower):
            require_end_below(segment, end_offset, follower.base_offset)
    return end_offset


def _header(data: bytes) -> BatchHeader | None:
    try:
        return parse_header(data)
    except CorruptRecordError:
        return None


def require_known_epochs(segments: Sequence[LogSegment], known: LeaderEpochCache) -> None:
    """Check in segments that are not walked that the batches around each entry have the known epochs.

    Skips headers that cannot be read: a read of the batch fails. Raises DataDirectoryError, OSError.
    """
    if not segments:
        return
    # The disk has no batches below these segments.
    entries = known.entries_in_range(segments[0].base_offset, MAX_OFFSET)
    for entry in entries:
        offset = min(entry.start_offset, segments[-1].end_offset)
        for segment, header in _batches_around(segments, offset):
            require_epoch(segment, header, known)
            if entry is not entries[0] and header.base_offset < offset <= header.last_offset:
                # Only the first entry may lie within a batch, if the log was cut there.
                raise _contradicts_epochs(segment, header, entry.epoch)


def _batches_around(segments: Sequence[LogSegment], offset: int) -> Iterator[tuple[LogSegment, BatchHeader]]:
    """The last batch that begins below `offset`, and the first one that begins there or above."""
    count = bisect_left(segments, offset, key=lambda segment: segment.base_offset)
    last: tuple[LogSegment, BatchHeader] | None = None
    for segment in segments[max(0, count - 1) :]:
        try:
            for _, header in segment.batches(_position_below(segment, offset)):
                if header.base_offset >= offset:
                    yield from [last] if last is not None else []
                    yield segment, header
                    return
                last = segment, header
        except CorruptRecordError:
            return
    if last is not None:
        yield last


def _position_below(segment: LogSegment, offset: int) -> int:
    """The position of a batch that ends below `offset`; 0 if the index knows none."""
    floor = None if offset <= segment.base_offset else segment.indexes().offset_index.floor(offset - 1)
    if floor is None:
        return 0
    header = parse_header(segment.read_bytes(floor.position, HEADER_SIZE))
    return floor.position if header.last_offset == floor.offset else 0


def _require_epochs(
    files: OpenFiles, walked: Sequence[WalkedSegment], known: LeaderEpochCache, followed: LeaderEpochCache
) -> None:
    start_offset = max(walked[0].segment.base_offset, known.entries[0].start_offset)
    end_offset = walked[-1].end_offset
    if start_offset >= end_offset:
        return
    claimed = set(known.entries_in_range(start_offset, end_offset))
    # If compaction took the first batch of an epoch, it begins later in the batches than in the file.
    for entry in sorted(claimed ^ set(followed.entries_in_range(start_offset, end_offset))):
        found = _batch_at(files, walked, entry.start_offset)
        if found is not None:
            require_epoch(*found, known)


def is_newer(header: BatchHeader, known: LeaderEpochCache) -> bool:
    """Whether the epoch of the batch may be missing in the file only because that is older."""
    if not known.entries:
        return False
    latest = known.entries[-1]
    return latest.epoch < header.leader_epoch and latest.start_offset < header.base_offset


def require_epoch(segment: LogSegment, header: BatchHeader, known: LeaderEpochCache) -> None:
    """Raise DataDirectoryError if the file knows another epoch for the batch."""
    expected_epoch = known.epoch_for_offset(header.base_offset)
    if expected_epoch is not None and expected_epoch != header.leader_epoch:
        raise _contradicts_epochs(segment, header, expected_epoch)


def _contradicts_epochs(segment: LogSegment, header: BatchHeader, expected_epoch: int) -> DataDirectoryError:
    return DataDirectoryError(
        "a batch and the log's file of leader epochs contradict each other, so one of them was damaged;"
        " restore it from a copy, or remove the segments with the batch if the store has them, or"
        f" {LEADER_EPOCH_FILE} if the batches are right",
        path=segment.path,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        expected_epoch=expected_epoch,
    )


def _batch_at(
    files: OpenFiles, walked: Sequence[WalkedSegment], offset: int
) -> tuple[LogSegment, BatchHeader] | None:
    """The first batch that ends at or above `offset`, or None."""
    for item in walked:
        if item.end_offset <= offset:
            continue
        with files.use(item.segment.path) as file:
            for located in walk(file, 0, item.valid_bytes):
                if located.header.last_offset >= offset:
                    return item.segment, located.header
    return None
