"""How far a reader sees, under Kafka's names."""

from __future__ import annotations

import enum


class IsolationLevel(enum.Enum):
    """What becomes of transactions for a reader. The values are those of Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    """Every record up to the high watermark, whatever becomes of its transaction."""
    READ_COMMITTED = "read_committed"
    """Records up to the last stable offset, below which every transaction is decided, without those of
    aborted transactions.
    """
