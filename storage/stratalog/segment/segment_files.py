"""Creates, renames and unlinks the files of a segment together.

The data file changes first, because the others mean nothing without it: a process that loads the directory in
between finds index files without a log, and ignores them.

A directory may need space for a new name, so a full disk may refuse to rename the files of a dropped segment.
They are then unlinked, which takes no space; readers that have them open can still finish.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.segment.file_names import DELETED_SUFFIX, INDEX_SUFFIXES, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.open_files import OpenFiles
from stratalog.segment.segment_resources import SegmentResources


def rename_segment(filesystem: FileSystem, directory: str, base_offset: int, old: str, new: str) -> None:
    """Rename the segment's files from state `old` to state `new`, such as ".swap" or "" (live). Not synced.
    Raises OSError."""
    for suffix in SEGMENT_SUFFIXES:
        path = segment_path(directory, base_offset, suffix)
        if filesystem.exists(path + old):
            filesystem.rename(path + old, path + new)


def put_aside(filesystem: FileSystem, path: str) -> None:
    """Rename a dropped file to `.deleted`, or unlink it if the disk is full; a missing file is fine. Not
    synced. Raises OSError; the file is then unchanged, unless the disk has failed."""
    if not filesystem.exists(path):
        return
    try:
        filesystem.rename(path, path + DELETED_SUFFIX)
    except OSError as failure:
        if failure.errno not in NO_SPACE:
            raise
        filesystem.unlink(path)


def put_indexes_aside(filesystem: FileSystem, directory: str, base_offset: int) -> None:
    """Put the segment's index files aside, all of them even if one fails. Raises OSError, the first one."""
    failures: list[OSError] = []
    for suffix in INDEX_SUFFIXES:
        try:
            put_aside(filesystem, segment_path(directory, base_offset, suffix))
        except OSError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def unlink_segment(filesystem: FileSystem, directory: str, base_offset: int, state: str) -> None:
    """Unlink the segment's files in that state; missing files are fine. Not synced. Raises OSError."""
    for suffix in SEGMENT_SUFFIXES:
        with suppress(FileNotFoundError):
            filesystem.unlink(segment_path(directory, base_offset, suffix) + state)


def make_data_file(resources: SegmentResources, path: str, reserved_bytes: int) -> None:
    """Create the empty data file of a new segment with `reserved_bytes` of disk space. Not synced.

    Raises OSError with the file removed again, and DataDirectoryError if it could not be removed.
    """
    try:
        with resources.files.use(path, for_writing=True) as file:
            # A file of this name may be left from an attempt that failed half-way.
            file.truncate(0)
            resources.preallocation.reserve(file, reserved_bytes)
    except OSError as failure:
        _take_back_file(resources.files, path, failure)
        raise


def _take_back_file(files: OpenFiles, path: str, failure: OSError) -> None:
    """Remove the data file of a segment that could not be created. Raises DataDirectoryError if that fails
    too."""
    files.forget(path)
    try:
        files.filesystem.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as second_failure:
        raise DataDirectoryError(
            "the file of a segment that could not be created cannot be removed; repair the disk and restart"
            " the server",
            path=path,
            reason=str(failure),
        ) from second_failure
