"""What a clean read, kept and wrote: for the server's log, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CleanStats:
    """Not thread-safe: counted by the clean, and handed out when it is over."""

    map_entry_count: int = 0
    """Keys in the map."""
    map_max_entries: int = 0
    is_map_full: bool = False
    """The clean ended where the map did, before the end of what could be cleaned."""
    mapped_records: int = 0
    """Records of the dirty part that were looked at in the first pass."""
    mapped_bytes: int = 0
    """Read in the first pass."""
    bytes_in: int = 0
    """Of the segments that were replaced."""
    bytes_out: int = 0
    """Of those that took their place."""
    segments_in: int = 0
    segments_out: int = 0
    records_in: int = 0
    """Of the batches that were held against the map; markers are not counted."""
    records_kept: int = 0
    null_key_count: int = 0
    """Records without a key, which were dropped."""
    aborted_records: int = 0
    """Records of aborted transactions, which were dropped."""
    dropped_tombstone_count: int = 0
    dropped_marker_count: int = 0
