"""Replaces segments by new ones, so that a crash leaves the old ones or the new ones, whole.

::

    OFFSET.log.cleaned   new, being written: means nothing
    OFFSET.log.swap      new, complete and durable: it replaces the segments that begin in its range
    OFFSET.log.deleted   replaced

The new files are synced as `.cleaned`, renamed to `.swap` newest first, then the old ones are renamed to
`.deleted`, then the new ones get their names. A crash finds

* a `.cleaned` file: the new files are not complete, or not all renamed. Renamed ones lie above it, and are
  removed with it;
* `.swap` files only: all of them are there, or the lower ones have their names already. The segments that
  they replace are removed, and they get their names. But if one of them is not whole, no old segment is
  removed: no write of ours leaves such a file, so another program has changed it.

Between these steps the directory is synced. Journaling file systems replay the renames of one directory in
order and would not need it; POSIX promises no order, and an old segment that came back beside a new one would
make a log with two segments for the same offsets.

The rules are Kafka's, so they also open a broker's directories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.segment.batch_walk import valid_rows
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    parse_segment_name,
    segment_path,
)
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_files import rename_segment, unlink_segment


class _SwapRange(NamedTuple):
    """The range of offsets of the swap files, and whether each of them is whole."""

    start_offset: int
    end_offset: int
    is_whole: bool


def replace_segments(
    filesystem: FileSystem, directory: str, new_base_offsets: Sequence[int], replaced: Sequence[LogSegment]
) -> None:
    """Replace segments by those whose synced files are named `.cleaned`. Durable when it returns, with the
    old files renamed.

    Raises OSError; `settle_swaps` then goes on with it, or takes it back.
    """
    announce_swap(filesystem, directory, new_base_offsets)
    exchange_names(filesystem, directory, new_base_offsets, replaced)
    filesystem.sync_directory(directory)


def announce_swap(filesystem: FileSystem, directory: str, new_base_offsets: Sequence[int]) -> None:
    """Rename the synced `.cleaned` files to `.swap`: the first step. Durable when it returns. Raises OSError;
    `take_back_swap` may then undo it."""
    # After a crash, `.cleaned` files of a failed copy below these would make these look incomplete, although
    # the segments that they replace may be gone.
    stale = _bases(filesystem.list_directory(directory), CLEANED_SUFFIX) - set(new_base_offsets)
    for base_offset in sorted(stale):
        if base_offset < max(new_base_offsets):
            unlink_segment(filesystem, directory, base_offset, CLEANED_SUFFIX)
    filesystem.sync_directory(directory)
    for base_offset in sorted(new_base_offsets, reverse=True):
        rename_segment(filesystem, directory, base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
    filesystem.sync_directory(directory)


def take_back_swap(filesystem: FileSystem, directory: str, new_base_offsets: Sequence[int]) -> None:
    """Remove `.swap` and `.cleaned` files that have not replaced a segment yet. Durable when it returns.
    Raises OSError."""
    if len(new_base_offsets) > 1:
        # A start goes on with the swap files that it finds, and one of several is no whole exchange. So the
        # lowest is marked as incomplete first, and all above it with that.
        path = segment_path(directory, min(new_base_offsets), LOG_SUFFIX)
        if filesystem.exists(path + SWAP_SUFFIX):
            filesystem.rename(path + SWAP_SUFFIX, path + CLEANED_SUFFIX)
            filesystem.sync_directory(directory)
    # The swap files first: without the `.cleaned` ones they would be taken for complete.
    for state in (SWAP_SUFFIX, CLEANED_SUFFIX):
        for base_offset in new_base_offsets:
            unlink_segment(filesystem, directory, base_offset, state)
        filesystem.sync_directory(directory)


def exchange_names(
    filesystem: FileSystem, directory: str, new_base_offsets: Sequence[int], replaced: Sequence[LogSegment]
) -> None:
    """Rename the old files, then the new ones: the other steps. The caller syncs the directory. Raises
    OSError: nothing was replaced if none of the old segments `is_dropped` and the first is found under its
    name; else the state of the disk is unknown, and `settle_swaps` goes on with it."""
    for segment in replaced:
        segment.mark_deleted()
    filesystem.sync_directory(directory)
    try:
        _name_new(filesystem, directory, new_base_offsets)
    except OSError as failure:
        if failure.errno not in NO_SPACE:
            raise
        # The replaced files are gone for good: unlinking them makes room, also for names.
        for segment in replaced:
            segment.unlink_deleted()
        _name_new(filesystem, directory, new_base_offsets)


def _name_new(filesystem: FileSystem, directory: str, base_offsets: Sequence[int]) -> None:
    """Rename the `.swap` files to their final names. Raises OSError."""
    for base_offset in sorted(base_offsets):
        rename_segment(filesystem, directory, base_offset, SWAP_SUFFIX, "")


def settle_swaps(filesystem: FileSystem, directory: str) -> list[str]:
    """Finish or take back a swap that a crash has cut off. Durable when it returns. Returns the names in the
    directory then. Raises OSError."""
    names = filesystem.list_directory(directory)
    cleaned, swapped = _bases(names, CLEANED_SUFFIX), _bases(names, SWAP_SUFFIX)
    if not cleaned and not swapped:
        return names
    invalid = {base_offset for base_offset in swapped if cleaned and base_offset >= min(cleaned)}
    # The swap files first: without the `.cleaned` ones they would be taken for complete.
    for base_offset in invalid:
        unlink_segment(filesystem, directory, base_offset, SWAP_SUFFIX)
    filesystem.sync_directory(directory)
    for base_offset in cleaned:
        unlink_segment(filesystem, directory, base_offset, CLEANED_SUFFIX)
    _settle(filesystem, directory, sorted(swapped - invalid), _bases(names, ""))
    filesystem.sync_directory(directory)
    return filesystem.list_directory(directory)


def _settle(filesystem: FileSystem, directory: str, swapped: Sequence[int], live: set[int]) -> None:
    if not swapped:
        return
    found = _range_of(filesystem, directory, swapped)
    replaced = sorted(base for base in live if found.start_offset <= base < found.end_offset)
    if replaced and not found.is_whole:
        for base_offset in swapped:
            unlink_segment(filesystem, directory, base_offset, SWAP_SUFFIX)
        return
    for base_offset in replaced:
        unlink_segment(filesystem, directory, base_offset, "")
    # As long as an old file may come back after a crash, the new ones must keep their suffix.
    filesystem.sync_directory(directory)
    _name_new(filesystem, directory, swapped)


def _range_of(filesystem: FileSystem, directory: str, swapped: Sequence[int]) -> _SwapRange:
    # If the data file has its final name already, only indexes are left to rename.
    waiting = {
        base_offset: path
        for base_offset in swapped
        if filesystem.exists(path := segment_path(directory, base_offset, LOG_SUFFIX) + SWAP_SUFFIX)
    }
    start_offset = end_offset = min(waiting, default=swapped[0])
    is_whole = True
    for base_offset, path in waiting.items():
        # At least the segment with the same name.
        end_offset = max(end_offset, base_offset + 1)
        end_position, size_bytes = 0, filesystem.file_size(path)
        file = filesystem.open_read(path)
        try:
            for rows, _ in valid_rows(file, size_bytes, base_offset, NO_LEADER_EPOCH):
                end_position = rows[-1].end_position
                end_offset = max(end_offset, rows[-1].last_offset + 1)
        finally:
            file.close()
        is_whole = is_whole and end_position == size_bytes
    return _SwapRange(start_offset, end_offset, is_whole)


def _bases(names: Sequence[str], suffix: str) -> set[int]:
    """Base offsets of the segments that have a file with that suffix."""
    parsed = (parse_segment_name(name.removesuffix(suffix)) for name in names if name.endswith(suffix))
    return {found[0] for found in parsed if found is not None}
