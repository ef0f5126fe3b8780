"""The files of a segment as one: what changes their state changes the name of each.

The data goes first, because it is what makes the others mean anything: whoever loads a directory in between
finds index files without a log, which are nobody's.

A directory may need space for a new name, so a full disk may refuse to rename what is dropped. Then it is
unlinked: that takes no space, and whoever has the file open can finish as well.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE, FileSystem
from stratalog.segment.file_names import DELETED_SUFFIX, INDEX_SUFFIXES, SEGMENT_SUFFIXES, segment_path
from stratalog.segment.open_files import OpenFiles
from stratalog.segment.segment_resources import SegmentResources


def rename_segment(filesystem: FileSystem, directory: str, base_offset: int, old: str, new: str) -> None:
    """Give the files that there are in state `old` (".swap", "" for a live segment) the names of state `new`.
    Not synced. Raises OSError."""
    for suffix in SEGMENT_SUFFIXES:
        path = segment_path(directory, base_offset, suffix)
        if filesystem.exists(path + old):
            filesystem.rename(path + old, path + new)


def put_aside(filesystem: FileSystem, path: str) -> None:
    """Let a file, if it is there, be one of a dropped segment: `.deleted`, or, on a full disk, gone. Not
    synced. Raises OSError: it is there as it was, unless the disk has failed."""
    if not filesystem.exists(path):
        return
    try:
        filesystem.rename(path, path + DELETED_SUFFIX)
    except OSError as failure:
        if failure.errno not in NO_SPACE:
            raise
        filesystem.unlink(path)


def put_indexes_aside(filesystem: FileSystem, directory: str, base_offset: int) -> None:
    """The same for the index files that there are. Raises OSError, the first, when all were tried."""
    failures: list[OSError] = []
    for suffix in INDEX_SUFFIXES:
        try:
            put_aside(filesystem, segment_path(directory, base_offset, suffix))
        except OSError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def unlink_segment(filesystem: FileSystem, directory: str, base_offset: int, state: str) -> None:
    """Unlink the files that there are in that state. Not synced. Raises OSError."""
    for suffix in SEGMENT_SUFFIXES:
        with suppress(FileNotFoundError):
            filesystem.unlink(segment_path(directory, base_offset, suffix) + state)


def make_data_file(resources: SegmentResources, path: str, reserved_bytes: int) -> None:
    """Make the empty data file of a new segment, with disk space for so many bytes. Not synced.

    Raises OSError without a trace of it, and DataDirectoryError where that could not be achieved.
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
    """Remove the data file of a segment that could not be created. Raises DataDirectoryError where that could
    not be done either."""
    files.forget(path)
    try:
        files.filesystem.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as second_failure:
        raise DataDirectoryError(
            "a new segment could not be taken back; repair the disk and restart the server",
            path=path,
            reason=str(failure),
        ) from second_failure
