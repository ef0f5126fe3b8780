"""Damage of what was fsynced: no acknowledged record is given up for it, and no other partition suffers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench, service_bench

AT_DISK = {"min.durability": "disk"}


def flip(path: Path, position: int) -> None:
    """Change one bit of the file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def segment(folder: Path, partition: str, base_offset: int = 0) -> Path:
    return folder / "data" / partition / f"{base_offset:020d}.log"


async def append_both(bench: ServiceBench, topic: str = "t") -> None:
    """Six records, of which the store has the first three."""
    for number in range(1, 7):
        await bench.append(topic, [b"v%d" % number])
        if number == 3:
            await bench.client.admin.upload([topic])


ALL = [b"v1", b"v2", b"v3", b"v4", b"v5", b"v6"]


@pytest.mark.parametrize("position", [-2, 65])
async def test_damaged_records_that_the_store_has_cost_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    flip(segment(tmp_path, "t-0"), position)
    async with service_bench(tmp_path) as bench:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert await bench.values("t") == [ALL]
        [said] = caplog.messages
        assert "the local log of t-0 is damaged, offsets below 3 are served from the object store" in said
        assert await bench.append("t", [b"v7"]) == 6
        [log] = await bench.client.admin.describe_log("t")
        assert (log.local_log_start_offset, log.log_end_offset) == (3, 7)
    assert not list((tmp_path / "data").glob("*fenced"))
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[*ALL, b"v7"]]


async def test_damaged_records_that_only_this_disk_has_are_reported_and_kept(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, AT_DISK)
        await append_both(bench)
    # The process that appended them would read them from memory.
    flip(segment(tmp_path, "t-0", 3), 65)
    async with service_bench(tmp_path) as bench:
        with pytest.raises(CorruptRecordError):
            await bench.values("t")
        assert await bench.append("t", [b"v7"]) == 6


EPOCH_POSITION = 15
"""The position of the epoch in a header. No checksum covers it, but the store knows that of the last tiered
batch."""


async def damaged(tmp_path: Path, config: dict[str, str] | None = None) -> None:
    """A topic of two partitions, both with records in the store and others; the end mark of the second is
    damaged on disk.
    """
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2, config or {})
        for number in (0, 1):
            await bench.append("t", [b"tiered"], number)
        await bench.client.admin.upload(["t"])
        for number in (0, 1):
            await bench.append("t", [b"local"], number)
    flip(segment(tmp_path, "t-1"), EPOCH_POSITION)


async def test_a_partition_that_cannot_be_opened_is_offline_alone(tmp_path: Path) -> None:
    await damaged(tmp_path, {"retention.ms": "-1"})
    directory = tmp_path / "data" / "t-1"
    before = contents(directory)
    async with service_bench(tmp_path) as bench:
        admin, engine = bench.client.admin, bench.server.engine
        slices = await admin.list_slices("t", 1)
        for call in (
            bench.append("t", [b"x"], 1),
            bench.read_all("t", start={TopicPartition("t", 1): 0}),
            admin.delete_records("t", 1, "latest"),
        ):
            with pytest.raises(DataDirectoryError) as failure:
                await call
            assert failure.value.fields == {"topic": "t", "partition": 1}
        [left_out] = (await admin.tier_status()).offline_partitions
        assert left_out.path == str(directory)
        assert "remove the segments" in left_out.reason
        assert await bench.append("t", [b"x"]) == 2
        # An upload that names the topic fails, and uploads the other partition all the same.
        with pytest.raises(DataDirectoryError):
            await admin.upload(["t"])
        assert (await admin.upload(delete_local=True)).slice_count == 0
        engine.local.retention.run()
        engine.tier.manager.remote_retention_pass()
        engine.tier.manager.refresh_pass()
        healthy, offline = await admin.describe_log("t")
        assert (healthy.tiered_end_offset, healthy.offline) == (3, None)
        assert offline.offline is not None
        assert (offline.tiered_end_offset, offline.log_end_offset) == (1, -1)
        assert (await admin.list_slices("t", 1), offline.slice_count) == (slices, len(slices))
        assert (offline.segment_count, offline.offline.path) == (-1, str(directory))
        [topic] = await admin.describe_topics(["t"])
        assert topic.partition_count == 2
        assert [*topic.offline_partitions] == [offline.offline]
        assert [*(await admin.tier_status()).offline_partitions] == [offline.offline]
        assert "damaged" in offline.offline.reason
    assert contents(directory) == before
    # The person does what the reason says.
    segment(tmp_path, "t-1").unlink()
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[b"tiered", b"local", b"x"], [b"tiered", b"local"]]
        assert not (await bench.client.admin.tier_status()).offline_partitions


async def test_compaction_leaves_an_offline_partition_alone(tmp_path: Path) -> None:
    config = {"cleanup.policy": "compact"}
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2, config)
        for _ in range(2):
            for number in (0, 1):
                await bench.client.append("t", number, [Record(0, 0, b"k", b"v")])
            await bench.client.admin.upload()
    flip(segment(tmp_path, "t-1", 1), EPOCH_POSITION)
    async with service_bench(tmp_path) as bench:
        before = await bench.client.admin.list_slices("t", 1)
        jobs = await bench.client.admin.run_compaction(["t"])
        assert any("t-1 is offline" in job.reason for job in jobs)
        healthy, offline = [await bench.client.admin.list_slices("t", number) for number in (0, 1)]
        assert [(one.base_offset, one.record_count) for one in healthy] == [(0, 1)]
        assert (len(before), offline) == (2, before)


async def test_a_topic_with_an_offline_partition_can_be_altered_deleted_and_made_again(
    tmp_path: Path,
) -> None:
    await damaged(tmp_path)
    before = contents(tmp_path / "data" / "t-1")
    async with service_bench(tmp_path) as bench:
        engine = bench.server.engine
        topic = engine.topics.registry.topic("t")
        engine.topics.catalog.alter(topic.topic_id, config={"retention.ms": "-1"}, partition_count=3)
        engine.tier.manager.refresh_pass()
        assert await bench.append("t", [b"x"], 2) == 0
        assert engine.topics.registry.partition("t", 0).log.local_log.config.retention_ms == -1
        await bench.client.admin.delete_topic("t")
        assert contents(tmp_path / "data" / "t-1") == before
        await bench.client.admin.create_topic("t", 2)
        assert await bench.values("t") == [[], []]
        [kept] = (tmp_path / "data").glob("t-1.*-stray")
        assert contents(kept) == before
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[], []]


async def killed_with_three_records(tmp_path: Path, *, log_start_offset: int = 0) -> bytes:
    """Three batches of one record, the first ones deleted perhaps, and nothing known of what was fsynced.

    Returns what the log's file holds.
    """
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, {"remote.storage.enable": "false"})
        for value in (b"a", b"b", b"c"):
            await bench.append("t", [value])
        if log_start_offset:
            await bench.client.admin.delete_records("t", 0, log_start_offset)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (tmp_path / "data" / name).unlink()
    return segment(tmp_path, "t-0").read_bytes()


async def test_what_a_recovery_cut_off_and_kept_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = await killed_with_three_records(tmp_path)
    size = len(data) // 3
    flip(segment(tmp_path, "t-0"), 2 * size - 1)
    with caplog.at_level(logging.INFO, "stratalog.server.partitions.opening.partition_opener"):
        async with service_bench(tmp_path) as bench:
            assert await bench.values("t") == [[b"a"]]
    [said] = caplog.records
    kept = tmp_path / "data" / "t-0" / f"{1:020d}.cut"
    assert said.levelno == logging.WARNING
    assert "t-0" in said.getMessage()
    assert "end_offset=`1`" in said.getMessage()
    assert str(kept) in said.getMessage()
    assert kept.read_bytes()[size:] == data[2 * size :]


async def test_a_torn_tail_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = await killed_with_three_records(tmp_path)
    segment(tmp_path, "t-0").write_bytes(data[:-1])
    with caplog.at_level(logging.INFO, "stratalog.server.partitions.opening.partition_opener"):
        async with service_bench(tmp_path) as bench:
            assert await bench.values("t") == [[b"a", b"b"]]
    [said] = caplog.records
    assert (said.levelno, said.getMessage()) == (
        logging.INFO,
        f"the recovery of t-0 cut off {len(data) // 3 - 1} bytes",
    )


async def test_a_log_that_ended_below_its_start_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = await killed_with_three_records(tmp_path, log_start_offset=2)
    segment(tmp_path, "t-0").write_bytes(data[: len(data) // 3])
    with caplog.at_level(logging.WARNING, "stratalog.server.partitions.opening.partition_opener"):
        async with service_bench(tmp_path) as bench:
            assert await bench.append("t", [b"d"]) == 2
    [said] = caplog.messages
    assert "t-0 ended at offset 1, below its start; it begins anew at 2" in said
