"""How far a reader may see."""

from __future__ import annotations

import enum


class Isolation(enum.Enum):
    """Where a read ends."""

    LOG_END = "log_end"
    """At the log's end: for whoever copies the log."""
    HIGH_WATERMARK = "high_watermark"
    """At what has reached the topic's durability, decided or not: Kafka's `read_uncommitted`."""
    TXN_COMMITTED = "txn_committed"
    """At the last stable offset, and it is told which transactions were aborted: Kafka's
    `read_committed`."""
