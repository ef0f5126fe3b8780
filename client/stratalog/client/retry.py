"""Retries: only of repeatable calls, only after retriable errors, with growing pauses up to a deadline.

Reads and look-ups are repeated freely. Changes are repeated only where the server says that they had no
effect: after a failed connection the outcome of an append is unknown, and repeating it could store its
records twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from stratalog.base.errors import LogStoreError
from stratalog.base.randomness import system_random

_T = TypeVar("_T")
_JITTER = system_random()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The deadline of retries and the pauses between them. A client with retries also follows the data to
    another server. Immutable.
    """

    deadline_s: float = 10.0
    """No attempt begins later than this after the first attempt began, or after a session broke. 0: one
    attempt.
    """

    first_pause_s: float = 0.05
    max_pause_s: float = 2.0

    def pause_s(self, attempt: int) -> float:
        """The pause before retry number `attempt`, from 1. It doubles each time; half of it is random, so
        that clients that failed together do not return together.
        """
        whole_s = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 30))
        return whole_s * (0.5 + _JITTER.random() / 2)


class Patience:
    """Counts consecutive failures of long work: a session, or the sending of a queue. Belongs to one task.
    Times are those of its loop.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failure_count = 0
        """Failures since the last success."""
        self._deadline_s = 0.0
        self._works_since_s: float | None = None

    def succeed(self) -> None:
        """Note a success: the next failure is the first one."""
        self.failure_count = 0

    def begin(self, now_s: float) -> None:
        """Note that the work has begun. It counts as a success once it has lasted longer than any pause."""
        self._works_since_s = now_s

    def next_pause_s(self, now_s: float, least_s: float = 0.0) -> float | None:
        """Count a failure; returns the pause before the next attempt, at least `least_s`. None if that
        attempt would begin after the deadline, which runs from the first failure.
        """
        since_s, self._works_since_s = self._works_since_s, None
        if since_s is not None and now_s - since_s > self._policy.max_pause_s:
            self.succeed()
        if self.failure_count == 0:
            self._deadline_s = now_s + self._policy.deadline_s
        self.failure_count += 1
        pause_s = max(self._policy.pause_s(self.failure_count), least_s)
        return pause_s if now_s + pause_s <= self._deadline_s else None

    async def bear(self, error: LogStoreError) -> None:
        """Count a failure, and pause before the next attempt, as long as the server asks for at least. Raises
        the error if it is not retriable, or the deadline is over.
        """
        now_s = asyncio.get_running_loop().time()
        pause_s = self.next_pause_s(now_s, error.retry_delay_s) if error.retriable else None
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)


async def retrying(
    policy: RetryPolicy,
    call: Callable[[], Awaitable[_T]],
    after: type[LogStoreError] | tuple[type[LogStoreError], ...] = LogStoreError,
) -> _T:
    """The result of `call`, which is repeated after retriable errors of these classes, until the policy's
    deadline. No pause is shorter than the server asks for.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + policy.deadline_s
    attempt = 0
    while True:
        try:
            return await call()
        except LogStoreError as error:
            attempt += 1
            pause_s = max(policy.pause_s(attempt), error.retry_delay_s)
            is_repeatable = error.retriable and isinstance(error, after)
            if not is_repeatable or loop.time() + pause_s > deadline_s:
                raise
        await asyncio.sleep(pause_s)
