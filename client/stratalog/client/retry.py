"""Retries: after retriable errors, with growing pauses up to a deadline. `ServerChannel.call` repeats unary
calls, and long work counts its own failures with `Patience`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.base.randomness import system_random

_JITTER = system_random()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The deadline of retries and the pauses between them. A client with retries also follows the data to
    another server. Immutable.
    """

    deadline_s: float = 10.0
    """No attempt of a call begins later than this after its first one began, whichever servers it goes to.
    No session begins later than this after one broke, and no batch is sent later than this after the first
    failure in a row. 0: one attempt.

    Keep it below 15 minutes for idempotent appends: a server that knows as many producers as it may forgets
    those that have been idle for so long, and a batch that is sent again after that may be stored twice.
    """

    quota_deadline_s: float = 0.0
    """The deadline where a quota of the server refuses, if it is later: the server works, and says when to
    come again, which may be ten minutes later.
    """

    first_pause_s: float = 0.05
    max_pause_s: float = 2.0

    def pause_s(self, attempt: int) -> float:
        """The pause before retry number `attempt`, from 1. It doubles each time; half of it is random, so
        that clients that failed together do not return together.
        """
        whole_s = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 30))
        return whole_s * (0.5 + _JITTER.random() / 2)


def is_of_quota(error: LogStoreError) -> bool:
    """Whether a quota of the principal has refused the call, which had no effect."""
    return isinstance(error, OverloadedError) and "quota" in error.fields


LONG_WORK = RetryPolicy(deadline_s=120.0)
"""The default of producers and consumers, with the time of Kafka's `delivery.timeout.ms`: they outlast an
ordinary restart of the server. A caller waits for the end of a call, so its default is `RetryPolicy()`.
"""


class Patience:
    """Counts consecutive failures of a call, or of long work: a session, or the sending of a queue. Belongs
    to one task. Times are those of its loop.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failure_count = 0
        """Failures since the last success."""
        self._start_s = 0.0
        """The start of the deadline, after a failure."""
        self._works_since_s: float | None = None
        self._was_quota = False
        """Whether a quota was the cause of the last failure."""

    def succeed(self) -> None:
        """Note a success: the next failure is the first one."""
        self.failure_count = 0

    def begin(self, now_s: float) -> None:
        """Note that the work has begun. It counts as a success once it has lasted longer than any pause."""
        self._works_since_s = now_s

    def start_s(self, attempt_s: float) -> float:
        """The start of the deadline for an attempt that began at `attempt_s`: that of the first one in a row
        that failed, if any has.
        """
        return self._start_s if self.failure_count else attempt_s

    def end_s(self, attempt_s: float, least_s: float = 0.0) -> float:
        """The deadline of an attempt that began at `attempt_s`: so long after `start_s` as the policy says,
        or `least_s` if that is longer.
        """
        return self.start_s(attempt_s) + max(self._policy.deadline_s, least_s)

    def next_pause_s(
        self, now_s: float, cause: LogStoreError, attempt_s: float | None = None
    ) -> float | None:
        """Count a failure; returns the pause before the next attempt, as long as the cause asks for at least.
        None if that attempt would begin after the deadline. It runs from the first failure in a row or, with
        `attempt_s`, from the begin of the attempt that failed so. Behind a refusal of a quota another failure
        is the first one: the server worked, and the pause may have been longer than the deadline.
        """
        is_quota = is_of_quota(cause)
        if self._was_quota and not is_quota:
            self.succeed()
        self._was_quota = is_quota
        since_s, self._works_since_s = self._works_since_s, None
        if since_s is not None and now_s - since_s > self._policy.max_pause_s:
            self.succeed()
        self._start_s = self.start_s(now_s if attempt_s is None else attempt_s)
        self.failure_count += 1
        pause_s = max(self._policy.pause_s(self.failure_count), cause.retry_delay_s)
        least_s = self._policy.quota_deadline_s if is_quota else 0.0
        return pause_s if now_s + pause_s <= self.end_s(now_s, least_s) else None

    async def bear(
        self,
        error: LogStoreError,
        attempt_s: float | None = None,
        on_first: Callable[[LogStoreError], None] | None = None,
    ) -> None:
        """Count a failure, and pause before the next attempt, as long as the server asks for at least. The
        deadline is that of `next_pause_s`. `on_first` is called before the pause after the first failure in a
        row. Raises the error if it is not retriable, or the deadline is over.
        """
        now_s = asyncio.get_running_loop().time()
        pause_s = self.next_pause_s(now_s, error, attempt_s) if error.retriable else None
        if pause_s is None:
            raise error
        if on_first is not None and self.failure_count == 1:
            on_first(error)
        await asyncio.sleep(pause_s)
