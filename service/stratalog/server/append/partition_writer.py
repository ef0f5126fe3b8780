"""The writer of a partition: appends that arrive together are written together and fsynced together.

Requests queue up while the writer is busy. A turn takes the whole queue, writes it as one group (one
``writev``), acknowledges the requests at ``os``, then calls ``flush`` once for all requests at ``disk``.
Requests that arrive during the flush form the next group: under load one fsync serves as many requests as
arrive in its time, and an idle partition acknowledges after one fsync of its own. Requests at ``object`` wait
in `CommitWaiters` for the commit of their records, which a task of the shard makes; it does the fsync, too.

Appends of one session go into separate groups, in order, because a group checks its members one by one and a
session must stop at its first failure. They still share the flush of the turn. An append at ``os`` behind one
at ``disk`` of its session waits for that flush, because the failure of the flush is also its own.

A fencing token is compared where an append is applied, with the catalog as it was read last. So once the
catalog has another token, `settled` is a barrier: it answers in a turn that begins later, and no turn from
then on applies an append with the former token, however long it has waited.

Threads: `submit` and `settled` are called on the event loop; a partition's turns take place on the append
pool, one at a time (the flag ``_has_turn``). Each gives the thread back, so that busy partitions alternate.
Results return to the loop in one hop a group.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from stratalog.base.errors import (
    DataDirectoryError,
    FencingTokenMismatchError,
    StoppingError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.pending_append import (
    AppendSession,
    Outcome,
    PendingAppend,
    preceding_append_failed,
    resolve,
)

logger = logging.getLogger(__name__)


class WriterChecks(NamedTuple):
    """The conditions on which a partition takes appends."""

    leader_epoch: Callable[[], int]
    """Returns the epoch to stamp, or raises NotOwnerError."""
    ensure_heard: Callable[[], None] | None = None
    """Checks that appends beyond `os` may be acknowledged now, and raises if not; None means that they always
    may."""
    fencing_token: Callable[[], str] = lambda: ""
    """Returns the partition's token, empty for none."""


class PartitionWriter:
    """Queues the appends of one partition and writes them in groups. Thread-safe: `_lock` guards the queue
    and the flag; the log is written by one turn at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        log: UnifiedLog,
        checks: WriterChecks,
        commit_waiters: CommitWaiters,
        on_advance: Callable[[], None],
    ) -> None:
        """Answers on `loop`. `on_advance` follows each append and each flush that lets readers see more."""
        self.commit_waiters = commit_waiters
        self._loop = loop
        self._executor = executor
        self._log = log
        self._leader_epoch, self._ensure_heard, self._fencing_token = checks
        self._on_advance = on_advance
        self._lock = threading.Lock()
        self._queue: list[PendingAppend] = []
        self._settling: list[asyncio.Future[int]] = []
        self._has_turn = False
        self._shown = self._visible_ends()
        """The ends of what readers saw after the last turn. Belongs to the turn."""

    def submit(self, append: PendingAppend) -> None:
        """Queue `append` behind all earlier ones; its future is resolved on the event loop."""
        with self._lock:
            self._queue.append(append)
            if self._has_turn:
                return
            self._has_turn = True
        self._begin_turn()

    def _begin_turn(self) -> None:
        """Ask for a turn; at a shutdown there is none, and everything that waits fails."""
        try:
            self._executor.submit(self._take_turn)
        except RuntimeError:
            with self._lock:
                pending, self._queue = self._queue, []
                settling, self._settling = self._settling, []
                self._has_turn = False
            refusal = StoppingError("the server is stopping, and the append was not applied; send it again")
            for append in pending:
                append.break_session()
            self._deliver([(append, refusal) for append in pending])
            self._loop.call_soon_threadsafe(_resolve_settled, settling, refusal)

    async def settled(self) -> int:
        """The end of the log in a turn of its own: appends that were applied by a former state of the catalog
        lie below. Raises NotOwnerError."""
        future: asyncio.Future[int] = self._loop.create_future()
        with self._lock:
            self._settling.append(future)
            has_turn, self._has_turn = self._has_turn, True
        if not has_turn:
            self._begin_turn()
        return await future

    def _take_turn(self) -> None:
        with self._lock:
            pending, self._queue = self._queue, []
            settling, self._settling = self._settling, []
        assert self._has_turn, "one turn at a time"
        assert pending or settling, "a turn begins only where something waits"
        if settling:
            self._settle(settling)
        try:
            if pending:
                self._write(pending)
        except BaseException as error:
            # No request may wait for ever, whatever failed here.
            logger.exception("the writer failed unexpectedly")
            for append in pending:
                append.break_session()
            self._deliver([(append, _as_engine_error(error)) for append in pending])
        with self._lock:
            if not self._queue and not self._settling:
                self._has_turn = False
                return
        self._begin_turn()

    def _settle(self, settling: Sequence[asyncio.Future[int]]) -> None:
        outcome: int | Exception
        try:
            self._leader_epoch()
            outcome = self._log.offsets.log_end_offset
        except Exception as error:  # noqa: BLE001 - it is the answer
            outcome = error
        self._loop.call_soon_threadsafe(_resolve_settled, settling, outcome)

    def _write(self, pending: list[PendingAppend]) -> None:
        to_flush: list[tuple[PendingAppend, AppendInfo]] = []
        flushed_sessions: set[AppendSession] = set()
        for group in _groups(pending):
            finished: list[Outcome] = []
            to_commit: list[tuple[PendingAppend, AppendInfo]] = []
            for append, outcome in self._append(group):
                if isinstance(outcome, Exception):
                    append.break_session()
                    finished.append((append, outcome))
                elif append.durability is Durability.OBJECT:
                    to_commit.append((append, outcome))
                elif append.durability is Durability.OS and append.session not in flushed_sessions:
                    finished.append((append, outcome))
                else:
                    # If the flush fails, so do the later appends of the session.
                    to_flush.append((append, outcome))
                    if append.session is not None:
                        flushed_sessions.add(append.session)
            self._advance()
            self._deliver(finished)
            if to_commit:
                self.commit_waiters.add(to_commit, lambda: self._log.offsets.tiered_end_offset)
        if to_flush:
            self._flush(to_flush)

    def _append(self, group: list[PendingAppend]) -> list[Outcome]:
        """Append the group's members in order; an outcome for each."""
        outcomes: list[Outcome] = []
        writable: list[PendingAppend] = []
        buffers: list[Buffer] = []
        has_token = any(append.conditions.fencing_token is not None for append in group)
        fencing_token = self._fencing_token() if has_token else ""
        for append in group:
            try:
                if append.session is not None and append.session.is_broken:
                    raise preceding_append_failed()
                _require_token(append, fencing_token)
                if append.durability is not Durability.OS and self._ensure_heard is not None:
                    self._ensure_heard()
                batches = append.take_batches()
                refuse_transaction(batches)
                buffers.append(batches)
                writable.append(append)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this append's answer
                outcomes.append((append, _as_engine_error(error)))
        if not writable:
            return outcomes
        try:
            expected_offsets = [append.conditions.expected_offset for append in writable]
            results = self._log.appender.append_group(buffers, self._leader_epoch(), expected_offsets)
        except Exception as error:  # noqa: BLE001 - it is the group's answer
            refusal = _as_engine_error(error)
            return outcomes + [(append, refusal) for append in writable]
        assert len(results) == len(writable)
        # Read after the append: if the topic's durability has become stronger meanwhile, it needs the flush
        # too, or the records would stay invisible.
        min_durability = self._log.offsets.min_durability
        for append, result in zip(writable, results, strict=True):
            append.durability = max(append.durability, min_durability)
            outcomes.append((append, result))
        return outcomes

    def _flush(self, waiting: list[tuple[PendingAppend, AppendInfo]]) -> None:
        """Flush once for all of them. A failed flush is their failure: without fsync there is no
        acknowledgement at `disk`.
        """
        try:
            recovery_point = self._log.flusher.flush()
            self._advance()
            # Again, because another server may have taken over while this process was suspended.
            if self._ensure_heard is not None:
                self._ensure_heard()
        except Exception as error:  # noqa: BLE001 - it is the answer of all that wait for the flush
            refusal = _as_engine_error(error)
            for append, _ in waiting:
                append.break_session()
            self._deliver([(append, refusal) for append, _ in waiting])
            return
        assert all(info.last_offset < recovery_point for _, info in waiting)
        self._deliver(list(waiting))

    def _advance(self) -> None:
        """Wake readers if they see more. Records that wait for their commit are no news."""
        shown = self._visible_ends()
        if shown != self._shown:
            self._shown = shown
            self._on_advance()

    def _visible_ends(self) -> tuple[int, int]:
        return self._log.offsets.high_watermark, self._log.offsets.last_stable_offset

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(resolve, outcomes)


def _groups(pending: list[PendingAppend]) -> list[list[PendingAppend]]:
    """Split into groups in which no session appears twice, keeping the order."""
    groups: list[list[PendingAppend]] = [[]]
    sessions: set[int] = set()
    for append in pending:
        if append.session is not None:
            if id(append.session) in sessions:
                groups.append([])
                sessions.clear()
            sessions.add(id(append.session))
        groups[-1].append(append)
    return groups


def _require_token(append: PendingAppend, fencing_token: str) -> None:
    """Raise FencingTokenMismatchError if the append names another token than the partition has."""
    sent = append.conditions.fencing_token
    if sent is not None and sent != fencing_token:
        raise FencingTokenMismatchError(
            "the partition has another fencing token; stop, because another writer has fenced it",
            fencing_token=sent,
            current_token=fencing_token,
        )


def _resolve_settled(settling: Sequence[asyncio.Future[int]], outcome: int | Exception) -> None:
    for future in settling:
        # A caller that went away has cancelled its future.
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _as_engine_error(error: BaseException) -> Exception:
    """The error to answer with; a refusal of the operating system says what to do."""
    if isinstance(error, OSError):
        return DataDirectoryError(
            "the local disk refused a write; look at its space and health",
            path=error.filename or "",
            reason=error.strerror or str(error),
        )
    return error if isinstance(error, Exception) else RuntimeError(str(error))


_ATTRIBUTES = struct.Struct(">h")


def refuse_transaction(batches: Buffer) -> None:
    """Raise UnsupportedOperationError for a request of a transactional producer.

    No coordinator here can end a transaction, and an open one holds back the last stable offset, and so the
    upload, for ever. Such a request has only one batch, so the first one is checked; the log checks its form.
    """
    if len(batches) < HEADER_SIZE or batches[MAGIC_POSITION] != MAGIC:
        return
    (attributes,) = _ATTRIBUTES.unpack_from(batches, ATTRIBUTES_POSITION)
    if attributes & TRANSACTIONAL_BIT:
        raise UnsupportedOperationError(
            "transactional producers are not supported yet; send without a transaction"
        )
