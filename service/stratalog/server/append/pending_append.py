"""An append on its way to the log, and the session that it may belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.server.rpc.request_memory import MemoryLease


class Appended(NamedTuple):
    """What an acknowledged append is told."""

    base_offset: int
    last_offset: int
    log_start_offset: int
    durability: Durability
    is_duplicate: bool = False
    """It had been stored before, with these offsets."""


class AppendSession:
    """Appends of which none may be applied behind a failed one. `is_broken` is set and read by writers on
    their threads.

    A session has appends under way in one partition at a time (its stream waits before it turns to another),
    so one writer at a time touches it.
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
    """What must hold before `future` is resolved: OS or DISK."""

    future: asyncio.Future[Appended]

    memory: MemoryLease
    """What the batches take."""

    session: AppendSession | None = None

    def give_back_memory(self) -> None:
        """There is an answer, whether anybody waits for it or not; nothing is held any longer. Twice does no
        harm.
        """
        self.batches = b""
        self.memory.close()

    def take_batches(self) -> Buffer:
        """The encoded batches, once: they are not kept, or an append that waits for its fsync would hold what
        is written already. Raises LogStoreError.
        """
        batches, self.batches = self.batches, b""
        return batches() if callable(batches) else batches


class SessionBrokenError(Exception):
    """An earlier append of the same stream failed, so this one was not applied. Never leaves the server: the
    stream ends with the earlier error.
    """
