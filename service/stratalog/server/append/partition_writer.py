"""The writer of a partition: appends that arrive together are written together and fsynced together.

Requests queue up while the writer is busy. A turn takes the whole queue and writes it in groups, in the order
of the requests: each group with one ``writev``, under one lock, whichever sessions its requests belong to. It
acknowledges the requests at ``os``. Those at ``disk`` wait in `FlushWaiters` for a flush, beside which the
next groups are written, and so do all of a group behind which `flush.messages` records wait. Those at
``object`` wait in `CommitWaiters` for the commit of their records, which a task of the shard makes; it does
the fsync, too. Behind one at ``disk`` of their session they wait for its flush first.

A session stops at its first failure: the log stores no request of a session behind a failed one, also inside
a group. The first failure of a session is answered as it is, and what was not written then as behind it. What
was written beside a flush that fails has the answer of the flush, because it may be stored.

A fencing token is compared where an append is applied, with the catalog as it was read last. So once the
catalog has another token, `settled` is a barrier: it answers in a turn that begins later, and no turn from
then on applies an append with the former token, however long it has waited.

The first append of a leader epoch makes the epoch durable before its batch. The writer does that on a thread
for fsyncs, before the turn: an fsync never takes a thread of appends.

Threads: `submit` and `settled` are called on the event loop; a partition's turns take place on the append
threads of its log directory, one at a time (the flag ``_has_turn``), so a disk that hangs holds up no other
one. Those with long validation take place on threads of their own, see `long_validation`: what a turn leaves
for the next one goes back to the head of the queue, so the order stays.
Each gives the thread back, so that busy partitions alternate; each has a number, as in `FlushWaiters`.
Results return to the loop in one hop a group, which wakes the readers as well. The last hop of a turn is the
last act of its thread: from then on the loop has the interpreter's lock for itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    FencingTokenMismatchError,
    StoppingError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append.unpacking import LongWorkError
from stratalog.log.append_info import AppendInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import ATTRIBUTES_POSITION, HEADER_SIZE, MAGIC, MAGIC_POSITION, TRANSACTIONAL_BIT
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.flush_waiters import FlushWaiters
from stratalog.server.append.long_validation import AppendUnpacking, LongValidations, TurnWork
from stratalog.server.append.pending_append import (
    AppendSession,
    Outcome,
    PendingAppend,
    answer_error,
    preceding_append_failed,
    resolve,
)
from stratalog.server.meters.append_groups import AppendGroups

logger = logging.getLogger(__name__)

GROUP_BYTES = 1 << 19
"""The append that reaches this is the last of its group. One group more costs little beside writing as much,
larger ones leave the processor's caches between copy and write, and answers need not wait for all that the
queue has."""


class AppendThreads(Protocol):
    """Threads for turns."""

    def submit(self, task: Callable[..., object], /, *arguments: object) -> object:
        """Run a turn on a thread, without waiting for it. Raises RuntimeError if the threads are closed, or
        the system has none."""
        ...


class LoopCalls(Protocol):
    """Calls of the event loop. Any thread may leave some."""

    def call(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Let the loop call a function soon."""
        ...

    def call_last(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Like `call`; the caller is about to end its task."""
        ...


class WriterThreads(NamedTuple):
    """The threads of a partition's log directory. Asked for before each turn, because a log may move to
    another directory."""

    append: Callable[[], AppendThreads]
    flush: Callable[[], Executor]
    validate: Callable[[], AppendThreads] | None = None
    """Those for turns with long validation; None: the ones for appends, without a budget."""


class WriterChecks(NamedTuple):
    """The conditions on which a partition takes appends."""

    leader_epoch: Callable[[], int]
    """Returns the epoch to stamp, or raises NotOwnerError."""
    ensure_heard: Callable[[], None] | None = None
    """Checks that appends beyond `os` may be acknowledged now, and raises if not; None means that they always
    may."""
    fencing_token: Callable[[], str] = lambda: ""
    """Returns the partition's token, empty for none."""


class WriterShared(NamedTuple):
    """Components that the writers of all partitions share."""

    groups: AppendGroups
    """Counts the groups."""
    validations: LongValidations


class PartitionWriter:
    """Queues the appends of one partition and writes them in groups. Thread-safe: `_lock` guards the queue
    and the flag; the log is written by one turn at a time."""

    def __init__(
        self,
        calls: LoopCalls,
        threads: WriterThreads,
        log: UnifiedLog,
        checks: WriterChecks,
        commit_waiters: CommitWaiters,
        on_advance: Callable[[], None],
        shared: WriterShared | None = None,
    ) -> None:
        """Answers by `calls`. `on_advance` follows each append and each flush that lets readers see more; any
        thread calls it."""
        shared = shared or WriterShared(AppendGroups(), LongValidations(SystemClock()))
        self.commit_waiters = commit_waiters
        self._calls = calls
        self._append_threads = threads.append
        self._validate_threads = threads.validate
        self._flush_threads = threads.flush
        self._groups = shared.groups
        self._flush_waiters = FlushWaiters(
            threads.flush, self._flush, self._commit, self._deliver, self._groups
        )
        self._log = log
        self._leader_epoch, self._ensure_heard, self._fencing_token = checks
        self._on_advance = on_advance
        self._lock = threading.Lock()
        self._queue: list[PendingAppend] = []
        self._settling: list[asyncio.Future[int]] = []
        self._has_turn = False
        self._turn: int = 0
        """The number of the next turn."""
        self._work = TurnWork(shared.validations)
        self._is_long = False
        """Whether the next turn takes place on threads for long validation. The last one has set it."""
        self._epoch: int | None = None
        """The last leader epoch that was to be made durable before a turn. One turn at a time uses it."""
        self._shown = log.offsets.visible_ends()
        """The ends of what readers saw after the last turn. A turn and a flush may write it at once: then
        readers are woken twice at worst."""

    def submit(self, append: PendingAppend) -> None:
        """Queue `append` behind all earlier ones; its future is resolved on the event loop."""
        with self._lock:
            self._queue.append(append)
            if self._has_turn:
                return
            self._has_turn = True
        self._begin_turn(self._turn)

    def _begin_turn(self, turn: int, failure: BaseException | None = None) -> None:
        """Ask for this turn, which answers with the failure if there is one; if there is no thread for it, as
        at a shutdown, everything that waits fails."""
        try:
            threads = self._append_threads
            if self._is_long and self._validate_threads is not None:
                threads = self._validate_threads
            threads().submit(self._take_turn, turn, failure)
        except Exception as error:
            logger.debug("no thread for appends", exc_info=True)
            with self._lock:
                if turn != self._turn:
                    # It takes place nevertheless.
                    return
                self._turn += 1
                pending, self._queue = self._queue, []
                settling, self._settling = self._settling, []
                self._has_turn = False
            refusal = StoppingError(
                "the server is stopping or has no thread left, and the append was not applied; send it again",
                reason=str(error),
            )
            for append in pending:
                append.break_session(refusal)
            self._deliver([(append, refusal) for append in pending])
            self._calls.call(_resolve_settled, settling, refusal)

    async def settled(self) -> int:
        """The end of the log in a turn of its own: appends that were applied by a former state of the catalog
        lie below. Raises NotOwnerError."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._settling.append(future)
            has_turn, self._has_turn = self._has_turn, True
        if not has_turn:
            self._begin_turn(self._turn)
        return await future

    def _writes_epoch(self, turn: int) -> bool:
        """Whether the leader epoch must be made durable before this turn, and is now: the turn follows."""
        try:
            epoch = self._leader_epoch()
        except Exception:  # noqa: BLE001 - the turn answers with it
            return False
        if epoch == self._epoch or self._log.appender.has_epoch(epoch):
            return False
        self._epoch = epoch
        try:
            self._flush_threads().submit(self._write_epoch, turn, epoch)
        except Exception:
            logger.debug("no thread for the leader epoch", exc_info=True)
            return False
        return True

    def _write_epoch(self, turn: int, epoch: int) -> None:
        # An executor may have refused this, and run it nevertheless: then the turn has its own number.
        if turn != self._turn:
            return
        failure: BaseException | None = None
        try:
            self._log.appender.write_epoch(epoch)
        except BaseException as error:
            # No request may wait for ever, whatever failed here. The next turn tries the epoch again.
            logger.exception("the leader epoch could not be written for an unexpected reason")
            failure, self._epoch = error, None
        self._begin_turn(turn, failure)

    def _take_turn(self, turn: int, failure: BaseException | None = None) -> None:
        """Write what waits, or answer it with the failure of the step before the turn."""
        if turn == self._turn and failure is None and self._writes_epoch(turn):
            return
        with self._lock:
            if turn != self._turn:
                return
            self._turn += 1
            pending, self._queue = self._queue, []
            settling, self._settling = self._settling, []
        assert self._has_turn, "one turn at a time"
        assert pending or settling, "a turn begins only where something waits"
        if settling:
            self._settle(settling)
        finished: Sequence[Outcome] = ()
        rest: Sequence[PendingAppend] = ()
        self._work.begin(has_budget=self._validate_threads is not None and not self._is_long)
        try:
            if failure is None:
                finished, rest = self._write_groups(pending)
        except BaseException as error:
            # No request may wait for ever, whatever failed here.
            logger.exception("the writer failed unexpectedly")
            failure = error
        if failure is not None:
            answer = answer_error(failure)
            for append in pending:
                append.break_session(answer)
            finished = [(append, answer) for append in pending]
        self._work.end()
        with self._lock:
            self._is_long = self._work.is_over
            if rest:
                self._queue[:0] = rest
            self._has_turn = has_more = bool(self._queue or self._settling)
        if has_more:
            self._begin_turn(self._turn)
        self._deliver(finished, leave=self._calls.call_last)

    def _write_groups(
        self, pending: list[PendingAppend]
    ) -> tuple[Sequence[Outcome], Sequence[PendingAppend]]:
        """Write what this turn may, in groups. Returns the outcomes of the last group, after those of the
        others were delivered, and the appends that are left for the next turn."""
        finished: Sequence[Outcome] = ()
        written_count = 0
        try:
            for group in _groups(pending):
                if finished:
                    self._deliver(finished)
                    finished = ()
                finished = self._write(group)
                written_count += len(group)
                if self._work.is_over:
                    break
        except LongWorkError:
            assert not self._is_long, "only a turn with a budget exceeds it; nothing of the group is written"
        return finished, pending[written_count:] if self._work.is_over else ()

    def _settle(self, settling: Sequence[asyncio.Future[int]]) -> None:
        outcome: int | Exception
        try:
            self._leader_epoch()
            outcome = self._log.offsets.log_end_offset
        except Exception as error:  # noqa: BLE001 - it is the answer
            outcome = error
        self._calls.call(_resolve_settled, settling, outcome)

    def _write(self, group: list[PendingAppend]) -> list[Outcome]:
        """Write a group; the outcomes that wait for nothing else."""
        finished: list[Outcome] = []
        to_commit: list[tuple[PendingAppend, AppendInfo]] = []
        must_flush, record_count, size_bytes = False, 0, 0
        has_many: bool | None = None
        for append, outcome in self._append(group):
            if has_many is None:
                # All of the group is in the log by now.
                has_many = self._log.flusher.has_many()
            size_bytes += append.size_bytes
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                info = outcome
                record_count += 0 if info.is_duplicate else info.last_offset - info.base_offset + 1
                if self._flush_waiters.take(append, info, waits=has_many):
                    must_flush = True
                elif append.durability is Durability.OBJECT:
                    to_commit.append((append, info))
                else:
                    finished.append((append, info))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this append's answer
                append.break_session(error)
                finished.append((append, error))
        if must_flush:
            self._flush_waiters.begin()
        self._groups.add_written(len(group), record_count, size_bytes)
        if to_commit:
            self._commit(to_commit)
        return finished

    def _commit(self, appended: Sequence[tuple[PendingAppend, AppendInfo]]) -> None:
        """Let these appends wait for their commit."""
        self.commit_waiters.add(appended, lambda: self._log.offsets.tiered_end_offset)

    def _append(self, group: list[PendingAppend]) -> Iterator[Outcome]:
        """Append the group's members; an outcome for each, in order. The caller breaks the session of a
        failed one before it asks for the next outcome. Raises LongWorkError before the first one."""
        refusals: dict[PendingAppend, Exception] = {}
        writable: list[PendingAppend] = []
        buffers: list[Buffer] = []
        refused_sessions: set[AppendSession | None] = set()
        has_token = any(append.conditions.fencing_token is not None for append in group)
        fencing_token = self._fencing_token() if has_token else ""
        for append in group:
            try:
                session = append.session
                if session is not None and (session.is_broken or session in refused_sessions):
                    raise preceding_append_failed()
                buffers.append(self._writable(append, fencing_token))
                writable.append(append)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this append's answer
                refusals[append] = answer_error(error)
                refused_sessions |= {append.session} - {None}
        results: Iterator[AppendInfo | Exception] = iter(())
        try:
            leader_epoch = self._leader_epoch()
        except Exception as error:  # noqa: BLE001 - it is the group's answer
            refusals |= dict.fromkeys(writable, answer_error(error))
        else:
            results = iter(self._store(writable, buffers, leader_epoch))
        for append in group:
            if append not in refusals:
                yield append, next(results)
            elif append.is_behind_failure:
                # Of one of this group, or of a flush meanwhile. It is not in the log; others may be.
                yield append, preceding_append_failed()
            else:
                yield append, refusals[append]

    def _writable(self, append: PendingAppend, fencing_token: str) -> Buffer:
        """The batches of an append that may be written, as far as the log need not be asked. Raises the
        reason why it may not."""
        if append.conditions.fencing_token is not None:
            _require_token(append, fencing_token)
        if append.durability is not Durability.OS and self._ensure_heard is not None:
            self._ensure_heard()
        batches = append.encoded_batches()
        refuse_transaction(batches)
        return batches

    def _store(
        self, appends: list[PendingAppend], buffers: list[Buffer], leader_epoch: int
    ) -> Sequence[AppendInfo | Exception]:
        """Append the batches of these appends to the log, and raise their durability to the topic's; an
        outcome for each. Raises LongWorkError, and nothing has changed then."""
        if not appends:
            return ()
        try:
            results = self._log.appender.append_group(
                buffers,
                leader_epoch,
                [append.conditions.expected_offset for append in appends],
                [append.session for append in appends],
                unpackings=[AppendUnpacking(append, self._work) for append in appends],
                flushes=False,
            )
        except LongWorkError:
            for append in appends:
                append.put_back()
            raise
        except Exception as error:  # noqa: BLE001 - it is the group's answer
            return [answer_error(error)] * len(appends)
        assert len(results) == len(appends)
        # Read after the append: if the topic's durability has become stronger meanwhile, it needs the flush
        # too, or the records would stay invisible.
        min_durability = self._log.offsets.min_durability
        for append in appends:
            append.durability = max(append.durability, min_durability)
            append.forget_batches()
        return results

    def _flush(self, *, is_beyond_os: bool) -> int:
        """Flush, and return the end of what is durable. Raises DataDirectoryError; StoreUnavailableError or
        NotOwnerError if appends beyond `os` wait for it and may not be acknowledged."""
        recovery_point = self._log.flusher.flush()
        # Again, because another server may have taken over while this process was suspended.
        if is_beyond_os and self._ensure_heard is not None:
            self._ensure_heard()
        return recovery_point

    def _deliver(self, outcomes: Sequence[Outcome], leave: Callable[..., None] | None = None) -> None:
        """Answer appends, and wake readers if they see more. Records that wait for their commit are no
        news. `leave` leaves the call of the loop."""
        shown = self._log.offsets.visible_ends()
        has_advanced = shown != self._shown
        self._shown = shown
        if outcomes:
            (leave or self._calls.call)(self._answer, outcomes, has_advanced)
        elif has_advanced:
            self._on_advance()

    def _answer(self, outcomes: Sequence[Outcome], has_advanced: bool) -> None:
        try:
            if has_advanced:
                self._on_advance()
        finally:
            resolve(outcomes)


def _groups(pending: list[PendingAppend]) -> Iterator[list[PendingAppend]]:
    """Split into groups of `GROUP_BYTES`, the last append of each in full."""
    if len(pending) == 1:
        yield pending
        return
    group: list[PendingAppend] = []
    size_bytes = 0
    for append in pending:
        group.append(append)
        size_bytes += append.size_bytes
        if size_bytes >= GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _require_token(append: PendingAppend, fencing_token: str) -> None:
    """Raise FencingTokenMismatchError if the append names another token than the partition has."""
    sent = append.conditions.fencing_token
    if sent != fencing_token:
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


def refuse_transaction(batches: Buffer) -> None:
    """Raise UnsupportedOperationError for a request of a transactional producer.

    No coordinator here can end a transaction, and an open one holds back the last stable offset, and so the
    upload, for ever. Such a request has only one batch, so the first one is checked; the log checks its form.
    """
    if len(batches) < HEADER_SIZE or batches[MAGIC_POSITION] != MAGIC:
        return
    # The lower one of two bytes.
    if batches[ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT:
        raise UnsupportedOperationError(
            "transactional producers are not supported yet; send without a transaction"
        )
