"""The calls of one method: how many, how long, how large, and how they ended."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.histogram import Histogram


class CallEnd(NamedTuple):
    """How a call ended."""

    code: str
    """The name of its status code."""
    reason: str = ""
    """The code of the error that ended it; empty without one of ours."""


class MethodCounts:
    """The calls of one method since the start. The event loop alone changes it; other threads may read it."""

    __slots__ = (
        "durations",
        "ends",
        "open_count",
        "received_bytes",
        "received_count",
        "sent_bytes",
        "sent_count",
        "started_count",
    )

    def __init__(self) -> None:
        self.started_count = 0
        """Calls that have begun, those that were refused at once included."""
        self.open_count = 0
        self.durations = Histogram()
        """Seconds from the begin of the handler, or from the end of the wait for its single request, to its
        end, of calls that have ended."""
        self.ends: dict[CallEnd, int] = {}
        """The calls that have ended, by how."""
        self.received_count = 0
        """Messages of requests."""
        self.received_bytes = 0
        """Their size on the wire, without the transport's frames and before its compression."""
        self.sent_count = 0
        """Messages of answers."""
        self.sent_bytes = 0

    def add_end(self, end: CallEnd, duration_s: float) -> None:
        """Count a call that has ended."""
        self.open_count -= 1
        self.durations.add(duration_s)
        self.ends[end] = self.ends.get(end, 0) + 1
