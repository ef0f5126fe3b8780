"""A start with a data directory that does not know what was altered: an empty mount point, another machine,
one that was away while others had the store.

Records are of 1970 and tiered, so that only what was altered at run time keeps them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from stratalog.base.errors import DataDirectoryError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.cli.main import stratalog
from stratalog.log.log_config import LogConfig
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.configuration.broker_config_file import BROKER_CONFIG_FILE
from stratalog.server.configuration.held_config import HELD_CONFIG
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.service.service_bench import ServiceBench, service_bench

KEEP = {"log.retention.ms": "-1"}
KEEP_LONG = {"log.retention.ms": "99999999999999"}


async def fill(bench: ServiceBench, topic: str = "t", **config: str) -> None:
    """Six records, of which all but the last are tiered."""
    given = {name.replace("_", "."): value for name, value in config.items()}
    await bench.client.admin.create_topic(topic, 1, {"segment.bytes": "1024", **given})
    for _ in range(6):
        await bench.client.append(topic, 0, [Record(0, 0, b"key", b"x" * 900)])
    bench.server.engine.tiers.upload_pass()


async def start_after_retention(bench: ServiceBench, topic: str = "t") -> int:
    """Where the topic's only partition starts, once everything that deletes has run."""
    engine = bench.server.engine
    engine.tiers.remote_retention_pass()
    engine.local_retention.run()
    return (await bench.client.earliest(topic))[TopicPartition(topic, 0)]


async def altered(bench: ServiceBench) -> dict[str, str]:
    """What was altered at run time, as the server shows it."""
    arguments = ["config", "describe", "--broker", "--json", "--server", f"127.0.0.1:{bench.server.port}"]
    shown = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)
    assert shown.exit_code == 0, shown.output
    entries = json.loads(shown.output)
    return {entry["name"]: entry["value"] for entry in entries if entry["source"] == "DYNAMIC_BROKER_CONFIG"}


def unmount(tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "unmounted")
    (tmp_path / "data").mkdir()


def mount(tmp_path: Path) -> None:
    (tmp_path / "data").rename(tmp_path / "mount-point")
    (tmp_path / "unmounted").rename(tmp_path / "data")


@pytest.mark.parametrize("keep", [KEEP, KEEP_LONG])
async def test_a_disk_that_is_not_mounted_costs_no_record_and_neither_does_it_once_it_is(
    tmp_path: Path, keep: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs(keep)
        await fill(bench)
        assert await start_after_retention(bench) == 0
        values = [record.value for record in (await bench.read_all("t"))[0]]
    assert "nobody knows what was altered" not in caplog.text
    unmount(tmp_path)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            async with service_bench(tmp_path) as bench:
                assert await altered(bench) == HELD_CONFIG
                assert await start_after_retention(bench) == 0
                found = [record.value for record in (await bench.read_all("t"))[0]]
                assert found == values[: len(found)]
                assert len(found) >= 5
        assert f"path=`{tmp_path}/data` store=`file://{tmp_path}/data.store`" in caplog.text
    # Meanwhile it may have been altered in the other directory.
    mount(tmp_path)
    caplog.clear()
    for _ in range(2):
        async with service_bench(tmp_path) as bench:
            assert await altered(bench) == HELD_CONFIG
            assert await start_after_retention(bench) == 0
    assert caplog.text.count(f"have said log.retention.ms={keep['log.retention.ms']}, path=") == 1
    assert caplog.text.count("nobody knows what was altered") == 2
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs({**dict.fromkeys(HELD_CONFIG), **keep})
    caplog.clear()
    async with service_bench(tmp_path) as bench:
        assert await altered(bench) == keep
        assert await start_after_retention(bench) == 0
    # What is set to what would be held cannot be told from it.
    assert ("nobody knows what was altered" in caplog.text) is (keep == KEEP)


async def test_what_was_altered_while_another_directory_was_away_is_not_forgotten_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Machine A serves a store, B takes it over, and A takes it back, and so on."""
    store = f"file://{tmp_path}/store"
    a, b = tmp_path / "a", tmp_path / "b"
    roll = {"log.roll.ms": "77"}
    async with service_bench(a, store_url=store) as bench:
        await bench.client.admin.alter_configs(roll)
        await bench.client.admin.create_topic("other", 1)
    async with service_bench(b, store_url=store) as bench:
        assert await altered(bench) == HELD_CONFIG
        await bench.client.admin.alter_configs({**dict.fromkeys(HELD_CONFIG), **KEEP_LONG})
        await fill(bench)
        assert await start_after_retention(bench) == 0
    for folder, others in ((a, roll), (b, {}), (a, roll)):
        for _ in range(2):
            caplog.clear()
            async with service_bench(folder, store_url=store) as bench:
                assert await altered(bench) == {**others, **HELD_CONFIG}
                assert await start_after_retention(bench) == 0
            assert f"path=`{folder}/data` store=`{store}`" in caplog.text
        # It is ended as it always is, and no restart of this server brings it back.
        async with service_bench(folder, store_url=store) as bench:
            await bench.client.admin.alter_configs({**dict.fromkeys(HELD_CONFIG), **KEEP_LONG})
        caplog.clear()
        for _ in range(2):
            async with service_bench(folder, store_url=store) as bench:
                assert await altered(bench) == {**others, **KEEP_LONG}
        assert "nobody knows what was altered" not in caplog.text


@pytest.mark.parametrize("is_new_first", [False, True])
async def test_started_with_both_the_true_directory_counts_beside_what_is_held(
    tmp_path: Path, *, is_new_first: bool
) -> None:
    """The other one has owned the store since: nobody can tell that nothing was altered in it and taken
    back, or in a third one."""
    keep = {**KEEP, "log.roll.ms": "7"}
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs(keep)
        await fill(bench)
    unmount(tmp_path)
    async with service_bench(tmp_path) as bench:
        assert await altered(bench) == HELD_CONFIG
    directories = [f"{tmp_path}/unmounted", f"{tmp_path}/data"]
    first, second = reversed(directories) if is_new_first else directories
    store = f"file://{tmp_path}/data.store"
    async with service_bench(tmp_path, data_dir=first, log_dirs=(second,), store_url=store) as bench:
        assert await altered(bench) == {**HELD_CONFIG, "log.roll.ms": "7"}
    for directory in directories:
        text = Path(directory, BROKER_CONFIG_FILE).read_text()
        assert "log.roll.ms=7" in text
        assert "stand_in=newer" in text


async def test_what_was_altered_in_the_new_directory_is_for_a_human_to_compare(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs(KEEP)
        await fill(bench)
    unmount(tmp_path)
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs({**dict.fromkeys(HELD_CONFIG), "log.retention.ms": "5"})
    store = f"file://{tmp_path}/data.store"
    directories: dict[str, Any] = {"data_dir": f"{tmp_path}/unmounted", "log_dirs": (f"{tmp_path}/data",)}
    with pytest.raises(DataDirectoryError, match="remove the wrong one"):
        async with service_bench(tmp_path, store_url=store, **directories):
            pass
    (tmp_path / "data" / BROKER_CONFIG_FILE).unlink()
    async with service_bench(tmp_path, store_url=store, **directories) as bench:
        assert await altered(bench) == HELD_CONFIG


async def test_another_machine_deletes_nothing_until_the_command_in_its_log_was_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"file://{tmp_path}/store"
    config = {"log.retention.ms": "5"}
    async with service_bench(tmp_path / "a", store_url=store) as bench:
        await fill(bench)
        await fill(bench, "short", cleanup_policy="delete", retention_ms="5")
        await fill(bench, "plain", retention_ms="5")
        await fill(bench, "neither", cleanup_policy="", retention_ms="5")
        await fill(bench, "compacted", cleanup_policy="compact", max_compaction_lag_ms="7")
    with caplog.at_level(logging.WARNING):
        async with service_bench(tmp_path / "b", store_url=store, config=config) as bench:
            assert await start_after_retention(bench) == 0
            # What a topic sets holds, and none is refused because of what is held.
            assert await start_after_retention(bench, "short") == 5
            assert await start_after_retention(bench, "plain") == 0
            assert await start_after_retention(bench, "compacted") == 0
            [command] = re.findall("`stratalog (config alter --broker .*)` take", caplog.text)
            arguments = [*command.split(), "--server", f"127.0.0.1:{bench.server.port}"]
            result = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)
            assert result.exit_code == 0, result.output
            assert await altered(bench) == {}
            assert await start_after_retention(bench) == 5
            assert await start_after_retention(bench, "plain") == 5
            assert await start_after_retention(bench, "neither") == 0
    caplog.clear()
    async with service_bench(tmp_path / "b", store_url=store, config=config) as bench:
        assert await altered(bench) == {}
    assert "nobody knows what was altered" not in caplog.text


async def test_a_topics_retention_does_nothing_where_it_may_have_been_compacted(tmp_path: Path) -> None:
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs({"log.cleanup.policy": "compact"})
        await fill(bench, retention_ms="5", retention_bytes="5")
        assert await start_after_retention(bench) == 0
    unmount(tmp_path)
    async with service_bench(tmp_path) as bench:
        assert await altered(bench) == HELD_CONFIG
        assert await start_after_retention(bench) == 0
        # Nor are records kept for ever that nobody wants: it ends once somebody says which policy holds.
        await bench.client.admin.alter_configs({"log.cleanup.policy": "delete"})
        assert await start_after_retention(bench) == 5


async def test_a_topics_compaction_lag_does_nothing_where_it_may_have_been_kept_by_time(
    tmp_path: Path,
) -> None:
    config = {"log.cleanup.policy": "compact"}
    async with service_bench(tmp_path, config=config) as bench:
        await bench.client.admin.alter_configs({"log.cleanup.policy": "delete", **KEEP})
        await fill(bench, min_compaction_lag_ms="0", min_cleanable_dirty_ratio="0")
        bench.server.engine.tiers.compact(())
        assert len((await bench.read_all("t"))[0]) == 6
    unmount(tmp_path)
    async with service_bench(tmp_path, config=config) as bench:
        bench.server.engine.tiers.compact(())
        assert len((await bench.read_all("t"))[0]) >= 5
        await bench.client.admin.alter_configs({"log.cleanup.policy": None})
        bench.server.engine.tiers.compact(())
        assert len((await bench.read_all("t"))[0]) < 5


def broker_with_a_topic(path: Path) -> None:
    clock = ManualClock()
    settings = LogManagerSettings(data_dirs=(str(path),))
    logs = LogManager.open(PosixFileSystem(), clock, ManualScheduler(clock), SequentialIds(5), settings)
    log = logs.open_log(TopicPartition("imported", 0), UUID(int=77), LogConfig())
    log.append_as_leader(encode_batch([Record(0, 0, b"key", b"value")]), 0)
    logs.close()


@pytest.mark.parametrize("shares", ["new", "used", "alone"])
async def test_an_import_before_the_start_does_not_hide_that_others_had_the_store(
    tmp_path: Path, shares: str
) -> None:
    """It claims the store for the directory, as if its server knew what was altered."""
    broker_with_a_topic(tmp_path / "broker")
    data_dir, store = f"{tmp_path}/c/data", f"file://{tmp_path}/store"
    if shares == "used":
        async with service_bench(tmp_path / "c", store_url=store):
            pass
    if shares != "alone":
        async with service_bench(tmp_path / "a", store_url=store) as bench:
            await bench.client.admin.alter_configs({**dict.fromkeys(HELD_CONFIG), **KEEP})
            await fill(bench)
    arguments = ["import", "kafka", f"{tmp_path}/broker", "--data-dir", data_dir, "--store", store]
    result = await asyncio.to_thread(CliRunner().invoke, stratalog, arguments)
    assert result.exit_code == 0, result.output
    for _ in range(2):
        async with service_bench(tmp_path / "c", store_url=store) as bench:
            assert len((await bench.read_all("imported"))[0]) == 1
            assert await altered(bench) == ({} if shares == "alone" else HELD_CONFIG)
            if shares != "alone":
                assert await start_after_retention(bench) == 0
    async with service_bench(tmp_path / "c", store_url=store) as bench:
        await bench.client.admin.alter_configs(dict.fromkeys(HELD_CONFIG))
    async with service_bench(tmp_path / "c", store_url=store) as bench:
        assert await altered(bench) == {}


async def test_a_directory_that_was_used_with_the_store_is_not_new_without_the_file(tmp_path: Path) -> None:
    """To remove it forgets all alterations, as docs/broker_configuration.md says."""
    async with service_bench(tmp_path) as bench:
        await bench.client.admin.alter_configs(KEEP)
        await fill(bench)
    (tmp_path / "data" / BROKER_CONFIG_FILE).unlink()
    for _ in range(2):
        async with service_bench(tmp_path) as bench:
            assert await altered(bench) == {}
    unmount(tmp_path)
    async with service_bench(tmp_path) as bench:
        assert await altered(bench) == HELD_CONFIG
    (tmp_path / "data" / BROKER_CONFIG_FILE).unlink()
    async with service_bench(tmp_path) as bench:
        assert await altered(bench) == {}
