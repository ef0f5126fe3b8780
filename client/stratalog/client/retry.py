"""Trying again: only what may be repeated, only after errors that say so, with growing pauses up to a
deadline.

Reads and look-ups repeat freely. Changes repeat only where the server says that nothing of them took effect:
after a failure of the connection nobody knows whether an append did, and repeating it could store its records
twice.
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
    """How long to keep trying, and the pauses between."""

    deadline_s: float = 10.0
    """No attempt begins later than this after the first one began; of a session, after it broke. 0: one
    attempt.
    """

    first_pause_s: float = 0.05
    max_pause_s: float = 2.0

    def pause_s(self, attempt: int) -> float:
        """Before attempt number `attempt` (the first retry is 1): doubles each time, half of it by chance, so
        that clients which failed together do not come back together.
        """
        whole_s = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 30))
        return whole_s * (0.5 + _JITTER.random() / 2)


class Patience:
    """The failures in a row of something that goes on for long: a session, a queue that is sent. Belongs to
    one task. Times are those of its loop.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.failure_count = 0
        """Since it worked last."""
        self._deadline_s = 0.0
        self._works_since_s: float | None = None

    def succeed(self) -> None:
        """It works: the next failure is the first one."""
        self.failure_count = 0

    def begin(self, now_s: float) -> None:
        """It seems to work. Once that has lasted for longer than any pause, it did: what breaks at once every
        time does not work.
        """
        self._works_since_s = now_s

    def next_pause_s(self, now_s: float) -> float | None:
        """Count a failure: how long to wait for the next attempt. None where that would begin too late: the
        policy's deadline runs from the first failure on.
        """
        since_s, self._works_since_s = self._works_since_s, None
        if since_s is not None and now_s - since_s > self._policy.max_pause_s:
            self.succeed()
        if self.failure_count == 0:
            self._deadline_s = now_s + self._policy.deadline_s
        self.failure_count += 1
        pause_s = self._policy.pause_s(self.failure_count)
        return pause_s if now_s + pause_s <= self._deadline_s else None


async def retrying(
    policy: RetryPolicy, call: Callable[[], Awaitable[_T]], after: type[LogStoreError] = LogStoreError
) -> _T:
    """The result of `call`, which is repeated until the policy's deadline after retriable errors, or those of
    them that are `after`.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + policy.deadline_s
    attempt = 0
    while True:
        try:
            return await call()
        except LogStoreError as error:
            attempt += 1
            pause_s = policy.pause_s(attempt)
            is_repeatable = error.retriable and isinstance(error, after)
            if not is_repeatable or loop.time() + pause_s > deadline_s:
                raise
        await asyncio.sleep(pause_s)
