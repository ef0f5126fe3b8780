"""Space that a log directory reserves, so that deletions, a stop and a start work on a full disk.

Deletions, a clean stop and a start write small files: checkpoints, manifests, indexes of closed logs, the
marker. Appends may take the last byte of a disk. So a serving process reserves space behind two files without
contents::

    .spare-deletion     released when a write that must succeed meets a full disk; then the write is repeated
    .spare-stop         released before logs are closed; a start releases both files first

Each file is filled again as soon as there is room: it gets half of the free space, up to its limit.

This is a best effort: an append may take the released space before the write that needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from stratalog.base.filesystem import NO_SPACE, FileSystem

logger = logging.getLogger(__name__)

SPARE_DELETION_FILE = ".spare-deletion"
SPARE_STOP_FILE = ".spare-stop"
SPARE_BYTES = 2 * 1024 * 1024
"""Size of each file: enough for the checkpoints of tens of thousands of partitions."""
SHORT_BYTES = 32 * SPARE_BYTES
"""A directory with less free space is short of space."""
_MIN_BYTES = 64 * 1024


class _SpareFile:
    """One of the two files. Guarded by the lock of `SpareSpace`."""

    __slots__ = ("_filesystem", "_kept_bytes", "_path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Release the space of a former process that was killed. Raises OSError."""
        self._filesystem = filesystem
        self._path = path
        self._kept_bytes = 0
        if filesystem.exists(path):
            filesystem.unlink(path)

    def keep(self, free_bytes: int) -> None:
        """Reserve a part of the free space, unless the file has enough, too little is free, or the file
        system cannot reserve. Raises OSError."""
        size = min(SPARE_BYTES, self._kept_bytes + free_bytes // 2)
        if size < _MIN_BYTES or size <= self._kept_bytes:
            return
        file = self._filesystem.open_append(self._path)
        try:
            if file.reserve(size):
                self._kept_bytes = size
        finally:
            file.close()

    def give_up(self) -> bool:
        """Release the space; False if there was none. Raises OSError."""
        if self._kept_bytes == 0:
            return False
        self._filesystem.unlink(self._path)
        self._kept_bytes = 0
        return True


class SpareSpace:
    """The space that a log directory reserves for work on a full disk. Thread-safe."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Release the space of a former process that was killed. Raises OSError."""
        self._filesystem = filesystem
        self._directory = directory
        self._lock = threading.Lock()
        self._for_stop = _SpareFile(filesystem, f"{directory}/{SPARE_STOP_FILE}")
        self._for_deletion = _SpareFile(filesystem, f"{directory}/{SPARE_DELETION_FILE}")

    def keep(self) -> None:
        """Reserve what is missing, as far as space is free."""
        with self._lock:
            try:
                for file in (self._for_stop, self._for_deletion):
                    file.keep(self._filesystem.free_bytes(self._directory))
            except OSError as failure:
                logger.info("no space is kept aside in %s: %s", self._directory, failure)

    def give_up(self) -> None:
        """Release both files: the logs are about to be closed, and nothing is appended any more. Raises
        OSError."""
        with self._lock:
            self._for_stop.give_up()
            self._for_deletion.give_up()

    def writing(self, write: Callable[[], None]) -> None:
        """Call `write`. If the disk is full, release the space for deletions and call it again. Raises
        OSError."""
        try:
            write()
        except OSError as failure:
            if failure.errno not in NO_SPACE or not self._give_up_for_deletion():
                raise
            logger.warning(
                "a log directory is full, and the space that was kept aside for deletions is in use now;"
                " delete records or topics, or make the disk larger, path=`%s`",
                self._directory,
            )
            write()

    def _give_up_for_deletion(self) -> bool:
        with self._lock:
            return self._for_deletion.give_up()
