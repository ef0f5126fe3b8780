"""Runs the coroutines of commands that talk to a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from stratalog.cli.options import chosen_credentials

if TYPE_CHECKING:
    from stratalog.client.client import Client

_T = TypeVar("_T")

PATIENCE_S = 2.0
QUOTA_PATIENCE_S = 660.0
"""A quota of the server asks for pauses of ten minutes at most."""


def with_client(server: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
    """Run `work` with a client of `server`, which has the credentials of the command's options. It gives up
    sooner than a program, because a person waits; but a quota only slows it down, as the server asks."""
    # Not above: `--help` of a command needs no client.
    import asyncio

    from stratalog.client.access.credentials import Credentials
    from stratalog.client.client import Client
    from stratalog.client.retry import RetryPolicy

    async def run() -> _T:
        retry = RetryPolicy(deadline_s=PATIENCE_S, quota_deadline_s=QUOTA_PATIENCE_S)
        credentials = Credentials(**chosen_credentials())
        async with Client(server, retry=retry, credentials=credentials) as client:
            return await work(client)

    return asyncio.run(run())
