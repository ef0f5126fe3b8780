"""Operators and failing disks: topics half made or half deleted, and commands that look at the rest."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.record.record import Record
from stratalog.testing.failing_directory import FailingDirectory
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false"}


async def fail_one(bench: ServiceBench, disk: FailingDirectory, other: str, config: Mapping[str, str]) -> int:
    """Make topic `t` with a partition in each of two directories, and let the disk of one fail; returns the
    number of the partition in it."""
    await bench.client.admin.create_topic("t", 2, {**config, "segment.bytes": "1024"})
    records = [Record(0, SystemClock().now_ms(), b"key", b"x" * 900)]
    for number in range(2):
        await bench.client.append("t", number, records)
    [lost] = [
        one.topic_partition.partition
        for one in bench.server.engine.topics.registry.topic("t").partitions
        if one.log.local_log.directory.startswith(other)
    ]
    disk.broken = other
    with pytest.raises(DataDirectoryError):
        await bench.client.append("t", lost, records)
    return lost


async def test_one_log_that_stays_of_a_topic_that_could_not_be_made_keeps_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, data = FaultyFileSystem(), f"{tmp_path}/data"
    refused = (f"list_directory {data}/t-2", f"rename {data}/t-0 ")
    config = {"num.recovery.threads.per.data.dir": "1"}
    async with service_bench(tmp_path, filesystem=disk, config=config) as bench:
        # Such a disk does not go offline.
        disk.fail_where(lambda line: line.startswith(refused), number=errno.EPERM)
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.create_topic("t", 3, LOCAL)
        disk.mend()
        assert [disk.exists(f"{data}/t-{number}") for number in range(3)] == [True, False, False]
        assert "topic t could not be created; the log of partition 0 stays" in caplog.text
        assert "still in the catalog" not in caplog.text
        await bench.client.admin.create_topic("t", 3, LOCAL)
        assert [await bench.append("t", [b"x"], number) for number in range(3)] == [0, 0, 0]


async def test_operators_see_the_others_beside_a_partition_whose_disk_has_failed(tmp_path: Path) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        lost = await fail_one(bench, disk, other, {})
        admin = bench.client.admin
        await bench.append("t", [b"x" * 900], 1 - lost)
        status = await admin.tier_status()
        assert status.topics[0].pending_upload_bytes > 900
        [offline] = status.offline_partitions
        assert (offline.topic, offline.partition, offline.path) == ("t", lost, f"{other}/t-{lost}")
        assert "Input/output error" in offline.reason
        [described] = await admin.describe_topics(["t"])
        assert [*described.offline_partitions] == [offline]
        for command in (("log", "describe", "t"), ("tier", "status"), ("topic", "describe", "t")):
            shown = await bench.command(*command)
            assert (shown.exit_code, f"t-{lost} is offline, path {other}/t-{lost}: " in shown.output) == (
                0,
                True,
            )
        # An upload that names the topic fails with an error about both; one of all topics answers with both.
        with pytest.raises(DataDirectoryError) as failure:
            await admin.upload(["t"])
        fields = failure.value.fields
        assert (fields["uploaded_objects"], fields["uploaded_slices"]) == (1, 1)
        assert "path" not in fields
        assert int(str(fields["uploaded_bytes"])) > 1800
        assert (await admin.describe_log("t", [1 - lost]))[0].tiered_end_offset == 2
        answer = await admin.upload()
        [left_out] = answer.failed_partitions
        assert (answer.object_count, left_out.topic, left_out.partition) == (0, "t", lost)
        assert offline.reason in left_out.reason
        for options in ((), ("--json",)):
            shown = await bench.command("tier", "upload", *options)
            assert shown.exit_code == 1
            assert f"t-{lost}: it is offline, path {other}/t-{lost}: " in shown.stderr
            assert f"partitions=`t-{lost}`" in str(shown.exception)
        assert json.loads(shown.stdout)["failed_partitions"][0]["partition"] == lost
        assert not [one for one in (await admin.tier_status()).passes if one.last_error]


async def test_an_upload_of_all_says_nothing_of_what_is_never_uploaded(tmp_path: Path) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        await fail_one(bench, disk, other, LOCAL)
        shown = await bench.command("tier", "upload")
        assert (shown.exit_code, shown.stderr) == (0, "")


@pytest.mark.parametrize("config", [{}, LOCAL], ids=["tiered", "local"])
async def test_records_and_offsets_of_the_others_are_printed(
    tmp_path: Path, config: Mapping[str, str]
) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        lost = await fail_one(bench, disk, other, config)
        for command, printed in (
            (("consume", "t", "--json"), '"offset"'),
            (("consume", "t", "--json", "--from", "0"), '"offset"'),
            (("consume", "t", "--json", "--from", "2020-01-01T00:00:00Z"), '"offset"'),
            (("log", "offsets", "t"), "\n"),
            (("log", "offsets", "t", "--at", "0", "--json"), '"offset"'),
        ):
            shown = await bench.command(*command)
            [told] = shown.stderr.splitlines()
            assert told.startswith(f"t-{lost} cannot be read, "), command
            assert other not in told
            assert shown.stdout.count(printed) == (2 if printed == "\n" else 1), command
            assert f'"partition": {lost}' not in shown.stdout
            assert isinstance(shown.exception, DataDirectoryError)
            assert shown.exception.fields == {"partitions": f"t-{lost}"}
        for start in ("earliest", "latest", "0"):
            # What goes on for ever would go on without one of them.
            shown = await bench.command("consume", "t", "--from", start, "--follow")
            assert isinstance(shown.exception, DataDirectoryError)
            assert {"topic": "t", "partition": lost}.items() <= shown.exception.fields.items()
        for one in (("consume", "t"), ("log", "offsets", "t")):
            shown = await bench.command(*one, "--partition", str(1 - lost))
            assert (shown.exit_code, shown.stderr) == (0, "")
            shown = await bench.command(*one, "--partition", str(lost))
            assert isinstance(shown.exception, DataDirectoryError)


async def test_who_reads_on_learns_of_a_partition_whose_disk_fails_meanwhile(tmp_path: Path) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        lost = await fail_one(bench, disk, other, LOCAL)
        told: list[TopicPartition] = []
        consumer = bench.client.consume(
            "t",
            start=0,
            until=1,
            on_offline=lambda partition, _: told.append(partition),
        )
        assert [one.partition async for one in consumer] == [1 - lost]
        assert told == [TopicPartition("t", lost)]
        assert consumer.positions == {number: int(number != lost) for number in range(2)}
        with pytest.raises(DataDirectoryError):
            [one async for one in bench.client.consume("t", start=0, until=1)]


@pytest.mark.parametrize(
    "config", [{}, LOCAL, LOCAL | {"cleanup.policy": "compact,delete"}], ids=["tiered", "local", "compacted"]
)
async def test_passes_over_a_disk_that_has_failed_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: Mapping[str, str]
) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        await fail_one(bench, disk, other, {**config, "retention.ms": "1"})
        engine = bench.server.engine
        caplog.clear()
        for work in (
            engine.tier.manager.upload_pass,
            engine.tier.manager.remote_retention_pass,
            engine.local.retention.run,
            engine.local.logs.tasks.flush_old,
            engine.local.logs.tasks.checkpoint_recovery_points,
            engine.local.logs.tasks.checkpoint_starts,
        ):
            await asyncio.to_thread(work)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_log_that_stayed_open_does_not_keep_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 2, LOCAL)
        await bench.append("t", [b"old"])
        logs = bench.server.engine.local.logs

        def refuse(
            partitions: Iterable[TopicPartition], _topic_id: UUID
        ) -> dict[TopicPartition, DataDirectoryError]:
            return {one: DataDirectoryError("the disk refuses", path=logs.path_of(one)) for one in partitions}

        with monkeypatch.context() as patch:
            patch.setattr(logs, "delete_logs", refuse)
            left_over = await bench.client.admin.delete_topic("t")
        assert left_over == [f"{tmp_path}/data/t-{number}" for number in range(2)]
        await bench.client.admin.create_topic("t", 2, LOCAL)
        assert "closing the log of a deleted topic" in caplog.text
        assert await bench.append("t", [b"new"]) == 0
        assert await bench.values("t") == [[b"new"], []]
