"""Isolation levels of readers, with Kafka's names."""

from __future__ import annotations

import enum
from typing import Literal

from stratalog.base.errors import InvalidRequestError


class IsolationLevel(enum.Enum):
    """Which records of transactions a reader sees. The values are those of Kafka's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    """Every record up to the high watermark."""
    READ_COMMITTED = "read_committed"
    """Records up to the last stable offset, below which every transaction is decided; without records of
    aborted transactions.
    """


IsolationLike = IsolationLevel | Literal["read_uncommitted", "read_committed"]
"""A level, or its text."""


def isolation_level(isolation: IsolationLike) -> IsolationLevel:
    """The level that a caller means. Raises InvalidRequestError."""
    for level in IsolationLevel:
        if isolation in (level, level.value):
            return level
    raise InvalidRequestError(
        "there is no such isolation level", isolation=isolation, allowed="read_uncommitted, read_committed"
    )
