"""A start finds a partition that two manifests list, and copies that are not complete."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import (
    PartitionState,
    read_manifest,
)
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.edited_manifest import edit_manifest
from tests.support.logs.log_machine import PARTITION, TOPIC_ID, LogMachine

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1)
DIRECTORIES = ("/a", "/b", "/c")


class Disks:
    """Three directories, of which some have a copy of the partition; copies have unequal lengths."""

    def __init__(self, copies: str) -> None:
        self.disk = MemoryFileSystem()
        self.ids = SequentialIds()
        machine = self.machine(*DIRECTORIES)
        manager = machine.open()
        manager.directories.bind_store("store")
        self.directory_ids = {one.path: one.directory_id for one in manager.directories.statuses()}
        machine.stop()
        for count, name in enumerate(copies, start=1):
            machine = self.machine(f"/{name}")
            log = machine.open().open_log(PARTITION, TOPIC_ID, CONFIG, is_first_opening=True)
            for _ in range(count):
                log.appender.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v")]), 1)
            machine.stop()

    def machine(self, *data_dirs: str) -> LogMachine:
        return LogMachine(self.disk, CONFIG, data_dirs=data_dirs or DIRECTORIES, ids=self.ids)

    def note(self, name: str, **fields: Any) -> None:
        edit_manifest(self.disk, f"/{name}", PARTITION, **fields)

    def incoming(self, name: str) -> None:
        self.note(name, state=PartitionState.INCOMING, move_number=1)
        self.disk.make_directories(f"/{name}/{PARTITION}")
        replace_file(self.disk, f"/{name}/{PARTITION}/partition.metadata", b"copied")

    def start(self, *data_dirs: str) -> UnifiedLog:
        return self.machine(*data_dirs).start()

    @property
    def holders(self) -> str:
        """Directories that have a directory of the partition's name."""
        return "".join(path[1] for path in DIRECTORIES if self.disk.exists(f"{path}/{PARTITION}"))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [("a0 b1", "b"), ("a1 b0", "a"), ("a0 b2 c1", "b"), ("a3 b2 c1", "a")],
)
def test_the_copy_with_the_highest_number_is_the_partition(numbers: str, expected: str) -> None:
    copies = numbers.split()
    disks = Disks("".join(copy[0] for copy in copies))
    for copy in copies:
        disks.note(copy[0], move_number=int(copy[1]))
    machine = disks.machine()
    manager = machine.open()
    assert manager.directory_of(PARTITION) == f"/{expected}"
    log = manager.open_log(PARTITION, TOPIC_ID, CONFIG)
    assert log.offsets.log_end_offset == [copy[0] for copy in copies].index(expected) + 1
    assert disks.holders == expected
    counts = {one.path: one.partition_count for one in manager.directories.statuses()}
    assert counts == {path: int(path == f"/{expected}") for path in DIRECTORIES}
    machine.stop()
    # An older copy is no log that was not closed.
    assert disks.machine().open().was_clean


def test_numbers_say_nothing_of_another_topic() -> None:
    """The topic was deleted and made again while the disk with the copy was away."""
    disks = Disks("ab")
    disks.note("b", move_number=5, topic_id=UUID(int=2**100))
    log = disks.start()
    assert (log.local_log.directory, log.offsets.log_end_offset) == (f"/a/{PARTITION}", 1)


def test_a_source_is_the_partition_again_if_its_target_has_a_copy_on_its_way() -> None:
    disks = Disks("a")
    disks.note("a", moving_to=disks.directory_ids["/b"])
    disks.incoming("b")
    assert disks.start().local_log.directory == f"/a/{PARTITION}"
    assert read_manifest(disks.disk, "/a").partitions[PARTITION].moving_to == ""


@pytest.mark.parametrize("data_dirs", [("/a", "/c"), DIRECTORIES])
def test_a_source_is_not_served_where_its_target_is_missing_or_does_not_list_it(
    data_dirs: tuple[str, ...],
) -> None:
    disks = Disks("a")
    disks.note("a", moving_to=disks.directory_ids["/b"])
    with pytest.raises(DataDirectoryError) as failure:
        disks.start(*data_dirs)
    assert failure.value.fields["path"] == f"/a/{PARTITION}"
    assert failure.value.fields["directory_id"] == disks.directory_ids["/b"]


def test_a_source_is_served_when_its_target_is_given_up() -> None:
    disks = Disks("a")
    disks.note("a", moving_to=disks.directory_ids["/b"])
    machine = disks.machine("/a", "/c")
    manager = machine.open()
    manager.directories.forget(disks.directory_ids["/b"])
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG).offsets.log_end_offset == 1


def wanted(manager: LogManager) -> list[tuple[object, str]]:
    return [(one.partition, one.target_path) for one in manager.moves.wanted]


def test_a_copy_on_its_way_is_a_wish() -> None:
    disks = Disks("a")
    disks.incoming("b")
    manager = disks.machine().open()
    assert wanted(manager) == [(PARTITION, "/b")]
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG).local_log.directory == f"/a/{PARTITION}"
    assert manager.begin_move(PARTITION, "/b").run() is MoveState.DONE
    assert wanted(manager) == []
    assert manager.log(PARTITION).local_log.directory == f"/b/{PARTITION}"


def test_a_copy_that_is_replaced_by_one_elsewhere_is_removed() -> None:
    disks = Disks("a")
    disks.incoming("b")
    machine = disks.machine()
    manager = machine.open()
    manager.open_log(PARTITION, TOPIC_ID, CONFIG)
    assert manager.begin_move(PARTITION, "/c").run() is MoveState.DONE
    assert disks.holders == "c"
    assert PARTITION not in read_manifest(disks.disk, "/b").partitions


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_copy_of_a_partition_that_is_nowhere_is_removed_once_all_directories_are_known(
    is_missing: bool,
) -> None:
    disks = Disks("")
    disks.incoming("b")
    manager = disks.machine(*(("/b", "/c") if is_missing else DIRECTORIES)).open()
    assert wanted(manager) == ([(PARTITION, "/b")] if is_missing else [])
    assert disks.holders == ("b" if is_missing else "")


def test_a_wish_that_is_refused_is_shown_and_can_be_given_up() -> None:
    disks = Disks("a")
    disks.incoming("b")
    manager = disks.machine().open()
    manager.moves.note_refusal(PARTITION, "it is cordoned")
    [shown] = manager.moves.progress()
    assert shown == (PARTITION, "/a", "/b", MoveState.WAITING, len(b"copied"), 0, "it is cordoned")
    assert manager.moves.give_up(PARTITION)
    assert not manager.moves.give_up(PARTITION)
    assert manager.moves.progress() == () == manager.moves.wanted
    assert disks.holders == "a"
