"""What of a row of batches goes into the indexes of its segment."""

from __future__ import annotations

from typing import NamedTuple


class IndexProgress(NamedTuple):
    """How far the indexes of a segment are."""

    bytes_since_entry: int
    """Of the batches behind the last one that was entered, which is the first of them."""
    newest_ms: int
    """The highest timestamp so far."""
    newest_offset: int
    """The last offset of the first batch that has it."""
    entered_ms: int
    """The timestamp that was entered last; -1 where there is none."""


class IndexRows(NamedTuple):
    """New entries, as they are in the files of the offset index and of the time index."""

    offset_entries: bytes
    time_entries: bytes
    progress: IndexProgress
