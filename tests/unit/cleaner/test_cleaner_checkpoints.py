"""Up to where logs are clean, and what a disk that fails, or dies, makes of it."""

from __future__ import annotations

from contextlib import suppress
from errno import ENOSPC

import pytest

from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE, CleanerCheckpoints
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
DIRECTORIES = ("/a", "/b")


def opened(disk: FaultyFileSystem) -> CleanerCheckpoints:
    checkpoints = CleanerCheckpoints(disk)
    for directory in DIRECTORIES:
        disk.make_directories(directory)
        disk.sync_directory("/")
        checkpoints.add_directory(directory)
    return checkpoints


def on_disk(disk: FaultyFileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{CLEANER_OFFSET_FILE}"
    return parse_checkpoint(disk.read_file(path).decode()) if disk.exists(path) else {}


def test_the_format_is_kafkas() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(SECOND, "/a", 98_112)
    checkpoints.put(FIRST, "/a", 7)
    text = disk.read_file("/a/cleaner-offset-checkpoint").decode()
    assert text == "0\n2\norders 0 7\norders 1 98112\n"
    assert opened(disk).entries() == {"/a": {FIRST: 7, SECOND: 98_112}, "/b": {}}


@pytest.mark.parametrize("change", ["lower", "forget", "put"])
def test_what_failed_once_is_not_taken_for_done(change: str) -> None:
    """A second call writes, though nothing is to change in memory any more."""
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(FIRST, "/a", 9)

    def do() -> None:
        if change == "lower":
            checkpoints.lower(FIRST, 4)
        elif change == "forget":
            checkpoints.forget(FIRST)
        else:
            checkpoints.put(FIRST, "/a", 12)

    disk.fail_at(disk.operation_count + 1, number=ENOSPC)
    with pytest.raises(OSError, match="No space"):
        do()
    assert on_disk(disk, "/a") == {FIRST: 9}
    do()
    wanted = {"lower": {FIRST: 4}, "forget": {}, "put": {FIRST: 12}}[change]
    assert on_disk(disk, "/a") == checkpoints.entries()["/a"] == wanted
    written_count = disk.operation_count
    do()
    assert disk.operation_count == written_count


def test_a_log_that_is_opened_has_one_entry_at_most() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    for directory in DIRECTORIES:
        checkpoints.put(FIRST, directory, 9)
        checkpoints.put(SECOND, directory, 9)
    checkpoints.settle(FIRST, "/b", 7)
    checkpoints.settle(SECOND, "/a", 11)
    assert checkpoints.entries() == {"/a": {SECOND: 9}, "/b": {FIRST: 7}}
    assert [on_disk(disk, directory) for directory in DIRECTORIES] == [{SECOND: 9}, {FIRST: 7}]


def test_nothing_is_raised_by_a_lowering() -> None:
    disk = FaultyFileSystem()
    checkpoints = opened(disk)
    checkpoints.put(FIRST, "/a", 5)
    checkpoints.lower(FIRST, 8)
    checkpoints.lower(SECOND, 8)
    assert checkpoints.entries() == {"/a": {FIRST: 5}, "/b": {}}


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
    operation = 0
    while True:
        operation += 1
        disk = FaultyFileSystem()
        checkpoints = opened(disk)
        checkpoints.put(FIRST, "/a", 9)
        # What an earlier stay has left there is no news.
        checkpoints.put(FIRST, "/b", 100)
        checkpoints.put(SECOND, "/b", 3)
        begun = disk.operation_count
        disk.crash_at(begun + operation)
        with suppress(SimulatedCrash):
            checkpoints.move(FIRST, "/a", "/b")
        is_whole = disk.operation_count < begun + operation
        for survival in ALL_SURVIVALS:
            found = opened(disk.reopened(survival)).entries()
            assert found["/b"][SECOND] == 3
            assert found["/a"].get(FIRST, 9) == 9
            assert found["/b"][FIRST] in ((9,) if is_whole else (9, 100))
            # The source keeps its entry until the target has the new one.
            assert FIRST in found["/a"] or found["/b"][FIRST] == 9
            if is_whole:
                assert FIRST not in found["/a"]
        if is_whole:
            return
