"""A start that fails leaves nothing running, at whichever step it fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.cleaner.cleaner_pool import CleanerPool
from stratalog.server import app
from stratalog.server.app import Server
from stratalog.server.partitions.directory_admin import DirectoryAdmin
from tests.support.service.service_bench import service_bench

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
    assert threads_of_servers() == before
    # The directory is free, and was closed cleanly.
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[b"a"]]
