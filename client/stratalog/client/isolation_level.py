"""Isolation levels of readers, with Kafka's names."""

from __future__ import annotations

import enum


class IsolationLevel(enum.Enum):
    """Which records of transactions a reader sees. The values are those of Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    """Every record up to the high watermark."""
    READ_COMMITTED = "read_committed"
    """Records up to the last stable offset, below which every transaction is decided; without records of
    aborted transactions.
    """
