"""Configurations of topics and the server are described and altered at run time."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from stratalog.base.clock import SystemClock
from stratalog.base.errors import (
    InvalidConfigError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.cli.main import stratalog
from stratalog.client import values
from stratalog.log.config_key import INT_MAX, LONG_MAX
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.configuration.broker_config import BROKER_KEYS, BrokerConfig
from stratalog.v1 import admin_pb2, admin_pb2_grpc
from tests.support.service.service_bench import ServiceBench, service_bench

UNTIERED = {"remote.storage.enable": "false"}
BY_SIZE = UNTIERED | {"retention.ms": "-1"}


async def value_of(bench: ServiceBench, name: str, topic: str | None = None) -> tuple[str | None, str]:
    [entry] = await bench.client.admin.describe_configs(topic, [name])
    return entry.value, entry.source.name


async def test_a_topic_is_altered_key_by_key_and_goes_by_it_at_once(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, {"max.message.bytes": "5000", "segment.ms": "7"})
        await bench.append("t", [b"x" * 3000])
        entry, _ = await admin.alter_configs({"max.message.bytes": "2000", "segment.ms": None}, "t")
        assert (entry.name, entry.value, entry.source) == (
            "max.message.bytes",
            "2000",
            values.ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )
        with pytest.raises(RecordTooLargeError):
            await bench.append("t", [b"x" * 3000])
        assert await value_of(bench, "segment.ms", "t") == ("604800000", "DEFAULT_CONFIG")
        [topic] = await admin.describe_topics(["t"])
        assert dict(topic.config_overrides) == {"max.message.bytes": "2000"}
    async with service_bench(tmp_path) as bench:
        assert await value_of(bench, "max.message.bytes", "t") == ("2000", "DYNAMIC_TOPIC_CONFIG")


async def test_defaults_of_the_server_reach_its_logs_at_once_and_outlive_a_restart(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.create_topic("t", 1, BY_SIZE)
        await admin.create_topic("own", 1, BY_SIZE | {"retention.bytes": "-1", "segment.bytes": "1024"})
        for topic in ("t", "own"):
            for _ in range(3):
                await bench.append(topic, [b"x" * 800])
        await admin.alter_configs({"log.segment.bytes": "1024", "log.retention.bytes": "800"})
        assert bench.partition().log.local_log.config.segment_bytes == 1024
        await bench.append("t", [b"x" * 800])
        await asyncio.to_thread(bench.server.engine.local.retention.run)
        assert bench.partition().log_start_offset == 3
        assert bench.partition("own").log_start_offset == 0, "a key of the topic is stronger"
    async with service_bench(tmp_path) as bench:
        assert bench.partition().log.local_log.config.retention_bytes == 800
        await bench.client.admin.alter_configs({"log.retention.bytes": None})
        assert bench.partition().log.local_log.config.retention_bytes == -1
        assert await value_of(bench, "log.segment.bytes") == ("1024", "DYNAMIC_BROKER_CONFIG")


async def test_tiered_compaction_goes_by_the_servers_defaults(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        admin = bench.client.admin
        await admin.alter_configs({"log.cleanup.policy": "compact"})
        await admin.create_topic("t")
        for value in ("1", "2"):
            await bench.client.append("t", 0, [Record(0, 0, b"k", value.encode())])
            await admin.upload(delete_local=True)
        jobs = await admin.run_compaction(["t"])
        assert [(job.input_record_count, job.output_record_count, job.reason) for job in jobs] == [(2, 1, "")]


async def test_a_trial_or_a_refused_alteration_changes_nothing(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t")
    for topic, name in (("t", "retention.ms"), (None, "log.retention.ms")):
        before = await admin.describe_configs(topic)
        await admin.alter_configs({name: "5"}, topic, validate_only=True)
        for validate_only in (True, False):
            changes = {name: "5", "max.message.bytes": str(1 << 30)}
            with pytest.raises(InvalidConfigError) as refusal:
                await admin.alter_configs(changes, topic, validate_only=validate_only)
            assert refusal.value.fields["name"] == "max.message.bytes"
            assert refusal.value.fields["near" if topic is None else "allowed"]
        assert await admin.describe_configs(topic) == before


async def test_a_topic_with_data_in_the_store_stays_tiered(bench: ServiceBench) -> None:
    admin = bench.client.admin
    await admin.create_topic("t")
    await admin.alter_configs(UNTIERED, "t")
    await admin.alter_configs({"remote.storage.enable": None}, "t")
    await bench.append("t", [b"x"])
    await admin.upload()
    with pytest.raises(InvalidConfigError) as refusal:
        await admin.alter_configs(UNTIERED, "t")
    assert refusal.value.fields["name"] == "remote.storage.enable"


async def test_a_topic_that_was_refused_is_brought_back_by_taking_its_key_away(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"x"])
        catalog = bench.server.engine.topics.catalog
        catalog.alter(catalog.topics()["t"].topic_id, config={"key.of.the.future": "1"})
    async with service_bench(tmp_path) as bench:
        with pytest.raises(InvalidConfigError) as refusal:
            await bench.client.admin.describe_configs("t")
        assert (refusal.value.fields["name"], refusal.value.fields["value"]) == ("topic", "t")
        await bench.client.admin.alter_configs({"key.of.the.future": None}, "t")
        assert [len(records) for records in await bench.read_all("t")] == [1]


async def test_unknown_topics_and_keys_are_refused(bench: ServiceBench) -> None:
    admin = bench.client.admin
    for topic in ("nope", ""):
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_configs(topic)
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.alter_configs({"retention.ms": "1"}, topic)
    with pytest.raises(InvalidConfigError) as refusal:
        await admin.describe_configs(names=["retention.ms"])
    assert refusal.value.fields["name"] == "retention.ms"


async def test_a_request_without_a_resource_is_refused(bench: ServiceBench) -> None:
    async with grpc.aio.insecure_channel(bench.client.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.DescribeConfigs(admin_pb2.DescribeConfigsRequest())
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.AlterConfigs(admin_pb2.AlterConfigsRequest(resource=admin_pb2.ConfigResource()))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_command_line_shows_and_alters(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        altered = await bench.command(
            "topic", "alter", "t", "--add", "retention.ms=5", "--add", "segment.ms=6", "--json"
        )
        assert altered.exit_code == 0, altered.output
        values = {entry["name"]: (entry["value"], entry["source"]) for entry in json.loads(altered.output)}
        assert values == {
            "retention.ms": ("5", "DYNAMIC_TOPIC_CONFIG"),
            "segment.ms": ("6", "DYNAMIC_TOPIC_CONFIG"),
        }
        await bench.command("topic", "alter", "t", "--delete", "segment.ms")
        shown = await bench.command("config", "describe", "t", "retention.ms", "segment.ms")
        assert [line.split() for line in shown.output.splitlines()] == [
            ["KEY", "VALUE", "SOURCE", "UPDATE"],
            ["retention.ms", "5", "DYNAMIC_TOPIC_CONFIG", "cluster-wide"],
            ["segment.ms", "604800000", "DEFAULT_CONFIG", "cluster-wide"],
        ]
        await bench.command("config", "alter", "--broker", "--add", "log.retention.ms=7", "--dry-run")
        await bench.command("config", "alter", "--broker", "--add", "log.roll.ms=8")
        shown = await bench.command(
            "config", "describe", "--broker", "--synonyms", "log.retention.ms", "log.roll.ms"
        )
        assert "log.roll.ms=8 (DYNAMIC_BROKER_CONFIG) > log.roll.hours=168 (DEFAULT_CONFIG)" in shown.output
        assert "log.retention.ms=7" not in shown.output
        [minutes] = json.loads(
            (await bench.command("config", "describe", "--broker", "log.retention.minutes", "--json")).output
        )
        assert (minutes["value"], minutes["update_mode"]) == (None, "read-only")


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "describe"),
        ("config", "describe", "--broker", "--topic", "t"),
        ("config", "alter", "t", "--broker", "--add", "log.roll.ms=1"),
        ("config", "alter", "t", "--add", "retention.ms=1"),
        ("config", "alter", "--add", "log.roll.ms=1"),
        ("config", "alter", "--broker"),
        ("config", "alter", "--broker", "--add", "log.roll.ms"),
        ("config", "alter", "--broker", "--add", "log.roll.ms=1", "--delete", "log.roll.ms"),
        ("topic", "alter", "t"),
        ("topic", "alter", "t", "--add", "retention.ms=1", "--delete", "retention.ms"),
        ("topic", "alter", "--add", "retention.ms=1"),
    ],
)
def test_a_command_line_with_too_little_or_too_much_is_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(stratalog, arguments).exit_code == 2


async def test_producers_that_are_idle_are_forgotten_by_the_new_period(tmp_path: Path) -> None:
    config = {"producer.id.expiration.check.interval.ms": "1"}
    async with service_bench(tmp_path, config=config) as bench:
        await bench.client.admin.create_topic("t")
        await bench.take_producer_ids(7)
        records = [Record(0, SystemClock().now_ms() - 60_000, None, b"once")]
        sent = encode_batch(records, producer=BatchProducer(7, 0, 0))
        await bench.client.append_batches("t", 0, sent)
        log = bench.partition().log
        assert len(log.producers()) == 1, "for a day"
        await bench.client.admin.alter_configs({"producer.id.expiration.ms": "1000"})
        async with asyncio.timeout(60):
            while log.producers():
                await asyncio.sleep(0.001)
        await bench.client.admin.create_topic("u")
        assert not (await bench.client.append_batches("u", 0, sent)).duplicate


async def test_altered_defaults_are_logged_once_for_all_topics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        for topic in ("t", "u"):
            await bench.client.admin.create_topic(topic)
        with caplog.at_level(logging.INFO):
            await bench.client.admin.alter_configs({"log.retention.ms": "5"})
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
        assert told == ["the configuration was altered: log.retention.ms=5"]
        assert bench.partition().log.local_log.config.retention_ms == 5


async def test_a_topic_is_described_with_the_source_of_each_value(tmp_path: Path) -> None:
    static = {"log.roll.hours": "2"}
    async with service_bench(tmp_path, config=static) as bench:
        await bench.client.admin.create_topic("t", 1, {"segment.bytes": "2048"})
        await bench.client.admin.alter_configs({"log.retention.ms": "5"})
        arguments = ["topic", "describe", "--all", "--server", f"127.0.0.1:{bench.server.port}"]
        shown = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)
        rows = {row[0]: row[1:] for line in shown.output.splitlines() if len(row := line.split()) == 3}
        assert rows["segment.bytes"] == ["2048", "topic"]
        assert rows["retention.ms"] == ["5", "server"]
        assert rows["segment.ms"] == ["7200000", "server"]
        assert rows["segment.jitter.ms"] == ["0", "default"]


@pytest.mark.timeout(120)
async def test_every_number_of_the_server_may_be_as_large_as_its_range(tmp_path: Path) -> None:
    largest: dict[str, str] = {}
    for name in BROKER_KEYS:
        # Threads and memory are really taken, a batch has to fit into a request, and appends need free space.
        if name.endswith((".threads", ".dir", "buffer.size", "message.max.bytes", "min.free.bytes")):
            continue
        for text in (str(INT_MAX), str(LONG_MAX)):
            with suppress(InvalidConfigError):
                BrokerConfig.from_overrides({name: text})
                largest[name] = text
    assert len(largest) == 54
    dynamic = {name: text for name, text in largest.items() if not BROKER_KEYS[name].is_read_only}
    async with service_bench(tmp_path, config=largest, metrics_listen="127.0.0.1:0") as bench:
        await bench.client.admin.create_topic("t", 1, UNTIERED | {"cleanup.policy": "compact"})
        for changes in (dynamic, dict.fromkeys(dynamic), dynamic):
            await bench.client.admin.alter_configs(changes)
        await bench.client.append("t", 0, [Record(0, SystemClock().now_ms(), b"key", b"value")])
        assert [len(records) for records in await bench.read_all("t")] == [1]
        # The schedulers have survived all of them.
        await bench.client.admin.alter_configs({"log.segment.delete.delay.ms": "0"})
        await bench.client.admin.delete_topic("t")
        while any(Path(tmp_path, "data").glob("t-0*")):
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{bench.server.metrics_port}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            assert "stratalog_scheduler_failures_total 0.0" in answer.read().decode()
