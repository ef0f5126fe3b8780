"""A start that fails leaves nothing running, at whichever step it fails."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.manager.log_manager import LogManager
from stratalog.server import app
from stratalog.server.app import Server
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.partitions.directory_admin import DirectoryAdmin
from tests.support.gate import Gate
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.service.service_bench import PATIENCE_S, QUIET, service_bench, until

STEPS: dict[str, tuple[object, str]] = {
    "engine": (Server, "_open_engine"),
    "services": (Server, "_services"),
    "tasks": (app, "start_background_tasks"),
    "cleaners": (CleanerPool, "start"),
    "moves": (DirectoryAdmin, "resume_moves"),
}
"""The steps behind the start of the transport, with the functions that take them."""


def failing(*_arguments: object, **_named: object) -> NoReturn:
    raise DataDirectoryError("the disk refuses it; look at it", path="/", reason="a test")


def threads_of_servers() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("stratalog")}


@pytest.mark.parametrize("step", STEPS)
async def test_a_start_that_fails_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"a"])
    before = threads_of_servers()
    with monkeypatch.context() as patch:
        owner, name = STEPS[step]
        patch.setattr(owner, name, failing)
        with pytest.raises(DataDirectoryError):
            async with service_bench(tmp_path, metrics_listen="127.0.0.1:0"):
                raise AssertionError("it must not start")
    # Nothing waits for the threads of requests, which may hang: they end by themselves.
    await until(lambda: threads_of_servers() <= before)
    # The directory is free, and was closed cleanly.
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[b"a"]]


@pytest.mark.parametrize("moment", ["logs", "end"])
async def test_a_start_that_is_cancelled_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The thread that opens the engine cannot be cancelled."""
    gate = Gate()

    def before(name: str, path: str) -> None:
        if moment == "logs" and name == "list_directory" and path.endswith("/t-0"):
            gate.pass_through()

    disk = HookedDisk(before)
    async with service_bench(tmp_path, filesystem=disk) as bench:
        await bench.client.admin.create_topic("t")
        await bench.append("t", [b"a"])
    names = threads_of_servers()
    gate.close()
    options: dict[str, Any] = {**QUIET, "data_dir": f"{tmp_path}/data"}
    server = Server(ServerSettings(**options), filesystem=disk, has_processes=False)
    if moment == "end":
        end_start = LogManager.end_start

        def held(logs: LogManager, claim_of: Any) -> None:
            end_start(logs, claim_of)
            gate.pass_through()

        monkeypatch.setattr(LogManager, "end_start", held)
    starting = asyncio.create_task(server.start())
    assert await asyncio.to_thread(gate.is_reached.wait, PATIENCE_S)
    starting.cancel()
    await asyncio.sleep(0.05)
    assert not starting.done(), "it waits for the thread"
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, PATIENCE_S)
    await until(lambda: threads_of_servers() <= names)
    # The lock is free, and the logs were closed.
    async with service_bench(tmp_path, filesystem=disk) as bench:
        assert await bench.values("t") == [[b"a"]]
