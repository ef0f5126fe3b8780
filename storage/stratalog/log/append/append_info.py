"""What an append did."""

from __future__ import annotations

from typing import NamedTuple


class AppendInfo(NamedTuple):
    """The offsets that an append was given, both inclusive, and the bytes that it stored."""

    base_offset: int
    last_offset: int
    size_bytes: int
    is_duplicate: bool = False
    """It had been stored already, with these offsets, so nothing was stored now."""
