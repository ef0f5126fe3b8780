"""The options of commands that talk to a server, and the runner of their coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy

DEFAULT_SERVER = "127.0.0.1:9190"

_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def server_option(command: _Command) -> _Command:
    """Adds `--server`, which reads STRATALOG_SERVER."""
    option = click.option(
        "--server",
        envvar="STRATALOG_SERVER",
        show_envvar=True,
        default=DEFAULT_SERVER,
        show_default=True,
        metavar="HOST:PORT",
        help="The server to talk to.",
    )
    return option(command)


def json_option(command: _Command) -> _Command:
    """Adds `--json`, which becomes the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def with_client(server: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
    """Run `work` with a client of `server`. It gives up sooner than a program, because a person waits."""

    async def run() -> _T:
        async with Client(server, retry=RetryPolicy(deadline_s=2.0)) as client:
            return await work(client)

    return asyncio.run(run())
