"""Says where the slices of an upload must end, by the times of the batches."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.native.batch_row import BatchRow


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

    def take(self, batches: Sequence[BatchRow], end_position: int) -> int:
        """Take the next batches, which end at `end_position`, up to the first one that is too new for the
        slice; return its position, or else `end_position`. An empty slice takes its first batch in any
        case."""
        newest_ms, start_ms, max_ms = self._newest_ms, self._start_ms, self._max_ms
        for batch in batches:
            time_ms = batch.max_timestamp_ms
            if time_ms <= newest_ms:
                continue
            if start_ms == NO_TIMESTAMP or (self._is_empty and batch is batches[0]):
                start_ms = time_ms
            elif time_ms - start_ms > max_ms:
                end_position = min(end_position, batch.position)
                break
            newest_ms = time_ms
        self._newest_ms, self._start_ms, self._is_empty = newest_ms, start_ms, False
        return end_position
