"""Reserves disk space for a new segment, as the topic's `preallocate` asks.

A full disk then shows when a segment begins: the log reports it before it has taken a record, instead of
failing inside a segment. The file looks as without a reservation, as long as its data. Kafka's file has the
full size from the beginning and ends in zeros, which its recovery must tell from data; ours needs no such
rule. Sealing a segment or closing the log gives the unused space back. After a truncation, a failed write, a
move or a restart the active segment has no reservation; the next one has.

A segment reserves nothing where that would leave less free space than the floor of its log directory: all
appends in the directory would be refused for a segment that may stay empty. It takes its space as it grows.

If the system or the file system cannot reserve, segments take their space as they grow, and a warning says so
once for each log directory.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from collections import defaultdict

from stratalog.base.filesystem import AppendFile, FileSystem

logger = logging.getLogger(__name__)


class Preallocation:
    """Reservations for all logs of a process. Thread-safe: if two threads find at once that a file system
    cannot reserve, both may log the warning. Under a floor the reservations of a log directory follow one
    another, by a lock of the directory."""

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self.min_free_bytes = 0
        """The free space that each reservation leaves; 0: none is left out for that. May be set at any
        time."""
        self._impossible: set[str] = set()
        """Log directories whose file system cannot reserve."""
        self._short: set[str] = set()
        """Log directories where the last reservation was left out."""
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def reserve(self, file: AppendFile, size_bytes: int) -> None:
        """Reserve `size_bytes` for the file, if the file system can, and the floor of free space stays free;
        0 reserves nothing. Raises OSError if the disk lacks the space, and has no floor."""
        log_directory = posixpath.dirname(posixpath.dirname(file.path))
        if size_bytes == 0 or log_directory in self._impossible:
            return
        if self.min_free_bytes == 0:
            self._reserve(file, size_bytes, log_directory)
            return
        with self._locks[log_directory]:
            free_bytes = self._filesystem.free_bytes(log_directory)
            if free_bytes - size_bytes >= self.min_free_bytes:
                self._short.discard(log_directory)
                self._reserve(file, size_bytes, log_directory)
            elif log_directory not in self._short:
                self._short.add(log_directory)
                logger.warning(
                    "no space is reserved for %s, because less than log.dir.min.free.bytes would be left: new"
                    " segments of topics with preallocate=true take their space as they grow, until there is"
                    " enough; free_bytes=`%d` reserved_bytes=`%d` min_free_bytes=`%d`",
                    file.path,
                    free_bytes,
                    size_bytes,
                    self.min_free_bytes,
                )

    def _reserve(self, file: AppendFile, size_bytes: int, log_directory: str) -> None:
        if file.reserve(size_bytes):
            return
        self._impossible.add(log_directory)
        logger.warning(
            "the file system cannot reserve space for %s: topics with preallocate=true work without"
            " reservations, and a full disk may stop them inside a segment",
            file.path,
        )
