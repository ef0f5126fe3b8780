"""Runs the coroutines of commands that talk to a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stratalog.client.client import Client

_T = TypeVar("_T")


def with_client(server: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
    """Run `work` with a client of `server`. It gives up sooner than a program, because a person waits."""
    # Not above: `--help` of a command needs no client.
    import asyncio

    from stratalog.client.client import Client
    from stratalog.client.retry import RetryPolicy

    async def run() -> _T:
        async with Client(server, retry=RetryPolicy(deadline_s=2.0)) as client:
            return await work(client)

    return asyncio.run(run())
