"""Gives a log its own copy of a file that it shares with another directory, before the file changes.

An import gives the sealed segments of a broker a second name instead of a copy. That is safe until a write: a
cut or an append would change the broker's file too. So every file that is opened for writing goes through
`own_file`.

The copy is written as `.cleaned`, which a loader of the directory ignores, and takes the name once it is
durable. After a crash the name has the shared file or the copy, with the same bytes.
"""

from __future__ import annotations

import posixpath

from stratalog.base.filesystem import FileSystem
from stratalog.segment.file_names import CLEANED_SUFFIX


def own_file(filesystem: FileSystem, path: str) -> None:
    """Replace `path` by a copy that has no other name. Does nothing if the file has no other name already, or
    is missing.

    The copy and its name are durable when this returns. One caller at a time for one path; a reader that has
    the file open keeps the shared one. Raises OSError, with the shared file in place.
    """
    try:
        if filesystem.link_count(path) == 1:
            return
    except FileNotFoundError:
        return
    copy_path = path + CLEANED_SUFFIX
    if filesystem.exists(copy_path):
        # A failed attempt left it, perhaps incomplete.
        filesystem.unlink(copy_path)
    filesystem.copy_file(path, copy_path)
    file = filesystem.open_append(copy_path)
    try:
        file.sync()
    finally:
        file.close()
    filesystem.rename(copy_path, path)
    filesystem.sync_directory(posixpath.dirname(path))
