"""A log directory that is left out or not mounted, and a disk that fails under a topic: what is refused, what
goes on, what operators see, and how what is gone is let go."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.client import values
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.testing.failing_directory import FailingDirectory
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false"}


async def fetch(bench: ServiceBench, partition: TopicPartition) -> None:
    """Fetch once. Raises the error of the answer."""
    [answer] = await bench.client.fetch({partition: 0})
    if answer.error is not None:
        raise answer.error


def numbers_by_dir(bench: ServiceBench, topic: str) -> dict[str, int]:
    partitions = bench.server.engine.topics.registry.topic(topic).partitions
    return {os.path.dirname(one.log.local_log.directory): one.topic_partition.partition for one in partitions}


async def fill(bench: ServiceBench) -> None:
    """Topic `t` with a partition in each of two directories, with a record in each."""
    await bench.client.admin.create_topic("t", 2, {**LOCAL, "segment.bytes": "1024"})
    for number in range(2):
        await bench.append("t", [b"x" * 900], number)


async def test_a_directory_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    other, away = tmp_path / "other", tmp_path / "away"
    async with service_bench(tmp_path, log_dirs=(str(other),)) as bench:
        await fill(bench)
        lost = numbers_by_dir(bench, "t")[str(other)]
        other_id = (await bench.client.admin.describe_log_dirs()).log_dirs[1].directory_id
    other.rename(away)
    async with service_bench(tmp_path, log_dirs=(str(other),), metrics_listen="127.0.0.1:0") as bench:
        assert await bench.append("t", [b"y"], 1 - lost) == 1
        await bench.client.admin.create_topic("u", 2, LOCAL)
        refused: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: bench.append("t", [b"y"], lost),
            lambda: fetch(bench, TopicPartition("t", lost)),
            lambda: bench.client.latest("t"),
        )
        for call in refused:
            with pytest.raises(DataDirectoryError) as failure:
                await call()
            assert failure.value.fields == {"topic": "t", "partition": lost}
        [offline] = (await bench.client.admin.tier_status()).offline_partitions
        assert offline.path == f"{other}/t-{lost}"
        assert "log directory that is missing" in offline.reason
        [described] = [
            one
            for one in (await bench.client.admin.describe_log_dirs()).log_dirs
            if one.state == values.LogDirState.MISSING
        ]
        assert (described.directory_id, described.path) == (other_id, str(other))
        shown = (await bench.command("log-dirs", "describe")).output
        assert f"{other} is missing: the server was started without it" in shown
        assert other_id in shown
        url = f"http://127.0.0.1:{bench.server.metrics_port}/metrics"
        with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
            text = answer.read().decode()
        assert "stratalog_log_manager_missing_log_directory_count 1.0" in text
        assert "stratalog_log_manager_offline_log_directory_count 1.0" in text
    shutil.rmtree(other)
    away.rename(other)
    async with service_bench(tmp_path, log_dirs=(str(other),)) as bench:
        assert [len(records) for records in await bench.read_all("t")] == [1 + (lost == 1), 1 + (lost == 0)]
        states = [one.state for one in (await bench.client.admin.describe_log_dirs()).log_dirs]
        live, missing = values.LogDirState.LIVE, values.LogDirState.MISSING
        assert states == [live, live, missing], "the one that stood in its place"


async def test_a_directory_that_is_forgotten_is_not_waited_for(tmp_path: Path) -> None:
    other = tmp_path / "other"
    async with service_bench(tmp_path, log_dirs=(str(other),)) as bench:
        await fill(bench)
        lost = numbers_by_dir(bench, "t")[str(other)]
        data_id, other_id = (
            one.directory_id for one in (await bench.client.admin.describe_log_dirs()).log_dirs
        )
        refused = await bench.command("log-dirs", "forget", other_id)
        assert refused.exit_code == 1
        assert "only one that is missing can be forgotten" in str(refused.exception)
    shutil.rmtree(other)
    async with service_bench(tmp_path) as bench:
        with pytest.raises(InvalidRequestError) as refusal:
            await bench.client.admin.forget_log_dir(data_id)
        assert refusal.value.fields["missing_ids"] == other_id
        result = await bench.command("log-dirs", "forget", other_id)
        assert (result.exit_code, f"forgot {other_id}, which was at {other};" in result.output) == (0, True)
        shown = await bench.command("log-dirs", "describe", "--json")
        assert [one["state"] for one in json.loads(shown.output)["log_dirs"]] == ["live"]
        with pytest.raises(DataDirectoryError):
            await bench.append("t", [b"y"], lost)
    async with service_bench(tmp_path) as bench:
        assert await bench.append("t", [b"y"], lost) == 0
        assert [len(records) for records in await bench.read_all("t")] == [1, 1]


async def test_a_topic_whose_directories_are_gone_is_deleted_and_its_name_is_free(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await fill(bench)
    for number in range(2):
        shutil.rmtree(tmp_path / "data" / f"t-{number}")
    async with service_bench(tmp_path) as bench:
        assert await bench.client.admin.delete_topic("t") == []
        # If the topic is made again, by another server perhaps, its partitions are new here.
        assert b"t 0" not in (tmp_path / "data" / RECOVERY_POINT_FILE).read_bytes()
        await bench.client.admin.create_topic("t", 2, LOCAL)
        assert await bench.append("t", [b"y"], 1) == 0
    async with service_bench(tmp_path) as bench:
        assert [len(records) for records in await bench.read_all("t")] == [0, 1]


async def test_a_topic_with_a_partition_on_a_failed_disk_is_deleted(tmp_path: Path) -> None:
    disk, other, data = FailingDirectory(), f"{tmp_path}/other", f"{tmp_path}/data"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        await fill(bench)
        lost = numbers_by_dir(bench, "t")[other]
        disk.broken = str(other)
        with pytest.raises(DataDirectoryError):
            await bench.append("t", [b"x" * 900], lost)
        result = await bench.command("topic", "delete", "t", "--yes")
        assert result.exit_code == 0
        assert result.output == (
            f"deleted t\nnote: {other}/t-{lost} cannot be deleted now;"
            " a later start of the server deletes it\n"
        )
        assert not Path(data, f"t-{1 - lost}").exists()
        assert Path(other, f"t-{lost}").exists()
        # The name is free, and what comes next goes where a disk works.
        await bench.client.admin.create_topic("t", 2, LOCAL)
        for number in range(2):
            assert await bench.append("t", [b"new"], number) == 0
        assert numbers_by_dir(bench, "t").keys() == {data}
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert not Path(other, f"t-{lost}").exists()
        assert await bench.values("t") == [[b"new"]] * 2
