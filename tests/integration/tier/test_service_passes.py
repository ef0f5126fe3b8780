"""A server's background passes through an outage of the store and through a wrong clock: the log, the metrics
and `tier status` show the same.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from prometheus_client.samples import Sample

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import Durability
from stratalog.client import values
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.server.metrics.server_metrics import ServerMetrics
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Fault
from tests.support.service.service_bench import ServiceBench, service_bench

MAX_SILENCE_MS = 60_000
DAY_MS = 24 * 3_600_000
PASSES = ("head-refresh", "upload", "remote-retention", "deleted-topics", "collector", "fold")
SHORT = {"segment.bytes": "1024", "retention.ms": str(DAY_MS), "remote.copy.max.age.ms": "1"}
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class Line(NamedTuple):
    """A line of the log above DEBUG: the module of its logger, its level, and the pass or shard."""

    module: str
    level: int
    subject: object


def of_pass(level: int, name: str) -> Line:
    return Line("pass_registry", level, name)


def of_shard(level: int) -> Line:
    return Line("store_contact", level, "shard 0" if level == ERROR else 0)


class World:
    """A server whose store can be away, and has a clock of its own. Belongs to one test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        for module in ("background.pass_registry", "partitions.store_contact"):
            caplog.set_level(logging.INFO, f"stratalog.server.{module}")
        self._caplog = caplog
        self.is_away = False
        self.clock, self.store_clock = ManualClock(), ManualClock()
        self.store = FaultyObjectStore(
            MemoryObjectStore(self.store_clock),
            Random(1),
            lambda _: Fault.FAILS if self.is_away else Fault.NONE,
        )
        self.bench: ServiceBench

    def advance(self, duration_ms: int) -> None:
        for clock in (self.clock, self.store_clock):
            clock.advance(duration_ms)

    async def run(self, *names: str) -> list[Line]:
        """Let these passes run, or all; returns the lines of the passes and of the contact."""
        self._caplog.clear()
        for name in names or PASSES:
            await self.bench.run_task(name)
        return self.lines

    @property
    def lines(self) -> list[Line]:
        found: list[Line] = []
        for record in self._caplog.records:
            module = record.name.rpartition(".")[2]
            if module in ("pass_registry", "store_contact") and record.levelno > DEBUG:
                assert isinstance(record.args, tuple)
                found.append(Line(module, record.levelno, record.args[0]))
        return found

    async def append(self, count: int = 1) -> None:
        for _ in range(count):
            record = Record(0, self.clock.now_ms(), b"k", bytes(600))
            await self.bench.client.append("t", 0, [record], durability=Durability.DISK)

    async def shard(self) -> values.ShardStatus:
        [found] = (await self.bench.client.admin.tier_status()).shards
        return found

    async def passes(self) -> dict[str, values.PassStatus]:
        return {one.name: one for one in (await self.bench.client.admin.tier_status()).passes}

    def metric(self, name: str, **labels: str) -> float:
        engine, metrics = self.bench.server.engine, ServerMetrics()
        metrics.passes, metrics.shards = engine.passes, engine.tier.shards
        metrics.copy_lag = engine.topics.copy_lag
        samples: list[Sample] = [one for family in metrics.collect() for one in family.samples]
        [found] = [one.value for one in samples if one.name == f"stratalog_{name}" and one.labels == labels]
        return found


@asynccontextmanager
async def world(caplog: pytest.LogCaptureFixture) -> AsyncGenerator[World]:
    made = World(caplog)
    async with service_bench(
        "/bench",
        filesystem=MemoryFileSystem(),
        store=made.store,
        clock=made.clock,
        head_refresh_ms=5_000,
        max_silence_ms=MAX_SILENCE_MS,
    ) as made.bench:
        # The scheduler of the server runs by the time of the machine; a test runs the passes itself.
        await made.bench.client.admin.create_topic("t", 1, SHORT)
        yield made


async def test_passes_go_through_an_outage_and_a_wrong_clock(caplog: pytest.LogCaptureFixture) -> None:
    async with world(caplog) as one:
        await one.append(5)
        one.advance(1)
        assert await one.run() == [of_pass(INFO, "upload"), of_pass(INFO, "fold")], "the topic is folded"
        assert await one.run() == [], "idle passes say nothing"
        passes = await one.passes()
        assert set(passes) >= set(PASSES)
        assert passes["upload"].total_done["objects"] == 1
        assert (
            one.metric("broker_topic_metrics_remote_copy_bytes_total") == passes["upload"].total_done["bytes"]
        )
        assert passes["upload"].backlog.piece_count == 0

        await check_outage(one)
        await check_wrong_clock(one)


async def test_the_bytes_of_a_shard_and_its_live_ones_are_metrics(caplog: pytest.LogCaptureFixture) -> None:
    async with world(caplog) as one:
        assert one.metric("shard_object_bytes", shard="0") == one.metric("shard_live_bytes", shard="0") == 0
        await one.append(5)
        await one.bench.client.admin.upload(["t"])
        uploaded_bytes = one.metric("shard_object_bytes", shard="0")
        live_bytes = one.metric("shard_live_bytes", shard="0")
        assert uploaded_bytes > live_bytes > 5 * 600
        await one.bench.client.admin.create_topic("u", 1, SHORT)
        await one.append(3)
        await one.bench.client.append("u", 0, [Record(0, one.clock.now_ms(), b"k", bytes(100))])
        await one.bench.client.admin.upload()
        await one.bench.client.admin.delete_topic("t")
        kept_bytes = one.metric("shard_live_bytes", shard="0")
        assert 100 < kept_bytes < 600
        # The object that both topics share stays, with what is dead in it.
        assert one.metric("shard_object_bytes", shard="0") > 3 * 600


async def check_outage(one: World) -> None:
    await one.append(5)
    answered_ms = one.clock.now_ms()
    one.is_away = True
    assert await one.run("head-refresh") == [of_pass(WARNING, "head-refresh")]
    assert not (await one.shard()).disk_appends_refused
    one.advance(MAX_SILENCE_MS + 1)
    assert await one.run("head-refresh", "upload") == [of_shard(ERROR), of_pass(WARNING, "upload")]
    with pytest.raises(StoreUnavailableError):
        await one.append()
    for _ in range(5):
        one.advance(5_000)
        assert await one.run("head-refresh", "upload") == []
    shard, passes = await one.shard(), await one.passes()
    assert (shard.disk_appends_refused, shard.last_answer_ms) == (True, answered_ms)
    assert shard.silence_ms == one.clock.now_ms() - answered_ms
    assert one.metric("shard_disk_appends_refused", shard="0") == 1
    assert one.metric("shard_silence_secs", shard="0") == shard.silence_ms / 1000
    upload = passes["upload"]
    assert upload.consecutive_failure_count == 6
    assert upload.last_error
    assert upload.backlog.piece_count > 0
    assert upload.backlog.record_count >= 4
    assert upload.backlog.oldest_ms > 0
    assert one.metric("pass_consecutive_failures", **{"pass": "upload"}) == 6
    assert one.metric("broker_topic_metrics_remote_copy_errors_total") == 6
    lag = {
        name: one.metric(f"broker_topic_metrics_remote_copy_lag_{name}", topic="t")
        for name in ("bytes", "segments", "records", "oldest_timestamp_secs")
    }
    backlog = upload.backlog
    assert list(lag.values()) == [
        backlog.size_bytes,
        backlog.piece_count,
        backlog.record_count,
        backlog.oldest_ms / 1000,
    ]
    one.is_away = False
    assert await one.run("head-refresh", "upload") == [
        of_shard(INFO),
        of_pass(INFO, "head-refresh"),
        of_pass(INFO, "upload"),
        of_pass(INFO, "upload"),
    ]
    await one.append()
    shard, passes = await one.shard(), await one.passes()
    assert (shard.disk_appends_refused, shard.silence_ms) == (False, 0)
    assert (passes["upload"].consecutive_failure_count, passes["upload"].last_error) == (0, "")
    assert passes["upload"].last_success_ms == one.clock.now_ms()


async def test_the_lag_of_each_topic_is_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    async with world(caplog) as one:
        admin, topic = one.bench.client.admin, "broker_topic_metrics_remote_copy_"

        def tail(name: str) -> list[float]:
            return [
                one.metric(f"{topic}tail_{what}", topic=name)
                for what in ("bytes", "records", "oldest_timestamp_secs")
            ]

        await admin.create_topic("u", 3, {"remote.copy.max.age.ms": "60000"})
        await admin.create_topic("local", 1, {"remote.storage.enable": "false"})
        since_ms = one.clock.now_ms()
        for partition in range(2):
            await one.bench.client.append("u", partition, [Record(0, 0, b"k", bytes(500))] * 2)
            one.advance(1_000)
        await one.bench.client.append("local", 0, [Record(0, 0, b"k", bytes(500))])
        await one.run("upload")
        size_bytes, record_count, oldest_s = tail("u")
        assert 2_000 < size_bytes < 3_000
        assert (record_count, oldest_s) == (4, since_ms / 1000)
        assert tail("t") == [0, 0, 0]
        assert [one.metric(f"{topic}lag_{what}", topic="u") for what in ("bytes", "records")] == [0, 0]
        with pytest.raises(ValueError):  # noqa: PT011 - there is none
            one.metric(f"{topic}tail_bytes", topic="local")
        one.is_away = True
        one.advance(60_000)
        await one.run("upload")
        assert tail("u") == [0, 0, 0]
        assert one.metric(f"{topic}lag_bytes", topic="u") == size_bytes
        assert one.metric(f"{topic}lag_records", topic="u") == 4
        one.is_away = False
        await one.run("upload")
        assert one.metric(f"{topic}lag_bytes", topic="u") == 0


async def check_wrong_clock(one: World) -> None:
    # All records are old enough to go, and the active segment is old enough to be rolled.
    one.advance(2 * DAY_MS)
    one.clock.set_wall_ms(one.store_clock.now_ms() + 6 * 60_000)
    lines = await one.run("head-refresh", "remote-retention", "collector", "fold")
    assert lines == [of_shard(ERROR), of_pass(INFO, "remote-retention"), of_pass(INFO, "collector")]
    for _ in range(3):
        assert await one.run("head-refresh", "remote-retention", "collector", "fold") == []
    shard, passes = await one.shard(), await one.passes()
    assert (shard.deletion_stopped, shard.clock_skew_ms) == (True, 6 * 60_000)
    assert passes["remote-retention"].last_refusals["clock"] == 1
    assert passes["remote-retention"].consecutive_failure_count == 0
    assert one.metric("shard_deletion_stopped", shard="0") == 1
    assert one.metric("shard_clock_skew_secs", shard="0") == 360
    assert one.metric("pass_refusals_total", **{"pass": "remote-retention", "reason": "clock"}) == 4
    [log] = await one.bench.client.admin.describe_log("t")
    assert log.log_start_offset == 0, "nothing expires"

    one.clock.set_wall_ms(one.store_clock.now_ms())
    lines = await one.run("head-refresh", "remote-retention", "collector", "fold")
    assert lines == [of_shard(INFO), of_pass(INFO, "remote-retention")]
    shard, passes = await one.shard(), await one.passes()
    assert (shard.deletion_stopped, shard.clock_skew_ms) == (False, 0)
    assert passes["remote-retention"].last_done["partitions"] == 1
    assert passes["collector"].backlog.piece_count > 0, "the dropped objects wait for the end of the grace"
    assert (
        one.metric("broker_topic_metrics_remote_delete_lag_bytes") == passes["collector"].backlog.size_bytes
    )


async def test_a_wrong_clock_refuses_a_collection_and_the_tombstones_of_a_compaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world(caplog) as one:
        await one.append(5)
        one.advance(1)
        await one.run("upload")
        one.advance(2 * DAY_MS)
        await one.run("remote-retention")
        one.advance(2 * DAY_MS)
        one.clock.set_wall_ms(one.store_clock.now_ms() - 6 * 60_000)
        assert await one.run("head-refresh", "collector") == [of_shard(ERROR), of_pass(INFO, "collector")]
        admin = one.bench.client.admin
        assert (await admin.collect()).reason
        await admin.run_compaction()
        passes = await one.passes()
        assert passes["collector"].total_refusals["clock"] == 2 * passes["collector"].backlog.piece_count > 0
        assert passes["compaction"].last_refusals["clock"] == 1
        assert passes["collector"].backlog.oldest_ms > 0
        one.clock.set_wall_ms(one.store_clock.now_ms())
        assert (await admin.collect(dry_run=True)).deleted_count > 0
        assert (await one.passes())["collector"].turn_count == 2, "a dry run is no turn of the pass"
        assert of_pass(INFO, "collector") in await one.run("head-refresh", "collector")
        assert (await one.passes())["collector"].total_done["files"] > 0


async def test_operations_count_with_the_passes(caplog: pytest.LogCaptureFixture) -> None:
    async with world(caplog) as one:
        admin = one.bench.client.admin
        await one.append(5)
        await admin.upload()
        one.advance(2 * DAY_MS)
        await admin.run_retention()
        await admin.collect()
        await admin.run_compaction()
        passes = await one.passes()
        assert {name for name, found in passes.items() if found.turn_count == 1} == {
            "upload",
            "remote-retention",
            "collector",
            "compaction",
        }
        assert passes["upload"].total_done["objects"] == 1
        assert passes["remote-retention"].total_done["partitions"] == 1
        one.is_away = True
        with pytest.raises(StoreUnavailableError):
            await admin.collect()
        assert (await one.passes())["collector"].consecutive_failure_count == 1


async def test_the_command_shows_first_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    async with world(caplog) as one:
        await one.run()
        well = (await one.bench.command("tier", "status")).stdout.splitlines()
        assert well[0].startswith("WHAT"), "nothing is wrong"
        await one.append(5)
        one.is_away = True
        one.advance(2 * DAY_MS)
        await one.run("upload")
        one.is_away = False
        one.clock.set_wall_ms(one.store_clock.now_ms() + 6 * 60_000)
        await one.run("remote-retention")
        shown = (await one.bench.command("tier", "status")).stdout.splitlines()
        wrong = shown[: next(number for number, line in enumerate(shown) if line.startswith("WHAT"))]
        assert [line.split(":")[0].split(" has ")[0] for line in wrong] == ["shard 0", "shard 0", "upload"]
        assert "2.0d" in wrong[0]
        assert "6.0min" in wrong[1]
        header = next(number for number, line in enumerate(shown) if line.startswith("PASS"))
        assert [line.split()[0] for line in shown[header + 1 : header + 3]] == ["upload", "remote-retention"]


async def test_a_catalog_that_cannot_be_folded_keeps_no_shard_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Catalog) -> int | None:
        raise StoreUnavailableError("the store does not answer")

    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1)
        await bench.client.append("t", 0, [Record(0, 1, b"k", b"v")])
        await bench.client.admin.upload()
        monkeypatch.setattr(Catalog, "fold_if_needed", fails)
        monkeypatch.setattr(MetadataLog, "fold_if_needed", MetadataLog.fold)
        state = bench.partition().shard.metadata.state
        assert state().folded_seq < state().seq
        await bench.run_task("fold")
        assert state().folded_seq == state().seq - 1, "the fold itself is not in the checkpoint"
        assert bench.server.engine.passes.status("fold").failed_turn_count == 1
