"""The appends of a partition that wait until their records are committed in the object store.

An append is here once it is in the local log. It leaves with its offsets once the tiered end is behind them,
or with an error, which leaves it open whether the records are committed later: they stay in the log. A
repeated append of the same producer is answered with the first offsets, and waits here for the same commit.

The tiered end also moves over records that the local disk has lost before their commit: a gap. Their appends
fail, the repeated ones too. Once the log start has passed such a gap nothing tells it from records that were
committed and deleted, so appends below the log start fail as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, RecordsLostError
from stratalog.log.append_info import AppendInfo
from stratalog.server.append.pending_append import Outcome, PendingAppend, resolve


class _Waiter(NamedTuple):
    append: PendingAppend
    info: AppendInfo
    since_s: float


IsLost = Callable[[int, int], bool]
"""Whether a record from the first to the last of these offsets, which are below the tiered end, is lost, or
may have been lost before it was deleted."""


def _unwatched(_size_bytes: int) -> None:
    """Nothing commits the partition's tail yet."""


def _nothing() -> None:
    """No reader waits."""


class CommitWaiters:
    """The appends of one partition that wait for a commit. Thread-safe: `_lock` guards the queue."""

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, is_lost: IsLost = lambda _first, _last: False
    ) -> None:
        """Answers on `loop`. Until `watch` is called, nothing is committed for them."""
        self._clock = clock
        self._is_lost = is_lost
        self._loop = loop
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._on_wait: Callable[[int], None] = _unwatched
        self._on_answer: Callable[[int, float], None] = lambda _count, _wait_s: None

    @property
    def count(self) -> int:
        return len(self._waiting)

    def watch(self, on_wait: Callable[[int], None], on_answer: Callable[[int, float], None]) -> None:
        """Call `on_wait` with the bytes of appends that begin to wait, and `on_answer` with the number of
        acknowledged ones and the seconds that they have waited together. Any thread calls them."""
        self._on_wait, self._on_answer = on_wait, on_answer

    def ask(self) -> None:
        """Ask for a commit of what is in the log, though no append waits for it."""
        self._on_wait(0)

    def add(
        self, appended: Sequence[tuple[PendingAppend, AppendInfo]], tiered_end: Callable[[], int]
    ) -> None:
        """Let these appends wait. `tiered_end` returns the end of what is committed: what is below need not
        wait."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._waiting.extend(_Waiter(append, info, now_s) for append, info in appended)
        # A commit that landed meanwhile has not seen them.
        self.acknowledge(tiered_end())
        if self._waiting:
            self._on_wait(sum(append.size_bytes for append, _ in appended))

    def acknowledge(self, tiered_end_offset: int, wake: Callable[[], None] = _nothing) -> None:
        """Answer the appends below that offset, in their order, and `wake` readers: in one hop to the loop if
        there are such appends, else here."""
        outcomes: list[Outcome] = []
        count, wait_s, now_s = 0, 0.0, self._clock.monotonic_s()
        with self._lock:
            waiting = self._waiting
            while waiting and waiting[0].info.last_offset < tiered_end_offset:
                append, info, since_s = waiting.popleft()
                failure = self._loss_of(append, info)
                if failure is not None:
                    append.break_session(failure)
                    outcomes.append((append, failure))
                    continue
                count += 1
                wait_s += now_s - since_s
                outcomes.append((append, info))
        self._answer(outcomes, wake)
        if count:
            self._on_answer(count, wait_s)

    def fail(self, error: Exception, *, older_than_s: float = 0.0) -> int:
        """Fail the appends that have waited so long, and break their sessions; returns their number."""
        latest_s = self._clock.monotonic_s() - older_than_s
        outcomes: list[Outcome] = []
        with self._lock:
            while self._waiting and self._waiting[0].since_s <= latest_s:
                append = self._waiting.popleft().append
                append.break_session(error)
                outcomes.append((append, error))
        self._answer(outcomes)
        return len(outcomes)

    def _loss_of(self, append: PendingAppend, info: AppendInfo) -> LogStoreError | None:
        """The answer to an append below the tiered end whose records are lost, or of which that cannot be
        read; None if they are committed."""
        try:
            return _lost(append, info) if self._is_lost(info.base_offset, info.last_offset) else None
        except LogStoreError as error:
            return error

    def _answer(self, outcomes: Sequence[Outcome], wake: Callable[[], None] = _nothing) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(_wake_and_resolve, wake, outcomes)
        else:
            wake()


def _wake_and_resolve(wake: Callable[[], None], outcomes: Sequence[Outcome]) -> None:
    try:
        wake()
    finally:
        resolve(outcomes)


def _lost(append: PendingAppend, info: AppendInfo) -> RecordsLostError:
    return RecordsLostError(
        "records of the append are not in the log any more: the local disk has lost them before their commit"
        " in the object store, or they were deleted; send them again as new ones, with other numbers, if"
        " they are still wanted",
        topic=append.identity.topic,
        partition=append.identity.partition,
        base_offset=info.base_offset,
        end_offset=info.last_offset + 1,
    )
