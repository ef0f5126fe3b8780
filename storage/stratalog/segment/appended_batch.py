"""A batch that a segment takes: its size, its offsets, its newest timestamp, its leader epoch."""

from __future__ import annotations

from typing import NamedTuple


class AppendedBatch(NamedTuple):
    """The facts that the indexes and the seal need about one batch of an append. The caller passes the
    bytes beside it, and the segment chooses their position."""

    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    leader_epoch: int
