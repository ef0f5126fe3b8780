"""A client that is closed ends the calls that wait, and refuses new ones, with an error of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator

import pytest

from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.errors import ClientClosedError
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.record.record import Record

WAIT_S = 60.0

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "list": lambda client: client.topics.list(),
    "append": lambda client: client.append("t", 0, [Record(0, 0, None, b"x")]),
    "offsets": lambda client: client.list_offsets([(TopicPartition("t", 0), "latest")]),
    "connect": lambda client: client.channel.connect(Patience(RetryPolicy())),
}


@pytest.fixture
def silent() -> Generator[str]:
    """An address that takes connections, and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("address_count", [1, 2])
async def test_a_close_ends_the_calls_that_wait(
    silent: str, call: Callable[[Client], Awaitable[object]], address_count: int
) -> None:
    client = Client(",".join([silent, "127.0.0.1:1"][:address_count]))
    waiting = asyncio.ensure_future(call(client))
    for _ in range(10):
        await asyncio.sleep(0)
    await client.close()
    for ended in (waiting, call(client)):
        with pytest.raises(ClientClosedError):
            await asyncio.wait_for(ended, WAIT_S)


async def test_a_cancelled_call_of_a_closed_client_is_cancelled(silent: str) -> None:
    client = Client(silent)
    waiting = asyncio.ensure_future(client.topics.list())
    await asyncio.sleep(0)
    waiting.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
