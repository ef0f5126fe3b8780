"""What a cleaning kernel left of batches or of records."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.native.batch_row import BatchRow

NO_HORIZON = 2**63 - 1
"""Later than any delete horizon: nothing that stays is to go."""


class CleanedBatches(NamedTuple):
    """What is left of consecutive batches."""

    data: Buffer
    """The batches that stay or were made anew; part of the input itself where that is one piece of it."""
    end_position: int
    """In the input, behind the last batch that was taken. Where it is the position that was asked for, there
    was none."""
    next_offset: int
    """Exclusive end of the offsets of that batch; -1 where there is none."""
    rows: list[BatchRow]
    """One for each batch in `data`, with its place in the new file, as ``index_rows`` takes them.
    `is_noted` says that it has a producer; leader epochs are not compared."""
    records_in: int
    """Without those of aborted transactions and of markers."""
    records_kept: int
    null_key_count: int
    """Records without a key, which were dropped."""
    dropped_tombstone_count: int
    """Tombstones that were the last of their keys and whose horizon had come."""
    aborted_count: int
    """Records of aborted transactions, none of which stays."""
    dropped_marker_count: int
    dropped_aborts: list[int]
    """Last offsets of those of these that had ended what was aborted."""
    has_waiting_marker: bool
    """A marker stays only because the next clean is the first that finds nothing of its transaction."""
    max_timestamp_ms: int
    """The highest of the batches in `data`, as their headers say; -1 without batches."""
    max_timestamp_offset: int
    """Last offset of the first batch that has it; -1 without batches."""
    last_offset: int
    """Of the last batch in `data`; -1 without batches."""
    bytes_in: int
    """Those of the batches that were taken."""
    earliest_horizon_ms: int
    """The first time at which tombstones may go that stay and have one, be it a new one: that of the first
    batch with such; NO_HORIZON without any. One that has passed, of a tombstone that the map did not reach,
    does not count."""
    latest_horizon_ms: int
    """The last such time; -1 without any."""


class CleanedRecords(NamedTuple):
    """What is left of the records of one batch."""

    payload: bytes
    """The new records section, uncompressed."""
    records_kept: int
    max_timestamp_delta: int
    """Relative to the new base timestamp, after the shift; 0 without records."""
    tombstone_count: int
    """Of the records that stay."""
    dropped_tombstone_count: int
    null_key_count: int
    """Records without a key, which were dropped."""
