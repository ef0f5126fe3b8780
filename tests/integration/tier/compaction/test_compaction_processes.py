"""The jobs of a server go to a process beside it: they do there as they do on a thread, and neither the death
of that process nor that of the server loses anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.client import values
from stratalog.client.client import Client
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import JobClock
from stratalog.objectstore.counted import CountedObjectStore, RequestCount, RequestKind
from stratalog.objectstore.local import LocalObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.job_processes.job_process import JobProcess
from stratalog.server.job_processes.messages import Hello, Progress
from stratalog.server.job_processes.software_on_disk import software_digest
from stratalog.server.operations.operation import Operation, OperationView
from stratalog.server.operations.operation_results import CompactionResult
from tests.support.service.server_process import ServerProcess
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until
from tests.support.tiered.tiered_store import TieredStore

COMPACTED = {"cleanup.policy": "compact", "retention.ms": "-1"}
PARTITION_COUNT = 2
SLOW = {"remote.compaction.max.requests.per.second": "0.001"}
"""A job waits for a quarter of an hour behind its first request."""
FAST = {"remote.compaction.max.requests.per.second": "1000000"}


async def put(client: Client, numbers: range) -> None:
    """Update the same keys of each partition, with an object for each number."""
    for number in numbers:
        for partition in range(PARTITION_COUNT):
            records = [Record(0, 1000, key, b"%d" % number) for key in (b"a", b"b")]
            await client.append("t", partition, records)
        await client.admin.upload()


@pytest.fixture(autouse=True)
def _each_request_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.compaction.compaction_progress.TELL_PERIOD_S", 0)


@asynccontextmanager
async def compacting_bench(folder: Path, **settings: Any) -> AsyncGenerator[ServiceBench, None]:
    """A server with something to compact, whose records are in the store alone."""
    async with service_bench(folder, has_processes=True, **settings) as bench:
        await bench.client.admin.create_topic("t", PARTITION_COUNT, COMPACTED)
        await put(bench.client, range(2))
        yield bench


def pids(bench: ServiceBench) -> frozenset[int]:
    processes = bench.server.processes
    assert processes is not None
    return processes.pids()


async def begun(bench: ServiceBench) -> tuple[Operation, asyncio.Future[OperationView]]:
    """A compaction whose first request is known, and the future of its end."""
    loop = asyncio.get_running_loop()
    has_begun, ended = asyncio.Event(), loop.create_future()
    await bench.client.admin.start_compaction(["t"])
    operation = bench.server.engine.operations.operations()[0]

    def look() -> None:
        view = operation.view
        shown = view.progress.compaction
        if shown is not None and shown.transfer.get_count > 0:
            has_begun.set()
        if view.state.is_final and not ended.done():
            ended.set_result(view)

    def hop() -> None:
        loop.call_soon_threadsafe(look)

    operation.listen(hop)
    look()
    async with asyncio.timeout(PATIENCE_S):
        await has_begun.wait()
    return operation, ended


async def check_compacted(bench: ServiceBench) -> None:
    """The last value of each key is all that the store has."""
    await bench.client.admin.upload(delete_local=True)
    for records in await bench.read_all("t"):
        assert [(record.key, record.value) for record in records] == [(b"a", b"1"), (b"b", b"1")]
    assert (await bench.client.admin.verify()).finding_count == 0
    scratch = Path(bench.server.settings.data_dir, "scratch")
    left = [path.name for path in scratch.rglob("*") if path.is_file()]
    assert set(left) <= {"exclusions.json"}


async def test_a_job_is_executed_by_another_process_with_the_settings_of_now(tmp_path: Path) -> None:
    async with compacting_bench(tmp_path) as bench:
        assert pids(bench) == frozenset(), "none before there is a job"
        counted = bench.server.engine.tier.store
        assert isinstance(counted, CountedObjectStore)
        before = counted.counts()
        alter = bench.client.admin.alter_configs
        await alter({"remote.compaction.job.memory.bytes": "0", "remote.compaction.scratch.max.bytes": "1"})
        refused = await bench.client.admin.run_compaction(["t"])
        assert all("remote.compaction.scratch.max.bytes" in report.reason for report in refused)
        [pid] = pids(bench)
        assert pid != os.getpid()
        # Nothing is nicer than 19, and the tests may run below other work.
        expected_niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        assert os.getpriority(os.PRIO_PROCESS, pid) == expected_niceness
        await alter({"remote.compaction.scratch.max.bytes": "1000000"})
        for one in await bench.client.admin.excluded_partitions():
            assert await bench.client.admin.reset_excluded_partition(one.topic, one.partition)
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
        assert pids(bench) == {pid}, "it takes the next job"
        [operation, *_] = bench.server.engine.operations.operations()
        shown = operation.view.progress.compaction
        assert shown is not None
        assert (shown.done_job_count, shown.done_partition_count) == (1, PARTITION_COUNT)
        assert (shown.kept_record_count, shown.dropped_record_count) == (4, 4)
        assert shown.transfer.get_count == job.get_request_count > 0
        # The metrics of the server have the requests of the process.
        for verb, count in (("GET", job.get_request_count), ("PUT", job.put_request_count)):
            kind = RequestKind(verb, "data")
            grown = counted.counts()[kind].requests - before.get(kind, RequestCount()).requests
            assert grown >= count > 0
        await check_compacted(bench)
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists(), "it ends with the server"


async def test_a_process_that_is_killed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with compacting_bench(tmp_path, config=SLOW) as bench:
        _, ended = await begun(bench)
        [pid] = pids(bench)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            view = await ended
        assert isinstance(view.result, CompactionResult)
        [report] = view.result.reports
        assert "SIGKILL" in (report.refused or "")
        assert report.failed_attempts == 1
        assert "SIGKILL" in caplog.text
        assert "the next run tries this one last" in caplog.text
        assert pids(bench) == frozenset()
        await bench.client.admin.alter_configs(FAST)
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
        [idle] = pids(bench)
        assert idle != pid
        os.kill(idle, signal.SIGKILL)
        os.waitid(os.P_PID, idle, os.WEXITED | os.WNOWAIT)
        await put(bench.client, range(2))
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED, "an idle one was replaced before the job"
        assert idle not in pids(bench)
        await check_compacted(bench)


async def test_damage_that_a_process_finds_is_named_and_leaves_one_partition_alone(tmp_path: Path) -> None:
    async with compacting_bench(tmp_path) as bench:
        _, last = sorted(Path(f"{tmp_path}/data.store").rglob("data/*"))
        damaged = bytearray(last.read_bytes())
        # Behind the base offset of its first batch, in a record.
        damaged[damaged.index((2).to_bytes(8, "big")) + 65] ^= 1
        last.write_bytes(damaged)
        failed, done, *_ = await bench.client.admin.run_compaction(["t"])
        assert f"object=`{last.name}`" in failed.reason
        assert "slice_base_offset=`2`" in failed.reason
        assert done.outcome is values.CompactionOutcome.COMMITTED
        [excluded] = await bench.client.admin.excluded_partitions()
        assert f"partition=`{excluded.partition}`" in failed.reason
        assert excluded.failure_count == 1


async def test_a_job_that_is_cancelled_leaves_its_process_for_the_next_one(tmp_path: Path) -> None:
    async with compacting_bench(tmp_path, config=SLOW) as bench:
        operation, ended = await begun(bench)
        operation.cancel()
        async with asyncio.timeout(PATIENCE_S):
            assert (await ended).state.value == "cancelled"
        before = pids(bench)
        await bench.client.admin.alter_configs(FAST)
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
        assert pids(bench) == before != frozenset()
        await check_compacted(bench)


async def test_a_stop_ends_a_job_and_its_process(tmp_path: Path) -> None:
    async with compacting_bench(tmp_path, config=SLOW) as bench:
        await begun(bench)
        [pid] = pids(bench)
    assert not Path(f"/proc/{pid}").exists()


def test_a_process_ends_in_the_middle_of_a_job_when_its_pipe_is_closed(tmp_path: Path) -> None:
    clock, ids = SystemClock(), SystemIdGenerator()
    store = LocalObjectStore(PosixFileSystem(), clock, ids, f"{tmp_path}/store")
    tiered = TieredStore(PosixFileSystem(), store, clock, ids, directory=f"{tmp_path}/tiered")
    topic = tiered.catalog.create("t", 1, COMPACTED)
    for number in range(2):
        batch = encode_batch([Record(0, 1, b"key", b"value")], base_offset=number, leader_epoch=1)
        tiered.upload({TopicIdPartition(topic.topic_id, 0): [batch]})
    shard = tiered.shard(store)
    [job] = tiered.compactor().plan(["t"]).jobs
    settings = CompactionSettings(spool_directory=f"{tmp_path}/scratch", max_requests_per_s=0.001)
    process = JobProcess(Hello(f"file://{tmp_path}/store", logging.INFO), software_digest())
    process.give(shard.order(job, settings, JobClock(clock.now_ms(), may_drop_tombstones=True)))
    told = process.answer(PATIENCE_S)
    assert isinstance(told, Progress)
    assert told.transfer.get_count == 1
    assert process.end(PATIENCE_S) == 0, "by itself, and not by a signal"


def test_a_process_of_other_software_than_the_server_takes_no_job(tmp_path: Path) -> None:
    """`pip install --upgrade` changes the files below a server that runs."""
    process = JobProcess(Hello(f"file://{tmp_path}/store", logging.INFO), "of the version before")
    with pytest.raises(LogStoreError) as raised:
        process.answer(PATIENCE_S)
    assert "restart the server" in str(raised.value)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found


async def test_a_process_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    (slow,) = (f"{name}={value}" for name, value in SLOW.items())
    server = ServerProcess(f"{tmp_path}/data", options=("--compaction-interval", "0", "--config", slow))
    with server:
        async with Client(server.address) as client:
            await client.admin.create_topic("t", PARTITION_COUNT, COMPACTED)
            await put(client, range(2))
            await client.admin.start_compaction(["t"])
            await until(lambda: children_of(server.pid) != [])
        [child] = children_of(server.pid)
        handle = os.pidfd_open(child)
        server.kill()
        try:
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            assert await asyncio.to_thread(waiting.poll, PATIENCE_S * 1000), "it ends by itself"
        finally:
            os.close(handle)
    assert list(Path(f"{tmp_path}/data.store").rglob(".aside/*")) == []
    async with service_bench(tmp_path, has_processes=True) as bench:
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
        await check_compacted(bench)


async def test_what_no_other_process_has_is_compacted_in_the_server(tmp_path: Path) -> None:
    async with compacting_bench(tmp_path, store_url="memory://") as bench:
        assert bench.server.processes is None
        [job] = await bench.client.admin.run_compaction(["t"])
        assert job.outcome is values.CompactionOutcome.COMMITTED
