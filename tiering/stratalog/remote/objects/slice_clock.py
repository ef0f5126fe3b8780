"""Says where the slices of an upload must end, by the times of the batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stratalog.record.header import NO_TIMESTAMP


class NewerBatch(NamedTuple):
    """A batch that is newer than all before it in a row of batches."""

    position: int
    newest_ms: int


class SliceClock:
    """The effective time (see `slice_span`) of a partition's batches while its slices are written. Not
    thread-safe: guarded by its `PartitionUpload`."""

    def __init__(self, max_ms: int) -> None:
        """`max_ms`: the longest time that a slice may span."""
        self._max_ms = max_ms
        self._newest_ms = NO_TIMESTAMP
        self.begin_slice()

    def begin_slice(self) -> None:
        """The next batch is the first one of a slice."""
        self._start_ms = self._newest_ms
        self._is_empty = True

    def take(self, newer: Sequence[NewerBatch], end_position: int) -> int:
        """Take the next batches, which end at `end_position`, up to the first one that is too new for the
        slice; return its position, or else `end_position`. `newer` has those of the batches that are newer
        than all before them. An empty slice takes its first batch in any case."""
        for position, newest_ms in newer:
            if newest_ms <= self._newest_ms:
                continue
            is_first = self._is_empty and position == 0
            if is_first or self._start_ms == NO_TIMESTAMP:
                self._start_ms = newest_ms
            elif newest_ms - self._start_ms > self._max_ms:
                return position
            self._newest_ms = newest_ms
        self._is_empty = False
        return end_position
