"""What a walk over the batches of a log file tells about each."""

from __future__ import annotations

from typing import NamedTuple

MAX_ROW_COUNT = 1024
"""Rows of one call of `walk_batches`, which is to take little memory whatever the size of the batches."""


class BatchRow(NamedTuple):
    """A batch that is whole and sound, as far as indexes ask."""

    position: int
    """Where it begins in the file."""
    size_bytes: int
    last_offset: int
    max_timestamp_ms: int
    is_noted: bool
    """There is more to it, and its header says what: a producer, a transaction, a marker, or a leader epoch
    that is not that of the batch before."""

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes
