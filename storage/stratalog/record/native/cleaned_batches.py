"""The rule by which the second pass of a clean keeps batches, and the result of that pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.header import BatchHeader

NO_HORIZON = 2**63 - 1
"""Later than any delete horizon: no kept record will be dropped."""


class CleanRule(NamedTuple):
    """The part of the rule that is not in the offset map."""

    now_ms: int
    """Tombstones are dropped if the delete horizon of their batch is not later."""
    horizon_ms: int
    """The new horizon of a batch with tombstones that stay: now + `delete.retention.ms`."""
    kept_empty: Sequence[int] = ()
    """Last offsets, ascending, of batches that stay although they lose their records: the last batch of each
    active producer, and the one before the high watermark. An `array('q')` is read in place; any other
    sequence is copied with each call."""
    aborted: Sequence[int] = ()
    """`AbortedSpans.values` of all aborted transactions that may have data among the batches."""
    kept_epochs: Sequence[int] = ()
    """Producer ids and epochs, two numbers each, ascending, of producers with markers and no other batches.
    These markers stay: a later recovery of the log learns the epoch from them. Read like `kept_empty`."""

    def keeps_empty(self, header: BatchHeader) -> bool:
        """Return whether the batch stays, at least as a header."""
        place = bisect_left(self.kept_empty, header.last_offset)
        return place < len(self.kept_empty) and self.kept_empty[place] == header.last_offset

    def keeps_epoch(self, header: BatchHeader) -> bool:
        """Return whether the batch is a marker that alone holds the epoch of its producer."""
        wanted, flat = (header.producer_id, header.producer_epoch), self.kept_epochs
        count = len(flat) // 2
        place = bisect_left(range(count), wanted, key=lambda index: (flat[2 * index], flat[2 * index + 1]))
        return place < count and (flat[2 * place], flat[2 * place + 1]) == wanted


class CleanedBatches(NamedTuple):
    """The kept part of consecutive batches."""

    data: Buffer
    """The kept batches, unchanged or rebuilt; a part of the input itself if they are one piece of it."""
    end_position: int
    """The position in the input after the last batch that was taken; the position of the call if none was."""
    next_offset: int
    """Exclusive end of the offsets of the last batch; -1 if there is none."""
    records_in: int = 0
    """Records, without those of aborted transactions and of markers."""
    records_kept: int = 0
    null_key_count: int = 0
    """Records without a key, which were dropped."""
    dropped_tombstone_count: int = 0
    """Tombstones that were the newest of their keys, after their horizon."""
    aborted_count: int = 0
    """Records of aborted transactions; all are dropped."""
    dropped_marker_count: int = 0
    dropped_aborts: tuple[int, ...] = ()
    """Last offsets of the dropped markers that ended aborted transactions."""
    has_waiting_marker: bool = False
    """A marker stays only because the next clean is the first without data of its transaction."""
    earliest_horizon_ms: int = NO_HORIZON
    """The first time at which a kept batch has something to drop; NO_HORIZON if there is none. Only horizons
    that are new or later than `CleanRule.now_ms` count."""
    latest_horizon_ms: int = -1
    """The last such time; -1 if there is none."""


class CleanedRecords(NamedTuple):
    """The kept records of one batch."""

    payload: bytes
    """The new records section, uncompressed."""
    records_kept: int
    max_timestamp_delta: int
    """Relative to the new base timestamp, after the shift; 0 without records."""
    tombstone_count: int
    """Tombstones among the kept records."""
    dropped_tombstone_count: int
    null_key_count: int
    """Records without a key, which were dropped."""
