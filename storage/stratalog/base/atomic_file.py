"""Replaces a small file so that a crash leaves the old contents or the new ones, never a mixture.

Write a temporary file beside it, sync it, rename it over the old name, sync the directory. A crash before the
rename is durable leaves the old file (and perhaps the temporary one, which the next write overwrites).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from stratalog.base.file_contents import write_file
from stratalog.base.filesystem import FileSystem

TEMPORARY_SUFFIX = ".tmp"


def replace_file(
    filesystem: FileSystem, path: str, data: bytes, *, before_rename: Callable[[], None] = lambda: None
) -> None:
    """Give the file `path` the contents `data`; durable when this returns. One caller at a time for one path.

    Raises OSError; the file then has the old contents or the new ones. If it failed before it called
    `before_rename`, the file has the old ones.
    """
    temporary_path = path + TEMPORARY_SUFFIX
    # Sync before the rename: a durable name must not precede its contents.
    write_file(filesystem, temporary_path, [data])
    before_rename()
    filesystem.rename(temporary_path, path)
    filesystem.sync_directory(posixpath.dirname(path))
