"""ExplainRetention predicts what StartRetention then deletes, in both tiers, and when the next data goes.

The oracle is the log as DescribeLog shows it before and after: it shares no code with retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.client import values
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Operation
from tests.support.logs.sampling import IS_WHOLE
from tests.support.service.service_bench import (
    ServiceBench,
    catalog_elsewhere,
    metadata_elsewhere,
    service_bench,
)

LOCAL, STORED = values.RetentionTier.LOCAL, values.RetentionTier.OBJECT_STORE
HOUR_MS = 3_600_000
TOPIC_COUNT = 12
ROUND_COUNT = 4


class Unit(NamedTuple):
    """A segment or a slice, as the server lists it."""

    tier: values.RetentionTier
    base_offset: int
    end_offset: int
    size_bytes: int


class Log(NamedTuple):
    """The partition of a topic."""

    log_start_offset: int
    units: set[Unit]


async def log_of(bench: ServiceBench, topic: str) -> Log:
    admin = bench.client.admin
    [log] = await admin.describe_log(topic)
    segments = {
        Unit(LOCAL, one.base_offset, one.end_offset, one.size_bytes)
        for one in await admin.list_segments(topic, 0)
        if one.end_offset > one.base_offset
    }
    slices = {
        Unit(STORED, one.base_offset, one.end_offset, one.size_bytes)
        for one in await admin.list_slices(topic, 0)
    }
    return Log(log.log_start_offset, segments | slices)


def limits(chance: Random) -> dict[str, str]:
    """A random configuration of retention."""
    config = {
        "segment.bytes": "1024",
        "remote.storage.enable": chance.choice(["true", "false"]),
        "cleanup.policy": chance.choice(["delete", "delete", "delete", "compact", "compact,delete"]),
        "retention.ms": chance.choice(["-1", str(HOUR_MS), str(3 * HOUR_MS)]),
        "retention.bytes": chance.choice(["-1", "1500", "4000"]),
    }
    if config["remote.storage.enable"] == "true":
        config["local.retention.ms"] = chance.choice(
            ["-2", "0", "-1" if config["retention.ms"] == "-1" else "600000"]
        )
        config["local.retention.bytes"] = chance.choice(["-2", "1000"])
    return config


async def grow(bench: ServiceBench, clock: ManualClock, chance: Random, topic: str) -> None:
    """Append, roll, upload and delete at random."""
    for _ in range(chance.randrange(6)):
        age_ms = chance.choice([0, HOUR_MS // 2, 2 * HOUR_MS, 4 * HOUR_MS, -HOUR_MS])
        timestamp_ms = chance.choice([clock.now_ms() - age_ms, clock.now_ms() - age_ms, -1])
        key = b"%d" % chance.randrange(3)
        await bench.client.append(
            topic, 0, [Record(0, max(timestamp_ms, 0), key, bytes(chance.randrange(100, 900)))]
        )
    if chance.random() < 0.4:
        bench.partition(topic).log.roll()
        bench.partition(topic).log.flusher.flush()
    if chance.random() < 0.5 and bench.partition(topic).is_tiered:
        await bench.client.admin.upload([topic], delete_local=chance.random() < 0.2)
    if chance.random() < 0.2:
        high_watermark = bench.partition(topic).log.offsets.high_watermark
        start_offset = bench.partition(topic).log_start_offset
        await bench.client.admin.delete_records(topic, 0, chance.randint(start_offset, high_watermark))


def predicted(explained: values.ExplainedPartition, units: Iterable[Unit]) -> set[Unit]:
    """The units inside of the expired ranges, of which there must be as many as the ranges say."""
    found: set[Unit] = set()
    for expired in explained.expired:
        inside = {
            unit
            for unit in units
            if unit.tier == expired.tier
            and expired.base_offset <= unit.base_offset < unit.end_offset <= expired.end_offset
        }
        assert len(inside) == expired.unit_count
        assert sum(unit.size_bytes for unit in inside) == expired.size_bytes
        found |= inside
    return found


async def check_prediction(bench: ServiceBench) -> None:
    """Explain, delete, and compare with the log before and after."""
    admin = bench.client.admin
    topics = [topic.name for topic in await admin.list_topics()]
    before = {topic: await log_of(bench, topic) for topic in topics}
    explained = {one.topic: one for one in await admin.explain_retention()}
    assert {topic: await log_of(bench, topic) for topic in topics} == before, "an explanation changes nothing"
    result = await admin.run_retention()
    assert not result.failed_partitions
    retained = {one.topic: one for one in result.partitions}
    for topic in topics:
        one, after = explained[topic], await log_of(bench, topic)
        gone = before[topic].units - after.units
        assert gone == predicted(one, before[topic].units), (topic, one)
        assert after.units <= before[topic].units
        assert (one.log_start_offset, one.new_log_start_offset) == (
            before[topic].log_start_offset,
            after.log_start_offset,
        ), one
        kept = {tier: sum(u.size_bytes for u in after.units if u.tier == tier) for tier in (LOCAL, STORED)}
        assert (one.kept_local_bytes, one.kept_tiered_bytes) == (kept[LOCAL], kept[STORED])
        check_result(retained.get(topic), gone, before[topic], after)
    assert not any(one.expired for one in await admin.explain_retention()), "all of it has gone"


def check_result(
    retained: values.RetainedPartition | None,
    gone: set[Unit],
    before: Log,
    after: Log,
) -> None:
    if retained is None:
        assert not gone
        assert before.log_start_offset == after.log_start_offset
        return
    segments = [unit for unit in gone if unit.tier == LOCAL]
    slices = [unit for unit in gone if unit.tier == STORED]
    assert (retained.deleted_segment_count, retained.deleted_segment_bytes) == (
        len(segments),
        sum(unit.size_bytes for unit in segments),
    )
    assert (retained.dropped_slice_count, retained.dropped_slice_bytes) == (
        len(slices),
        sum(unit.size_bytes for unit in slices),
    )
    assert retained.new_log_start_offset == after.log_start_offset


async def check_next_by_time(bench: ServiceBench, clock: ManualClock) -> None:
    """The earliest time at which anything goes is the one that was promised, to the millisecond."""
    explained = await bench.client.admin.explain_retention()
    times_ms = {
        one.topic: min((kept.time_ms for kept in one.next if kept.time_ms >= 0), default=-1)
        for one in explained
    }
    due = [time_ms for time_ms in times_ms.values() if time_ms > clock.now_ms()]
    if not due:
        return
    clock.advance(min(due) - 1 - clock.now_ms())
    assert not any(one.expired for one in await bench.client.admin.explain_retention())
    clock.advance(1)
    expired = {one.topic for one in await bench.client.admin.explain_retention() if one.expired}
    assert expired == {topic for topic, time_ms in times_ms.items() if time_ms == min(due)}


@pytest.mark.parametrize("seed", range(6 if IS_WHOLE else 2))
async def test_what_is_explained_is_what_goes(seed: int, tmp_path: object) -> None:
    chance, clock = Random(seed), ManualClock()
    store = MemoryObjectStore(clock)
    async with service_bench(f"{tmp_path}", filesystem=MemoryFileSystem(), store=store, clock=clock) as bench:
        for number in range(TOPIC_COUNT):
            await bench.client.admin.create_topic(f"t{number}", 1, limits(chance))
        for _ in range(ROUND_COUNT):
            for number in range(TOPIC_COUNT):
                await grow(bench, clock, chance, f"t{number}")
            await check_prediction(bench)
            await check_next_by_time(bench, clock)
            await check_prediction(bench)
            clock.advance(chance.randrange(HOUR_MS))


async def test_a_topic_that_is_altered_meanwhile_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Another actor uses its new configuration just before the commit that moves the log starts."""
    clock = ManualClock()
    bucket = MemoryObjectStore(clock)
    armed: list[str] = []

    def alter_first(operation: Operation) -> None:
        if not armed or (operation.verb, operation.key) != ("PUT", "shards/0000/head"):
            return
        name = armed.pop()
        catalog = catalog_elsewhere(bucket)
        catalog.alter(catalog.topics()[name].topic_id, config={"retention.ms": "-1"})
        tip = TopicIdPartition(catalog.topics()[name].topic_id, 0)
        shard = metadata_elsewhere(bucket)
        assert shard.advance_log_start({tip: 1}, epoch=None, catalog_seq=catalog.seq).refused == ()

    store = FaultyObjectStore(bucket, Random(0), before=alter_first)
    async with service_bench(f"{tmp_path}", filesystem=MemoryFileSystem(), store=store, clock=clock) as bench:
        for name in ("altered", "other"):
            await bench.client.admin.create_topic(name, 1, {"retention.ms": str(HOUR_MS)})
            await bench.client.append(name, 0, [Record(0, clock.now_ms(), None, b"v")] * 2)
            await bench.client.admin.upload([name])
        clock.advance(2 * HOUR_MS)
        armed.append("altered")
        bench.server.engine.tier.manager.remote_retention_pass()
        assert not armed, "the other actor came in between"
        assert (await log_of(bench, "other")).log_start_offset == 2
        assert (await log_of(bench, "altered")).log_start_offset == 1


async def test_a_wrong_clock_is_said_where_retention_by_time_stands_still(tmp_path: Path) -> None:
    clock, store_clock = ManualClock(), ManualClock()
    store = MemoryObjectStore(store_clock)
    async with service_bench(f"{tmp_path}", filesystem=MemoryFileSystem(), store=store, clock=clock) as bench:
        for name, limit in (("timed", str(HOUR_MS)), ("kept", "-1")):
            await bench.client.admin.create_topic(name, 1, {"retention.ms": limit})
            await bench.client.append(name, 0, [Record(0, clock.now_ms(), None, b"v")])
        await bench.client.admin.upload()
        for one in (clock, store_clock):
            one.advance(2 * HOUR_MS)
        clock.advance(6 * 60_000)
        explained = {one.topic: one for one in await bench.client.admin.explain_retention()}
        # The copy on the disk goes by the own clock.
        assert [one.tier for one in explained["timed"].expired] == [LOCAL]
        assert {name: one.clock_refused for name, one in explained.items()} == {"timed": True, "kept": False}
        assert {one.clock_skew_ms for one in explained.values()} == {6 * 60_000}
        result = await bench.client.admin.run_retention()
        assert (result.clock_refused_count, result.clock_skew_ms) == (1, 6 * 60_000)
        [local] = result.partitions
        assert (local.topic, local.new_log_start_offset, local.dropped_slice_count) == ("timed", 0, 0)
        line = "the server's clock is 6.0min ahead of the store's, so nothing of 1 tiered partition goes by"
        for command in (("explain",), ("run", "--dry-run"), ("run",)):
            shown = await bench.command("retention", *command)
            assert shown.exit_code == 0
            assert shown.stdout.startswith(line), command
        clock.set_wall_ms(store_clock.now_ms())
        shown = await bench.command("retention", "run")
        assert shown.stdout.startswith("PARTITION")
        result = await bench.client.admin.run_retention(["timed"])
        assert (result.clock_refused_count, result.clock_skew_ms) == (0, 0)
