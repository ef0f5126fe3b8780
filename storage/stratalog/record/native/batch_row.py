"""The fields of batches that segments and their indexes need, and the entries that indexes get."""

from __future__ import annotations

from typing import NamedTuple

MAX_ROW_COUNT = 1024
"""The most rows of one call of `walk_batches`: it bounds the memory."""


class AppendedBatch(NamedTuple):
    """The facts that the indexes and the seal of a segment need about one batch of an append. The caller
    passes the bytes beside it, and the segment chooses their position."""

    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    leader_epoch: int


class BatchRow(NamedTuple):
    """A whole, sound batch."""

    position: int
    """The position in the file where the batch begins."""
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    leader_epoch: int
    is_noted: bool
    """The header has more to read: a producer, a transaction, a marker, or another leader epoch than the
    batch before."""

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes


class IndexProgress(NamedTuple):
    """The state of the indexing of a segment."""

    bytes_since_entry: int
    """Bytes of the batches since the last entry, whose batch counts too."""
    newest_ms: int
    """The highest timestamp so far."""
    newest_offset: int
    """Last offset of the first batch with that timestamp."""
    entered_ms: int
    """The last timestamp that was entered; -1 if none was."""
    headers_crc: int
    """The sum over the headers, as `segment_seal` has it."""


class IndexRows(NamedTuple):
    """New entries in the formats of the offset index and the time index."""

    offset_entries: bytes
    time_entries: bytes
    progress: IndexProgress
