"""The partitions whose cleaning failed: why, since when, and when it is tried again.

A failure keeps the cleaner from one partition for a while, and from nothing else. The wait doubles with every
failure in a row, up to half an hour, less a random part, so that many that failed together do not come back
together. A clean that succeeds, or an operator's reset, forgets the failure.

A clean that ends where it began has failed too: trying it again at once would never end. The second one in a
row is an alarm: nobody but a human will find out what keeps it.
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
"""The largest part of a delay that chance takes off."""
ALARM_AFTER = 2
"""So many cleans in a row without progress."""


class CleaningFailure(NamedTuple):
    """A partition that is not cleaned for now."""

    partition: TopicPartition
    directory: str
    """The log directory that holds it."""
    kind: FailureKind
    reason: str
    since_ms: int
    """When it failed first, of the failures in a row."""
    failure_count: int
    """In a row."""
    next_try_ms: int
    """Wall time of the next try, as far as a worker is free then."""
    dirty_bytes: int
    """What waits to be cleaned, at the last look."""
    no_progress_count: int
    """Cleans without progress, in a row."""

    @property
    def is_alarm(self) -> bool:
        """A human has to look at it."""
        return self.no_progress_count >= ALARM_AFTER


class CleanerFailures:
    """Thread-safe: `_guard` is held for single steps, and nothing is called under it."""

    def __init__(self, clock: Clock, random_source: random.Random) -> None:
        self._clock = clock
        self._random = random_source
        self._guard = threading.Lock()
        self._failures: dict[TopicPartition, CleaningFailure] = {}
        # In monotonic time: a wall clock that is put back must not keep a partition from being cleaned.
        self._retry_at_ms: dict[TopicPartition, int] = {}

    def record(
        self, partition: TopicPartition, directory: str, kind: FailureKind, reason: str, dirty_bytes: int
    ) -> CleaningFailure:
        """Another failure of the partition; returns what is known of it now."""
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
        """It has failed, and no clean has succeeded since."""
        return partition in self._failures

    def may_try(self, partition: TopicPartition) -> bool:
        """Nothing is known against cleaning it now."""
        return self._elapsed_ms() >= self._retry_at_ms.get(partition, 0)

    def _elapsed_ms(self) -> int:
        return round(self._clock.monotonic_s() * 1000)

    def note_dirty_bytes(self, partition: TopicPartition, dirty_bytes: int) -> None:
        """Keep what waits up to date, where the partition is one that failed."""
        with self._guard:
            failure = self._failures.get(partition)
            if failure is not None:
                self._failures[partition] = failure._replace(dirty_bytes=dirty_bytes)

    def reset(self, partition: TopicPartition) -> bool:
        """Forget that the partition failed; False where it had not."""
        with self._guard:
            self._retry_at_ms.pop(partition, None)
            return self._failures.pop(partition, None) is not None

    def keep_only(self, partitions: frozenset[TopicPartition]) -> None:
        """Forget all others: they are not here, or not cleaned, any more."""
        with self._guard:
            for partition in self._failures.keys() - partitions:
                del self._failures[partition], self._retry_at_ms[partition]

    def all(self) -> tuple[CleaningFailure, ...]:
        """By partition."""
        with self._guard:
            return tuple(self._failures[partition] for partition in sorted(self._failures))

    def check(self) -> None:
        """Prove that every failure has an end of its wait."""
        with self._guard:
            assert self._failures.keys() == self._retry_at_ms.keys()
            for failure in self._failures.values():
                assert failure.failure_count >= max(1, failure.no_progress_count)
