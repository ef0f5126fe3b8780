"""The calls that are open: how many of each kind, and of each principal. ``call_limits`` counts them.

A call has a place among those of its kind, and one among those of its principal where it is known. A single
append at `object` changes its kind once its request is checked: it waits for the store then, for as long as
that does not answer, and needs neither a thread nor the event loop. Counted with the others, such appends
would keep those at `os` and `disk` out for the whole of an outage of the store.

One principal may have `share_of` the calls of a kind, so that one without a quota leaves room for the others.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from stratalog.base.errors import OverloadedError


class CallKind(Enum):
    """The purpose of a call. The value is its name in settings, errors and metrics."""

    APPEND = "append"
    COMMIT = "commit"
    """Single appends at `object`, which wait for their commit in the store."""
    READ = "read"
    ADMIN = "admin"
    """Every call that is none of the others."""
    WATCH = "watch"
    """Streams that watch the health, which need no credentials: they take nothing from the other kinds."""
    CHECK = "check"
    """Single calls that ask for the health. They need no credentials, either."""


def share_of(limit: int) -> int:
    """The part of a bound that one of many may take: three quarters, and one at least."""
    return max(1, limit * 3 // 4)


class CallerCounts:
    """Counts the open calls of each caller: of each connection, or of each principal. Belongs to the event
    loop."""

    def __init__(self, limit: int) -> None:
        """`limit` is the most of one caller."""
        self.limit = limit
        self._counts: dict[str, int] = {}

    def of(self, caller: str) -> int:
        """The open calls of the caller."""
        return self._counts.get(caller, 0)

    def enter(self, caller: str) -> bool:
        """Count one more call of the caller, if it may have one; `leave` follows then."""
        count = self._counts.get(caller, 0)
        if count >= self.limit:
            return False
        self._counts[caller] = count + 1
        return True

    def leave(self, caller: str) -> None:
        """Count one less."""
        count = self._counts.pop(caller) - 1
        if count:
            self._counts[caller] = count


@dataclass(slots=True)
class CallCounts:
    """The calls of one kind. The event loop alone changes it; other threads may read the numbers."""

    kind: CallKind
    limit: int
    """The most that may be open."""
    open_count: int = 0
    accepted_count: int = 0
    """Since the start, as the next one."""
    refused_count: int = 0
    principals: CallerCounts = field(init=False)
    """Those of each principal, by its name."""

    def __post_init__(self) -> None:
        self.principals = CallerCounts(share_of(self.limit))

    @property
    def is_full(self) -> bool:
        return self.open_count >= self.limit


class CommitCalls(NamedTuple):
    """The appends that wait for their commit."""

    counts: CallCounts
    connections: CallerCounts
    """Those of each connection, which keep room on it for other calls."""


class OpenCall:
    """A call that is open, with its places. Belongs to the event loop."""

    __slots__ = ("_commits", "_connection", "_is_commit", "_principal", "counts")

    def __init__(self, counts: CallCounts, connection: str, commits: CommitCalls) -> None:
        """Count it; `end` follows."""
        self.counts = counts
        """Those of its kind."""
        self._connection = connection
        self._commits = commits
        self._principal: str | None = None
        self._is_commit = False
        counts.accepted_count += 1
        counts.open_count += 1

    def enter_principal(self, name: str) -> bool:
        """Count it as one of the principal, unless that has as many of the kind as it may."""
        assert self._principal is None, "a call is admitted once"
        if not self.counts.principals.enter(name):
            return False
        self._principal = name
        return True

    def wait_for_commit(self) -> None:
        """Count it as an append that waits for its commit, and no longer as another one. Raises
        OverloadedError if too many wait, and changes nothing then."""
        commits, connections = self._commits
        name = self._principal
        if commits.is_full:
            commits.refused_count += 1
            raise OverloadedError(
                "too many single appends at `object` wait for their commit, because the object store does not"
                " answer or is slow; send it again after a pause, use a stream of appends, or raise"
                " --max-append-calls of the server",
                kind=commits.kind.value,
                limit=commits.limit,
            )
        if name is not None and not commits.principals.enter(name):
            commits.refused_count += 1
            raise OverloadedError(
                "too many single appends of the principal at `object` wait for their commit, because the"
                " object store does not answer or is slow; send it again after a pause, use a stream of"
                " appends, or raise --max-append-calls of the server",
                kind=commits.kind.value,
                principal=name,
                limit=commits.principals.limit,
            )
        if not connections.enter(self._connection):
            if name is not None:
                commits.principals.leave(name)
            commits.refused_count += 1
            raise OverloadedError(
                "too many single appends of the connection at `object` wait for their commit, because the"
                " object store does not answer or is slow; send it again after a pause, use a stream of"
                " appends or another connection, or raise max-connection-call-count of the server",
                kind=commits.kind.value,
                limit=connections.limit,
            )
        self._leave()
        self.counts, self._is_commit = commits, True
        commits.accepted_count += 1
        commits.open_count += 1

    def end(self) -> None:
        """Give its places back."""
        self._leave()
        if self._is_commit:
            self._commits.connections.leave(self._connection)

    def _leave(self) -> None:
        self.counts.open_count -= 1
        if self._principal is not None:
            self.counts.principals.leave(self._principal)


_current: ContextVar[OpenCall] = ContextVar("open call")
"""The call that the task handles."""


def set_call(call: OpenCall) -> None:
    """Note the call that the current task handles."""
    _current.set(call)


def current_call() -> OpenCall:
    """The call that the current task handles. Raises LookupError where none was noted."""
    return _current.get()
