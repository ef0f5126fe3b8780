"""Validation of appends that takes long: where it takes place, and what ends it.

A compressed batch of a few kilobytes may take seconds to validate, and so may one that the topic wants in
another codec. Plain and small appends must not wait for that. So a turn of a partition on the append threads
of its log directory has a budget, in bytes of decompression: no clock, so that it is the same each time.
A batch counts as some of them however small it is, because a request may have very many.
Validation asks before each step of its work. The group that exceeds the budget is put back before anything
of it is written, and so is all behind it; the next turn of the partition takes place on threads for long
validation, without a budget. There a turn ends behind the group that exceeds the budget, so that partitions
alternate, and the next one takes place there, too, at once: a busy producer of compressed batches has them
validated once. A turn within the budget leads back.

Between batches validation ends where the caller has left, an earlier append of its session has failed, or the
stopping server waits no longer. Nothing of such a request is stored.
"""

from __future__ import annotations

import logging
import threading

from stratalog.base.clock import Clock
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.log.append.unpacking import LongWorkError
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.turn_threads import note_step

logger = logging.getLogger(__name__)

TURN_BYTES = 4 << 20
"""The budget of a turn on append threads: about 16 ms of gzip."""

SLOW_S = 1.0
"""An append whose validation takes longer is in the log."""

WARNING_PERIOD_S = 60.0


class LongValidations:
    """The long validations of all partitions. Thread-safe: `_lock` guards the count and the time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._stop = StopSignal()
        self._lock = threading.Lock()
        self._turn_count = 0
        self._warned_s: float | None = None

    @property
    def turn_count(self) -> int:
        """Turns that exceeded their budget, on threads for long validation, since the start."""
        return self._turn_count

    def end(self) -> None:
        """End all validation that has to ask, from now on, with StoppingError."""
        self._stop.set()

    def check(self) -> None:
        """Raise StoppingError after `end`."""
        self._stop.check()

    def add_turn(self) -> None:
        """Count a turn that exceeded its budget."""
        with self._lock:
            self._turn_count += 1

    def note(self, partition: TopicPartition, duration_s: float) -> None:
        """Log that an append has been validated for so long, once in `WARNING_PERIOD_S` at most."""
        if duration_s <= SLOW_S:
            return
        now_s = self.clock.monotonic_s()
        with self._lock:
            if self._warned_s is not None and now_s - self._warned_s < WARNING_PERIOD_S:
                return
            self._warned_s = now_s
        logger.warning(
            "an append to %s has been decompressed, or compressed in the topic's codec, for %.1f s; send less"
            " in a request, or lower the topic's level of compression",
            partition,
            duration_s,
        )


class TurnWork:
    """The work of validation in the turns of one partition. Belongs to the thread of the turn."""

    __slots__ = ("_asked_bytes", "_began_s", "_has_budget", "_of", "_spent_bytes", "_validations", "is_over")

    def __init__(self, validations: LongValidations) -> None:
        self._validations = validations
        self._has_budget = False
        self.is_over = False
        """Whether the turn has exceeded the budget."""
        self._spent_bytes = self._asked_bytes = 0
        self._of: PendingAppend | None = None
        """The append that is being validated, on threads for long validation."""
        self._began_s = 0.0

    def begin(self, *, has_budget: bool) -> None:
        """Begin a turn."""
        self._has_budget, self.is_over = has_budget, False
        self._spent_bytes = 0

    def end(self) -> None:
        """End the turn, and count it if it was a long one."""
        self._of = None
        if self.is_over and not self._has_budget:
            self._validations.add_turn()

    def add(self, append: PendingAppend, size_bytes: int) -> None:
        """Add work for an append. Raises StoppingError; LongWorkError if it exceeds the budget."""
        self._validations.check()
        self._asked_bytes = size_bytes
        self._spent_bytes += size_bytes
        if self._spent_bytes > TURN_BYTES:
            self.is_over = True
            if self._has_budget:
                raise LongWorkError
        if self._has_budget:
            return
        now_s = self._validations.clock.monotonic_s()
        # Work like this is no disk that hangs; the write behind the last step may be one.
        note_step(now_s)
        if append is self._of:
            self._validations.note(append.identity.topic_partition, now_s - self._began_s)
        else:
            self._of, self._began_s = append, now_s

    def count(self, size_bytes: int) -> None:
        """Count the work that was added last as so much, as it turned out."""
        self._spent_bytes += size_bytes - self._asked_bytes
        self._asked_bytes = size_bytes


class AppendUnpacking:
    """The `Unpacking` of one append in one turn. Immutable; belongs to the thread of the turn."""

    __slots__ = ("_append", "_turn")

    def __init__(self, append: PendingAppend, turn: TurnWork) -> None:
        self._append = append
        self._turn = turn

    def work(self, size_bytes: int) -> None:
        """Add work. Raises StoppingError, PrecedingAppendFailedError, LongWorkError."""
        self._append.require_wanted()
        self._turn.add(self._append, size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Call `MemoryLease.hold`."""
        self._append.memory.hold(size_bytes)

    def count(self, size_bytes: int) -> None:
        """Note that so many bytes were decompressed."""
        self._append.memory.count(size_bytes)
        self._turn.count(size_bytes)
