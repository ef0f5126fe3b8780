"""The access file changes under a running server: open streams end, others go on, bad files are refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from stratalog.base.errors import AuthenticationFailedError, AuthorizationFailedError, InvalidConfigError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchStart, fetch_request
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.access.guarded_site import EVERYTHING, OURS, GuardedSite
from tests.support.service.service_bench import waiting_count

TOPIC = TopicPartition("ours.t", 0)
PATIENCE_S = 30.0
ELSEWHERE = '{ topics = ["theirs.*"], operations = ["all"] }'


@asynccontextmanager
async def site_with_topic(folder: Path) -> AsyncGenerator[GuardedSite]:
    site = GuardedSite(folder)
    async with site.running():
        async with site.client("admin") as admin:
            await admin.admin.create_topic("ours.t")
        yield site


def tail(client: Client, max_wait_ms: int = 60_000) -> Any:
    request = fetch_request({TOPIC: FetchStart(0)}, max_wait_ms, 1, 0, 0, IsolationLevel.READ_UNCOMMITTED)
    return client.log.FetchStream(request)


def append_request(sequence: int, topic: str = "ours.t") -> log_pb2.AppendStreamRequest:
    records = log_pb2.Records(records=[log_pb2.Record(value=b"x")])
    return log_pb2.AppendStreamRequest(topic=topic, partition=0, sequence=sequence, records=records)


async def code_of(call: Any) -> grpc.StatusCode:
    """The status with which a call ends."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def until_waiting(site: GuardedSite, count: int) -> None:
    partition = site.server.engine.topics.registry.partition(*TOPIC)
    async with asyncio.timeout(PATIENCE_S):
        while waiting_count(partition.signal) != count:
            await asyncio.sleep(0)


async def test_a_revoked_token_ends_the_streams_of_its_principal_alone(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours, site.client("admin") as admin:
        revoked, kept, appends = tail(ours), tail(admin), asyncio.Queue[log_pb2.AppendStreamRequest]()
        appending: Any = ours.log.AppendStream(queued(appends))
        await appends.put(append_request(1))
        assert (await appending.read()).ack.base_offset == 0
        assert len((await revoked.read()).partitions) == len((await kept.read()).partitions) == 1
        site.renew("ours")
        site.write()
        await site.look()
        assert await code_of(revoked) is grpc.StatusCode.UNAUTHENTICATED
        assert await code_of(appending) is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(AuthenticationFailedError) as refusal:
            await ours.admin.list_topics()
        assert refusal.value.fields.keys() == {"token_id"}
        async with site.client("ours") as renewed:
            await renewed.append("ours.t", 0, [Record(0, 0, None, b"y")])
        assert len((await kept.read()).partitions) == 1
        kept.cancel()
    assert not site.server.append_memory.held_bytes


async def queued(requests: asyncio.Queue[log_pb2.AppendStreamRequest]) -> AsyncIterator[Any]:
    while True:
        yield await requests.get()


async def test_a_stream_without_a_reader_ends_too(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours:
        for _ in range(16):
            await ours.append("ours.t", 0, [Record(0, 0, None, bytes(1_000_000))])
        stuck = tail(ours)
        await stuck.initial_metadata()
        site.renew("ours")
        site.write()
        await site.look()
        assert await code_of(stuck) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_withdrawn_permission_ends_a_read_and_the_next_append(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours:
        reading, appends = tail(ours), asyncio.Queue[log_pb2.AppendStreamRequest]()
        appending: Any = ours.log.AppendStream(queued(appends))
        await appends.put(append_request(1))
        await appending.read()
        site.rules["ours"] = ELSEWHERE
        site.write()
        await site.look()
        assert await code_of(reading) is grpc.StatusCode.PERMISSION_DENIED
        await appends.put(append_request(2))
        assert await code_of(appending) is grpc.StatusCode.PERMISSION_DENIED
        async with site.client("admin") as admin:
            assert (await admin.latest("ours.t"))[TOPIC] == 1


async def test_a_topic_of_others_ends_a_stream_after_the_answers_before_it(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours:
        requests = [append_request(1), append_request(2), append_request(3, "theirs.t"), append_request(4)]
        call: Any = ours.log.AppendStream(iter(requests))
        assert [(await call.read()).ack.base_offset for _ in range(2)] == [0, 1]
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_long_poll_is_checked_again_before_its_answer(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours, site.client("admin") as admin:
        request = fetch_request({TOPIC: FetchStart(0)}, 60_000, 1, 0, 0, IsolationLevel.READ_UNCOMMITTED)
        call = ours.log.Fetch(request)
        polling = asyncio.ensure_future(call)
        await until_waiting(site, 1)
        site.renew("ours")
        site.write()
        await site.look()
        await admin.append("ours.t", 0, [Record(0, 0, None, b"secret")])
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await polling
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_bad_file_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours:
        reading = tail(ours)
        await reading.initial_metadata()
        file = site.server.reloaded_files[-1]
        for text, failure_count in (("[principals", 1), ("", 2), ("[principals", 3)):
            site.write(text)
            with caplog.at_level(logging.ERROR):
                await site.look()
                await site.look()
            assert (file.failure_count, file.has_failed, file.reload_count) == (failure_count, True, 0)
            assert await ours.latest("ours.t") == {TOPIC: 0}
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 3
        assert all("the former content stays in force" in line for line in lines)
        Path(site.access_path).unlink()
        await site.look()
        await site.look()
        assert file.failure_count == 4
        site.write()
        await site.look()
        assert (file.has_failed, file.reload_count) == (False, 1)
        reading.cancel()


async def test_a_start_with_a_bad_file_fails_and_takes_no_port(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    site.write("[principals.x]\nallowed = []")
    with pytest.raises(InvalidConfigError) as refusal:
        async with site.running():
            pass
    assert refusal.value.fields["name"] == "access-file"


async def test_a_principal_that_goes_and_comes_back(tmp_path: Path) -> None:
    async with site_with_topic(tmp_path) as site, site.client("ours") as ours:
        site.rules = {"admin": EVERYTHING}
        site.write()
        await site.look()
        with pytest.raises(AuthenticationFailedError):
            await ours.latest("ours.t")
        site.rules["ours"] = '{ topics = ["ours.t"], operations = ["describe"] }'
        site.write()
        await site.look()
        assert await ours.latest("ours.t") == {TOPIC: 0}
        with pytest.raises(AuthorizationFailedError) as refusal:
            await ours.append("ours.t", 0, [Record(0, 0, None, b"x")])
        assert refusal.value.fields == {
            "operation": "write",
            "principal": "ours",
            "topic": "ours.t",
            "partition": 0,
        }
        site.rules["ours"] = OURS
        site.write()
        await site.look()
        await ours.append("ours.t", 0, [Record(0, 0, None, b"x")])
