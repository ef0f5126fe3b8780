"""The move of a partition to another log directory, while it takes appends.

::

    waiting --run--> copying --> swapping --> done
       |               |   ^        |
       |               |   +--------+   the log has grown too much meanwhile
       +---------------+--> cancelled
                       |            |
                       +------------+--> failed, with a reason

The copy grows in the partition's directory of the target while the log is in use (see `LogCopy`). The cleaner
is paused for all of the move; retention, deletions of records, flushes and reads go on. A truncation, a
deletion or a close of the log ends the move first.

The manifests of both directories say where the partition is. Each step is durable before the next::

    1. target: incoming                 the move is accepted and wanted, also before it begins; a start
                                        removes the copy and may begin again
       ... copy, without a lock ...
    2. source: moving_to TARGET         the target may be newer: no start without it serves the source
       ... copy the rest, under the log's locks ...
    3. target: live, a higher number    one atomic replacement: here the target becomes the partition
    4. the log uses the new place       nothing was acknowledged between 2 and here
    5. source: put away and removed     without a lock

A crash before 3 leaves the source the partition, and a start takes back step 2. A crash behind 3 leaves two
live entries, and the target's number is higher. If the target's disk fails in 3, the outcome is unknown: the
source gets a still higher number before the log goes on there. If that fails too, the log goes offline, and
the next start decides by the numbers.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DIRECT_DISK_CALLS
from stratalog.base.errors import LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.throttler import Throttler
from stratalog.log.exchange.log_copy import LogCopy
from stratalog.manager.moves.move_target import MovePlan, MoveTarget
from stratalog.manager.partitions.put_away import PutAway

logger = logging.getLogger(__name__)

_STEP_BYTES = 256 * 1024


class MoveState(enum.Enum):
    """The states of the module's description."""

    WAITING = "waiting"
    COPYING = "copying"
    SWAPPING = "swapping"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return self in (MoveState.DONE, MoveState.CANCELLED, MoveState.FAILED)


class MoveProgress(NamedTuple):
    """The progress of a move, for an operator."""

    partition: TopicPartition
    source_path: str
    """Path of a log directory, as `target_path` is."""
    target_path: str
    state: MoveState
    copied_bytes: int
    remaining_bytes: int
    """It may grow as the log does."""
    reason: str
    """The reason why it failed or was cancelled; empty otherwise."""


class _MoveCancelledError(Exception):
    """The move shall end. Never leaves this module."""


class LogMove:
    """A move of one partition to another log directory. Thread-safe: one thread calls `run`, once; others may
    read its progress or cancel it."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        plan: MovePlan,
        cleaner: CleanerManager,
        throttler: Throttler,
        away: PutAway,
    ) -> None:
        """`throttler` limits the copy, except its last part. `away` removes the older copy, or the copy of a
        move that has failed. Raises DataDirectoryError if the target is offline."""
        self.partition = plan.log.topic_partition
        self.source_path = plan.source.path
        self.target_path = plan.target.path
        self._clock = clock
        self._log = plan.log
        self._cleaner = cleaner
        self._throttler = throttler
        self._away = away
        self._target = MoveTarget(filesystem, plan)
        self._changed = threading.Condition()
        self._state = MoveState.WAITING
        self._reason = ""
        # The reason of a cancellation, and whether the next process shall begin the move again.
        self._ending: str | None = None
        self._is_still_wanted = False
        self._copy: LogCopy | None = None
        self._on_step: Callable[[], None] = lambda: None
        self.failure: LogStoreError | None = None
        """The error that ended a failed move."""

    @property
    def state(self) -> MoveState:
        return self._state

    @property
    def progress(self) -> MoveProgress:
        """The progress now. Takes no lock."""
        copy, state, size_bytes = self._copy, self._state, self._log.local_log.segments.size_bytes
        copied_bytes = 0 if copy is None else copy.copied_bytes
        if state is MoveState.DONE:
            copied_bytes = size_bytes
        return MoveProgress(
            partition=self.partition,
            source_path=self.source_path,
            target_path=self.target_path,
            state=state,
            copied_bytes=copied_bytes,
            remaining_bytes=max(0, size_bytes - copied_bytes),
            reason=self._reason,
        )

    def record(self) -> None:
        """Make the next process begin the move, should this one not come to it. Durable when it returns.
        Raises DataDirectoryError, UnknownTopicOrPartitionError if the partition has lost the log."""
        self._target.record()

    @property
    def is_of_open_log(self) -> bool:
        """Whether the partition still has the log. Takes no lock."""
        return self._target.is_open

    def withdraw(self) -> None:
        """Take back what `record` has noted: the move was not accepted after all. Called by the thread that
        has waited for the disk to note it."""
        self._target.withdraw(self._away, DIRECT_DISK_CALLS)

    def ask_to_end(self, reason: str, *, is_still_wanted: bool = False) -> None:
        """End the move before its next step, unless it is complete by then; at once if it has not begun.
        `is_still_wanted`: the next process shall begin it again."""
        with self._changed:
            if not self._state.is_final and self._ending is None:
                self._ending, self._is_still_wanted = reason, is_still_wanted
            if self._state is MoveState.WAITING:
                if not is_still_wanted:
                    self._target.withdraw(self._away)
                self._end(MoveState.CANCELLED, reason)
        self._throttler.interrupt()

    def cancel(self, reason: str, *, is_still_wanted: bool = False) -> MoveState:
        """`ask_to_end`, and wait for the end.

        The thread that runs the move must not call this, nor one that holds a lock of the log or of the
        directories.
        """
        self.ask_to_end(reason, is_still_wanted=is_still_wanted)
        with self._changed:
            while not self._state.is_final:
                self._clock.wait(self._changed, None)
            return self._state

    def run(self, on_step: Callable[[], None] = lambda: None) -> MoveState:
        """Move the partition; returns the final state. `progress` has the reason of a failure. Calls
        `on_step` after each step of the copy."""
        self._on_step = on_step
        with self._changed:
            if self._state is not MoveState.WAITING:
                return self._state
            self._state = MoveState.COPYING
        state, reason = MoveState.FAILED, "the move ended by an unexpected error; see the log"
        try:
            with self._cleaner.paused(self.partition):
                self._move()
                self._settle()
            state, reason = MoveState.DONE, ""
        except _MoveCancelledError as ending:
            state, reason = MoveState.CANCELLED, str(ending)
        except LogStoreError as failure:
            reason, self.failure = str(failure), failure
        finally:
            if self._target.is_committed:
                state = MoveState.DONE
            else:
                is_wanted = state is MoveState.CANCELLED and self._is_still_wanted
                self._target.clean_up(self._away, is_wanted=is_wanted)
            with self._changed:
                self._end(state, reason)
        logger.log(
            logging.WARNING if state is MoveState.FAILED else logging.INFO,
            "the move of %s to %s has ended: %s",
            self.partition,
            self.target_path,
            f"{state.value}, {reason}" if reason else state.value,
        )
        return state

    def _end(self, state: MoveState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._changed.notify_all()

    def _require_wanted(self) -> None:
        if self._ending is not None:
            raise _MoveCancelledError(self._ending)

    def _move(self) -> None:
        self._require_wanted()
        self._copy = copy = self._target.begin()
        is_moved = False
        while not is_moved:
            self._require_wanted()
            copied_bytes = copy.advance(_STEP_BYTES)
            self._on_step()
            if copied_bytes:
                self._throttler.take(copied_bytes, self._require_wanted)
            if copy.is_close:
                copy.prepare()
                self._target.prepare(copy.durable_end_offset)
                is_moved = self._swap(copy)

    def _swap(self, copy: LogCopy) -> bool:
        """Let the log use the copy; False if the log has grown so much that more must be copied first."""
        with self._changed:
            # From here on the move cannot be cancelled.
            self._require_wanted()
            self._state = MoveState.SWAPPING
        is_moved = copy.relocate(self._target.commit)
        if not is_moved:
            self._state = MoveState.COPYING
        return is_moved

    def _settle(self) -> None:
        """Put the older copy away: the log is in the new place."""
        self._away.put_away_older(self._target.source, self.partition, has_readers=True)
        # Without this the cleaner begins at the log's start.
        with suppress(OSError):
            self._cleaner.moved(self.partition, self.source_path, self.target_path)
