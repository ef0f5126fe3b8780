"""The sizes of the groups in which appends are written and fsynced: what group commit saves."""

from __future__ import annotations

import threading

from stratalog.base.histogram import COUNT_BOUNDS, SIZE_BOUNDS_BYTES, Histogram


class AppendGroups:
    """Counts the groups of all partitions. Thread-safe: `_lock` guards the histograms; it is taken once a
    group, never for a record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = Histogram(COUNT_BOUNDS)
        """Appends of a group, which were written together."""
        self.records = Histogram(COUNT_BOUNDS)
        """Records of a group that were stored."""
        self.sizes = Histogram(SIZE_BOUNDS_BYTES)
        """Size of the requests of a group, in bytes."""
        self.flushed = Histogram(COUNT_BOUNDS)
        """Appends that waited for an fsync together."""

    def add_written(self, call_count: int, record_count: int, size_bytes: int) -> None:
        """Count a group that was written."""
        with self._lock:
            self.calls.add(call_count)
            self.records.add(record_count)
            self.sizes.add(size_bytes)

    def add_flushed(self, call_count: int) -> None:
        """Count the appends of one fsync."""
        with self._lock:
            self.flushed.add(call_count)
