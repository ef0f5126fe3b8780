"""The partitions whose cleaning failed: the reason, the time of the first failure, the time of the next try.

A failure keeps the cleaner away from one partition for a while, and from no other. The wait doubles with
every failure in a row, up to half an hour, less a random part, so that partitions that failed together do not
come back together. A clean that succeeds, or an operator's reset, forgets the failure.

A clean that ends where it began has failed too: an immediate repetition would never end. The second such
failure in a row is an alarm, because only a human can find its cause.
"""

from __future__ import annotations

import random
import threading
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.types import TopicPartition
from stratalog.cleaner.failure_kind import FailureKind

FIRST_DELAY_MS = 15_000
MAX_DELAY_MS = 30 * 60 * 1000
JITTER = 0.2
"""The largest part of a delay that chance removes."""
ALARM_AFTER = 2
"""Cleans without progress in a row that make an alarm."""


class CleaningFailure(NamedTuple):
    """A partition that is not cleaned for now, and why."""

    partition: TopicPartition
    directory: str
    """The log directory that holds it."""
    kind: FailureKind
    reason: str
    since_ms: int
    """Time of the first of the failures in a row."""
    failure_count: int
    """The number of failures in a row."""
    next_try_ms: int
    """Wall time of the next try; later if no worker is free."""
    dirty_bytes: int
    """Bytes that wait to be cleaned, at the last look."""
    no_progress_count: int
    """The number of cleans without progress in a row."""

    @property
    def is_alarm(self) -> bool:
        return self.no_progress_count >= ALARM_AFTER


class CleanerFailures:
    """The current failures. Thread-safe: `_guard` is held for single steps, and nothing is called under
    it."""

    def __init__(self, clock: Clock, random_source: random.Random) -> None:
        self._clock = clock
        self._random = random_source
        self._guard = threading.Lock()
        self._failures: dict[TopicPartition, CleaningFailure] = {}
        # In monotonic time: a wall clock that is set back must not keep a partition from being cleaned.
        self._retry_at_ms: dict[TopicPartition, int] = {}

    def record(
        self, partition: TopicPartition, directory: str, kind: FailureKind, reason: str, dirty_bytes: int
    ) -> CleaningFailure:
        """Record another failure of the partition, and return the whole record."""
        now_ms, elapsed_ms = self._clock.now_ms(), self._elapsed_ms()
        with self._guard:
            former = self._failures.get(partition)
            failure_count = 1 if former is None else former.failure_count + 1
            no_progress_count = 0
            if kind is FailureKind.NO_PROGRESS:
                no_progress_count = 1 if former is None else former.no_progress_count + 1
            delay_ms = self._delay_ms(failure_count)
            failure = CleaningFailure(
                partition,
                directory,
                kind,
                reason,
                since_ms=now_ms if former is None else former.since_ms,
                failure_count=failure_count,
                next_try_ms=now_ms + delay_ms,
                dirty_bytes=dirty_bytes,
                no_progress_count=no_progress_count,
            )
            self._failures[partition] = failure
            self._retry_at_ms[partition] = elapsed_ms + delay_ms
        return failure

    def _delay_ms(self, failure_count: int) -> int:
        # The exponent is bounded too: a partition may fail for years.
        delay_ms = min(MAX_DELAY_MS, FIRST_DELAY_MS << min(failure_count - 1, 16))
        return round(delay_ms * (1 - JITTER * self._random.random()))

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the partition has failed and no clean has succeeded since."""
        return partition in self._failures

    def may_try(self, partition: TopicPartition) -> bool:
        """Return whether no failure keeps the partition from being cleaned now."""
        return self._elapsed_ms() >= self._retry_at_ms.get(partition, 0)

    def _elapsed_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)

    def note_dirty_bytes(self, partition: TopicPartition, dirty_bytes: int) -> None:
        """Update the waiting bytes of a partition that has failed."""
        with self._guard:
            failure = self._failures.get(partition)
            if failure is not None:
                self._failures[partition] = failure._replace(dirty_bytes=dirty_bytes)

    def reset(self, partition: TopicPartition) -> bool:
        """Forget that the partition failed; False if it had not."""
        with self._guard:
            self._retry_at_ms.pop(partition, None)
            return self._failures.pop(partition, None) is not None

    def keep_only(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget all other partitions: they are deleted, elsewhere, or no longer cleaned."""
        with self._guard:
            for partition in self._failures.keys() - partitions:
                del self._failures[partition], self._retry_at_ms[partition]

    def all(self) -> tuple[CleaningFailure, ...]:
        with self._guard:
            return tuple(self._failures[partition] for partition in sorted(self._failures))

    def check(self) -> None:
        """Prove that every failure has a time of the next try."""
        with self._guard:
            assert self._failures.keys() == self._retry_at_ms.keys()
            for failure in self._failures.values():
                assert failure.failure_count >= max(1, failure.no_progress_count)
