"""An append on its way to the log, and the session that it may belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.request_memory import MemoryLease


class AppendSession:
    """The appends of a stream: after a failed one none may be applied. Writers set and read `is_broken` on
    their threads; one writer at a time, because the stream waits before it turns to another partition.
    """

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


@dataclass(slots=True, eq=False)
class PendingAppend:
    """One request's worth of batches, waiting for its partition's writer. Guarded by being passed on: it is
    the event loop's until it is submitted, then the writer's, and the loop's again with its answer.
    """

    batches: Buffer | Callable[[], Buffer]
    """Encoded batches, or what encodes them: called on the writer's thread, may raise LogStoreError."""

    durability: Durability
    """The durability that the append needs before `future` is resolved: OS or DISK. The writer raises it to
    the level of the topic."""

    future: asyncio.Future[AppendInfo]

    memory: MemoryLease
    """The memory of the batches."""

    size_bytes: int
    """The size of the request on the wire."""

    session: AppendSession | None = None

    def give_back_memory(self) -> None:
        """Give back the memory once there is an answer. May be called twice."""
        self.batches = b""
        self.memory.close()

    def take_batches(self) -> Buffer:
        """Return the encoded batches and forget them, so that an append that waits for its fsync does not
        hold written bytes. May be called once. Raises LogStoreError.
        """
        batches, self.batches = self.batches, b""
        return batches() if callable(batches) else batches


class SessionBrokenError(Exception):
    """An earlier append of the same stream failed, so this one was not applied. Never leaves the server: the
    stream ends with the earlier error.
    """
