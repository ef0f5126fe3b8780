"""What an offset map took in with one call."""

from __future__ import annotations

from typing import NamedTuple


class PutRecords(NamedTuple):
    """Of the records of one batch."""

    records_count: int
    """Those that were looked at: not below the first offset that was asked for, with a key or without."""
    null_key_count: int
    """Those of them without a key. They are not in the map."""
    is_full: bool
    """The map refused a key, and takes nothing any more."""


class PutBatches(NamedTuple):
    """Of consecutive batches."""

    end_position: int
    """Behind the last batch that was taken as a whole."""
    next_offset: int
    """Exclusive end of its offsets; -1 where no batch was taken as a whole."""
    records_count: int
    """As in PutRecords; those of the batch in which it stopped, until there, are among them."""
    null_key_count: int
    is_full: bool
