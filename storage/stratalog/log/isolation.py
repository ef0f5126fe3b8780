"""The isolation of a read, which decides on its end."""

from __future__ import annotations

import enum


class Isolation(enum.Enum):
    """The end of a read."""

    LOG_END = "log_end"
    """The log's end, for copies of the log."""
    HIGH_WATERMARK = "high_watermark"
    """The end of the records that have reached the topic's durability: Kafka's `read_uncommitted`."""
    TXN_COMMITTED = "txn_committed"
    """The last stable offset. The read also returns the aborted transactions: Kafka's `read_committed`."""
