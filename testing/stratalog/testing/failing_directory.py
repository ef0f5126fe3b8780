"""A disk of which one directory fails while the rest goes on."""

from __future__ import annotations

import errno
import os

from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem


class FailingDirectory(PosixFileSystem):
    """Files below `broken` cannot be opened any more, once it is named. Thread-safe: set it once."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = "/nowhere"

    def refuse_broken(self, path: str) -> None:
        """Raises OSError where the path is the directory, or below it."""
        if path == self.broken or path.startswith(f"{self.broken}/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open_append(self, path: str) -> AppendFile:
        self.refuse_broken(path)
        return super().open_append(path)

    def open_read(self, path: str) -> AppendFile:
        self.refuse_broken(path)
        return super().open_read(path)
