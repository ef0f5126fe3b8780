"""Runs the coroutines of commands that talk to a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy

_T = TypeVar("_T")


def with_client(server: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
    """Run `work` with a client of `server`. It gives up sooner than a program, because a person waits."""

    async def run() -> _T:
        async with Client(server, retry=RetryPolicy(deadline_s=2.0)) as client:
            return await work(client)

    return asyncio.run(run())
