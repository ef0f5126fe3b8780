"""What a clean is given, and what it says when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple


@dataclass(slots=True)
class CleanStats:
    """What a clean read, kept and wrote. Not thread-safe: counted by the clean, and handed out when it is
    over."""

    mapped_bytes: int = 0
    """Read in the first pass."""
    map_entry_count: int = 0
    """Keys in the map."""
    max_map_entry_count: int = 0
    is_map_full: bool = False
    """The clean ended where the map did, before the end of what could be cleaned."""
    cleaned_segment_count: int = 0
    """Segments that were replaced."""
    written_segment_count: int = 0
    """Those that took their place."""
    cleaned_bytes: int = 0
    written_bytes: int = 0
    cleaned_record_count: int = 0
    """Of the batches that were held against the map; markers are not counted."""
    kept_record_count: int = 0
    null_key_count: int = 0
    """Records without a key, which were dropped."""
    aborted_record_count: int = 0
    """Records of aborted transactions, which were dropped."""
    dropped_tombstone_count: int = 0
    dropped_marker_count: int = 0

    def __str__(self) -> str:
        """For the log of the server."""
        return " ".join(f"{name}=`{value}`" for name, value in asdict(self).items())


class CleanLimits(NamedTuple):
    """What one clean may take, and how it is told to end."""

    map_bytes: int
    """Memory for the map of keys, at most; logs with little to clean take less."""
    map_load_factor: float
    io_buffer_bytes: int
    """Bytes that are read or written at once; a batch that is larger gets what it needs."""
    check_done: Callable[[], None]
    """Raises CleaningAbortedError when the clean shall end. Asked often, and under no lock but the log's."""
    throttle: Callable[[int], None]
    """Waits until so many bytes may be read or written. Raises as `check_done` does; called under no lock."""
    on_cut_off: Callable[[CleanStats], None] = lambda _: None
    """Told once where the clean ends early: what it has done up to the last exchange, which stays done."""


class CleanResult(NamedTuple):
    """Everything below `end_offset` is clean now."""

    end_offset: int
    stats: CleanStats
    horizon_ms: int | None = None
    """From when on another clean has something to drop below `end_offset`, see `kept_horizons`; NO_HORIZON:
    never. None where nobody knows."""
