"""A server stops beside a disk that hangs, and the other log directories are left in order."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import Durability
from stratalog.client.messages import AppendAck
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.record import Record
from stratalog.server import app
from stratalog.server.engine import engine_builder
from stratalog.server.partitions import patient_disk_calls
from tests.support.gate import Gate
from tests.support.hanging_disk import HangingAtOpening
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, ServiceBench, service_bench, until
from tests.support.wait_in_turns import wait_in_turns

RECORD = Record(0, 0, b"k", b"x")
TOPICS = ("a", "b")
CLEANED = {"cleanup.policy": "compact", "remote.storage.enable": "false"}


@pytest.fixture(autouse=True)
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STOP_PATIENCE_S", 0.3)
    monkeypatch.setattr(app, "wait", wait_in_turns)
    monkeypatch.setattr(patient_disk_calls, "wait", wait_in_turns)


class Hanging:
    """A disk on which all operations below a path wait at the gate, once there is one."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.path = ""
        self.disk = HookedDisk(self._before)

    def begin(self, path: str) -> None:
        self.gate.close()
        self.path = f"{path}/"

    def _before(self, name: str, path: str) -> None:
        # A file closes without a wait.
        if name != "close" and self.path and f"{path}/".startswith(self.path):
            self.gate.pass_through()


async def fill(bench: ServiceBench) -> None:
    """A record for a topic in each of two log directories."""
    for topic in TOPICS:
        await bench.client.admin.create_topic(topic, config=CLEANED)
        await bench.client.append(topic, 0, [RECORD], durability=Durability.OS)
    assert len({bench.partition(topic).log_dir for topic in TOPICS}) == 2


def working_threads() -> set[threading.Thread]:
    """The threads that may be at work in a log directory after a stop."""
    names = ("stratalog-request", "stratalog-close", "stratalog-task")
    return {thread for thread in threading.enumerate() if thread.name.startswith(names)}


def is_marked(disk: FileSystem, log_dir: str) -> bool:
    return disk.exists(f"{log_dir}/{CLEAN_SHUTDOWN_FILE}")


def begin_nothing(_: ServiceBench) -> None:
    """Nothing comes to the disk before the logs are closed."""


def begin_append(bench: ServiceBench) -> asyncio.Task[AppendAck]:
    """An append that holds its log."""
    return asyncio.create_task(bench.client.append("a", 0, [RECORD], durability=Durability.DISK))


def begin_task(bench: ServiceBench) -> None:
    """A background task that holds no log, such as one that removes deleted files."""
    path = f"{bench.partition('a').log_dir}/x"
    filesystem = bench.server.engine.local.logs.filesystem

    def look() -> None:
        filesystem.exists(path)

    scheduler = bench.server._scheduler  # pyright: ignore[reportPrivateUsage]  # only tests look
    scheduler.once("look", look)


def begin_clean(bench: ServiceBench) -> None:
    """A clean of the log, for whose end a stop waits."""
    logs = bench.server.engine.local.logs
    log = bench.partition("a").log

    def clean() -> None:
        with logs.cleaner.held(log) as is_held:
            assert is_held
            logs.filesystem.exists(log.local_log.directory)

    scheduler = bench.server._scheduler  # pyright: ignore[reportPrivateUsage]  # only tests look
    scheduler.once("clean", clean)


@pytest.mark.parametrize("begin", [begin_nothing, begin_append, begin_task, begin_clean])
async def test_a_stop_leaves_a_disk_that_hangs_and_marks_the_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    begin: Callable[[ServiceBench], asyncio.Task[AppendAck] | None],
) -> None:
    hanging, before = Hanging(), working_threads()
    disk = hanging.disk
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(f"{tmp_path}/other",)) as bench:
        await fill(bench)
        hung, other = (bench.partition(topic).log_dir for topic in TOPICS)
        hanging.begin(hung)
        try:
            begun = begin(bench)
            await until(lambda: begin is begin_nothing or hanging.gate.is_reached.is_set())
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError) as left:
                    await bench.server.stop()
            assert left.value.fields["path"] == hung
            assert bench.server.has_left_threads
            assert is_marked(disk, other)
            assert any("did not answer while its logs were closed" in one for one in caplog.messages)
            # The next process finds the disk as it is now.
            after = disk.killed()
        finally:
            hanging.gate.open()
        if begun is not None:
            with pytest.raises(LogStoreError):
                await begun
    await until(lambda: working_threads() <= before)
    assert not is_marked(disk, hung), "nothing is written once it is given up"
    assert not is_marked(after, hung)
    monkeypatch.setattr(app, "STOP_PATIENCE_S", PATIENCE_S)
    async with service_bench(tmp_path, filesystem=after, log_dirs=(f"{tmp_path}/other",)) as bench:
        assert [await bench.values(topic) for topic in TOPICS] == [[[b"x"]], [[b"x"]]]


@pytest.mark.parametrize("drain_upload_s", [0.0, 0.1])
async def test_a_stop_leaves_the_only_disk_if_it_hangs(tmp_path: Path, drain_upload_s: float) -> None:
    """Also where it uploads first."""
    hanging, before = Hanging(), working_threads()
    async with service_bench(tmp_path, filesystem=hanging.disk, drain_upload_s=drain_upload_s) as bench:
        await bench.client.admin.create_topic("a")
        await bench.client.append("a", 0, [RECORD], durability=Durability.OS)
        [log_dir] = bench.server.settings.all_log_dirs
        hanging.begin(log_dir)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError):
                    await bench.server.stop()
        finally:
            hanging.gate.open()
    await until(lambda: working_threads() <= before)
    assert not is_marked(hanging.disk, log_dir)


async def test_a_stop_ends_though_a_thread_that_hangs_holds_the_directories(tmp_path: Path) -> None:
    """No log directory can be closed then, and the stop says so."""
    gate = Gate()
    async with service_bench(tmp_path, filesystem=HookedDisk()) as bench:
        guard = bench.server.engine.local.logs.directories.guard

        def hold() -> None:
            with guard:
                gate.pass_through()

        gate.close()
        holding = asyncio.create_task(asyncio.to_thread(hold))
        try:
            await until(gate.is_reached.is_set)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(DataDirectoryError) as left:
                    await bench.server.stop()
            assert left.value.fields["log_dirs"] == ", ".join(bench.server.settings.all_log_dirs)
            assert bench.server.has_left_threads
        finally:
            gate.open()
        await holding


async def test_a_stop_waits_for_a_disk_that_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All logs together may take longer to close than its patience."""
    topics = tuple("abcde")
    may_close, has_closed = threading.Semaphore(0), threading.Semaphore(0)
    real_close = UnifiedLog.close
    unclosed = list(topics)

    def close(log: UnifiedLog, *, flush: bool) -> None:
        assert may_close.acquire(timeout=PATIENCE_S)
        real_close(log, flush=flush)
        has_closed.release()

    def wait_for_one(running: Collection[Future[object]], _patience_s: float) -> None:
        """In each patience one log is closed."""
        if unclosed:
            unclosed.pop()
            may_close.release()
            assert has_closed.acquire(timeout=PATIENCE_S)
        else:
            wait(running, PATIENCE_S)

    async with service_bench(tmp_path, filesystem=(disk := HookedDisk())) as bench:
        for topic in topics:
            await bench.client.admin.create_topic(topic)
        monkeypatch.setattr(app, "STOP_PATIENCE_S", PATIENCE_S)
        monkeypatch.setattr(UnifiedLog, "close", close)
        monkeypatch.setattr(patient_disk_calls, "wait", wait_for_one)
        await bench.server.stop()
        assert not bench.server.has_left_threads
        [log_dir] = bench.server.settings.all_log_dirs
    assert is_marked(disk, log_dir)


async def test_the_process_ends_with_the_threads_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter would wait for them at its end."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    hanging, stop = Hanging(), app._stop  # pyright: ignore[reportPrivateUsage]  # `serve` ends with it
    async with service_bench(tmp_path, filesystem=hanging.disk) as bench:
        await bench.client.admin.create_topic("a")
        hanging.begin(bench.partition("a").log_dir)
        try:
            await asyncio.wait_for(stop(bench.server), PATIENCE_S)
        finally:
            hanging.gate.open()
    assert codes == [1]
    assert any("stopping left something open" in one for one in caplog.messages)
    monkeypatch.setattr(app, "STOP_PATIENCE_S", PATIENCE_S)
    async with service_bench(tmp_path) as bench:
        await stop(bench.server)
    assert codes == [1], "an orderly stop ends by itself"


async def test_a_start_whose_disks_all_hang_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter would wait for the threads that open logs."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(engine_builder, "START_PATIENCE_S", 0.3)
    start = app._start  # pyright: ignore[reportPrivateUsage]  # `serve` begins with it
    log_dirs = (f"{tmp_path}/other",)
    hanging = HangingAtOpening(f"{tmp_path}/data", *log_dirs)
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        for topic in TOPICS:
            await bench.client.admin.create_topic(topic)
        settings = bench.server.settings
    hanging.arm()
    try:
        server = app.Server(settings, filesystem=hanging.disk, has_processes=False)
        with pytest.raises(DataDirectoryError):
            await asyncio.wait_for(start(server), PATIENCE_S)
    finally:
        hanging.mend()
    assert codes == [1]
    assert any("the server cannot start" in one for one in caplog.messages)
    async with service_bench(tmp_path, filesystem=hanging.disk, log_dirs=log_dirs) as bench:
        assert await bench.topic_names() == [*TOPICS]
