"""An append on its way to the log, and the session that it may belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability


class Appended(NamedTuple):
    """What an acknowledged append is told."""

    base_offset: int
    last_offset: int
    log_start_offset: int
    durability: Durability


class AppendSession:
    """Appends of which none may be applied behind a failed one. `is_broken` is set and read by writers on
    their threads.

    A session has appends under way in one partition at a time (its stream waits before it turns to another),
    so one writer at a time touches it.
    """

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


@dataclass(frozen=True, slots=True, eq=False)
class PendingAppend:
    """One request's worth of batches, waiting for its partition's writer, who owns it once submitted."""

    batches: Buffer | Callable[[], Buffer]
    """Encoded batches, or what encodes them: called on the writer's thread, may raise LogStoreError."""

    durability: Durability
    """What must hold before `future` is resolved: OS or DISK."""

    future: asyncio.Future[Appended]
    session: AppendSession | None = None


class SessionBrokenError(Exception):
    """An earlier append of the same stream failed, so this one was not applied. Never leaves the server: the
    stream ends with the earlier error.
    """
