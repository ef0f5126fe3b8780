"""Directories in a log directory that are no topic's: what a start of the server makes of them, and says."""

from __future__ import annotations

import asyncio
import logging
import shutil
import urllib.request
from pathlib import Path

import pytest

from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false"}
MARKER = ".kafka_cleanshutdown"


async def gauge(bench: ServiceBench) -> list[str]:
    url = f"http://127.0.0.1:{bench.server.metrics_port}/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("stratalog_log_manager_set_aside_directories{")]
    return [line.rpartition(" ")[2] for line in found]


async def leave_a_ghost(folder: Path) -> None:
    """A server that was killed, with a topic and beside it a copy of its partition under another name."""
    async with service_bench(folder) as bench:
        await bench.client.admin.create_topic("t", 1, LOCAL)
        await bench.append("t", [b"x"])
    data = folder / "data"
    shutil.copytree(data / "t-0", data / "ghost-0")
    (data / MARKER).unlink()


async def test_one_that_the_manifest_does_not_list_is_reported_counted_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_a_ghost(tmp_path)
    ghost = tmp_path / "data" / "ghost-0"
    for is_gone in (False, True):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with service_bench(tmp_path, metrics_listen="127.0.0.1:0") as bench:
                assert f"path=`{ghost}`" in caplog.text
                assert await gauge(bench) == ["1.0"]
                shown = (await bench.command("log-dirs", "describe")).output
                assert f"{ghost} belongs to no topic, or was set aside" in shown
                [described] = (await bench.client.admin.describe_log_dirs()).log_dirs
                assert (described.partition_count, list(described.set_aside_paths)) == (1, [str(ghost)])
                if is_gone:
                    # It is looked at, and gone: the next look says so.
                    shutil.rmtree(ghost)
                    [described] = (await bench.client.admin.describe_log_dirs()).log_dirs
                    assert (list(described.set_aside_paths), await gauge(bench)) == ([], ["0.0"])
        assert (tmp_path / "data" / MARKER).read_text() == '{"version":0}'
        assert ghost.exists() is not is_gone


async def test_a_topic_that_an_older_catalog_does_not_know_is_whole_once_it_does(tmp_path: Path) -> None:
    """The catalog is put back to an older state by mistake, and then to the right one. No shard has used what
    it lacks."""
    store, older, newer = (tmp_path / name for name in ("data.store/catalog", "older", "newer"))
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("first", 1, LOCAL)
    shutil.copytree(store, older)
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.create_topic("t", 1, LOCAL)
        await bench.append("t", [b"x", b"y"])
    shutil.copytree(store, newer)
    shutil.rmtree(store)
    older.rename(store)
    async with service_bench(tmp_path) as bench:
        assert await bench.client.admin.describe_topics(["first"])
        [stray] = (tmp_path / "data").glob("t-0.*-stray")
        [described] = (await bench.client.admin.describe_log_dirs()).log_dirs
        assert list(described.set_aside_paths) == [str(stray)]
    shutil.rmtree(store)
    newer.rename(store)
    async with service_bench(tmp_path) as bench:
        assert await bench.values("t") == [[b"x", b"y"]]
    assert not list((tmp_path / "data").glob("*-stray"))
