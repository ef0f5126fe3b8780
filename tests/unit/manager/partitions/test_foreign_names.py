"""A directory that the manifest does not list stays in a log directory, even under a name like ours."""

from __future__ import annotations

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import DELETE_REASON
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, TOPIC_ID, LogMachine

UNIQUE = "0123456789abcdef0123456789abcdef"
FOREIGN = [
    "backup.2024-{}",
    f".{UNIQUE}-{{}}",
    f"orders.{UNIQUE}-{{}}",
    f"orders-0.{UNIQUE[1:]}-{{}}",
    f"orders-0.{UNIQUE}0-{{}}",
    f"orders-0.{UNIQUE.upper()}-{{}}",
    f"orders-0-{UNIQUE}-{{}}",
    f"orders-0.{UNIQUE}-old-{{}}",
    f"my orders-0.{UNIQUE}-{{}}",
    f"orders-0.{UNIQUE}.bak-{{}}",
]


def put(disk: MemoryFileSystem, path: str) -> None:
    file = disk.open_append(path)
    file.append([b"foreign"])
    file.sync()
    file.close()


def test_a_start_removes_the_deleted_partitions_of_the_manifest_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    machine.start()
    machine.manager.delete_log(PARTITION)
    machine.kill()
    [ours] = [name for name in disk.list_directory(DATA_DIR) if name.endswith(DELETE_REASON)]
    # A broker or an operator gave the first of these names.
    unlisted = f"orders.eu_1-12.{UNIQUE}-{DELETE_REASON}"
    foreign = [unlisted, *(name.format(DELETE_REASON) for name in FOREIGN)]
    # An own name of another reason, and a file.
    others = [f"orders-0.{UNIQUE}-stray", f"orders-0.{UNIQUE}-fenced"]
    for name in (*foreign, *others):
        disk.make_directories(f"{DATA_DIR}/{name}")
        put(disk, f"{DATA_DIR}/{name}/file")
    put(disk, f"{DATA_DIR}/orders-1.{UNIQUE}-delete")
    manager = machine.open()
    manager.open_log(PARTITION, TOPIC_ID, machine.config, is_first_opening=True)
    machine.clock.advance(60_000)
    names = disk.list_directory(DATA_DIR)
    assert ours not in names
    for name in (*foreign, *others):
        assert disk.read_file(f"{DATA_DIR}/{name}/file") == b"foreign"
    assert f"orders-1.{UNIQUE}-delete" in names
    told = [record.getMessage() for record in caplog.records if "left alone" in record.getMessage()]
    for name in foreign:
        assert sum(f"path=`{DATA_DIR}/{name}`" in line for line in told) == (name == unlisted), name
    reported = manager.found.set_aside()[DATA_DIR]
    assert reported == [f"{DATA_DIR}/{name}" for name in sorted((unlisted, *others))]
    [status] = manager.directories.statuses()
    assert status.set_aside_count == len(reported)
    # Nothing is taken for ours because the start after it looks again.
    machine.stop()
    machine.start()
    machine.clock.advance(60_000)
    assert set(foreign) <= set(disk.list_directory(DATA_DIR))


def test_a_deleted_partition_of_the_longest_name_is_removed_by_the_next_start() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    manager = machine.open()
    partition = PARTITION._replace(topic="t" * 249, partition=12345)
    manager.open_log(partition, TOPIC_ID, machine.config)
    manager.delete_log(partition)
    machine.kill()
    [left] = [name for name in disk.list_directory(DATA_DIR) if name.endswith("-delete")]
    assert len(left) == 255
    machine.open()
    machine.clock.advance(60_000)
    assert not [name for name in disk.list_directory(DATA_DIR) if name.endswith("-delete")]


def test_files_of_others_in_a_partition_stay() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    machine.start()
    machine.stop()
    names = [
        "notes.snapshot.tmp",
        "before-upgrade.snapshot.deleted",
        "notes.swap",
        "notes.cleaned",
        "notes.deleted",
        "backup.log.swap",
        "backup.log.cleaned",
        "backup.log.deleted",
        "1.log.deleted",
    ]
    for name in names:
        put(disk, f"{PARTITION_DIR}/{name}")
    machine.start()
    machine.clock.advance(60_000)
    machine.stop()
    assert set(names) <= set(disk.list_directory(PARTITION_DIR))


@pytest.mark.parametrize(
    "suffix", [".log", ".index", ".log.deleted", ".log.swap", ".log.cleaned", ".snapshot"]
)
@pytest.mark.parametrize("written_by_broker", [False, True])
def test_a_name_above_all_offsets_is_none_of_a_log(suffix: str, *, written_by_broker: bool) -> None:
    """It would be its last segment, or its last snapshot."""
    machine = LogMachine(MemoryFileSystem(), LogConfig(), written_by_broker=written_by_broker)
    machine.start().appender.append_as_leader(encode_batch([Record(0, 1, b"k", b"v")]), 1)
    machine.stop()
    paths = [f"{PARTITION_DIR}/{offset:020d}{suffix}" for offset in (2**63, 10**20 - 1)]
    for path in paths:
        replace_file(machine.disk, path, b"foreign")
    log = machine.start()
    machine.clock.advance(60_000)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 1)
    for path in paths:
        assert machine.disk.read_file(path) == b"foreign"
