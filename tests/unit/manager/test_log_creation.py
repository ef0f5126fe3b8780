"""Partitions that are created together: one write of each manifest, and each is there empty, or not there."""

from __future__ import annotations

from collections import Counter

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.manifest import MANIFEST_FILE, read_manifest
from stratalog.manager.log_opener import SoughtPartition
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_machine import TOPIC_ID, LogMachine

A, B = "/disk-a/logs", "/disk-b/logs"
CONFIG = LogConfig()
PARTITIONS = [TopicPartition("orders", number) for number in range(5)]
NEW = [SoughtPartition(partition, TOPIC_ID, True) for partition in PARTITIONS]
OLD = TopicPartition("old", 0)


class CreatingMachine:
    """Two log directories, one partition in the first, and five to be created."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        self.disk = disk or FaultyFileSystem()
        self.manager = LogMachine(self.disk, data_dirs=(A, B), ids=SequentialIds()).open()
        if disk is None:
            self.manager.open_log(OLD, TOPIC_ID, CONFIG)

    def create(self) -> None:
        self.manager.create_logs(NEW)

    def listed(self) -> list[set[TopicPartition]]:
        """The new partitions in each manifest."""
        manifests = (read_manifest(self.disk, path) for path in (A, B))
        return [set(manifest.partitions) - {OLD} for manifest in manifests]


def verify_whole_or_absent(machine: CreatingMachine, *, is_done: bool = False) -> None:
    """Each manifest lists all of its new partitions or none; each of them opens, empty."""
    listed = machine.listed()
    assert listed[0] in (set(), set(PARTITIONS[1::2]))
    assert listed[1] in (set(), set(PARTITIONS[::2]))
    assert all(listed) or not is_done
    for path, partitions in zip((A, B), listed, strict=True):
        assert all(machine.disk.exists(f"{path}/{partition}") for partition in partitions)
    for partition in PARTITIONS:
        assert machine.manager.open_log(partition, TOPIC_ID, CONFIG).offsets.log_end_offset == 0
    assert {one for listed in machine.listed() for one in listed} == set(PARTITIONS)


def test_a_crash_leaves_each_there_empty_or_not_there() -> None:
    sweep = CrashSweep(CreatingMachine, CreatingMachine.create)

    def verify(death: Death[CreatingMachine]) -> None:
        for disk in death.disks():
            verify_whole_or_absent(CreatingMachine(disk), is_done=death.operation > len(sweep.trace))

    sweep.at_deaths(verify)


def test_after_a_failure_the_same_can_be_created_again() -> None:
    def verify(failure: Failure[CreatingMachine]) -> None:
        machine = failure.subject
        if failure.error is None or not all(
            one.reason == "" for one in machine.manager.directories.statuses()
        ):
            # A disk that has failed takes its partitions offline.
            return
        left = {f"{path}/{partition}" for path in (A, B) for partition in PARTITIONS}
        listed = {
            f"{path}/{one}" for path, found in zip((A, B), machine.listed(), strict=True) for one in found
        }
        is_at_manifest = MANIFEST_FILE in machine.disk.trace[failure.operation - 1]
        assert is_at_manifest or listed == {path for path in left if machine.disk.exists(path)}
        verify_whole_or_absent(machine)

    CrashSweep(CreatingMachine, CreatingMachine.create).at_failures(verify, expected=(DataDirectoryError,))


def per_partition(*, together: bool) -> dict[str, float]:
    """The fsyncs and the manifests of each partition that is created and opened, without the fixed part."""
    counts: list[Counter[str]] = []
    for count in (10, 30):
        disk = FaultyFileSystem()
        manager = LogMachine(disk, data_dirs=(A,), ids=SequentialIds()).open()
        partitions = [TopicPartition("orders", number) for number in range(count)]
        before = disk.operation_count
        if together:
            manager.create_logs([SoughtPartition(one, TOPIC_ID, True) for one in partitions])
        for partition in partitions:
            manager.open_log(partition, TOPIC_ID, CONFIG, is_first_opening=True)
        lines = disk.trace[before:]
        kinds = Counter("fsync" for line in lines if line.startswith("sync"))
        kinds["manifest"] = lines.count(f"rename {A}/{MANIFEST_FILE}.tmp {A}/{MANIFEST_FILE}")
        counts.append(kinds)
    return {kind: (counts[1][kind] - counts[0][kind]) / 20 for kind in ("fsync", "manifest")}


def test_many_partitions_cost_one_write_of_the_manifest() -> None:
    """1,000 partitions take 2,000 fsyncs instead of 5,000, and one manifest instead of 1,000."""
    assert per_partition(together=False) == {"fsync": 5, "manifest": 1}
    assert per_partition(together=True) == {"fsync": 2, "manifest": 0}


def test_partitions_that_are_there_stay_as_they_are() -> None:
    machine = CreatingMachine()
    machine.create()
    before = machine.disk.inner.contents()
    machine.manager.create_logs([SoughtPartition(one, TOPIC_ID) for one in PARTITIONS])
    assert machine.disk.inner.contents() == before
    machine.manager.open_log(PARTITIONS[0], TOPIC_ID, CONFIG)
    with pytest.raises(AssertionError):
        machine.create()
