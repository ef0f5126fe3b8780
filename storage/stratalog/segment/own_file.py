"""A log file that another directory shares, made the log's own before it is changed.

An import gives the sealed segments of a broker a second name instead of a copy. As long as nothing is written
there is nothing to lose; whoever cuts or appends to such a file would do it to the broker's as well. So every
way to a file that may be written leads through `own_file`.

The copy is made as `.cleaned`, which means nothing to whoever loads the directory, and takes the name when
it is durable. A crash leaves the shared file or the copy, with the same bytes.
"""

from __future__ import annotations

import posixpath

from stratalog.base.filesystem import FileSystem
from stratalog.segment.file_names import CLEANED_SUFFIX


def own_file(filesystem: FileSystem, path: str) -> None:
    """Let `path` be a file without another name; nothing happens where it is, or where there is none.

    Durable when it returns, the name included. One caller at a time for one path; who has the file open keeps
    the shared one. Raises OSError, with the shared file in place.
    """
    try:
        if filesystem.link_count(path) == 1:
            return
    except FileNotFoundError:
        return
    copy_path = path + CLEANED_SUFFIX
    if filesystem.exists(copy_path):
        # Of an attempt that failed: it need not be all of the file.
        filesystem.unlink(copy_path)
    filesystem.copy_file(path, copy_path)
    file = filesystem.open_append(copy_path)
    try:
        file.sync()
    finally:
        file.close()
    filesystem.rename(copy_path, path)
    filesystem.sync_directory(posixpath.dirname(path))
