"""The kinds of calls, and how many of each are open. ``call_limits`` counts them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CallKind(Enum):
    """The purpose of a call. The value is its name in settings, errors and metrics."""

    APPEND = "append"
    READ = "read"
    ADMIN = "admin"
    """Every call that is none of the others."""
    WATCH = "watch"
    """Streams that watch the health, which need no credentials: they take nothing from the other kinds."""


@dataclass(slots=True)
class CallCounts:
    """The calls of one kind. The event loop alone changes it; other threads may read it."""

    limit: int
    """The most that may be open."""
    open_count: int = 0
    accepted_count: int = 0
    """Since the start, as the next one."""
    refused_count: int = 0

    @property
    def is_full(self) -> bool:
        return self.open_count >= self.limit
