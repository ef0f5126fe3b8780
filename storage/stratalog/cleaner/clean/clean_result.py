"""The limits of a clean, and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple


@dataclass(slots=True)
class CleanStats:
    """Bytes and records that a clean read, kept and wrote. Not thread-safe: only the clean counts."""

    mapped_bytes: int = 0
    """Bytes that the first pass read."""
    map_entry_count: int = 0
    """The number of keys in the map."""
    max_map_entry_count: int = 0
    is_map_full: bool = False
    """The full map ended the clean before the end of the cleanable part."""
    cleaned_segment_count: int = 0
    """Segments that were replaced."""
    written_segment_count: int = 0
    """Segments that replace them."""
    cleaned_bytes: int = 0
    written_bytes: int = 0
    cleaned_record_count: int = 0
    """Records of the batches that were compared with the map, without markers."""
    kept_record_count: int = 0
    null_key_count: int = 0
    """Records without a key, which were dropped."""
    aborted_record_count: int = 0
    """Records of aborted transactions, which were dropped."""
    dropped_tombstone_count: int = 0
    dropped_marker_count: int = 0

    def __str__(self) -> str:
        return " ".join(f"{name}=`{value}`" for name, value in asdict(self).items())


class CleanLimits(NamedTuple):
    """The resources of one clean, and the callbacks that limit it."""

    map_bytes: int
    """The highest memory of the key map; logs with little dirt take less."""
    map_load_factor: float
    io_buffer_bytes: int
    """Bytes that are read or written at once; a larger batch gets its size."""
    check_done: Callable[[], None]
    """A function that raises CleaningAbortedError when the clean must end. Called often, with no lock but the
    log's."""
    throttle: Callable[[int], None]
    """Waits until that many bytes may be read or written. Raises like `check_done`; called under no lock."""
    on_cut_off: Callable[[CleanStats], None] = lambda _: None
    """Called once if the clean ends early, with the work up to the last exchange, which stays."""


class CleanResult(NamedTuple):
    """The result of a clean: everything below `end_offset` is clean now."""

    end_offset: int
    stats: CleanStats
    next_clean_ms: int | None = None
    """The time of the next clean for tombstones and markers below `end_offset`, see `kept_horizons`;
    NO_HORIZON if none is needed; None if it is unknown."""
