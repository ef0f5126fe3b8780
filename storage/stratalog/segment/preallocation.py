"""Disk space that is taken for a segment before there is anything to write, as `preallocate` asks.

A full disk then shows where a segment begins, and the log says so before it has taken a record; not in the
middle of one. The file looks as ever: unlike Kafka's, which is as long as the segment may become and ends in
zeros, it is as long as its data, so a recovery has nothing to tell apart. What is not needed goes back when
the segment is sealed or the log closed. After a truncation, a failed write, a move or a restart the active
segment has none, up to the next one.

Where the system or the file system has no such thing, segments take their space as they grow, and the log of
the process says so once.
"""

from __future__ import annotations

import logging
import posixpath

from stratalog.base.filesystem import AppendFile

logger = logging.getLogger(__name__)


class Preallocation:
    """Of all logs. Thread-safe: of two threads that find it impossible at once each may say so."""

    def __init__(self) -> None:
        self._impossible: set[str] = set()
        """Log directories whose file system has no such thing."""

    def reserve(self, file: AppendFile, size_bytes: int) -> None:
        """Take the space for a file of so many bytes, if any, where that is possible. Raises OSError where
        the disk has not so much."""
        log_directory = posixpath.dirname(posixpath.dirname(file.path))
        if size_bytes == 0 or log_directory in self._impossible or file.reserve(size_bytes):
            return
        self._impossible.add(log_directory)
        logger.warning(
            "the file system cannot reserve space for %s: topics with preallocate=true go on without, and may"
            " meet a full disk inside a segment",
            file.path,
        )
