"""A batch that a segment takes: its size, its last offset, its newest timestamp."""

from __future__ import annotations

from typing import NamedTuple


class AppendedBatch(NamedTuple):
    """The facts that the indexes need about one batch of an append. The caller passes the bytes beside it,
    and the segment chooses their position."""

    size_bytes: int
    last_offset: int
    max_timestamp_ms: int
