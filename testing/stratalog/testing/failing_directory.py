"""A disk of which one directory fails while the rest goes on."""

from __future__ import annotations

import errno
import os

from stratalog.base.filesystem import AppendFile
from stratalog.base.posix_filesystem import PosixFileSystem


class FailingDirectory(PosixFileSystem):
    """Nothing at or below `broken` can be opened, read, listed or made, once it is named.

    Thread-safe: set it once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken = "/nowhere"

    def refuse_broken(self, path: str) -> None:
        """Fail an operation below the broken directory. Raises OSError if the path is the directory, or
        below it."""
        if path == self.broken or path.startswith(f"{self.broken}/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open_append(self, path: str) -> AppendFile:
        self.refuse_broken(path)
        return super().open_append(path)

    def open_read(self, path: str) -> AppendFile:
        self.refuse_broken(path)
        return super().open_read(path)

    def read_file(self, path: str) -> bytes:
        self.refuse_broken(path)
        return super().read_file(path)

    def list_directory(self, path: str) -> list[str]:
        self.refuse_broken(path)
        return super().list_directory(path)

    def exists(self, path: str) -> bool:
        self.refuse_broken(path)
        return super().exists(path)

    def make_directories(self, path: str) -> None:
        self.refuse_broken(path)
        super().make_directories(path)
