"""The acknowledgement of a record."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.types import Durability


class Ack(NamedTuple):
    """The place of a stored record."""

    topic: str
    partition: int
    offset: int
    """-1 if it is unknown: the server stored the record, and was started again before an idempotent producer,
    which had no answer, sent it once more."""
    timestamp_ms: int
    """The timestamp that was sent. A topic with `LogAppendTime` stores its own."""
    durability: Durability
