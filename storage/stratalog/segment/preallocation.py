"""Reserves disk space for a new segment, as the topic's `preallocate` asks.

A full disk then shows when a segment begins: the log reports it before it has taken a record, instead of
failing inside a segment. The file looks as without a reservation, as long as its data. Kafka's file has the
full size from the beginning and ends in zeros, which its recovery must tell from data; ours needs no such
rule. Sealing a segment or closing the log gives the unused space back. After a truncation, a failed write, a
move or a restart the active segment has no reservation; the next one has.

If the system or the file system cannot reserve, segments take their space as they grow, and a warning says so
once for each log directory.
"""

from __future__ import annotations

import logging
import posixpath

from stratalog.base.filesystem import AppendFile

logger = logging.getLogger(__name__)


class Preallocation:
    """Reservations for all logs of a process. Thread-safe: if two threads find at once that a file system
    cannot reserve, both may log the warning."""

    def __init__(self) -> None:
        self._impossible: set[str] = set()
        """Log directories whose file system cannot reserve."""

    def reserve(self, file: AppendFile, size_bytes: int) -> None:
        """Reserve `size_bytes` for the file, if the file system can; 0 reserves nothing. Raises OSError if
        the disk lacks the space."""
        log_directory = posixpath.dirname(posixpath.dirname(file.path))
        if size_bytes == 0 or log_directory in self._impossible or file.reserve(size_bytes):
            return
        self._impossible.add(log_directory)
        logger.warning(
            "the file system cannot reserve space for %s: topics with preallocate=true work without"
            " reservations, and a full disk may stop them inside a segment",
            file.path,
        )
