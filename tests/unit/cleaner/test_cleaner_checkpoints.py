"""Up to where logs are clean, and what a disk that fails, or dies, makes of it."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from itertools import count

import pytest

from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE, CleanerCheckpoints
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    Manifest,
    ManifestFile,
    PartitionEntry,
    read_manifest,
)
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import TOPIC_ID

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
DIRECTORIES = ("/a", "/b")


def opened(disk: FaultyFileSystem) -> CleanerCheckpoints:
    checkpoints = CleanerCheckpoints(disk)
    for directory in DIRECTORIES:
        disk.make_directories(directory)
        disk.sync_directory("/")
        checkpoints.add_directory(directory, manifest_in(disk, directory))
    return checkpoints


def manifest_in(disk: FaultyFileSystem, directory: str) -> ManifestFile:
    """The manifest, which lists both partitions."""
    if disk.exists(f"{directory}/{MANIFEST_FILE}"):
        return ManifestFile(disk, directory, read_manifest(disk, directory))
    partitions = {partition: PartitionEntry(TOPIC_ID) for partition in (FIRST, SECOND)}
    manifest = ManifestFile(disk, directory, Manifest(directory, partitions=partitions))
    manifest.create()
    return manifest


def entries(checkpoints: CleanerCheckpoints) -> dict[str, dict[TopicPartition, int]]:
    """All offsets by directory."""
    return {
        directory: {
            partition: offset
            for partition in (FIRST, SECOND)
            if (offset := checkpoints.offset_of(partition, directory)) is not None
        }
        for directory in DIRECTORIES
    }


class NotedOffsets:
    """Checkpoints on a disk that can die. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.checkpoints = opened(self.disk)


CHANGES: dict[str, Callable[[CleanerCheckpoints], None]] = {
    "put": lambda checkpoints: checkpoints.put(FIRST, "/a", 12, 600),
    "lower": lambda checkpoints: checkpoints.lower(FIRST, 4),
    "forget": lambda checkpoints: checkpoints.forget(FIRST),
}


def is_full(error: OSError) -> bool:
    return error.errno == ENOSPC


def on_disk(disk: FaultyFileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{CLEANER_OFFSET_FILE}"
    return parse_checkpoint(disk.read_file(path).decode()) if disk.exists(path) else {}


def horizons(disk: FaultyFileSystem, directory: str) -> dict[TopicPartition, int]:
    """The horizons in the manifest."""
    entries = read_manifest(disk, directory).partitions.items()
    return {partition: entry.horizon_ms for partition, entry in entries if entry.horizon_ms is not None}


def test_the_format_is_kafkas() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(SECOND, "/a", 98_112)
    checkpoints.put(FIRST, "/a", 7)
    text = disk.read_file("/a/cleaner-offset-checkpoint").decode()
    assert text == "0\n2\norders 0 7\norders 1 98112\n"
    assert entries(opened(disk)) == {"/a": {FIRST: 7, SECOND: 98_112}, "/b": {}}
    checkpoints.put(FIRST, "/a", 7, 1_767_225_600_000)
    assert opened(disk).horizon_of(FIRST, "/a") == 1_767_225_600_000
    assert (opened(disk).horizon_of(SECOND, "/a"), opened(disk).horizon_of(FIRST, "/c")) == (None, None)


@pytest.mark.parametrize("change", CHANGES)
def test_what_failed_once_is_not_taken_for_done(change: str) -> None:
    """A second call writes, though nothing is to change in memory any more."""
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(FIRST, "/a", 9)
    disk.fail_at(disk.operation_count + 1, number=ENOSPC)
    with pytest.RaisesExc(OSError, check=is_full):
        CHANGES[change](checkpoints)
    assert on_disk(disk, "/a") == {FIRST: 9}
    CHANGES[change](checkpoints)
    wanted = {"lower": {FIRST: 4}, "forget": {}, "put": {FIRST: 12}}[change]
    assert on_disk(disk, "/a") == entries(checkpoints)["/a"] == wanted
    written_count = disk.operation_count
    CHANGES[change](checkpoints)
    assert disk.operation_count == written_count


def test_a_log_that_is_opened_has_one_entry_at_most() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    for directory in DIRECTORIES:
        checkpoints.put(FIRST, directory, 9)
        checkpoints.put(SECOND, directory, 9)
    assert checkpoints.settle(FIRST, "/b", 9) is None
    assert checkpoints.settle(SECOND, "/a", 11) is None
    assert entries(checkpoints) == {"/a": {SECOND: 9}, "/b": {FIRST: 9}}
    assert [on_disk(disk, directory) for directory in DIRECTORIES] == [{SECOND: 9}, {FIRST: 9}]


def test_an_entry_above_the_end_of_a_log_that_is_opened_says_nothing_of_this_log() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    for directory in DIRECTORIES:
        checkpoints.put(FIRST, directory, 9, 500)
    assert checkpoints.settle(FIRST, "/b", 8) == 9
    assert [on_disk(disk, directory) for directory in DIRECTORIES] == [{}, {}]
    assert [horizons(disk, name) for name in DIRECTORIES] == [{}, {}]
    assert checkpoints.settle(FIRST, "/b", 8) is None


def test_nothing_is_raised_by_a_lowering() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(FIRST, "/a", 5)
    checkpoints.lower(FIRST, 8)
    checkpoints.lower(SECOND, 8)
    assert entries(checkpoints) == {"/a": {FIRST: 5}, "/b": {}}


def test_a_directory_that_is_gone_is_not_written_to() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(FIRST, "/a", 5)
    checkpoints.drop_directory("/a")
    written_count = disk.operation_count
    checkpoints.put(FIRST, "/a", 6)
    checkpoints.lower(FIRST, 1)
    checkpoints.forget(FIRST)
    checkpoints.move(FIRST, "/a", "/b")
    assert disk.operation_count == written_count
    assert checkpoints.offset_of(FIRST, "/a") is None
    assert not checkpoints.has_directory("/a")


def test_a_move_that_dies_leaves_what_is_right_for_either_place() -> None:
    """The entry in a directory counts where the partition is, so it must be right there, or missing."""

    def prepare() -> NotedOffsets:
        noted = NotedOffsets()
        noted.checkpoints.put(FIRST, "/a", 9)
        # What an earlier stay has left there is no news.
        noted.checkpoints.put(FIRST, "/b", 100)
        noted.checkpoints.put(SECOND, "/b", 3)
        return noted

    def verify(death: Death[NotedOffsets]) -> None:
        for disk in death.disks():
            found = entries(opened(disk))
            assert found["/b"][SECOND] == 3
            # The source keeps its entry until the target has the new one.
            states = [(9, 100), (9, 9), (None, 9)]
            is_whole = death.operation > len(sweep.trace)
            assert (found["/a"].get(FIRST), found["/b"][FIRST]) in (states[-1:] if is_whole else states)

    sweep = CrashSweep(prepare, lambda noted: noted.checkpoints.move(FIRST, "/a", "/b"))
    sweep.at_deaths(verify)


def test_a_horizon_is_known_of_what_it_was_noted_with() -> None:
    disk = FaultyFileSystem()
    opened(disk)
    checkpoints, other = CleanerCheckpoints(disk), manifest_in(disk, "/b")
    checkpoints.add_directory("/a", manifest_in(disk, "/a"))
    checkpoints.add_directory("/b", other)
    for partition in (FIRST, SECOND):
        checkpoints.put(partition, "/a", 9, 500)
    checkpoints.lower(FIRST, 9)
    checkpoints.settle(SECOND, "/a", 11)
    assert horizons(disk, "/a") == {FIRST: 500, SECOND: 500}
    checkpoints.lower(FIRST, 8)
    assert horizons(disk, "/a") == {SECOND: 500}
    other.set_horizon(SECOND, 500)
    checkpoints.move(SECOND, "/a", "/b")
    assert [horizons(disk, name) for name in DIRECTORIES] == [{}, {SECOND: 500}]
    checkpoints.put(SECOND, "/a", 9, 400)
    checkpoints.settle(SECOND, "/b", 11)
    assert [horizons(disk, name) for name in DIRECTORIES] == [{}, {SECOND: 500}]
    checkpoints.settle(SECOND, "/b", 3)
    checkpoints.put(FIRST, "/a", 8, 600)
    checkpoints.forget(FIRST)
    assert [horizons(disk, name) for name in DIRECTORIES] == [{}, {}]


def test_a_horizon_without_its_offset_goes_when_the_log_is_opened() -> None:
    disk = FaultyFileSystem()
    opened(disk).put(FIRST, "/a", 9, 500)
    disk.unlink(f"/a/{CLEANER_OFFSET_FILE}")
    checkpoints = opened(disk)
    checkpoints.settle(FIRST, "/a", 20)
    assert horizons(disk, "/a") == {}


def test_an_offset_counts_in_this_process_only_with_its_horizon() -> None:
    """Whichever operation of the two files fails, the next try writes both."""
    met = set[tuple[int | None, int | None]]()
    for number in count(1):
        disk = FaultyFileSystem()
        checkpoints = opened(disk)
        checkpoints.put(FIRST, "/a", 9, 500)
        disk.fail_at(disk.operation_count + number, number=ENOSPC)
        try:
            checkpoints.put(FIRST, "/a", 12, 600)
        except OSError:
            met.add((checkpoints.offset_of(FIRST, "/a"), checkpoints.horizon_of(FIRST, "/a")))
        else:
            break
        checkpoints.put(FIRST, "/a", 12, 600)
        assert (on_disk(disk, "/a"), horizons(disk, "/a")) == ({FIRST: 12}, {FIRST: 600})
    assert met == {(9, 500), (12, 600)}


@pytest.mark.parametrize(
    ("change", "states"),
    [
        ("put", {(9, 500), (9, 600), (12, 600)}),
        ("lower", {(9, 500), (9, None), (4, None)}),
        ("forget", {(9, 500), (9, None), (None, None)}),
    ],
)
def test_a_change_that_dies_leaves_no_horizon_that_is_not_of_its_offset(
    change: str, states: set[tuple[int | None, int | None]]
) -> None:
    """The new one may come with the old offset: it is right for what is below, too, which was cleaned."""
    met = set[tuple[int | None, int | None]]()

    def prepare() -> NotedOffsets:
        noted = NotedOffsets()
        noted.checkpoints.put(FIRST, "/a", 9, 500)
        noted.checkpoints.put(SECOND, "/a", 3, 70)
        return noted

    def verify(death: Death[NotedOffsets]) -> None:
        for disk in death.disks():
            found = opened(disk)
            met.add((found.offset_of(FIRST, "/a"), found.horizon_of(FIRST, "/a")))
            assert (found.offset_of(SECOND, "/a"), found.horizon_of(SECOND, "/a")) == (3, 70)

    CrashSweep(prepare, lambda noted: CHANGES[change](noted.checkpoints)).at_deaths(verify)
    assert met == states


def test_a_full_disk_keeps_no_other_one_and_no_other_partition_from_going_on() -> None:
    disk = FullFileSystem()
    checkpoints = opened(disk)
    for directory in DIRECTORIES:
        checkpoints.put(FIRST, directory, 10)
    disk.fill("/a")
    with pytest.RaisesExc(OSError, check=is_full):
        checkpoints.forget(FIRST)
    assert [on_disk(disk, directory) for directory in DIRECTORIES] == [{FIRST: 10}, {}]
    # Of the other partition the file says what it should.
    assert checkpoints.settle(SECOND, "/b", 5) is None
    checkpoints.lower(SECOND, 1)
    checkpoints.forget(SECOND)
    with pytest.RaisesExc(OSError, check=is_full):
        checkpoints.forget(FIRST)
    disk.fill(None)
    checkpoints.forget(FIRST)
    assert on_disk(disk, "/a") == {}
