"""The way of staged batches to their partitions: the next ones are read while the last ones are appended.

Each partition has a lane, which appends in order, one batch at a time; lanes run side by side. The batches
that were read and wait for their lane are bounded in bytes, all lanes together. After a failure nothing more
is begun, and what runs comes to its end, so that no append is left behind in doubt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from stratalog.pipeline.sink.target_appender import TargetAppender
from stratalog.pipeline.sink.target_batches import Target, TargetBatch

MAX_WAITING_BYTES = 16 << 20
"""The batch that reaches this is the last one that is read before others are appended."""


class TargetLanes:
    """Passes batches to the appenders of their partitions. Belongs to one task of an event loop."""

    def __init__(self, appenders: Mapping[Target, TargetAppender]) -> None:
        self._appenders = appenders
        self._waiting: dict[Target, deque[bytes]] = {target: deque() for target in appenders}
        self._waiting_bytes = 0
        self._running: dict[Target, asyncio.Task[None]] = {}
        """The lanes that have batches."""
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        """A batch has left its lane, or a lane has failed."""

    async def add(self, one: TargetBatch) -> None:
        """Take a batch; returns once there is room for the next one. Raises the first failure of a lane."""
        self._waiting[one.target].append(one.batch)
        self._waiting_bytes += len(one.batch)
        if one.target not in self._running:
            self._running[one.target] = asyncio.create_task(self._run(one.target))
        while self._waiting_bytes >= MAX_WAITING_BYTES and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        self._require_sound()

    async def finish(self) -> None:
        """Append all batches, the last one of each partition too. Raises the first failure of a lane, when no
        lane runs any more."""
        await self.rest()
        self._require_sound()
        outcomes = await asyncio.gather(
            *(appender.finish() for appender in self._appenders.values()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def rest(self) -> None:
        """Wait until no lane runs."""
        while self._running:
            await asyncio.wait(self._running.values())

    def abandon(self) -> None:
        """Begin no append any more."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._waiting_bytes = 0

    async def _run(self, target: Target) -> None:
        """Append the batches of a lane until none waits."""
        waiting, appender = self._waiting[target], self._appenders[target]
        try:
            while waiting:
                batch = waiting.popleft()
                self._waiting_bytes -= len(batch)
                self._changed.set()
                await appender.add(batch)
        except BaseException as error:  # noqa: BLE001 - it is raised where the batches come from
            self._failure = self._failure or error
            self.abandon()
        finally:
            del self._running[target]
            self._changed.set()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise self._failure
