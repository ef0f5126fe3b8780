"""Starts, moves, retention and the freeing of space go on beside a log directory whose disk hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import DataDirectoryError, UnknownTopicOrPartitionError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client import values
from stratalog.log.retention.late_removal import Removal
from stratalog.log.retention.log_retention import LogRetention
from stratalog.manager.directories.manifest import PartitionState
from stratalog.manager.moves.log_move import MoveState
from stratalog.server.engine import engine_builder
from stratalog.server.partitions import patient_disk_calls
from stratalog.server.partitions.directory_admin import DOES_NOT_ANSWER
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.gate import Gate
from tests.support.hanging_disk import (
    HangingAtOpening,
    append,
    be_impatient,
    hanging_disk,
    rolled_partitions,
    until_answering,
)
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)


async def test_retention_of_all_tiers_goes_on_beside_a_disk_that_hangs(tmp_path: Path) -> None:
    """It waited for the log, so that no other topic of the shard expired or was explained."""
    gate = Gate()
    hanging: set[str] = set()
    disk = hanging_disk(gate, hanging, "append")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin = bench.client.admin
        hung, other = await rolled_partitions(bench)
        topic = other.topic_partition.topic
        await admin.upload()
        # An append holds the log whose start is to move.
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        try:
            stuck = asyncio.create_task(append(bench, hung.topic_partition.topic, Durability.OS))
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                for one in (hung, other):
                    one.log.local_log.config = replace(one.log.local_log.config, retention_bytes=0)
                await bench.run_task("remote-retention")
                await until(lambda: other.log.offsets.log_start_offset == 1)
                assert hung.log.offsets.log_start_offset == 0
                await append(bench, topic, Durability.OS)
                await admin.roll(topic)
                explained = {one.topic: one for one in await admin.explain_retention()}
                assert explained[topic].new_log_start_offset == 2
                retained = await admin.run_retention()
                assert [one.topic for one in retained.failed_partitions] == [hung.topic_partition.topic]
                assert "does not answer" in retained.failed_partitions[0].reason
                assert [(one.topic, one.new_log_start_offset) for one in retained.partitions] == [(topic, 2)]
                # The pass has not stayed at the log.
                await append(bench, topic, Durability.OS)
                await admin.roll(topic)
                await bench.run_task("remote-retention")
                await until(lambda: other.log.offsets.log_start_offset == 3)
            assert not stuck.done()
        finally:
            gate.open()
        await stuck
        await until(lambda: hung.log.offsets.log_start_offset == 1)


async def test_a_long_fsync_holds_up_the_retention_of_its_partition_alone(tmp_path: Path) -> None:
    """A disk that is slow and healthy was said not to answer, and its other partitions failed, too."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, "sync")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin = bench.client.admin
        busy, other = await rolled_partitions(bench)
        await admin.upload()
        for topic in ("c", "d"):
            await admin.create_topic(topic)
        [near] = [one for one in map(bench.partition, ("c", "d")) if one.log_dir == busy.log_dir]
        near_topic = near.topic_partition.topic
        await append(bench, near_topic, Durability.OS)
        await admin.roll(near_topic)
        near.log.flusher.flush_rolled()
        await admin.upload()
        await append(bench, busy.topic_partition.topic, Durability.OS)
        gate.close()
        hanging.add(f"{busy.log.local_log.directory}/")
        flushing = asyncio.create_task(asyncio.to_thread(busy.log.flusher.flush))
        await until(gate.is_reached.is_set)
        try:
            for one in (busy, near, other):
                one.log.local_log.config = replace(one.log.local_log.config, retention_bytes=0)
            async with asyncio.timeout(PATIENCE_S):
                await bench.run_task("remote-retention")
                retained = await admin.run_retention()
                assert [one.topic for one in retained.failed_partitions] == [busy.topic_partition.topic]
                assert "fsync" in retained.failed_partitions[0].reason
                assert not bench.server.engine.local.disk_calls.is_silent(busy.log_dir)
                assert [one.log.offsets.log_start_offset for one in (busy, near, other)] == [0, 1, 1]
                await append(bench, near_topic, Durability.DISK)
        finally:
            gate.open()
        await flushing
        await bench.run_task("remote-retention")
        await until(lambda: busy.log.offsets.log_start_offset == 1)


async def test_free_space_is_measured_beside_a_disk_that_hangs(tmp_path: Path) -> None:
    """The look at it was under way for ever, and an alteration of the configuration waited for it."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, "free_bytes")
    floor = {"log.dir.min.free.bytes": str(1 << 60)}
    async with service_bench(
        tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",), config=floor
    ) as bench:
        hung, other = bench.server.settings.all_log_dirs
        pressure = bench.server.engine.local.pressure
        assert pressure.space.shortages.keys() == {hung, other}
        gate.close()
        hanging.add(f"{hung}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await bench.run_task("free-space")
                assert gate.is_reached.is_set()
                assert pressure.space.free_bytes.keys() == {other}
                await bench.client.admin.alter_configs({"log.dir.min.free.bytes": str(1 << 59)})
                # Nothing is to be freed in the one that does not answer.
                assert pressure.space.shortages.keys() == {other}
        finally:
            gate.open()
        await until_answering(bench)
        await bench.run_task("free-space")
        assert pressure.space.shortages.keys() == {hung, other}


@pytest.mark.parametrize("operation", ["unlink", "append"])
async def test_space_is_freed_beside_a_disk_that_hangs(tmp_path: Path, operation: str) -> None:
    """The pass waited for one unlink, or for a log that an append holds, and freed nothing any more."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, operation)
    floor = {"log.dir.min.free.bytes": str(1 << 60)}
    keep = {"remote.copy.backlog.policy": "keep"}
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        hung, other = await rolled_partitions(bench, config=keep)
        await bench.client.admin.upload()
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        stuck: list[asyncio.Task[int]] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                if operation == "append":
                    stuck.append(
                        asyncio.create_task(append(bench, hung.topic_partition.topic, Durability.OS))
                    )
                    await until(gate.is_reached.is_set)
                await bench.client.admin.alter_configs(floor)
                # It goes by the space that it finds, and does not stay in the first round.
                for offset in (1, 2):
                    await bench.run_task("free-space")
                    assert other.local_log_start_offset == offset
                    assert not deleted_files(disk, other)
                    await append(bench, other.topic_partition.topic, Durability.OS)
                    await bench.client.admin.roll(other.topic_partition.topic)
                    other.log.flusher.flush_rolled()
                    with suppress(DataDirectoryError):
                        await bench.client.admin.upload()
                assert gate.is_reached.is_set()
        finally:
            gate.open()
        await asyncio.gather(*stuck)
        await until_answering(bench)
        await bench.run_task("free-space")
        assert hung.local_log_start_offset == 1
        assert not deleted_files(disk, hung)


def deleted_files(disk: HookedDisk, partition: HostedPartition) -> list[str]:
    """The files of the partition that wait to be removed."""
    return [name for name in disk.list_directory(partition.log.local_log.directory) if "deleted" in name]


async def test_nothing_is_lost_for_space_once_a_disk_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop that the pass has given up must not happen later: there may be enough space by then."""
    gate, drop = Gate(), LogRetention.drop_for_space
    hanging: set[LogRetention] = set()

    def waiting(retention: LogRetention, *arguments: Any, may_lose: bool, **options: Any) -> int:
        if may_lose and retention in hanging:
            gate.pass_through()
        return drop(retention, *arguments, may_lose=may_lose, **options)

    monkeypatch.setattr(LogRetention, "drop_for_space", waiting)
    droppable = {"remote.copy.backlog.policy": "drop", "remote.copy.pause": "true"}
    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/other",)) as bench:
        hung, other = await rolled_partitions(bench, config=droppable)
        gate.close()
        hanging.add(hung.log.retention)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await bench.client.admin.alter_configs({"log.dir.min.free.bytes": str(1 << 60)})
                await bench.run_task("free-space")
                assert gate.is_reached.is_set()
                assert other.local_log_start_offset == 1
        finally:
            gate.open()
        await until_answering(bench)
        assert hung.local_log_start_offset == 0


@pytest.mark.parametrize(
    ("operation", "place"),
    [("", "data"), ("sync_directory", "other"), ("try_lock", "data"), ("read_file", "other")],
)
async def test_a_start_leaves_a_disk_that_hangs_and_serves_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    operation: str,
    place: str,
) -> None:
    monkeypatch.setattr(engine_builder, "START_PATIENCE_S", 0.3)
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, *filter(None, [operation]))
    log_dirs = (f"{tmp_path}/other",)
    hung = f"{tmp_path}/{place}"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.DISK)
        places = {topic: bench.partition(topic).log_dir for topic in ("a", "b")}
    [lost] = [topic for topic, log_dir in places.items() if log_dir == hung]
    [kept] = places.keys() - {lost}
    gate.close()
    hanging.add(f"{hung}/")
    try:
        async with asyncio.timeout(PATIENCE_S):
            async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs) as bench:
                assert gate.is_reached.is_set()
                assert await append(bench, kept, Durability.DISK) == 1
                assert await bench.values(kept) == [[b"x"] * 2]
                found = {one.path: one for one in (await bench.client.admin.describe_log_dirs()).log_dirs}
                assert found[hung].state is values.LogDirState.OFFLINE
                assert "did not answer" in found[hung].reason
                with pytest.raises(DataDirectoryError):
                    await append(bench, lost, Durability.DISK)
                await bench.client.admin.create_topic("c")
                assert bench.partition("c").log_dir == places[kept]
            assert "a log directory is offline" in caplog.text
    finally:
        gate.open()
    hanging.clear()
    async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs) as bench:
        assert await bench.values(lost) == [[b"x"]]
        assert await append(bench, lost, Durability.DISK) == 1


@pytest.mark.parametrize("place", ["data", "other"])
async def test_a_start_leaves_a_disk_that_hangs_while_its_logs_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """It answers the first looks of the start, which waited for its logs without an end."""
    monkeypatch.setattr(engine_builder, "START_PATIENCE_S", 0.3)
    hung, log_dirs = f"{tmp_path}/{place}", (f"{tmp_path}/other",)
    hanging = HangingAtOpening(hung)
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        for topic in ("a", "b", "c", "d"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.DISK)
        places = {topic: bench.partition(topic).log_dir for topic in ("a", "b", "c", "d")}
    lost, deleted = sorted(topic for topic, log_dir in places.items() if log_dir == hung)
    kept = sorted(places.keys() - {lost, deleted})
    hanging.arm()
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench,
        ):
            assert hanging.gate.is_reached.is_set()
            await require_served_without(bench, hung, [lost, deleted], kept)
            await bench.client.admin.delete_topic(deleted)
            with pytest.raises(DataDirectoryError):
                await bench.client.admin.create_topic(deleted)
            await bench.client.admin.create_topic("new")
            assert bench.partition("new").log_dir == places[kept[0]]
            # What the disk answers now, it answers too late.
            hanging.gate.open()
            assert await append(bench, "new", Durability.DISK) == 0
            with pytest.raises(DataDirectoryError):
                await append(bench, lost, Durability.DISK)
    finally:
        hanging.mend()
    assert "a log directory is offline" in caplog.text
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        assert await bench.values(lost) == [[b"x"]]
        assert await append(bench, lost, Durability.DISK) == 1
        assert await bench.topic_names() == sorted([lost, *kept, "new"])
        assert not hanging.disk.exists(f"{hung}/{deleted}-0")


@pytest.mark.parametrize(
    ("operation", "file"),
    [
        ("read_file", "seen-heads"),
        ("read_file", "leader-epoch-checkpoint"),
        ("sync", "claims-0000.tmp"),
        ("rename", "seen-heads.tmp"),
        ("sync_directory", "other"),
        ("reserve", ".spare-stop"),
    ],
)
async def test_a_start_leaves_a_disk_that_hangs_between_the_first_looks_and_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, file: str
) -> None:
    """It waited without an end for its own small files there: the claims, and the heads that it has seen."""
    monkeypatch.setattr(engine_builder, "START_PATIENCE_S", 0.3)
    hung, log_dirs = f"{tmp_path}/other", (f"{tmp_path}/other",)
    hanging = HangingAtOpening(
        hung, begins=lambda name, path: name == operation and path.split()[0].endswith(f"/{file}")
    )
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.DISK)
        places = {topic: bench.partition(topic).log_dir for topic in ("a", "b")}
    [lost] = [topic for topic, log_dir in places.items() if log_dir == hung]
    [kept] = places.keys() - {lost}
    hanging.arm()
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench,
        ):
            assert hanging.gate.is_reached.is_set()
            assert await append(bench, kept, Durability.DISK) == 1
            found = {one.path: one for one in (await bench.client.admin.describe_log_dirs()).log_dirs}
            assert found[hung].state is values.LogDirState.OFFLINE
            assert "did not answer" in found[hung].reason
            with pytest.raises(DataDirectoryError):
                await append(bench, lost, Durability.DISK)
            # What the disk answers now, it answers too late.
            hanging.gate.open()
            with pytest.raises(DataDirectoryError):
                await append(bench, lost, Durability.DISK)
    finally:
        hanging.mend()
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        assert await bench.values(lost) == [[b"x"]]
        assert await append(bench, lost, Durability.DISK) == 1


async def require_served_without(
    bench: ServiceBench, hung: str, lost: Sequence[str], kept: Sequence[str]
) -> None:
    """The log directory is offline, and so are its topics, which have a partition each; the others are
    served."""
    for topic in kept:
        assert await append(bench, topic, Durability.DISK) == 1
    found = {one.path: one for one in (await bench.client.admin.describe_log_dirs()).log_dirs}
    assert found[hung].state is values.LogDirState.OFFLINE
    assert "did not answer" in found[hung].reason
    for topic in lost:
        with pytest.raises(DataDirectoryError):
            await append(bench, topic, Durability.DISK)
    offline = (await bench.client.admin.tier_status()).offline_partitions
    assert {one.path for one in offline} == {f"{hung}/{topic}-0" for topic in lost}


async def test_a_move_to_a_disk_that_hangs_is_refused_and_holds_up_no_other_one(tmp_path: Path) -> None:
    """It was tried under the lock of all moves, and deletions of topics wait for that, too."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, "append")
    log_dirs = (f"{tmp_path}/b", f"{tmp_path}/c")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs) as bench:
        admin, logs = bench.client.admin, bench.server.engine.local.logs
        for topic in ("x", "y", "z"):
            await admin.create_topic(topic)
        places = {topic: bench.partition(topic).log_dir for topic in ("x", "y", "z")}
        hung = places["z"]
        gate.close()
        hanging.add(f"{hung}/manifest")
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError) as refused:
                    await admin.move_partition("x", 0, hung)
                assert "waited_s" in refused.value.fields
                assert gate.is_reached.is_set()
                started = await admin.move_partition("x", 0, places["y"])
                await bench.client.operations.wait(started.operation_id)
                assert bench.partition("x").log_dir == places["y"]
                await admin.delete_topic("y")
        finally:
            gate.open()
        await until_answering(bench)
        # What the disk has written late is taken back.
        entries = logs.directories.at(hung).entries
        assert TopicPartition("x", 0) not in entries
        assert TopicPartition("z", 0) in entries
        started = await admin.move_partition("x", 0, hung)
        await bench.client.operations.wait(started.operation_id)
        assert bench.partition("x").log_dir == hung


async def test_a_waiting_move_to_a_disk_that_hangs_is_cancelled_and_holds_up_nothing(tmp_path: Path) -> None:
    """Its entry was taken back under the guard of all log directories: no call about any of them returned."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging)
    log_dirs = (f"{tmp_path}/b", f"{tmp_path}/c")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=log_dirs) as bench:
        admin, logs = bench.client.admin, bench.server.engine.local.logs
        for topic in ("x", "y", "z"):
            await admin.create_topic(topic)
        hung = bench.partition("z").log_dir
        entries = logs.directories.at(hung).manifest
        moves = [logs.begin_move(TopicPartition(topic, 0), hung) for topic in ("x", "y")]
        gate.close()
        hanging.add(f"{hung}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                # The second one finds the disk silent, so its entry is taken back in the background.
                for move in moves:
                    await asyncio.to_thread(move.ask_to_end, "not wanted")
                    assert move.state is MoveState.CANCELLED
                assert gate.is_reached.is_set()
                described = (await admin.describe_log_dirs()).log_dirs
                assert {one.path: one.reason for one in described if one.reason} == {hung: DOES_NOT_ANSWER}
                await admin.create_topic("new")
                await admin.delete_topic("y")
        finally:
            gate.open()
        await until(lambda: set(entries.now.partitions) == {TopicPartition("z", 0)})
        await until_answering(bench)


async def test_a_topic_that_is_deleted_while_its_move_is_accepted_and_created_again_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move of the deleted log was accepted, and failed later: it then removed what had the name."""
    # The disk is slow, and is not given up.
    monkeypatch.setattr(patient_disk_calls, "PATIENCE_S", PATIENCE_S)
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, "append")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/b",)) as bench:
        admin, logs = bench.client.admin, bench.server.engine.local.logs
        for topic in ("x", "y"):
            await admin.create_topic(topic)
        source, target = bench.partition("x").log_dir, bench.partition("y").log_dir
        await admin.cordon_log_dir(source)
        gate.close()
        hanging.add(f"{target}/manifest")
        try:
            async with asyncio.timeout(PATIENCE_S):
                begun = asyncio.create_task(admin.move_partition("x", 0, target))
                await until(gate.is_reached.is_set)
                deleted = asyncio.create_task(admin.delete_topic("x"))
                await until(lambda: logs.directories.at(source).entry(TopicPartition("x", 0)) is None)
        finally:
            gate.open()
        with pytest.raises(UnknownTopicOrPartitionError):
            await begun
        await deleted
        assert logs.moves.progress() == ()
        await until_answering(bench)
        await admin.create_topic("x")
        assert bench.partition("x").log_dir == target
        assert await append(bench, "x", Durability.DISK) == 0
        await until(lambda: not logs.moves.is_moving(TopicPartition("x", 0)))
        entry = logs.directories.at(target).entry(TopicPartition("x", 0))
        assert entry is not None
        assert entry.state is PartitionState.LIVE
        assert await append(bench, "x", Durability.DISK) == 1
        assert await bench.values("x") == [[b"x"] * 2]


@pytest.mark.parametrize("is_copying", [False, True])
async def test_what_is_taken_back_late_is_not_that_of_the_next_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copying: bool
) -> None:
    """The entries of both moves are equal."""
    partition, log_dirs = TopicPartition("x", 0), (f"{tmp_path}/b", f"{tmp_path}/c")
    async with service_bench(tmp_path, filesystem=MemoryFileSystem(), log_dirs=log_dirs) as bench:
        logs = bench.server.engine.local.logs
        for topic in ("x", "y"):
            await bench.client.admin.create_topic(topic)
        for _ in range(3):
            await append(bench, "x", Durability.OS)
        target = bench.partition("y").log_dir
        move = logs.begin_move(partition, target)
        # The disk is silent when the move is cancelled.
        answers, late = threading.Event(), list[Removal]()

        def note(_: str, __: str, removals: Sequence[Removal], *___: object, **____: object) -> None:
            late.extend(removals)

        def take_back() -> None:
            while late:
                late.pop().run()

        try:
            with pytest.raises(DataDirectoryError):
                bench.server.engine.local.disk_calls.run(target, answers.wait)
            with monkeypatch.context() as delayed:
                delayed.setattr(logs.removals, "add", note)
                await asyncio.to_thread(move.ask_to_end, "not wanted")
        finally:
            answers.set()
        await until_answering(bench)
        assert len(late) == 1
        again = logs.begin_move(partition, target)
        if not is_copying:
            take_back()
            entry = logs.directories.at(target).entry(partition)
            assert entry is not None
            assert entry.state is PartitionState.INCOMING
        assert await asyncio.to_thread(again.run, take_back) is MoveState.DONE
        assert not late
        assert bench.partition("x").log_dir == target
        assert await append(bench, "x", Durability.DISK) == 3
        assert await bench.values("x") == [[b"x"] * 4]
