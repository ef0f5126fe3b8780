"""The file of the cordoned log directories, where they were altered at run time.

`cordoned-log-dirs` lies in the data directory. Its first line is the CRC-32C of the rest, eight hexadecimal
digits; the second line is the value of `cordoned.log.dirs`. The file is replaced whole, so a crash leaves the
old value or the new one.

A cordon protects no record: it only steers new partitions. So a start goes on, with a warning, if the file
is damaged or cannot be read.
"""

from __future__ import annotations

import logging

from crc32c import crc32c

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem

logger = logging.getLogger(__name__)

CORDON_FILE = "cordoned-log-dirs"


class CordonFile:
    """Not thread-safe: guarded by RuntimeConfig."""

    def __init__(self, filesystem: FileSystem, data_dir: str) -> None:
        self._filesystem = filesystem
        self._data_dir = data_dir
        self.path = f"{data_dir}/{CORDON_FILE}"

    def read(self) -> str | None:
        """The altered value; None if it was not altered, or the file is unusable, which is logged."""
        try:
            checksum, _, rest = self._filesystem.read_file(self.path).partition(b"\n")
            if checksum != _checksum(rest):
                raise ValueError("the checksum does not match")
            return rest.decode().removesuffix("\n")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as failure:
            logger.warning(
                "the cordoned log directories that were altered at run time cannot be read; new partitions go"
                " by `cordoned.log.dirs` of the start until `stratalog log-dirs cordon` sets them again,"
                " path=`%s`: %s",
                self.path,
                failure,
            )
            return None

    def write(self, value: str | None) -> None:
        """Store the altered value; None removes it. Durable when it returns. Raises DataDirectoryError."""
        try:
            if value is not None:
                rest = f"{value}\n".encode()
                replace_file(self._filesystem, self.path, _checksum(rest) + b"\n" + rest)
            elif self._filesystem.exists(self.path):
                self._filesystem.unlink(self.path)
                self._filesystem.sync_directory(self._data_dir)
        except OSError as failure:
            raise DataDirectoryError(
                "the cordons hold from now on, but cannot be written, so a restart forgets them; free space"
                " or repair the disk, and ask again",
                path=self.path,
                reason=str(failure),
            ) from failure


def _checksum(rest: bytes) -> bytes:
    return f"{crc32c(rest):08x}".encode()
