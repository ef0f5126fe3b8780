"""The appends of a partition that wait until their records are fsynced.

An append is here once it is in the local log. A turn takes all that wait and flushes once for them; what
arrives meanwhile, written beside the flush, waits for the next turn. So under load one fsync serves as many
appends as are written in its time, and an idle partition acknowledges after one fsync of its own.

An append at ``disk`` waits, and where `flush.messages` records wait for an fsync any append does. A session
stops at its first failure, and that of a flush is one. So an append at ``os`` or at ``object``
behind one that waits here waits as well, and what is in the log behind an append whose flush failed fails
with it, though a later flush might succeed. All of them have the error of the flush: they may be stored.

Threads: appends are taken in their order, by one thread at a time. The turns take place on the threads of the
log directory, one at a time (the flag ``_has_turn``), so a disk that hangs holds up no other one. Each turn
gives its thread back, so that busy partitions alternate. Turns have numbers, because an executor that finds
no new thread refuses work that it has queued, and runs it later: a number is taken once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append.pending_append import (
    AppendSession,
    Outcome,
    PendingAppend,
    answer_error,
)
from stratalog.server.meters.append_groups import AppendGroups

logger = logging.getLogger(__name__)


class Flush(Protocol):
    """Makes durable what was appended before the call."""

    def __call__(self, *, is_beyond_os: bool) -> int:
        """Returns the end of what is durable; what it raises fails the appends that wait. `is_beyond_os`:
        some of them asked for more than `os`."""
        ...


class FlushWaiters:
    """The appends of one partition that wait for a flush. Thread-safe: `_lock` guards the queue, the flag and
    the number."""

    def __init__(
        self,
        threads: Callable[[], Executor],
        flush: Flush,
        commit: Callable[[list[tuple[PendingAppend, AppendInfo]]], None],
        deliver: Callable[[Sequence[Outcome]], None],
        groups: AppendGroups | None = None,
    ) -> None:
        """`threads` returns those of the log directory. `commit` takes those at `object` behind a flush that
        succeeded. `deliver` answers appends, and follows each flush. `groups` counts the appends of each
        flush."""
        self._deliver = deliver
        self._threads = threads
        self._flush = flush
        self._commit = commit
        self._groups = groups or AppendGroups()
        self._lock = threading.Lock()
        self._waiting: list[tuple[PendingAppend, AppendInfo]] = []
        self._sessions: set[AppendSession | None] = set()
        """Those of the appends that wait or are being flushed."""
        self._has_turn = False
        self._turn = 0
        """The number of the next turn."""

    def take(self, append: PendingAppend, info: AppendInfo, *, waits: bool = False) -> bool:
        """Take an append that is in the log, if it must wait for a flush, as it must with `waits`; `begin`
        follows. Returns whether it must. Raises the failure of an earlier append of its session."""
        session, waits = append.session, waits or append.durability is Durability.DISK
        if session is None and not waits:
            return False
        with self._lock:
            append.require_session()
            if not waits and session not in self._sessions:
                return False
            self._waiting.append((append, info))
            self._sessions.add(session)
            return True

    def begin(self) -> None:
        """Let those that wait be flushed, now or after the flush that goes on."""
        with self._lock:
            if self._has_turn or not self._waiting:
                return
            self._has_turn = True
        self._begin_turn()

    def _begin_turn(self) -> None:
        """Ask for a turn. What is in the log is flushed in any case: on this thread if there is no other,
        because the server stops and has closed them, or the system has none left."""
        has_more = True
        while has_more:
            turn = self._turn
            try:
                self._threads().submit(self._run, turn)
            except Exception:
                logger.debug("no thread for a flush", exc_info=True)
                has_more = self._take_turn(turn)
            else:
                return

    def _run(self, turn: int) -> None:
        if self._take_turn(turn):
            self._begin_turn()

    def _take_turn(self, turn: int) -> bool:
        """Flush what waits, unless the turn was taken. Returns whether the next one must begin."""
        with self._lock:
            if turn != self._turn:
                return False
            self._turn += 1
            flushed, self._waiting = self._waiting, []
        assert self._has_turn, "one turn at a time"
        assert flushed, "a turn begins only where something waits"
        self._groups.add_flushed(len(flushed))
        at_object = [one for one in flushed if one[0].durability is Durability.OBJECT]
        answered = [one for one in flushed if one[0].durability is not Durability.OBJECT]
        failure: Exception | None = None
        try:
            is_beyond_os = any(append.durability is not Durability.OS for append, _ in flushed)
            end_offset = self._flush(is_beyond_os=is_beyond_os)
            assert all(info.last_offset < end_offset for _, info in flushed)
            if at_object:
                # Before the later ones of their sessions, which need not wait here from then on.
                self._commit(at_object)
        except BaseException as error:  # noqa: BLE001 - it is the answer of all that wait for the flush
            failure = answer_error(error)
        with self._lock:
            if failure is not None:
                answered = flushed + self._break_sessions(flushed, failure)
            self._sessions = {append.session for append, _ in self._waiting}
            self._has_turn = has_more = bool(self._waiting)
        self._deliver([(append, failure or info) for append, info in answered])
        return has_more

    def _break_sessions(
        self, failed: list[tuple[PendingAppend, AppendInfo]], failure: Exception
    ) -> list[tuple[PendingAppend, AppendInfo]]:
        """Break the sessions of these appends, and return what waited behind them. The lock is held."""
        sessions = {append.session for append, _ in failed} - {None}
        for append, _ in failed:
            append.break_session(failure)
        behind = [one for one in self._waiting if one[0].session in sessions]
        self._waiting = [one for one in self._waiting if one[0].session not in sessions]
        return behind
