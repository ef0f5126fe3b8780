"""While the store is away, appends that wait for it leave calls and memory to those that need none of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.client.errors import error_of_call
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.call_counts import CallKind
from stratalog.v1 import log_pb2, log_pb2_grpc
from tests.support.access.guarded_site import GuardedSite
from tests.support.service.health_check import require_health
from tests.support.service.service_bench import ServiceBench, service_bench, until
from tests.support.tiered.stores.away_store import AwayStore

LIMIT = 8
SHARE = 6
MIB = 1 << 20
LEVELS = ("os", "disk", "object")


def one_record(topic: str, size_bytes: int = 1) -> log_pb2.AppendRequest:
    records = log_pb2.Records(records=[log_pb2.Record(value=bytes(size_bytes))])
    return log_pb2.AppendRequest(topic=topic, partition=0, records=records)


async def refusal_of(call: Any) -> LogStoreError:
    """The error that ends the call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of_call(caught.value, "")


def bound_of(error: LogStoreError) -> dict[str, object]:
    """The fields of a refusal without the partition."""
    return {name: value for name, value in error.fields.items() if name not in ("topic", "partition")}


@asynccontextmanager
async def connection(address: str) -> AsyncGenerator[Any]:
    """A stub of a connection that no other channel has."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield log_pb2_grpc.LogServiceStub(cast(Any, channel))


@asynccontextmanager
async def world(folder: Path, **settings: Any) -> AsyncGenerator[tuple[ServiceBench, AwayStore]]:
    """A server whose store is away, with a topic of each durability, by its name."""
    store = AwayStore(MemoryObjectStore(SystemClock()))
    async with service_bench(folder, store=store, max_append_call_count=LIMIT, **settings) as bench:
        for level in LEVELS:
            await bench.client.admin.create_topic(level, 1, {"min.durability": level})
        store.is_away = True
        yield bench, store


async def test_appends_at_object_keep_no_other_append_out_while_the_store_is_away(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bench, store = await stack.enter_async_context(world(tmp_path))
        stubs = [await stack.enter_async_context(connection(bench.client.address)) for _ in range(2)]
        appends, commits = bench.server.calls[CallKind.APPEND], bench.server.calls[CallKind.COMMIT]
        waiting = [
            asyncio.ensure_future(stubs[number % 2].Append(one_record("object"))) for number in range(LIMIT)
        ]
        await until(lambda: commits.open_count == LIMIT)
        assert appends.open_count == 0
        # Of the same client, and of another one.
        for stub in (stubs[0], bench.client.log):
            for level in ("os", "disk"):
                await stub.Append(one_record(level))
        error = await refusal_of(stubs[0].Append(one_record("object")))
        assert isinstance(error, OverloadedError)
        assert error.retriable
        assert error.retry_delay_s > 0
        assert bound_of(error) == {"kind": "commit", "limit": LIMIT}
        assert (appends.refused_count, commits.refused_count) == (0, 1)
        await require_health(bench.client.address)
        store.is_away = False
        offsets = {(await one).base_offset for one in waiting}
        # The refused one had no effect.
        assert offsets == set(range(LIMIT))
        await stubs[0].Append(one_record("object"))
        await until(lambda: appends.open_count == commits.open_count == 0)
        await until(lambda: bench.server.append_memory.held_bytes == 0)


async def test_appends_at_object_leave_room_on_their_connection(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bench, _store = await stack.enter_async_context(world(tmp_path, max_connection_call_count=4))
        one, other = [await stack.enter_async_context(connection(bench.client.address)) for _ in range(2)]
        commits = bench.server.calls[CallKind.COMMIT]
        waiting = [asyncio.ensure_future(one.Append(one_record("object"))) for _ in range(3)]
        await until(lambda: commits.open_count == 3)
        error = await refusal_of(one.Append(one_record("object")))
        assert bound_of(error) == {"kind": "commit", "limit": 3}
        await one.Append(one_record("disk"))
        waiting.append(asyncio.ensure_future(other.Append(one_record("object"))))
        await until(lambda: commits.open_count == 4)
        for call in waiting:
            call.cancel()
        await until(lambda: commits.open_count == 0)


async def test_a_quarter_of_the_memory_is_left_to_appends_that_need_no_store(tmp_path: Path) -> None:
    settings = {"max_request_memory_bytes": 8 * MIB, "max_request_bytes": 4 * MIB}
    async with world(tmp_path, **settings) as (bench, store):
        memory = bench.server.append_memory
        assert memory.limit_bytes == 4 * MIB
        size_bytes = 900_000
        waiting: list[asyncio.Future[Any]] = []
        # The fourth passes the three quarters, and there is room for no fifth.
        for _ in range(4):
            waiting.append(asyncio.ensure_future(bench.client.log.Append(one_record("object", size_bytes))))
            await until(lambda: memory.held_bytes >= len(waiting) * size_bytes)
        error = await refusal_of(bench.client.log.Append(one_record("object")))
        assert error.fields["limit_bytes"] == memory.commit_share_bytes == 3 * MIB
        for level in ("os", "disk"):
            await bench.client.log.Append(one_record(level, 100_000))
        store.is_away = False
        await asyncio.gather(*waiting)
        await until(lambda: memory.held_bytes == 0)
        await bench.client.log.Append(one_record("object", size_bytes))


async def test_a_principal_that_waits_for_the_store_leaves_room_to_others_and_to_its_own(
    tmp_path: Path,
) -> None:
    store = AwayStore(MemoryObjectStore(SystemClock()))
    site = GuardedSite(tmp_path)
    async with (
        site.running(store=store, max_append_call_count=LIMIT) as server,
        site.client("ours") as ours,
        site.client("theirs") as theirs,
        site.client("admin") as admin,
    ):
        for level in LEVELS:
            for owner in ("ours", "theirs"):
                await admin.admin.create_topic(f"{owner}.{level}", 1, {"min.durability": level})
        store.is_away = True
        commits = server.calls[CallKind.COMMIT]
        waiting = [asyncio.ensure_future(ours.log.Append(one_record("ours.object"))) for _ in range(SHARE)]
        await until(lambda: commits.open_count == SHARE)
        error = await refusal_of(ours.log.Append(one_record("ours.object")))
        assert bound_of(error) == {"kind": "commit", "principal": "ours", "limit": SHARE}
        for client, owner in ((ours, "ours"), (theirs, "theirs")):
            for level in ("os", "disk"):
                await client.log.Append(one_record(f"{owner}.{level}"))
        waiting.append(asyncio.ensure_future(theirs.log.Append(one_record("theirs.object"))))
        await until(lambda: commits.open_count == SHARE + 1)
        for call in waiting:
            call.cancel()
        await until(lambda: commits.open_count == 0)
        assert commits.principals.of("ours") == commits.principals.of("theirs") == 0
