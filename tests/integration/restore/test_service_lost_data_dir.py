"""The disk of the data directory is lost, and another log directory is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.testing.failing_directory import FailingDirectory
from tests.support.service.service_bench import ServiceBench, service_bench

LOCAL = {"remote.storage.enable": "false"}
TIERED = {"segment.bytes": "1024"}


async def fill(bench: ServiceBench, other: str) -> dict[str, int]:
    """A tiered and an untiered topic of two partitions each; returns which of each is in `other`."""
    numbers: dict[str, int] = {}
    for topic, config in (("tiered", TIERED), ("local", LOCAL)):
        await bench.client.admin.create_topic(topic, 2, config)
        for number in range(2):
            await bench.append(topic, [b"x" * 400, b"y" * 400], number)
        [numbers[topic]] = [
            one.topic_partition.partition
            for one in bench.server.engine.topics.registry.topic(topic).partitions
            if one.log.local_log.directory.startswith(other)
        ]
    await bench.client.admin.upload(["tiered"])
    for number in range(2):
        await bench.append("tiered", [b"not uploaded"], number)
    return numbers


async def test_a_start_without_the_disk_of_the_data_directory_serves_the_others(tmp_path: Path) -> None:
    other = f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        kept = await fill(bench, other)
        await bench.client.admin.alter_configs({"log.retention.ms": "-1"})
    disk = FailingDirectory()
    disk.broken = f"{tmp_path}/data"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        found = await ends_of(bench)
        assert found == {
            f"tiered-{kept['tiered']}": (0, 3),
            f"tiered-{1 - kept['tiered']}": None,
            f"local-{kept['local']}": (0, 2),
            f"local-{1 - kept['local']}": None,
        }
        for topic, number in kept.items():
            await bench.append(topic, [b"more"], number)
        # What is rolled is uploaded and compacted with scratch files on the disk that works.
        await bench.client.admin.upload()
        assert list(Path(other, "scratch").iterdir())
        assert await bench.client.admin.run_compaction() is not None
        await bench.client.admin.alter_configs({"log.roll.ms": "7"})
        [entry] = await bench.client.admin.describe_configs(names=["log.retention.ms"])
        assert entry.value == "-1"
    # It comes back, and all of it goes on.
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        assert await ends_of(bench) == {
            f"tiered-{kept['tiered']}": (0, 4),
            f"tiered-{1 - kept['tiered']}": (0, 3),
            f"local-{kept['local']}": (0, 3),
            f"local-{1 - kept['local']}": (0, 2),
        }
    assert not [path for name in ("data", "other") for path in (tmp_path / name).glob("*-fenced")]


async def test_directories_in_another_order_set_no_log_aside(tmp_path: Path) -> None:
    data, other = f"{tmp_path}/data", f"{tmp_path}/other"
    async with service_bench(tmp_path, log_dirs=(other,)) as bench:
        await fill(bench, other)
        ends = await ends_of(bench)
    store = f"file://{tmp_path}/data.store"
    async with service_bench(tmp_path, data_dir=other, log_dirs=(data,), store_url=store) as bench:
        assert await ends_of(bench) == ends


async def test_a_disk_that_fails_under_scratch_files_ends_one_pass_with_its_path_and_reason(
    tmp_path: Path,
) -> None:
    disk, other = FailingDirectory(), f"{tmp_path}/other"
    async with service_bench(tmp_path, filesystem=disk, log_dirs=(other,)) as bench:
        kept = await fill(bench, other)
        disk.broken = f"{tmp_path}/data"
        # Whichever comes first meets the failure, and the next one takes the other disk.
        assert await bench.client.admin.run_compaction() is not None
        await bench.append("tiered", [b"x" * 900], kept["tiered"])
        assert (await bench.client.admin.upload()).object_count == 1
        disk.broken = str(tmp_path)
        with pytest.raises(DataDirectoryError):
            await bench.client.admin.run_compaction()
        disk.broken = "/nowhere"


async def ends_of(bench: ServiceBench) -> dict[str, tuple[int, int] | None]:
    """Start and end of each partition; None where it is offline."""
    found: dict[str, tuple[int, int] | None] = {}
    for topic in ("tiered", "local"):
        [described] = await bench.client.admin.describe_topics([topic])
        offline = {one.partition for one in described.offline_partitions}
        for number in range(2):
            found[f"{topic}-{number}"] = None
            if number not in offline:
                [log] = await bench.client.admin.describe_log(topic, [number])
                found[f"{topic}-{number}"] = (log.log_start_offset, log.log_end_offset)
    return found


@pytest.mark.parametrize("are_claims_left", [True, False])
async def test_another_data_directory_serves_what_is_on_the_disks_that_are_left(
    tmp_path: Path, are_claims_left: bool
) -> None:
    """The operator does what docs/operating.md says."""
    other, new = tmp_path / "other", tmp_path / "new"
    async with service_bench(tmp_path, log_dirs=(str(other),)) as bench:
        kept = await fill(bench, str(other))
    lost = {topic: f"{topic}-{1 - number}" for topic, number in kept.items()}
    tiered, local = (f"{topic}-{number}" for topic, number in kept.items())
    (tmp_path / "data").rename(tmp_path / "lost")
    new.mkdir()
    if not are_claims_left:
        for path in other.glob("claims-*"):
            path.unlink()
    settings: dict[str, Any] = {
        "data_dir": str(new),
        "log_dirs": (str(other),),
        "store_url": f"file://{tmp_path}/data.store",
    }
    async with service_bench(tmp_path, **settings) as bench:
        found = await ends_of(bench)
        assert (found[lost["tiered"]], found[lost["local"]], found[local]) == (None, None, (0, 2))
        # Without the claims it is unknown whether no other server has had the store meanwhile.
        assert found[tiered] == ((0, 3) if are_claims_left else None)
        directories, _ = bench.server.engine.local.directories.describe({})
        [missing] = [one.status for one in directories if one.status.state is DirectoryState.MISSING]
        await bench.client.admin.forget_log_dir(missing.directory_id)
    async with service_bench(tmp_path, **settings) as bench:
        assert await ends_of(bench) == {
            lost["tiered"]: (0, 2),
            lost["local"]: (0, 0),
            local: (0, 2),
            tiered: (0, 3) if are_claims_left else (0, 2),
        }
        for topic in kept:
            for number in range(2):
                await bench.append(topic, [b"new"], number)
    aside = [path for path in other.iterdir() if path.name.endswith("-fenced")]
    assert len(aside) == (0 if are_claims_left else 1)
    for path in aside:
        assert any(b"not uploaded" in log.read_bytes() for log in path.glob("*.log"))
