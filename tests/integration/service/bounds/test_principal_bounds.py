"""A principal has a part of the open calls of each kind, and as many over all kinds as its quota allows."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import pytest

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.client.errors import error_of_call
from stratalog.record.record import Record
from stratalog.server.access.quotas import MAX_WAIT_S
from stratalog.server.call_counts import CallKind
from stratalog.v1 import log_pb2
from tests.support.access.guarded_site import GuardedSite
from tests.support.service.service_bench import until

RECORD = [Record(0, 0, None, b"x")]
LIMIT = 8
SHARE = 6


def poll(topic: str) -> log_pb2.FetchRequest:
    """A fetch that waits for a minute."""
    return log_pb2.FetchRequest(
        partitions=[log_pb2.FetchPartition(topic=topic)], max_wait_ms=60_000, min_bytes=1
    )


async def refusal_of(call: Any) -> LogStoreError:
    """The error that ends the call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of_call(caught.value, "")


async def endless() -> AsyncIterator[log_pb2.AppendStreamRequest]:
    await asyncio.Event().wait()
    yield log_pb2.AppendStreamRequest()


@asynccontextmanager
async def bounded(folder: Path, quota: str = "", **settings: Any) -> AsyncGenerator[GuardedSite]:
    site = GuardedSite(folder)
    site.extra["ours"] = f"quota = {{ {quota} }}" if quota else ""
    site.write()
    async with site.running(max_read_call_count=LIMIT, max_append_call_count=LIMIT, **settings):
        async with site.client("admin") as admin:
            for name in ("ours.t", "theirs.t"):
                await admin.admin.create_topic(name)
        yield site


async def end_all(site: GuardedSite, calls: list[Any]) -> None:
    for call in calls:
        call.cancel()
    await until(lambda: all(one.open_count == 0 for one in site.server.calls.values()))


async def require_empty(site: GuardedSite, name: str) -> None:
    # A call has its place until the transport has taken its answer.
    await until(lambda: all(one.principals.of(name) == 0 for one in site.server.calls.values()))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_principal_without_a_quota_leaves_calls_of_each_kind_to_others(
    tmp_path: Path, *, is_stream: bool
) -> None:
    async with (
        bounded(tmp_path) as site,
        site.client("ours") as one,
        site.client("ours") as second,
        site.client("theirs") as theirs,
    ):
        reads = site.server.calls[CallKind.READ]
        clients = [one, second]
        polls: list[Any] = []
        for number in range(SHARE):
            log = clients[number % 2].log
            single = None if is_stream else asyncio.ensure_future(log.Fetch(poll("ours.t")))
            polls.append(single or log.FetchStream(poll("ours.t")))
        await until(lambda: reads.open_count == SHARE)
        for client in clients:
            error = await refusal_of(client.log.Fetch(poll("ours.t")))
            assert isinstance(error, OverloadedError)
            assert error.fields == {"principal": "ours", "kind": "read", "limit": SHARE}
            assert error.retry_delay_s > 0
        assert reads.refused_count == 2
        # Others read, and the principal has its other kinds.
        await theirs.append("theirs.t", 0, RECORD)
        assert await theirs.fetch({TopicPartition("theirs.t", 0): 0})
        await one.latest("ours.t")
        await one.append("ours.t", 0, RECORD)
        await until(lambda: is_stream or reads.open_count == 0)
        await end_all(site, polls)
        await require_empty(site, "ours")
        assert await one.fetch({TopicPartition("ours.t", 0): 0})


async def test_a_principal_has_as_many_calls_open_as_its_quota_allows(tmp_path: Path) -> None:
    async with (
        bounded(tmp_path, "open_calls = 3", metrics_listen="127.0.0.1:0") as site,
        site.client("ours") as one,
        site.client("ours") as second,
        site.client("theirs") as theirs,
    ):
        calls: list[Any] = [
            asyncio.ensure_future(one.log.Fetch(poll("ours.t"))),
            second.log.FetchStream(poll("ours.t")),
            one.log.AppendStream(endless()),
        ]
        await until(lambda: sum(kind.open_count for kind in site.server.calls.values()) == 3)
        for refused in (
            second.log.Fetch(poll("ours.t")),
            second.log.FetchStream(poll("ours.t")).read(),
            second.log.ListOffsets(log_pb2.ListOffsetsRequest()),
            second.log.AppendStream(endless()).read(),
        ):
            error = await refusal_of(refused)
            assert isinstance(error, OverloadedError)
            assert error.fields == {"principal": "ours", "quota": "open_calls", "limit": 3}
            assert error.retry_delay_s > 0
        await theirs.append("theirs.t", 0, RECORD)
        assert await theirs.fetch({TopicPartition("theirs.t", 0): 0})
        calls.pop().cancel()
        await until(lambda: site.server.calls[CallKind.APPEND].open_count == 0)
        await one.append("ours.t", 0, RECORD)
        text = await metrics(site)
        assert 'stratalog_quota_refused_calls_total{principal="ours"} 4.0' in text
        assert 'principal="theirs"' not in text
        await end_all(site, calls)
        await require_empty(site, "ours")


async def metrics(site: GuardedSite) -> str:
    """The answer of the endpoint of metrics."""
    request = Request(
        f"https://localhost:{site.server.metrics_port}/metrics",
        headers={"Authorization": f"Bearer {site.tokens['admin']}"},
    )
    context = ssl.create_default_context(cafile=site.authority.path)

    def read() -> str:
        with urlopen(request, context=context) as answer:
            return str(answer.read(), "utf-8")

    return await asyncio.to_thread(read)


async def test_calls_that_wait_for_their_rate_are_open(tmp_path: Path) -> None:
    async with bounded(tmp_path, "requests_per_s = 1") as site, site.client("ours") as ours:
        ask = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="ours.t")])
        reads = site.server.calls[CallKind.READ]
        waiting = [asyncio.ensure_future(ours.log.Fetch(ask)) for _ in range(int(MAX_WAIT_S))]
        await until(lambda: reads.open_count == len(waiting) - 1)
        assert reads.principals.of("ours") == len(waiting) - 1
        for one in waiting:
            one.cancel()
        await until(lambda: reads.open_count == 0)
        await require_empty(site, "ours")


async def test_calls_that_the_gate_refuses_leave_no_place_behind(tmp_path: Path) -> None:
    async with bounded(tmp_path) as site, site.client("ours") as ours:
        for _ in range(2 * LIMIT):
            error = await refusal_of(ours.log.Fetch(poll("theirs.t")))
            assert error.code == "AUTHORIZATION_FAILED"
        await require_empty(site, "ours")
        await ours.append("ours.t", 0, RECORD)


async def test_a_lower_quota_ends_no_open_call(tmp_path: Path) -> None:
    async with bounded(tmp_path, "open_calls = 3") as site, site.client("ours") as ours:
        stream: Any = ours.log.FetchStream(poll("ours.t"))
        await until(lambda: site.server.calls[CallKind.READ].open_count == 1)
        site.extra["ours"] = "quota = { open_calls = 1 }"
        site.write()
        await site.look()
        error = await refusal_of(ours.log.ListOffsets(log_pb2.ListOffsetsRequest()))
        assert error.fields == {"principal": "ours", "quota": "open_calls", "limit": 1}
        async with site.client("admin") as admin:
            await admin.append("ours.t", 0, RECORD)
        assert (await stream.read()).partitions[0].next_fetch_offset == 1
        await end_all(site, [stream])
