"""Replacing a small file so that a crash leaves the old contents or the new ones, never a mixture.

Write a temporary file beside it, sync it, rename it over the old name, sync the directory. A crash before the
rename is durable leaves the old file (and perhaps the temporary one, which the next write overwrites).
"""

from __future__ import annotations

import posixpath

from stratalog.base.filesystem import FileSystem

TEMPORARY_SUFFIX = ".tmp"


def replace_file(filesystem: FileSystem, path: str, data: bytes) -> None:
    """Give the file `path` the contents `data`; durable when it returns. One caller at a time for one path.

    Raises OSError; the old contents are then still in place, or the new ones are.
    """
    temporary_path = path + TEMPORARY_SUFFIX
    file = filesystem.open_append(temporary_path)
    try:
        # A crash may have left a temporary file with other contents.
        file.truncate(0)
        file.append([data])
        # Synced before the rename: a durable name must never stand for contents that are not.
        file.sync()
    finally:
        file.close()
    filesystem.rename(temporary_path, path)
    filesystem.sync_directory(posixpath.dirname(path))
