"""The health of the disk of a log directory: one answer for all logs in it.

If the disk fails for one file, the whole directory goes offline, once, with the first reason, and stays so
until a restart. Its logs then refuse reads and changes, and the process writes nothing below it any more,
checkpoints included: the next process finds the state that the failure left.

Not every error is a failure of the disk. A missing file or a wrong permission concerns one log. A full disk
refuses operations that need space, and all others go on.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable

from stratalog.base.errors import DataDirectoryError

logger = logging.getLogger(__name__)

_OF_DEVICE = ("EIO", "ENXIO", "ENODEV", "ENOMEDIUM", "EREMOTEIO")
# A file system that was taken away, went read-only, or finds itself damaged.
_OF_FILE_SYSTEM = ("EROFS", "ESTALE", "EUCLEAN", "EFSCORRUPTED", "ESHUTDOWN")
# One that another process or another machine serves.
_OF_CONNECTION = ("ENOTCONN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "ETIMEDOUT")
DISK_FAILURES = frozenset(
    number
    for name in (*_OF_DEVICE, *_OF_FILE_SYSTEM, *_OF_CONNECTION)
    if (number := getattr(errno, name, None)) is not None
)
"""Errors after which nothing below the same directory is trusted. Some systems do not have all of them."""


class DirectoryHealth:
    """The health of a log directory: online until its first failure. Thread-safe: `reason` is set once and
    may be read without a lock."""

    def __init__(self, path: str, on_failed: Callable[[DirectoryHealth], None] | None = None) -> None:
        """`on_failed` is called once, by the thread that met the failure, under the locks that it holds."""
        self.path = path
        self.reason: str | None = None
        """Why the directory is offline; None while it is not."""
        self.answer_count = 0
        """Changes while the disk answers operations. An addition that another thread overwrites does no
        harm."""
        self._on_failed = on_failed
        self._guard = threading.Lock()

    def observe(self, error: OSError) -> None:
        """Go offline if this error of an operation below the directory is a failure of the disk."""
        if error.errno in DISK_FAILURES:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Go offline. The first reason is kept."""
        with self._guard:
            if self.reason is not None:
                return
            self.reason = reason
        logger.error(
            "a log directory is offline until the server is started again, with all logs in it, path=`%s`"
            " reason=`%s`",
            self.path,
            reason,
        )
        if self._on_failed is not None:
            self._on_failed(self)

    def refusal(self) -> DataDirectoryError | None:
        """The error of every operation below an offline directory; None while it is online."""
        if self.reason is None:
            return None
        return DataDirectoryError(
            "the log directory is offline after its disk failed; repair the disk and restart the server",
            path=self.path,
            reason=self.reason,
        )

    def os_error(self, path: str) -> OSError:
        """The same as an OSError, for callers that work with files."""
        return OSError(errno.EIO, f"the log directory {self.path} is offline", path)
