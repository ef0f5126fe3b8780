"""Metrics over HTTP: docs/metrics.md has each of them, and their values are those of what happened."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidConfigError,
    ObjectNotFoundError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.record.record import Record
from stratalog.server.append import long_validation
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.v1 import log_pb2
from tests.support.access.guarded_site import EVERYTHING, GuardedSite
from tests.support.gate import Gate
from tests.support.hanging_disk import append, be_impatient, hanging_disk, rolled_partitions, until_answering
from tests.support.places import DOCS
from tests.support.service.service_bench import HOUR_MS, ServiceBench, service_bench, until

TEXT = (DOCS / "metrics.md").read_text()
LISTEN = "127.0.0.1:0"
COMPACTED = {"remote.storage.enable": "false", "cleanup.policy": "compact", "segment.bytes": "1024"}
SELDOM = {"log.cleaner.backoff.ms": "3600000"}


def read(port: int, token: str = "", authority: str = "") -> str:
    request = urllib.request.Request(f"http{'s' if authority else ''}://127.0.0.1:{port}/metrics")
    request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=authority) if authority else None
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        content: bytes = answer.read()
    return content.decode()


async def samples(bench: ServiceBench) -> list[Sample]:
    text = await asyncio.to_thread(read, bench.server.metrics_port)
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def value(bench: ServiceBench, name: str, **labels: str) -> float:
    [found] = [
        sample.value
        for sample in await samples(bench)
        if sample.name == f"stratalog_{name}" and sample.labels == labels
    ]
    return found


async def test_the_document_has_every_metric_with_its_kind_and_labels(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"x"])
    # A crash, so that something is recovered.
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    scraper = '{ cluster = true, operations = ["describe"] }'
    site = GuardedSite(tmp_path, scraper=scraper, admin=EVERYTHING)
    site.extra["scraper"] = "quota = { requests_per_s = 1 }"
    site.write()
    async with site.running(metrics_listen=LISTEN) as server, site.client("admin") as client:
        with server.engine.passes.turn("upload") as one:
            one.outcome = PassOutcome({"objects": 1}, {"not-at-tiered-end": 1})
        await client.append("t", 0, [Record(0, 1000, None, b"x")], durability=Durability.DISK)
        with pytest.raises(UnknownTopicOrPartitionError):
            await client.append("unknown", 0, [Record(0, 1000, None, b"x")])
        with pytest.raises(ObjectNotFoundError):
            await asyncio.to_thread(server.engine.tier.store.get, "nothing")
        token = site.tokens["scraper"]
        text = await asyncio.to_thread(read, server.metrics_port, token, site.authority.path)
    exported = {
        (
            family.name if family.type == "histogram" else sample.name,
            family.type,
            ", ".join(f"`{label}`" for label in sorted(sample.labels.keys() - {"le"})),
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    row = r"^\| `((?:stratalog|process)_[a-z_]+)` \| ([a-z]+) \| ([^|]*?) ?\|"
    rows = re.findall(row, TEXT, re.MULTILINE)
    assert {(name, kind, labels) for name, kind, labels in rows} == exported
    assert [name for name, _, _ in rows] == sorted(name for name, _, _ in rows)


async def test_the_document_names_every_pass(tmp_path: Path) -> None:
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        exported = {sample.labels["pass"] for sample in await samples(bench) if "pass" in sample.labels}
    listed = TEXT.partition("The label `pass` is the name of a background task:")[2].partition("\n\n")[0]
    names = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", listed.partition("Operations")[0])) - {"object"}
    assert names == exported


async def test_what_the_cleaner_and_retention_did_is_counted(tmp_path: Path) -> None:
    directory = {"log_directory": f"{tmp_path}/data"}
    async with service_bench(tmp_path, metrics_listen=LISTEN, config=SELDOM) as bench:
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        for number in range(10):
            record = Record(0, SystemClock().now_ms(), b"k", b"%03d" % number + bytes(600))
            await bench.client.append("t", 0, [record])
        assert await value(bench, "log_manager_tail_bytes") > 10 * 600
        engine = bench.server.engine
        assert await asyncio.to_thread(engine.local.cleaning.workers.clean_filthiest)
        assert await value(bench, "log_cleaner_cleans_total") == 1
        assert await value(bench, "log_cleaner_cleaned_records_total") == 9
        assert await value(bench, "log_cleaner_dropped_records_total") == 8
        assert await value(bench, "log_cleaner_reclaimed_bytes_total") > 8 * 600
        assert await value(bench, "log_cleaner_thread_count") == 1
        assert await value(bench, "log_cleaner_manager_uncleanable_partitions_count", **directory) == 0
        assert await value(bench, "log_retention_deleted_segments_total") == 0
        await bench.client.admin.delete_records("t", 0, "latest")
        [before] = await bench.client.admin.describe_log("t")
        await asyncio.to_thread(engine.local.retention.run)
        assert await value(bench, "log_retention_deleted_segments_total") == before.segment_count
        assert await value(bench, "log_manager_log_directory_partitions", **directory) == 1
        assert await value(bench, "log_manager_log_count") == 1
        assert await value(bench, "log_manager_tail_bytes") == 0


async def test_records_of_the_future_and_what_cannot_be_cleaned_are_counted(tmp_path: Path) -> None:
    directory = {"log_directory": f"{tmp_path}/data"}
    async with service_bench(tmp_path, metrics_listen=LISTEN, config=SELDOM) as bench:
        plain = {**COMPACTED, "cleanup.policy": "delete", "message.timestamp.after.max.ms": str(2**62)}
        await bench.client.admin.create_topic("plain", 1, plain)
        for _ in range(2):
            record = Record(0, SystemClock().now_ms() + 10 * HOUR_MS, None, bytes(900))
            await bench.client.append("plain", 0, [record])
        await asyncio.to_thread(bench.server.engine.local.retention.run)
        assert await value(bench, "log_future_timestamp_segments") == 1
        await bench.client.admin.alter_configs({"retention.ms": "-1"}, "plain")
        await asyncio.to_thread(bench.server.engine.local.retention.run)
        assert await value(bench, "log_future_timestamp_segments") == 0
        await bench.client.admin.create_topic("t", 1, COMPACTED)
        for _ in range(5):
            await bench.client.append("t", 0, [Record(0, SystemClock().now_ms(), b"k", bytes(900))])
        segment = tmp_path / "data" / "t-0" / f"{0:020}.log"
        segment.write_bytes(segment.read_bytes()[:-1] + b"\x01")
        await asyncio.to_thread(bench.server.engine.local.cleaning.workers.clean_filthiest)
        assert await value(bench, "log_cleaner_manager_uncleanable_partitions_count", **directory) == 1
        assert await value(bench, "log_cleaner_manager_uncleanable_bytes", **directory) > 900


async def test_metrics_are_off_unless_asked_for_and_end_with_the_server(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        assert bench.server.metrics_port == 0
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        port = bench.server.metrics_port
        assert "stratalog_log_manager_log_count" in await asyncio.to_thread(read, port)
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(read, port)


async def test_an_address_that_cannot_be_had_is_no_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidConfigError) as failure:
            async with service_bench(tmp_path, metrics_listen=f"127.0.0.1:{taken.getsockname()[1]}"):
                pass
    assert failure.value.fields["name"] == "metrics-listen"
    with pytest.raises(InvalidConfigError):
        async with service_bench(tmp_path, metrics_listen="nowhere"):
            pass


async def test_partitions_that_are_offline_are_counted(tmp_path: Path) -> None:
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        await bench.client.admin.create_topic("t", 2)
        await bench.append("t", [b"x"])
        assert await value(bench, "server_offline_partition_count") == 0
    (tmp_path / "data" / "t-0").rename(tmp_path / "lost")
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        assert await value(bench, "server_offline_partition_count") == 1


async def test_requests_for_each_gibibyte_follow_from_the_counts_of_the_store(tmp_path: Path) -> None:
    config = {"segment.bytes": "16384"}
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        await bench.client.admin.create_topic("t", 4, config)
        for partition in range(4):
            for _ in range(8):
                await bench.append("t", [b"v" * 4000], partition=partition)
        before = await requests_of(bench)
        await bench.client.admin.upload(["t"], delete_local=True)
        uploaded = await requests_of(bench)
        put_count, put_bytes = uploaded["PUT", "data"]
        assert (put_count, before.get(("PUT", "data"), (0, 0))) == (1, (0, 0)), (
            "one object for all partitions"
        )
        assert 4 * 7 * 4000 < put_bytes < 4 * 8 * 5000
        assert uploaded["PUT", "metadata"] > before["PUT", "metadata"], "the commit"
        assert ("GET", "data") not in uploaded
        for partition in range(4):
            await bench.client.fetch({TopicPartition("t", partition): 0}, max_wait_ms=0)
        get_count, get_bytes = (await requests_of(bench))["GET", "data"]
        assert get_count == await value(bench, "remote_read_gets_total") <= 4
        assert 0 < get_bytes <= put_bytes


async def requests_of(bench: ServiceBench) -> dict[tuple[str, str], tuple[float, float]]:
    """Requests and bytes by verb and kind."""
    found = await samples(bench)
    counts, sizes = (
        {
            (sample.labels["verb"], sample.labels["kind"]): sample.value
            for sample in found
            if sample.name == f"stratalog_object_store_{name}_total"
        }
        for name in ("requests", "bytes")
    )
    return {key: (counts[key], sizes[key]) for key in counts}


async def test_a_disk_that_hangs_shows_since_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends at `disk` wait for it without an error, and commits of others count no time-out."""
    gate, name = Gate(), "log_manager_oldest_flush_wait_secs"
    directory = {"log_directory": f"{tmp_path}/data"}
    async with service_bench(tmp_path, metrics_listen=LISTEN) as bench:
        await bench.client.admin.create_topic("t", 1)
        flusher = bench.partition("t", 0).log.flusher
        flush = type(flusher).flush

        def held(self: object, *args: object, **kwargs: object) -> object:
            gate.pass_through()
            return flush(self, *args, **kwargs)  # type: ignore[arg-type]  # it is the flusher

        monkeypatch.setattr(type(flusher), "flush", held)
        assert await value(bench, name, **directory) == 0
        gate.close()
        batch = [Record(0, 1000, b"k", b"v")]
        hanging = asyncio.create_task(bench.client.append("t", 0, batch, durability=Durability.DISK))
        assert await asyncio.to_thread(gate.is_reached.wait, 30)
        log = bench.partition("t", 0).log
        behind = [
            asyncio.create_task(bench.client.append("t", 0, batch, durability=Durability.DISK))
            for _ in range(3)
        ]
        try:
            assert await value(bench, name, **directory) > 0
            await until(lambda: log.offsets.log_end_offset == 4)
        finally:
            gate.open()
            await asyncio.gather(hanging, *behind)
        assert await value(bench, "append_flush_calls_count") == 2
        assert await value(bench, "append_flush_calls_sum") == 4, "one fsync for the three behind"
        flushes = "log_manager_flush_duration_secs_count"
        async with asyncio.timeout(60):
            # An answer leaves before its fsync's thread is free.
            while await value(bench, flushes, **directory) < 2:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_disk_that_hangs_in_a_write_shows_by_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """No fsync is asked for before the write returns, so its wait shows nothing. Turns with long validation
    write on threads of their own."""
    be_impatient(monkeypatch)
    if is_long:
        monkeypatch.setattr(long_validation, "TURN_BYTES", 0)
    config = {"compression.type": "gzip"} if is_long else None
    gate, hanging = Gate(), set[str]()
    disk, log_dirs = hanging_disk(gate, hanging), (f"{tmp_path}/other",)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs, metrics_listen=LISTEN) as bench:
        ill, well = [one.log_dir for one in await rolled_partitions(bench, config)]
        hung = next(topic for topic in ("a", "b") if bench.partition(topic, 0).log_dir == ill)

        async def values_of(name: str) -> tuple[float, float]:
            found = [await value(bench, f"log_manager_{name}", log_directory=path) for path in (ill, well)]
            return found[0], found[1]

        async with asyncio.timeout(60):
            while await values_of("oldest_append_wait_secs") != (0, 0):
                await asyncio.sleep(0.01)
        assert await values_of("log_directory_silent") == (0, 0)
        gate.close()
        hanging.add(f"{ill}/")
        waiting = asyncio.create_task(append(bench, hung, Durability.DISK))
        try:
            assert await asyncio.to_thread(gate.is_reached.wait, 30)
            # Another write of the directory may have reached the gate first.
            async with asyncio.timeout(60):
                while (before := await values_of("oldest_append_wait_secs"))[0] == 0:
                    await asyncio.sleep(0.01)
            after = await values_of("oldest_append_wait_secs")
            assert before[0] < after[0]
            assert before[1] == after[1] == 0
            assert await values_of("oldest_flush_wait_secs") == (0, 0)
            # A description asks each directory, and gives this one up.
            await bench.client.admin.describe_log_dirs()
            assert await values_of("log_directory_silent") == (1, 0)
        finally:
            gate.open()
        assert await waiting == 1
        await until_answering(bench)
        assert await values_of("log_directory_silent") == (0, 0)
        assert bool(await value(bench, "append_long_turns_total")) is is_long


def request(topic: str, values: Sequence[bytes], **fields: Any) -> log_pb2.AppendRequest:
    records = log_pb2.Records(records=[log_pb2.Record(value=value) for value in values])
    return log_pb2.AppendRequest(topic=topic, partition=0, records=records, **fields)


async def until_ended(bench: ServiceBench, method: str) -> None:
    """Wait until no call of the method is open: a client has the status of an aborted one before it ends."""
    labels = {"service": "LogService", "method": method}
    async with asyncio.timeout(60):
        while await value(bench, "server_method_open_calls", **labels):
            await asyncio.sleep(0.01)


async def test_calls_and_their_messages_count_by_method(tmp_path: Path) -> None:
    append, stream = ({"service": "LogService", "method": name} for name in ("Append", "AppendStream"))
    async with service_bench(tmp_path, metrics_listen=LISTEN, max_append_call_count=1) as bench:
        await bench.client.admin.create_topic("t", 1)
        sent = request("t", [b"x"] * 5)
        answer = await bench.client.log.Append(sent)
        with pytest.raises(grpc.aio.AioRpcError):
            await bench.client.log.Append(request("unknown", [b"x"]))
        await until_ended(bench, "Append")
        ends = "server_method_ends_total"
        assert await value(bench, ends, **append, code="OK", reason="") == 1
        unknown = {"code": "NOT_FOUND", "reason": UnknownTopicOrPartitionError.code}
        assert await value(bench, ends, **append, **unknown) == 1
        assert await value(bench, "server_errors_total", **unknown) == 1
        size_bytes = sent.ByteSize() + request("unknown", [b"x"]).ByteSize()
        assert await value(bench, "server_method_received_bytes_total", **append) == size_bytes
        assert await value(bench, "server_method_sent_bytes_total", **append) == answer.ByteSize()
        assert await value(bench, "server_method_duration_secs_count", **append) == 2
        call = bench.client.log.AppendStream()
        for sequence, topic in enumerate(("t", "t", "unknown")):
            one = log_pb2.AppendStreamRequest(sequence=sequence, topic=topic, records=sent.records)
            await call.write(one)
            await call.read()
        assert await value(bench, "server_method_open_calls", **stream) == 1
        assert await value(bench, "server_method_received_messages_total", **stream) == 3
        assert await value(bench, "server_method_sent_messages_total", **stream) == 3
        assert await value(bench, "server_errors_total", **unknown) == 2, "inside an answer"
        with pytest.raises(grpc.aio.AioRpcError):
            await bench.client.log.Append(sent)
        await until_ended(bench, "Append")
        refused = {"code": "RESOURCE_EXHAUSTED", "reason": OverloadedError.code}
        assert await value(bench, ends, **append, **refused) == 1, "the cap has no room beside the stream"
        assert await value(bench, "server_method_calls_total", **append) == 3
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await value(bench, "append_group_calls_count") == 3
        assert await value(bench, "append_group_records_sum") == 15
