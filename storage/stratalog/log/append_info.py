"""The result of an append."""

from __future__ import annotations

from typing import NamedTuple


class AppendInfo(NamedTuple):
    """The offsets that an append was given, both inclusive, and the bytes that it stored."""

    base_offset: int
    last_offset: int
    size_bytes: int
    is_duplicate: bool = False
    """The request was stored before, with these offsets, so nothing was stored now."""
    log_start_offset: int = 0
    """The first offset of the log at the time of the append."""
