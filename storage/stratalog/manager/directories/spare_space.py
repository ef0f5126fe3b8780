"""Space that a log directory keeps for itself, so that a full disk can be freed by deleting, left and started
on.

To delete records, to stop in order and to start again a directory has to write small files: checkpoints, the
indexes of the logs that are closed, the marker, who owns what. Appends take the last byte of a disk, and then
none of that could be done. So while a process serves, two files that have no contents have space reserved
behind them::

    .spare-deletion     given up when somebody who must write meets a full disk, and then writes again
    .spare-stop         given up before logs are closed, and by a start, with the other one, before anything

Each is kept again as soon as there is room: half of what is free goes there first, up to what it may have.

It is a best effort: what is given up is free for all, so whoever appends at that moment may be quicker.
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
"""Of each file: enough for the checkpoints of tens of thousands of partitions."""
SHORT_BYTES = 32 * SPARE_BYTES
"""Whoever has less than this free is short of space."""
_MIN_BYTES = 64 * 1024


class _SpareFile:
    """One of the files. Guarded by the lock of `SpareSpace`."""

    __slots__ = ("_filesystem", "_kept_bytes", "_path")

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Gives up what a process kept that was killed. Raises OSError."""
        self._filesystem = filesystem
        self._path = path
        self._kept_bytes = 0
        if filesystem.exists(path):
            filesystem.unlink(path)

    def keep(self, free_bytes: int) -> None:
        """Take some of what is free, unless it has enough, or there is too little, or nothing that reserves
        it. Raises OSError."""
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
        """Let it be free; False where there was none. Raises OSError."""
        if self._kept_bytes == 0:
            return False
        self._filesystem.unlink(self._path)
        self._kept_bytes = 0
        return True


class SpareSpace:
    """Thread-safe."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Gives up what a process kept that was killed. Raises OSError."""
        self._filesystem = filesystem
        self._directory = directory
        self._lock = threading.Lock()
        self._for_stop = _SpareFile(filesystem, f"{directory}/{SPARE_STOP_FILE}")
        self._for_deletion = _SpareFile(filesystem, f"{directory}/{SPARE_DELETION_FILE}")

    def keep(self) -> None:
        """Take what is missing, as far as it is free."""
        with self._lock:
            try:
                for file in (self._for_stop, self._for_deletion):
                    file.keep(self._filesystem.free_bytes(self._directory))
            except OSError as failure:
                logger.info("no space is kept aside in %s: %s", self._directory, failure)

    def give_up(self) -> None:
        """Let all of it be free: the logs are about to be closed, and nothing is appended any more. Raises
        OSError."""
        with self._lock:
            self._for_stop.give_up()
            self._for_deletion.give_up()

    def writing(self, write: Callable[[], None]) -> None:
        """Do this, which may be done twice; where the disk is full, give up what is kept for deletions and do
        it again. Raises OSError."""
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
