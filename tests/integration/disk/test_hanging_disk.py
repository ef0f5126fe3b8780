"""A log directory whose disk hangs holds up neither another one nor, by its fsyncs, appends at `os`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import Durability, TopicPartition
from stratalog.client import values
from stratalog.client.position import TimePosition
from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.read.log_reader import LogReader
from stratalog.log.unified_log import UnifiedLog
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.server.background.tier_manager import LOG_WORK_S
from stratalog.server.partitions import patient_disk_calls
from stratalog.server.partitions.directory_admin import DOES_NOT_ANSWER
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.append_intake import MAX_LOOP_BYTES
from stratalog.testing.manual_clock import ManualClock
from stratalog.v1 import log_pb2
from tests.support.gate import Gate
from tests.support.hanging_disk import (
    RECORD,
    append,
    be_impatient,
    hanging_disk,
    rolled_partitions,
    until_answering,
)
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, service_bench, until
from tests.support.wait_in_turns import wait_in_turns

ALL = log_pb2.MetadataRequest()
PRODUCER_COUNT = 40
"""More than there are threads for the appends, or the fsyncs, of a directory."""


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)


@pytest.mark.parametrize("operation", ["sync", "append"])
async def test_a_disk_that_hangs_holds_up_its_own_logs_only(tmp_path: Path, operation: str) -> None:
    gate = Gate()
    hanging: set[str] = set()

    disk = hanging_disk(gate, hanging, operation)
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
                # Also in a fetch that asks both directories.
                both = await bench.client.fetch(
                    {TopicPartition(topic, 0): 0 for topic in ("a", "b")}, min_bytes=1 << 20, max_wait_ms=50
                )
                assert {one.topic: one.next_fetch_offset for one in both} == {"a": 0, "b": 1}
                assert (await bench.client.latest("a"))[TopicPartition("a", 0)] == 1
                assert {one.topic for one in (await bench.client.log.Metadata(ALL)).topics} == {"a", "b"}
                # Plain records without a partition, too many for the event loop to hash their keys.
                large = log_pb2.Records(records=[log_pb2.Record(value=bytes(2 * MAX_LOOP_BYTES))])
                await bench.client.log.Append(log_pb2.AppendRequest(topic="b", records=large))
            assert not any(one.done() for one in stuck)
        finally:
            gate.open()
        await asyncio.gather(*stuck)


async def test_searches_by_time_on_a_disk_that_hangs_hold_up_no_other_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    search = LogReader.offset_for_timestamp
    hanging: set[LogReader] = set()

    def waiting(reader: LogReader, timestamp_ms: int, isolation: Isolation) -> TimestampOffset | None:
        if reader in hanging:
            gate.pass_through()
        return search(reader, timestamp_ms, isolation)

    monkeypatch.setattr(LogReader, "offset_for_timestamp", waiting)
    options: dict[str, Any] = {"read_thread_count": 2, "cold_read_thread_count": 1}
    options["cold_read_queue_count"] = 1
    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/other",), **options) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
        assert len({bench.partition(topic).log_dir for topic in ("a", "b")}) == 2
        hanging.add(bench.partition("a").log.reader)
        at = TimePosition(0)
        gate.close()
        try:
            stuck = [
                asyncio.create_task(bench.client.list_offsets([(TopicPartition("a", 0), at)]))
                for _ in range(9)
            ]
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                [found] = await bench.client.list_offsets([(TopicPartition("b", 0), at)])
            assert found.offset == 0
            assert not any(one.done() for one in stuck)
        finally:
            gate.open()
        await asyncio.gather(*stuck)


@pytest.mark.usefixtures("is_impatient")
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_passes_over_local_logs_go_on_beside_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    gate = Gate()
    hanging: set[str] = set()

    disk = hanging_disk(gate, hanging)
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


@pytest.mark.usefixtures("is_impatient")
async def test_a_disk_that_hangs_is_described_and_holds_up_no_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directories were read under the lock of all of them: then no topic could be created."""
    gate = Gate()
    hanging: set[str] = set()

    def before(name: str, path: str) -> None:
        if name == "list_directory" and path in hanging:
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin = bench.client.admin
        path = bench.server.settings.all_log_dirs[1]
        assert {one.reason for one in (await admin.describe_log_dirs()).log_dirs} == {""}
        await admin.cordon_log_dir(path)
        gate.close()
        hanging.add(path)
        try:
            async with asyncio.timeout(PATIENCE_S):
                # More than there are threads for descriptions, and for reads of the directory.
                for _ in range(10):
                    described = (await admin.describe_log_dirs()).log_dirs
                    reasons = {one.path: one.reason for one in described if one.reason}
                    assert reasons == {path: DOES_NOT_ANSWER}
                assert gate.is_reached.is_set()
                await admin.create_topic("t")
        finally:
            gate.open()


@pytest.mark.usefixtures("is_impatient")
async def test_uploads_go_on_beside_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    hanging: set[str] = set()

    disk = hanging_disk(gate, hanging, "append")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        for topic in ("a", "b"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
            await bench.client.admin.roll(topic)
        # Scratch files are in the first directory.
        other, hung = sorted(
            (bench.partition(topic) for topic in ("a", "b")),
            key=lambda one: bench.server.settings.all_log_dirs.index(one.log_dir),
        )
        # Nothing is left to fsync.
        hung.log.flusher.flush_rolled()
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        try:
            stuck = asyncio.create_task(append(bench, hung.topic_partition.topic, Durability.OS))
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError):
                    await bench.client.admin.upload()
                assert (other.tiered_end_offset, hung.tiered_end_offset) == (1, 0)
                assert other.local_log_start_offset == 0
                with pytest.raises(DataDirectoryError):
                    await bench.client.admin.upload(delete_local=True)
                assert other.local_log_start_offset == 1
                await bench.run_task("upload")
        finally:
            gate.open()
        await stuck
        await until_answering(bench)
        await bench.client.admin.upload()
        assert hung.tiered_end_offset == 2


async def test_an_upload_is_no_success_by_what_a_former_one_has_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work on a directory that hung for a former upload has not rolled these logs, and ends with the log
    that it has begun."""
    gate = Gate()
    hanging: set[str] = set()
    rolled: list[UnifiedLog] = []
    real_roll = UnifiedLog.roll

    def roll(log: UnifiedLog) -> None:
        real_roll(log)
        rolled.append(log)

    monkeypatch.setattr(UnifiedLog, "roll", roll)
    disk = hanging_disk(gate, hanging, "append")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        by_directory: dict[str, list[HostedPartition]] = {}
        for topic in ("a", "b", "c", "d"):
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
            partition = bench.partition(topic)
            by_directory.setdefault(partition.log_dir, []).append(partition)
        first, last = bench.server.settings.all_log_dirs
        other, (hung, beside) = by_directory[first][0], by_directory[last]
        topics = [one.topic_partition.topic for one in (hung, beside, other)]
        gate.close()
        hanging.add(f"{hung.log.local_log.directory}/")
        try:
            stuck = asyncio.create_task(append(bench, topics[0], Durability.OS))
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                with monkeypatch.context() as impatient:
                    impatient.setattr(patient_disk_calls, "PATIENCE_S", 0.2)
                    impatient.setattr(patient_disk_calls, "wait", wait_in_turns)
                    with pytest.raises(DataDirectoryError):
                        await bench.client.admin.upload(topics[:2])
                # By now it is known, and costs no wait.
                with pytest.raises(DataDirectoryError):
                    await bench.client.admin.upload(topics[1:])
            assert (beside.tiered_end_offset, other.tiered_end_offset) == (0, 1)
        finally:
            gate.open()
        await stuck
        await until_answering(bench)
        assert rolled == [other.log, hung.log]
        await bench.client.admin.upload(topics[1:])
        assert beside.tiered_end_offset == 1


async def test_an_upload_waits_for_a_directory_that_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolling all logs of a directory may take longer than the patience with one that hangs."""
    topics = tuple("abcdef")
    unrolled: dict[str, int] = {}
    may_roll: dict[str, threading.Semaphore] = {}
    has_rolled: dict[str, threading.Semaphore] = {}
    real_roll = UnifiedLog.roll

    def roll(log: UnifiedLog) -> None:
        log_dir = log.local_log.log_dir
        assert may_roll[log_dir].acquire(timeout=PATIENCE_S)
        real_roll(log)
        has_rolled[log_dir].release()

    def wait_for_one(running: Collection[Future[object]], _patience_s: float) -> None:
        """In each patience one log of each directory is rolled."""
        if not any(unrolled.values()):
            wait(running, PATIENCE_S)
        for log_dir in [path for path, count in unrolled.items() if count]:
            unrolled[log_dir] -= 1
            may_roll[log_dir].release()
            assert has_rolled[log_dir].acquire(timeout=PATIENCE_S)

    async with service_bench(tmp_path, log_dirs=(f"{tmp_path}/other",)) as bench:
        for topic in topics:
            await bench.client.admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
        for log_dir in bench.server.settings.all_log_dirs:
            unrolled[log_dir] = len(topics) // 2
            may_roll[log_dir], has_rolled[log_dir] = threading.Semaphore(0), threading.Semaphore(0)
        monkeypatch.setattr(UnifiedLog, "roll", roll)
        monkeypatch.setattr(patient_disk_calls, "wait", wait_for_one)
        await bench.client.admin.upload()
        assert {bench.partition(topic).tiered_end_offset for topic in topics} == {1}


async def test_a_pass_leaves_the_rest_of_a_slow_directory_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads of the other directories wait for it."""
    clock, real_roll = ManualClock(), UnifiedLog.roll

    def roll(log: UnifiedLog) -> None:
        real_roll(log)
        clock.advance(round(LOG_WORK_S * 600))

    async with service_bench(tmp_path, clock=clock) as bench:
        for topic in "abc":
            await bench.client.admin.create_topic(topic, config={"remote.copy.max.age.ms": "1"})
            await append(bench, topic, Durability.OS)
        clock.advance(10)
        monkeypatch.setattr(UnifiedLog, "roll", roll)
        tiered: list[int] = []
        for _ in range(2):
            await bench.run_task("upload")
            tiered.append(sum(bench.partition(topic).tiered_end_offset for topic in "abc"))
        assert tiered == [2, 3]


def no_batches(*_: object) -> None:
    """There are none in memory."""


@pytest.mark.usefixtures("is_impatient")
@pytest.mark.parametrize("moment", ["before scratch", "before a read", "in an append"])
async def test_a_first_disk_that_hangs_ends_its_own_uploads_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Scratch was in the first directory, so that no upload of any other one began; a hang in the middle of a
    pass held all logs of the shard."""
    if moment == "before a read":
        monkeypatch.setattr(LogReader, "recent_batches", no_batches)
    gate = Gate()
    hanging: set[str] = set()
    operations = {"before a read": ("read_at", "read_into"), "in an append": ("append",)}.get(moment, ())

    disk = hanging_disk(gate, hanging, *operations)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        hung, other = await rolled_partitions(bench)
        other_topic = other.topic_partition.topic
        stuck: list[asyncio.Task[int]] = []
        recent_batches = LogReader.recent_batches

        def read(reader: LogReader, *arguments: Any) -> object:
            """The append comes to its disk once the upload copies the log."""
            if reader is hung.log.reader and not stuck:
                loop.call_soon_threadsafe(append_to_hung)
                assert gate.is_reached.wait(PATIENCE_S)
            return recent_batches(reader, *arguments)

        def append_to_hung() -> None:
            stuck.append(asyncio.create_task(append(bench, hung.topic_partition.topic, Durability.OS)))

        loop = asyncio.get_running_loop()
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        if moment == "in an append":
            monkeypatch.setattr(LogReader, "recent_batches", read)
        try:
            async with asyncio.timeout(PATIENCE_S):
                # The first append also has the wait for scratch.
                assert await append(bench, other_topic, Durability.OBJECT) == 1
                with pytest.raises(DataDirectoryError):
                    await bench.client.admin.upload()
                assert other.tiered_end_offset == 2
                assert await append(bench, other_topic, Durability.OBJECT) == 2
                assert gate.is_reached.is_set()
        finally:
            gate.open()
        await asyncio.gather(*stuck)
        await until_answering(bench)
        await bench.client.admin.upload()
        assert hung.tiered_end_offset == 1 + len(stuck)


@pytest.mark.usefixtures("is_impatient")
async def test_a_status_does_without_a_disk_that_hangs_and_a_topic_that_needs_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    hanging: set[str] = set()

    disk = hanging_disk(gate, hanging)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin = bench.client.admin
        for topic in ("a", "b"):
            await admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
        hung, other = bench.partition("a"), bench.partition("b")
        assert hung.log_dir != other.log_dir
        await admin.cordon_log_dir(other.log_dir)
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError) as refused:
                    await admin.create_topic("f")
                assert "waited_s" in refused.value.fields
                assert gate.is_reached.is_set()
                topics = {one.topic: one for one in (await admin.tier_status()).topics}
                assert topics["a"].silent_log_dirs == (hung.log_dir,)
                assert topics["b"].silent_log_dirs == ()
                assert all((one.lag_record_count, one.lag_ms >= 0) == (1, True) for one in topics.values())
        finally:
            gate.open()
        await until_answering(bench)
        await admin.create_topic("f")
        assert bench.partition("f").log_dir == hung.log_dir


@pytest.mark.usefixtures("is_impatient")
async def test_the_name_of_a_topic_whose_log_is_on_a_disk_that_hangs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted topic whose directory cannot be put away: a new one of the name would wait for its disk."""
    gate = Gate()
    hanging: set[str] = set()

    disk = hanging_disk(gate, hanging)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin = bench.client.admin
        await admin.create_topic("a")
        log_dir = bench.partition("a").log_dir
        gate.close()
        hanging.add(f"{log_dir}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert [*await admin.delete_topic("a")] == [f"{log_dir}/a-0"]
                with pytest.raises(DataDirectoryError) as refused:
                    await admin.create_topic("a")
                assert "waited_s" in refused.value.fields
                # The silent directory is the emptier one.
                for topic in ("b", "c", "d"):
                    await admin.create_topic(topic)
                    assert bench.partition(topic).log_dir != log_dir
        finally:
            gate.open()


@pytest.mark.usefixtures("is_impatient")
async def test_cordons_are_altered_beside_a_disk_that_hangs(tmp_path: Path) -> None:
    """A cordon was written under the lock of all directories."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging)
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        admin, directories = bench.client.admin, bench.server.engine.local.logs.directories
        hung, other = bench.server.settings.all_log_dirs
        await admin.create_topic("t", 2)

        async def cordoned() -> set[str]:
            found = (await admin.describe_log_dirs()).log_dirs
            return {one.path for one in found if one.state == values.LogDirState.CORDONED}

        gate.close()
        hanging.add(f"{hung}/")
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError):
                    await admin.cordon_log_dir(hung)
                assert await cordoned() == set()
                assert await admin.cordon_log_dir(other) == other
                assert await cordoned() == {other}
                assert await admin.cordon_log_dir(other, is_cordoned=False) == other
                assert await cordoned() == set()
                [free] = [n for n in range(2) if bench.partition("t", n).log_dir == other]
                await bench.client.append("t", free, [RECORD])
        finally:
            gate.open()
        # What was asked of it comes late, and can be taken back.
        await until(lambda: directories.at(hung).is_cordoned)
        assert await admin.cordon_log_dir(hung, is_cordoned=False) == hung
        assert await cordoned() == set()


@pytest.mark.usefixtures("is_impatient")
async def test_a_topic_whose_first_segment_hangs_holds_up_no_other_one(tmp_path: Path) -> None:
    gate = Gate()

    def before(name: str, path: str) -> None:
        if name != "close" and path.endswith(".log"):
            gate.pass_through()

    async with service_bench(
        tmp_path, filesystem=HookedDisk(before), log_dirs=(f"{tmp_path}/other",)
    ) as bench:
        admin = bench.client.admin
        gate.close()
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError) as refused:
                    await admin.create_topic("a")
                assert "waited_s" in refused.value.fields
                assert gate.is_reached.is_set()
                # The same again, with the other directory: each holds up its own topics only.
                with pytest.raises(DataDirectoryError):
                    await admin.create_topic("b")
                assert await bench.topic_names() == []
        finally:
            gate.open()
        await until_answering(bench)
        for topic in ("a", "b"):
            await admin.create_topic(topic)
            assert await append(bench, topic, Durability.OS) == 0


@pytest.mark.usefixtures("is_impatient")
async def test_a_file_that_is_opened_on_a_disk_that_hangs_holds_up_no_other_file(tmp_path: Path) -> None:
    """Files were opened under one lock."""
    gate, hanging = Gate(), set[str]()
    disk = hanging_disk(gate, hanging, "open_append")
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        hung, other = await rolled_partitions(bench)
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        files = bench.server.engine.local.logs._resources.files  # pyright: ignore[reportPrivateUsage]  # only tests look
        try:
            for partition in (hung, other):
                files.forget_below(partition.log.local_log.directory)
            stuck = asyncio.create_task(append(bench, hung.topic_partition.topic, Durability.OS))
            await until(gate.is_reached.is_set)
            assert await append(bench, other.topic_partition.topic, Durability.OS) == 1
            assert not stuck.done()
        finally:
            gate.open()
        await stuck


@pytest.mark.usefixtures("is_impatient")
async def test_changes_of_a_log_whose_disk_hangs_hold_up_no_other_topic(tmp_path: Path) -> None:
    """They waited for the log under the lock of all topics, or with a thread that other changes need."""
    gate, hanging = Gate(), set[str]()
    disk, other = hanging_disk(gate, hanging, "append"), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,), admin_thread_count=1) as bench:
        admin = bench.client.admin
        for topic in ("a", "b"):
            await admin.create_topic(topic)
            await append(bench, topic, Durability.OS)
        hung = bench.partition("a")
        gate.close()
        hanging.add(f"{hung.log_dir}/")
        try:
            stuck = asyncio.create_task(append(bench, "a", Durability.OS))
            await until(gate.is_reached.is_set)
            flushing = asyncio.create_task(admin.flush("a"))
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError):
                    await admin.alter_configs({"retention.ms": "1000"}, "a")
                with pytest.raises(DataDirectoryError):
                    await admin.delete_records("a", 0, 1)
                await admin.alter_configs({"retention.ms": "1000"}, "b")
                assert await admin.delete_records("b", 0, 1) == 1
                await admin.create_topic("c")
                assert len((await admin.describe_log_dirs()).log_dirs) == 2
            assert not stuck.done()
            assert not flushing.done()
        finally:
            gate.open()
        await asyncio.gather(stuck, flushing)
        await until_answering(bench)
        await bench.refresh()
        assert hung.log.local_log.config.retention_ms == 1000
        assert await admin.delete_records("a", 0, 1) == 1
