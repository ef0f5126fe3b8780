"""Exports while something else happens: records are deleted, topics cannot be read, the server goes, the
command gets a signal to end. What could be exported is exported, and what could not is named.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from stratalog.base.types import TopicPartition
from stratalog.cli.commands import export_command
from stratalog.cli.main import stratalog
from stratalog.client.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import FetchedPartition
from stratalog.record.batch import batches
from stratalog.record.record import Record
from tests.support.service.service_bench import ServiceBench, service_bench

COUNT = 12
VALUE = bytes(1000)


async def create(bench: ServiceBench, *names: str) -> None:
    """Topics of two partitions, of twelve batches each."""
    for name in names:
        await bench.client.admin.create_topic(name, 2)
        for partition in range(2):
            for number in range(COUNT):
                await bench.client.append(name, partition, [Record(0, 1000 + number, b"k", VALUE)])


async def export(bench: ServiceBench, *arguments: str) -> Result:
    """In a thread, which has an event loop of its own."""
    command = ["export", "kafka", *arguments, "--server", bench.client.address]
    return await asyncio.to_thread(CliRunner().invoke, stratalog, command)


class Meddling:
    """Does something just before a partition is fetched from an offset, in the command alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fetch = Client.fetch
        self.asked: list[TopicPartition] = []
        self.deletes_before: dict[TopicPartition, list[int]] = {}
        """For as many fetches: up to where records are deleted before it."""
        self.is_gone_for: TopicPartition | None = None
        # A batch at a time.
        monkeypatch.setattr(export_command, "_FETCH_BYTES", 1)

        async def fetch(
            client: Client, offsets: Mapping[TopicPartition, int], **options: Any
        ) -> list[FetchedPartition]:
            return await self.fetch(client, offsets, **options)

        monkeypatch.setattr(Client, "fetch", fetch)

    async def fetch(
        self, client: Client, offsets: Mapping[TopicPartition, int], **options: Any
    ) -> list[FetchedPartition]:
        [partition] = offsets
        self.asked.append(partition)
        if partition == self.is_gone_for:
            raise ServerUnavailableError("the server does not answer", server=client.address)
        if self.deletes_before.get(partition):
            before_offset = self.deletes_before[partition].pop(0)
            if before_offset:
                await client.admin.delete_records(partition.topic, partition.partition, before_offset)
        return await self._fetch(client, offsets, **options)


@pytest.fixture
def meddling(monkeypatch: pytest.MonkeyPatch) -> Meddling:
    return Meddling(monkeypatch)


def offsets_of(directory: Path) -> list[int]:
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    return [header.base_offset for _, header in batches(data)]


async def test_a_partition_whose_records_are_deleted_meanwhile_begins_anew(
    tmp_path: Path, meddling: Meddling
) -> None:
    async with service_bench(tmp_path) as bench:
        await create(bench, "t")
        # Thrice what is asked for next is gone; at last it is the first that there is, which is no matter.
        meddling.deletes_before[TopicPartition("t", 1)] = [4, 0, 0, 8, 9, 0, 0, 11]
        result = await export(bench, "t", f"{tmp_path}/out", "--json")
    assert result.exit_code == 0, result.output
    logs = {log["partition"]: log for log in json.loads(result.stdout)}
    assert [logs[number]["log_start_offset"] for number in range(2)] == [0, 9]
    assert [logs[number]["log_end_offset"] for number in range(2)] == [COUNT, COUNT]
    assert offsets_of(tmp_path / "out" / "t-0") == [*range(COUNT)]
    assert offsets_of(tmp_path / "out" / "t-1") == [9, 10, 11]
    assert (tmp_path / "out" / "log-start-offset-checkpoint").read_text() == "0\n1\nt 1 9\n"
    assert not list((tmp_path / "out" / "t-1").glob("*.deleted"))


async def test_a_partition_that_is_deleted_faster_than_it_is_read_is_left_out_and_named(
    tmp_path: Path, meddling: Meddling
) -> None:
    async with service_bench(tmp_path) as bench:
        await create(bench, "bad", "good")
        meddling.deletes_before[TopicPartition("bad", 0)] = [*range(1, COUNT)]
        result = await export(bench, "bad", "good", f"{tmp_path}/out", "--json")
    assert result.exit_code == 1
    assert "left out: " in result.stderr
    assert "topic=`bad` partition=`0`" in result.stderr
    assert {log["topic"] for log in json.loads(result.stdout)} == {"good"}
    assert meddling.asked.count(TopicPartition("bad", 0)) == 5
    assert sorted(path.name for path in tmp_path.glob("out/*-*/")) == ["good-0", "good-1"]


async def test_what_was_exported_before_the_server_went_is_there(tmp_path: Path, meddling: Meddling) -> None:
    async with service_bench(tmp_path) as bench:
        await create(bench, "a", "b", "c")
        meddling.is_gone_for = TopicPartition("b", 1)
        result = await export(bench, "a", "b", "c", f"{tmp_path}/out", "--json")
    assert result.exit_code == 1
    lines = [line for line in result.stderr.splitlines() if line.startswith("left out: ")]
    assert ["topic=`b` partition=`1`" in lines[0], "topic=`c` partition=`0`" in lines[1]] == [True, True]
    assert {log["topic"] for log in json.loads(result.stdout)} == {"a"}
    # The command does not wait for it again.
    assert {partition.topic for partition in meddling.asked} == {"a", "b"}
    assert sorted(path.name for path in tmp_path.glob("out/*-*/")) == ["a-0", "a-1"]


_HANGS = """
import asyncio, sys
from stratalog.cli.main import main
from stratalog.client.client import Client

async def fetch(*arguments, **options):
    print("fetching", flush=True)
    await asyncio.Event().wait()

Client.fetch = fetch
sys.argv[:1] = ["stratalog"]
main()
"""


async def test_one_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "exports" / "out"
    target.parent.mkdir()
    async with service_bench(tmp_path) as bench:
        await create(bench, "t")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _HANGS, "export", "kafka", "t", str(target)),
            *("--server", bench.client.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"fetching\n"
        assert len(list(target.parent.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
    assert (process.returncode, errors) == (130, b"")
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("topic_id", ["A" * 22, "A" * 21 + "Q", str(UUID(int=0)), UUID(int=1).hex])
def test_an_id_that_kafka_keeps_to_itself_is_refused(tmp_path: Path, topic_id: str) -> None:
    arguments = ["export", "kafka", "t", f"{tmp_path}/out", "--topic-id", topic_id]
    result = CliRunner().invoke(stratalog, arguments)
    assert result.exit_code == 2
    assert "Kafka reserves this id" in result.stderr
    assert not list(tmp_path.iterdir())
