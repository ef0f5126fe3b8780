"""Learns of topics that other servers of the store, or jobs of Spark, have created since the last look at the
catalog.

A server follows the catalog every few seconds. A request about a topic that it does not know makes it look at
once, so that a refusal is true: it comes from a look that began after the request. Requests share looks. One
runs at a time. Wrong names cost the store little, because there is one look a second in the long run. A
script that describes many topics before it creates them does not wait: looks have credits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable

from stratalog.server.topics.topic_manager import TopicManager
from stratalog.server.worker_pools import WorkerPools

LOOK_PERIOD_S = 1.0
"""The time in which the right to one look comes back."""

MAX_LOOK_CREDITS = 1000
"""Looks that may follow each other without a pause after a time without looks."""


class MissedTopics:
    """Looks at the catalog for unknown topics. Belongs to the event loop."""

    def __init__(
        self,
        topics: TopicManager,
        pools: WorkerPools,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits for so many seconds."""
        self._topics = topics
        self._pools = pools
        self._pause = pause
        self._looking = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """The look that has not begun yet; requests wait for it."""
        self._due_s = -math.inf
        """The time of the loop at which the next look may begin: the longer ago, the more credits."""

    async def learn(self, names: Iterable[str]) -> None:
        """Look at the catalog if one of these topics is unknown. Raises StoreError."""
        if not self._topics.may_be_behind(names):
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._look())
            # All that wait may be cancelled; asyncio complains about errors that no code looks at.
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._next)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._looking:
            await self._pause(max(0.0, self._due_s - loop.time()))
            full_s = loop.time() - (MAX_LOOK_CREDITS - 1) * LOOK_PERIOD_S
            self._due_s = max(self._due_s, full_s) + LOOK_PERIOD_S
            # What comes from now on may be newer than the catalog that is read.
            self._next = None
            await self._pools.task(self._topics.learn)
