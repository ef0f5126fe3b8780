"""Space that a log directory keeps for itself, so that a full disk can be freed by deleting, and be left.

To delete records, to stop in order and to start again a directory has to write small files: checkpoints, the
indexes of the logs that are closed, the marker. Appends take the last byte of a disk, and then none of that
could be done. So while a process serves, `.spare` has some of the space, reserved behind a file without
contents. Who meets a full disk where it must write gives that up, and writes again; a stop gives it up before
anything else, and so does a start, for the logs that it may have to recover. It is kept again as soon as
there is room.

It is a best effort: what is given up is free for all, so whoever appends at that moment may be quicker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from stratalog.base.filesystem import FileSystem
from stratalog.log.directory_health import FULL_DISK

logger = logging.getLogger(__name__)

SPARE_FILE = ".spare"
SPARE_BYTES = 4 * 1024 * 1024
"""Enough for the checkpoints of tens of thousands of partitions."""
SHORT_BYTES = 16 * SPARE_BYTES
"""Whoever has less than this free is short of space: no more than a part of it is kept then."""
_MIN_BYTES = 64 * 1024


class SpareSpace:
    """Thread-safe."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        """Gives up what a process kept that was killed. Raises OSError."""
        self._filesystem = filesystem
        self._directory = directory
        self._path = f"{directory}/{SPARE_FILE}"
        self._lock = threading.Lock()
        self._kept_bytes = 0
        if filesystem.exists(self._path):
            filesystem.unlink(self._path)

    def keep(self) -> None:
        """Take some of the space that is free, unless there is little of it, or nothing that reserves it."""
        with self._lock:
            try:
                free_bytes = self._filesystem.free_bytes(self._directory)
                size = min(SPARE_BYTES, free_bytes * SPARE_BYTES // SHORT_BYTES)
                if size < _MIN_BYTES or size <= self._kept_bytes:
                    return
                file = self._filesystem.open_append(self._path)
                try:
                    if file.reserve(size):
                        self._kept_bytes = size
                finally:
                    file.close()
            except OSError as failure:
                logger.info("no space is kept aside in %s: %s", self._directory, failure)

    def give_up(self) -> bool:
        """Let it be free; False where there was none. Raises OSError."""
        with self._lock:
            if self._kept_bytes == 0:
                return False
            self._filesystem.unlink(self._path)
            self._kept_bytes = 0
            return True

    def writing(self, write: Callable[[], None]) -> None:
        """Do this, which may be done twice; where the disk is full, give the space up and do it again. Raises
        OSError."""
        try:
            write()
        except OSError as failure:
            if failure.errno not in FULL_DISK or not self.give_up():
                raise
            logger.warning(
                "a log directory is full, and the space that was kept aside for its checkpoints is in use"
                " now; delete records or topics, or make the disk larger, path=`%s`",
                self._directory,
            )
            write()
