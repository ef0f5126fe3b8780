"""What a clean is given, and what it says when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.cleaner.clean_stats import CleanStats


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
