"""A log directory whose disk hangs holds up neither another one nor, by its fsyncs, appends at `os`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.types import Durability, TopicPartition
from stratalog.log.fetch_data import FetchData
from stratalog.record.record import Record
from stratalog.server.background import pass_rounds
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.append_intake import MAX_LOOP_BYTES
from stratalog.v1 import log_pb2
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until

RECORD = Record(0, 0, b"k", b"x")
ALL = log_pb2.MetadataRequest()
PRODUCER_COUNT = 40
"""More than there are threads for the appends, or the fsyncs, of a directory."""


async def append(bench: ServiceBench, topic: str, durability: Durability) -> int:
    appended = bench.client.append(topic, 0, [RECORD], durability=durability)
    return (await asyncio.wait_for(appended, PATIENCE_S)).base_offset


@pytest.mark.parametrize("operation", ["sync", "append"])
async def test_a_disk_that_hangs_holds_up_its_own_logs_only(tmp_path: Path, operation: str) -> None:
    gate = Gate()
    hanging: set[str] = set()

    def before(name: str, path: str) -> None:
        if name == operation and any(path.startswith(folder) for folder in hanging):
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
        folders = {topic: bench.partition(topic).log.local_log.directory for topic in ("a", "b")}
        assert len({Path(folder).parent for folder in folders.values()}) == 2
        # The first append of an epoch fsyncs the file of epochs before its records are written.
        assert await append(bench, "a", Durability.OS) == 0
        gate.close()
        hanging.add(folders["a"])
        try:
            stuck = [asyncio.create_task(append(bench, "a", Durability.DISK)) for _ in range(PRODUCER_COUNT)]
            await until(gate.is_reached.is_set)
            for number in range(20):
                assert await append(bench, "b", Durability.DISK) == number
            if operation == "sync":
                # Fsyncs have threads of their own, so that what is only written goes on.
                assert await append(bench, "a", Durability.OS) > 0
            assert not any(one.done() for one in stuck)
        finally:
            gate.open()
        await asyncio.gather(*stuck)


async def test_readers_of_a_disk_that_hangs_hold_up_no_other_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    read_local = HostedPartition.read_local

    def waiting(partition: HostedPartition, *arguments: Any, **options: Any) -> FetchData:
        if partition.topic_partition.topic == "a":
            gate.pass_through()
        return read_local(partition, *arguments, **options)

    def nothing(*_: object, **__: object) -> None:
        """Neither memory nor the cache of the system has the records."""

    monkeypatch.setattr(HostedPartition, "read_recent", nothing)
    monkeypatch.setattr(HostedPartition, "read_cached", nothing)
    monkeypatch.setattr(HostedPartition, "read_local", waiting)
    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/other",), read_thread_count=2) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
        assert len({bench.partition(topic).log_dir for topic in ("a", "b")}) == 2
        gate.close()
        try:
            stuck = [
                asyncio.create_task(bench.client.fetch({TopicPartition("a", 0): 0}))
                for _ in range(PRODUCER_COUNT)
            ]
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                assert await bench.values("b") == [[b"x"]]
                assert (await bench.client.latest("a"))[TopicPartition("a", 0)] == 1
                assert {one.topic for one in (await bench.client.log.Metadata(ALL)).topics} == {"a", "b"}
                # Plain records without a partition, too many for the event loop to hash their keys.
                large = log_pb2.Records(records=[log_pb2.Record(value=bytes(2 * MAX_LOOP_BYTES))])
                await bench.client.log.Append(log_pb2.AppendRequest(topic="b", records=large))
            assert not any(one.done() for one in stuck)
        finally:
            gate.open()
        await asyncio.gather(*stuck)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_passes_over_local_logs_go_on_beside_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(pass_rounds, "PATIENCE_S", 0.2)
    gate = Gate()
    hanging: set[str] = set()

    def before(name: str, path: str) -> None:
        if any(path.startswith(folder) for folder in hanging):
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(
                topic,
                config={"retention.bytes": "0", "remote.storage.enable": "false", "cleanup.policy": policy},
            )
            await append(bench, topic, Durability.OS)
            await bench.client.admin.roll(topic)
        first, second = sorted(
            (bench.partition(topic) for topic in ("a", "b")),
            key=lambda one: bench.server.settings.all_log_dirs.index(one.log_dir),
        )
        assert first.log_dir != second.log_dir
        gate.close()
        hanging.add(f"{first.log_dir}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                # The second time the directory is passed over at once.
                for _ in range(2):
                    await bench.run_task("rolled-flush")
                assert gate.is_reached.is_set()
                # A round leaves what takes longer to itself.
                await until(lambda: second.log.offsets.recovery_point == 1)
                assert first.log.offsets.recovery_point == 0
                for name in ("flush", "recovery-point-checkpoint", "log-start-checkpoint"):
                    await bench.run_task(name)
                point = f"{second.topic_partition.topic} 0 1".encode()
                points = f"{second.log_dir}/recovery-point-offset-checkpoint"
                await until(lambda: point in disk.read_file(points))
                await bench.run_task("local-retention")
                await until(lambda: second.log_start_offset == 1)
                assert first.log_start_offset == 0
        finally:
            gate.open()
        await until(lambda: first.log.offsets.recovery_point == 1)
        await bench.run_task("local-retention")
        await until(lambda: first.log_start_offset == 1)
