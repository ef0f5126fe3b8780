"""Quotas over gRPC: a principal that uses too much waits first, and is refused then; others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.cli import connection
from stratalog.cli.commands import produce_command
from stratalog.cli.main import stratalog
from stratalog.cli.records.record_json import InputRecord
from stratalog.client.access.credentials import Credentials
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchStart, fetch_request
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import LEAST_SENT_BYTES, Codec
from stratalog.record.record import Record
from stratalog.server.access import quotas
from stratalog.server.access.quotas import MAX_WAIT_S, QuotaCounts
from stratalog.v1 import log_pb2
from tests.support.access.guarded_site import GuardedSite
from tests.support.service.service_bench import PATIENCE_S

TOPIC = TopicPartition("ours.t", 0)
BIG = [Record(0, 0, None, bytes(1_000_000))]


@asynccontextmanager
async def limited(folder: Path, quota: str) -> AsyncGenerator[GuardedSite]:
    site = GuardedSite(folder)
    site.extra["ours"] = f"quota = {{ {quota} }}"
    site.write()
    async with site.running():
        async with site.client("admin") as admin:
            await admin.admin.create_topic("ours.t")
        yield site


def counts(site: GuardedSite) -> QuotaCounts:
    found = site.server._metrics.quotas  # pyright: ignore[reportPrivateUsage]  # only tests look
    assert found is not None
    return found.counts.get("ours", QuotaCounts())


async def test_bytes_in_are_refused_with_the_time_to_come_again(tmp_path: Path) -> None:
    async with limited(tmp_path, "bytes_in_per_s = 10_000") as site:
        async with site.client("ours") as ours, site.client("admin") as admin:
            await ours.append("ours.t", 0, BIG)
            with pytest.raises(OverloadedError) as refusal:
                await ours.append("ours.t", 0, BIG)
            assert refusal.value.retriable
            # The request is some bytes longer than its record.
            assert 50 < refusal.value.retry_delay_s < 101 - MAX_WAIT_S / 2
            fields = refusal.value.fields
            assert fields == fields | {"principal": "ours", "quota": "bytes_in_per_s", "limit": 10_000}
            for _ in range(3):
                await admin.append("ours.t", 0, BIG)
            assert (await admin.latest("ours.t"))[TOPIC] == 4
        assert counts(site).refused_count == 1


async def test_a_command_is_slowed_down_and_does_not_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Refusals come soon, and ask for more time than the command has for anything else.
    monkeypatch.setattr(quotas, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(connection, "PATIENCE_S", 0.2)
    async with limited(tmp_path, "bytes_in_per_s = 1_000_000") as site:
        command = ["produce", "ours.t", "-", "--server", f"localhost:{site.server.port}"]
        token = tmp_path / "token"
        token.write_text(site.tokens["ours"])
        command += ["--tls-ca", site.authority.path, "--token-file", str(token)]
        lines = b"\n".join(b"%d" % number * 700_000 for number in range(4))
        done = await asyncio.to_thread(CliRunner().invoke, stratalog, command, input=lines)
        assert (done.exit_code, done.stderr) == (0, "4 records appended to ours.t\n"), done.exception
        assert counts(site).refused_count > 0
        async with site.client("admin") as admin:
            assert (await admin.latest("ours.t"))[TOPIC] == 4


async def test_an_interrupted_command_does_not_wait_for_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(produce_command, "INTERRUPTED_S", 0.01)
    pauses = asyncio.Event()
    next_pause_s = Patience.next_pause_s

    def told(patience: Patience, *arguments: Any) -> float | None:
        pauses.set()
        return next_pause_s(patience, *arguments)

    monkeypatch.setattr(Patience, "next_pause_s", told)
    async with limited(tmp_path, "bytes_in_per_s = 10_000") as site:

        async def records() -> AsyncIterator[tuple[int, InputRecord]]:
            for number in range(2):
                yield number, InputRecord(None, bytes(700_000))
            await asyncio.Event().wait()

        retry = RetryPolicy(deadline_s=0, quota_deadline_s=connection.QUOTA_PATIENCE_S)
        credentials = Credentials(tls_ca=site.authority.path, token=site.tokens["ours"])
        async with Client(f"localhost:{site.server.port}", retry=retry, credentials=credentials) as client:
            tally = produce_command._Tally()  # pyright: ignore[reportPrivateUsage]  # the command makes it
            work = produce_command._produce  # pyright: ignore[reportPrivateUsage]  # it ends with its input
            task = asyncio.create_task(work(client.producer(), "ours.t", records(), 0, tally))
            async with asyncio.timeout(PATIENCE_S):
                await pauses.wait()
            assert counts(site).refused_count > 0
            task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(LogStoreError) as left:
                    await task
        assert left.value.fields["outcome"] == "not stored"


async def test_a_compressed_batch_counts_as_what_it_becomes(tmp_path: Path) -> None:
    batch = encode_batch([Record(0, int(time.time() * 1000), None, bytes(1_000_000))], codec=Codec.GZIP)
    assert len(batch) < 10_000
    async with limited(tmp_path, "bytes_in_per_s = 10_000") as site, site.client("ours") as ours:
        await ours.append_batches("ours.t", 0, batch)
        with pytest.raises(OverloadedError) as refusal:
            await ours.append_batches("ours.t", 0, batch)
        assert 50 < refusal.value.retry_delay_s < 101 - MAX_WAIT_S / 2
        assert refusal.value.fields["quota"] == "bytes_in_per_s"


async def test_a_copied_batch_counts_as_one_that_was_sent(tmp_path: Path) -> None:
    async with limited(tmp_path, "bytes_in_per_s = 10_000") as site, site.client("ours") as ours:
        async with site.client("admin") as admin:
            await admin.append("ours.t", 0, [Record(0, 0, None, encode_batch(BIG))])
            producer_id = (await admin.log.InitProducer(log_pb2.InitProducerRequest())).producer_id
        copy = log_pb2.BatchCopy(topic="ours.t", producer=log_pb2.ProducerSequence(producer_id=producer_id))
        request = log_pb2.CopyBatchesRequest(topic="ours.t", copies=[copy])
        assert (await ours.log.CopyBatches(request)).copied[0].ack.base_offset == 1
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ours.log.CopyBatches(request)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counts(site).refused_count == 1


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_stream_waits_for_what_its_batches_have_become(tmp_path: Path, is_refused: bool) -> None:
    value_bytes = LEAST_SENT_BYTES + 1 if is_refused else 1_000_000
    batch = encode_batch([Record(0, int(time.time() * 1000), None, bytes(value_bytes))], codec=Codec.GZIP)
    async with limited(tmp_path, "bytes_in_per_s = 30_000") as site, site.client("ours") as ours:
        request = log_pb2.AppendStreamRequest(topic="ours.t", partition=0, sequence=1, batches=batch)
        call: Any = ours.log.AppendStream()
        await call.write(request)
        assert (await call.read()).HasField("status") is is_refused
        await call.write(log_pb2.AppendStreamRequest(topic="ours.t", partition=0, sequence=2, batches=batch))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counts(site).refused_count == 1


async def test_requests_wait_before_they_are_refused(tmp_path: Path) -> None:
    async with limited(tmp_path, "requests_per_s = 20") as site, site.client("ours") as ours:
        start_s = time.monotonic()
        await asyncio.gather(*(ours.latest("ours.t") for _ in range(10)))
        took_s = time.monotonic() - start_s
        # Nothing was saved up at the start.
        assert took_s > 0.4
        assert counts(site).refused_count == 0


async def test_a_stream_of_appends_slows_down_and_loses_nothing(tmp_path: Path) -> None:
    async with limited(tmp_path, "bytes_in_per_s = 1_000_000") as site, site.client("ours") as ours:
        requests = [
            log_pb2.AppendStreamRequest(
                topic="ours.t",
                partition=0,
                sequence=number,
                records=log_pb2.Records(records=[log_pb2.Record(value=bytes(100_000))]),
            )
            for number in range(1, 8)
        ]
        start_s = time.monotonic()
        call: Any = ours.log.AppendStream(iter(requests))
        offsets = [(await call.read()).ack.base_offset for _ in requests]
        assert offsets == list(range(7))
        assert time.monotonic() - start_s > 0.4


async def test_bytes_out_end_a_stream_that_takes_too_much(tmp_path: Path) -> None:
    async with limited(tmp_path, "bytes_out_per_s = 10_000") as site:
        async with site.client("ours") as ours:
            for _ in range(3):
                await ours.append("ours.t", 0, BIG)
            request = fetch_request(
                {TOPIC: FetchStart(0)}, 0, 1, 1_000_000, 0, IsolationLevel.READ_UNCOMMITTED
            )
            call: Any = ours.log.FetchStream(request)
            assert (await call.read()).partitions[0].next_fetch_offset == 1
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(OverloadedError):
                await ours.fetch({TOPIC: FetchStart(0)})
            # An append gives nothing out.
            await ours.append("ours.t", 0, BIG)
        assert counts(site).refused_count == 2


async def test_a_stream_of_appends_has_its_answers_though_nothing_may_go_out(tmp_path: Path) -> None:
    """An append that is in the log is never refused: its client would send it again."""
    async with limited(tmp_path, "bytes_out_per_s = 10_000") as site, site.client("ours") as ours:
        await ours.append("ours.t", 0, BIG)
        await ours.fetch({TOPIC: FetchStart(0)})
        with pytest.raises(OverloadedError):
            await ours.fetch({TOPIC: FetchStart(0)})
        request = log_pb2.AppendStreamRequest(
            topic="ours.t",
            partition=0,
            sequence=1,
            records=log_pb2.Records(records=[log_pb2.Record(value=b"x")]),
        )
        call: Any = ours.log.AppendStream(iter([request]))
        assert (await call.read()).ack.base_offset == 1
