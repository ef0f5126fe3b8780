"""Unary calls: which are made again, after which failures, at which servers, and until when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from grpc_status import rpc_status

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    OverloadedError,
    StartingError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.client import channel as channel_module
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import ClientClosedError, ServerUnavailableError
from stratalog.client.retry import RetryPolicy
from stratalog.server.rpc.status import status_of_error
from stratalog.v1 import partition_pb2
from tests.support.slow_time import SlowTime

A, B = "127.0.0.1:1", "127.0.0.1:2"
QUICK = RetryPolicy(deadline_s=60.0, first_pause_s=0.0001, max_pause_s=0.0002)
IMPATIENT = RetryPolicy(deadline_s=0.02, first_pause_s=0.001, max_pause_s=0.002)


def call_error(error: LogStoreError) -> grpc.aio.AioRpcError:
    """The failure of a call that a server ends with the error."""
    rich = rpc_status.to_status(status_of_error(error))  # pyright: ignore[reportUnknownMemberType]  # its parameter has no type
    metadata = grpc.aio.Metadata(*rich.trailing_metadata)
    return grpc.aio.AioRpcError(rich.code, grpc.aio.Metadata(), metadata, rich.details)


class Slow(NamedTuple):
    """The outcome of a call that lets time pass."""

    begin: Callable[[], None]


class Scripted:
    """A call with these outcomes in turn; the last one repeats."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = outcomes
        self.count = 0
        self.on_begin: Callable[[], None] = lambda: None

    def __await__(self) -> Generator[Any, Any, Any]:
        self.on_begin()
        outcome = self.outcomes[min(self.count, len(self.outcomes) - 1)]
        self.count += 1
        if isinstance(outcome, LogStoreError):
            raise call_error(outcome)
        if isinstance(outcome, Slow):
            outcome.begin()
            # A timeout that is over comes now.
            yield from asyncio.sleep(0).__await__()
            yield from asyncio.sleep(0).__await__()
            return "slow"
        yield from ()
        return outcome


@contextmanager
def silent_address() -> Generator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest_asyncio.fixture
async def servers() -> AsyncGenerator[list[str]]:
    """The addresses of two servers that only take connections."""
    running = [grpc.aio.server() for _ in range(2)]
    addresses = [f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}" for server in running]
    for server in running:
        await server.start()
    yield addresses
    for server in running:
        await server.stop(0)


def rolled(failure: LogStoreError | None) -> partition_pb2.RollResponse:
    """An answer with one part."""
    error = None if failure is None else status_of_error(failure)
    return partition_pb2.RollResponse(partitions=[partition_pb2.RolledPartition(partition=0, error=error)])


AWAY = StoreUnavailableError("away")


async def test_a_repeatable_call_is_made_again_after_a_retriable_failure() -> None:
    call = Scripted(AWAY, AWAY, AWAY, "done")
    assert await ServerChannel(A, QUICK).call(call, is_repeatable=True) == "done"
    assert call.count == 4


async def test_any_other_failure_is_raised_at_once() -> None:
    call = Scripted(UnknownTopicOrPartitionError("no such topic"), "done")
    with pytest.raises(UnknownTopicOrPartitionError):
        await ServerChannel(A, QUICK).call(call, is_repeatable=True)
    assert call.count == 1


async def test_a_change_is_made_again_only_after_a_refusal_without_effect() -> None:
    refused = Scripted(OverloadedError("no room"), OverloadedError("no room"), "done")
    assert await ServerChannel(A, QUICK).call(refused) == "done"
    unknown = Scripted(AWAY, "done")
    with pytest.raises(StoreUnavailableError):
        await ServerChannel(A, QUICK).call(unknown)
    assert (refused.count, unknown.count) == (3, 1)


async def test_a_call_has_one_budget_for_owners_and_repetitions(
    monkeypatch: pytest.MonkeyPatch, servers: Sequence[str]
) -> None:
    first, second = servers
    time = SlowTime(monkeypatch)
    call = Scripted(
        NotOwnerError("replaced", endpoint=second), AWAY, NotOwnerError("replaced", endpoint=first), "done"
    )
    call.on_begin = time.pass_s(4.0)
    policy = RetryPolicy(deadline_s=10.0, first_pause_s=0.0001, max_pause_s=0.0002)
    with pytest.raises(NotOwnerError):
        await ServerChannel(first, policy).call(call, is_repeatable=True)
    assert call.count == 3, "attempts begin after 0, 4 and 8 seconds, and none after 12"


async def test_a_call_leaves_a_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch, servers: Sequence[str]
) -> None:
    first, second = servers
    hanging = Slow(SlowTime(monkeypatch).pass_s(31.0))
    channel = ServerChannel(f"{first},{second}", QUICK)
    call = Scripted(hanging, "done")
    assert await channel.call(call, is_repeatable=True) == "done"
    assert (call.count, channel.address) == (2, second)


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_a_call_leaves_a_server_that_is_not_open_yet(
    servers: Sequence[str], is_repeatable: bool
) -> None:
    first, second = servers
    channel = ServerChannel(f"{first},{second}", QUICK)
    call = Scripted(StartingError("opening"), "done")
    assert await channel.call(call, is_repeatable=is_repeatable) == "done"
    assert (call.count, channel.address) == (2, second)
    alone = ServerChannel(first, QUICK)
    assert await alone.call(Scripted(StartingError("opening"), "done"), is_repeatable=is_repeatable) == "done"


async def test_a_server_that_is_slow_but_has_no_other_gets_time(
    monkeypatch: pytest.MonkeyPatch, servers: Sequence[str]
) -> None:
    first, second = servers
    slow = Slow(SlowTime(monkeypatch).pass_s(31.0))
    call = Scripted(slow, NotOwnerError("replaced", endpoint=first), slow)
    assert await ServerChannel(f"{first},{second}", QUICK).call(call, is_repeatable=True) == "slow"
    assert call.count == 3
    alone = Scripted(slow)
    assert await ServerChannel(first, QUICK).call(alone, is_repeatable=True) == "slow"
    assert alone.count == 1


async def test_neither_a_change_nor_a_wait_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, servers: Sequence[str]
) -> None:
    slow = Slow(SlowTime(monkeypatch).pass_s(31.0))
    channel = ServerChannel(",".join(servers), QUICK)
    change, waiting = Scripted(slow), Scripted(slow)
    assert await channel.call(change) == "slow"
    assert await channel.call(waiting, is_repeatable=True, wait_s=20.0) == "slow"
    assert (change.count, waiting.count) == (1, 1)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9190", "//127.0.0.1:9190", "127.0.0.1:9190/x", "a"])
def test_an_address_has_neither_scheme_nor_path(address: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ServerChannel(address)
    assert caught.value.fields == {"server": address}


def test_a_ping_is_waited_for_no_longer_than_the_connection_may_be_silent() -> None:
    options = dict(channel_module.CHANNEL_OPTIONS)
    assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]


async def test_a_call_without_retries_follows_no_owner(servers: Sequence[str]) -> None:
    first, second = servers
    channel = ServerChannel(first, RetryPolicy(deadline_s=0))
    call = Scripted(NotOwnerError("replaced", endpoint=second), "done")
    with pytest.raises(NotOwnerError):
        await channel.call(call, is_repeatable=True)
    assert (call.count, channel.address) == (1, first)


async def test_a_call_is_made_again_if_a_part_of_its_answer_has_another_owner(servers: Sequence[str]) -> None:
    first, second = servers
    refused, done = rolled(NotOwnerError("replaced", endpoint=second)), rolled(None)
    channel = ServerChannel(first, QUICK)
    call = Scripted(refused, done)
    answer = await channel.call(call, is_repeatable=True, parts=lambda one: one.partitions)
    assert answer == done
    assert (call.count, channel.address) == (2, second)
    # Parts that the caller does not name are its own affair, and so are other failures.
    assert await ServerChannel(first, QUICK).call(Scripted(refused), is_repeatable=True) == refused
    failed = rolled(AWAY)
    call = Scripted(failed)
    assert await channel.call(call, is_repeatable=True, parts=lambda one: one.partitions) == failed


async def test_silent_addresses_share_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "CONNECT_TIMEOUT_S", 0.3)
    with ExitStack() as stack:
        silent = ",".join(stack.enter_context(silent_address()) for _ in range(3))
        # The transport itself waits five seconds for each.
        async with asyncio.timeout(12):
            with pytest.raises(ServerUnavailableError):
                await ServerChannel(silent, IMPATIENT).call(Scripted("done"), is_repeatable=True)


async def test_a_call_moves_on_from_an_address_that_is_silent(servers: Sequence[str]) -> None:
    call = Scripted("done")
    with silent_address() as silent:
        channel = ServerChannel(f"{silent},{servers[0]}", RetryPolicy(deadline_s=0.1))
        assert await channel.call(call) == "done"
    assert (call.count, channel.address) == (1, servers[0])


async def test_a_closed_channel_makes_no_call() -> None:
    channel = ServerChannel(f"{A},{B}", QUICK)
    await channel.close()
    call = Scripted("done")
    with pytest.raises(ClientClosedError):
        await channel.call(call, is_repeatable=True)
    assert call.count == 0
