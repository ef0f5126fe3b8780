"""What a start makes of a partition that is found twice, and of copies that are not the partition yet."""

from __future__ import annotations

import errno
import os
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.manager.moves.move_mark import (
    MOVE_MARK_FILE,
    MOVE_VOID_FILE,
    MoveMark,
    read_move_mark,
    read_move_voids,
    remove_move_source,
    write_move_mark,
    write_move_void,
)
from stratalog.manager.partitions.partition_metadata import write_partition_metadata
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import PARTITION, TOPIC_ID, LogMachine

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1)
DIRECTORIES = ("/a", "/b", "/c")
MOVE, OTHER_MOVE = UUID(int=1), UUID(int=2)
MARK = MoveMark(TopicPartition("orders-9.x", 3), MOVE, ("one", "two"))


def test_a_mark_is_read_as_it_was_written() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/p")
    assert read_move_mark(disk, "/p") is None
    write_move_mark(disk, "/p", MARK)
    assert disk.read_file(f"/p/{MOVE_MARK_FILE}") == (
        b"version: 0\npartition: orders-9.x-3\nmove: 00000000000000000000000000000001\nsources: one two\n"
    )
    assert read_move_mark(disk, "/p") == MARK
    remove_move_source(disk, "/p", "three")
    assert read_move_mark(disk, "/p") == MARK
    remove_move_source(disk, "/p", "one")
    assert read_move_mark(disk, "/p") == MARK._replace(source_ids=("two",))
    remove_move_source(disk, "/p", "two")
    assert not disk.exists(f"/p/{MOVE_MARK_FILE}")
    remove_move_source(disk, "/p", "two")


def test_voids_add_up() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/p")
    assert read_move_voids(disk, "/p") == frozenset()
    write_move_void(disk, "/p", OTHER_MOVE)
    write_move_void(disk, "/p", MOVE)
    write_move_void(disk, "/p", MOVE)
    assert read_move_voids(disk, "/p") == {MOVE, OTHER_MOVE}
    assert disk.read_file(f"/p/{MOVE_VOID_FILE}").splitlines() == [
        b"version: 0",
        b"moves: 00000000000000000000000000000001 00000000000000000000000000000002",
    ]


@pytest.mark.parametrize(
    "text", [b"", b"version: 1\n", b"\xff", b"version: 0\npartition: x\nmove: 1\nsources: a\n"]
)
def test_a_damaged_mark_counts_as_none(text: bytes) -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/p")
    for name in (MOVE_MARK_FILE, MOVE_VOID_FILE):
        disk.open_append(f"/p/{name}").append([text])
    assert read_move_mark(disk, "/p") is None
    assert read_move_voids(disk, "/p") == frozenset()


class Disks:
    """Three directories, of which some have a copy of the partition; copies have unequal lengths."""

    def __init__(self, copies: str) -> None:
        self.disk = MemoryFileSystem()
        self.ids = SequentialIds()
        machine = self.machine(*DIRECTORIES)
        manager = machine.open()
        self.directory_ids = {one.path: one.directory_id for one in manager.directories()}
        machine.stop()
        for count, name in enumerate(copies, start=1):
            machine = self.machine(f"/{name}")
            log = machine.start()
            for _ in range(count):
                log.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v")]), 1)
            machine.stop()

    def machine(self, *data_dirs: str) -> LogMachine:
        return LogMachine(self.disk, CONFIG, data_dirs=data_dirs, ids=self.ids)

    def mark(self, name: str, *sources: str, move_id: UUID = MOVE) -> None:
        source_ids = tuple(self.directory_ids[f"/{source}"] for source in sources)
        write_move_mark(self.disk, f"/{name}/{PARTITION}", MoveMark(PARTITION, move_id, source_ids))

    def void(self, name: str, move_id: UUID) -> None:
        write_move_void(self.disk, f"/{name}/{PARTITION}", move_id)

    def start(self, *data_dirs: str) -> UnifiedLog:
        return self.machine(*(data_dirs or DIRECTORIES)).start()

    @property
    def holders(self) -> str:
        """Directories that have the partition."""
        return "".join(path[1] for path in DIRECTORIES if self.disk.exists(f"{path}/{PARTITION}"))


@pytest.mark.parametrize(
    ("copies", "marks", "voids", "expected"),
    [
        pytest.param("ab", ["b<a"], [], "b", id="moved"),
        pytest.param("ab", ["a<b"], [], "a", id="moved the other way"),
        pytest.param("ab", ["a<bc"], [], "a", id="moved from one of two"),
        pytest.param("abc", ["c<ab"], [], "c", id="moved twice, both sources were away"),
        pytest.param("abc", ["b<a", "c<ab"], [], "c", id="moved twice, with both marks"),
        pytest.param("ab", ["b<a"], ["a"], "a", id="void"),
        pytest.param("abc", ["b<a", "c<a"], ["c"], "c", id="void, then moved elsewhere"),
    ],
)
def test_the_newest_copy_is_the_partition(
    copies: str, marks: list[str], voids: list[str], expected: str
) -> None:
    disks = Disks(copies)
    for mark in marks:
        name, _, sources = mark.partition("<")
        disks.mark(name, *sources, move_id=UUID(int=ord(name)))
    for name in voids:
        disks.void(name, UUID(int=ord("b")))
    log = disks.start()
    assert log.directory == f"/{expected}/{PARTITION}"
    assert log.log_end_offset == copies.index(expected) + 1
    assert disks.holders == expected


@pytest.mark.parametrize(
    ("copies", "marks"),
    [
        pytest.param("ab", [], id="no mark"),
        pytest.param("ab", ["b<c"], id="the mark speaks of another directory"),
        pytest.param("ab", ["a<b", "b<a"], id="two marks that contradict each other"),
        pytest.param("abc", ["b<a"], id="a third copy"),
    ],
)
def test_copies_that_no_mark_tells_apart_are_for_a_human(copies: str, marks: list[str]) -> None:
    disks = Disks(copies)
    for mark in marks:
        name, _, sources = mark.partition("<")
        disks.mark(name, *sources, move_id=UUID(int=ord(name)))
    with pytest.raises(DataDirectoryError, match="two log directories hold this partition"):
        disks.start()
    assert disks.holders == copies


def test_a_mark_says_nothing_of_another_topic() -> None:
    """The topic was deleted and made again while the disk with the copy was away."""
    disks = Disks("ab")
    disks.mark("b", "a")
    write_partition_metadata(disks.disk, f"/b/{PARTITION}", UUID(int=2**100))
    log = disks.start()
    assert (log.directory, log.log_end_offset) == (f"/a/{PARTITION}", 1)


def test_a_copy_that_was_alone_is_served_whatever_its_mark_says() -> None:
    disks = Disks("a")
    disks.mark("a", "b", "c")
    assert disks.start("/a").log_end_offset == 1


def future(disks: Disks, name: str, *, partition: TopicPartition | None = PARTITION) -> str:
    path = f"/{name}/{PARTITION}.{MOVE.hex}-future"
    disks.disk.make_directories(path)
    if partition is not None:
        write_move_mark(disks.disk, path, MoveMark(partition, MOVE, ("x",)))
    return path


def test_copies_that_are_not_the_partition_yet_are_wishes() -> None:
    disks = Disks("a")
    kept = future(disks, "b")
    unmarked = future(disks, "c", partition=None)
    machine = disks.machine(*DIRECTORIES)
    manager = machine.open()
    [wanted] = manager.moves.wanted
    assert wanted == (PARTITION, "/b", kept)
    assert not disks.disk.exists(unmarked)
    log = manager.open_log(PARTITION, TOPIC_ID, CONFIG)
    assert log.directory == f"/a/{PARTITION}"
    machine.clock.advance(60_000)
    assert [name for name in disks.disk.list_directory("/c") if "orders" in name] == []


def test_a_wish_for_a_partition_that_nobody_has_is_removed() -> None:
    disks = Disks("")
    path = future(disks, "b")
    assert disks.machine(*DIRECTORIES).open().moves.wanted == ()
    assert not disks.disk.exists(path)


def test_a_wish_for_a_partition_that_may_be_in_a_missing_directory_stays() -> None:
    disks = Disks("")
    machine = disks.machine(*DIRECTORIES)
    manager = machine.open()
    manager.bind_store("store")
    machine.stop()
    path = future(disks, "b")
    machine = disks.machine("/b", "/c")
    manager = machine.open()
    assert [one.path for one in manager.missing_directories()] == ["/a"]
    assert manager.moves.wanted == ((PARTITION, "/b", path),)
    machine.stop()
    assert disks.machine(*DIRECTORIES).open().moves.wanted == ()
    assert not disks.disk.exists(path)


def test_a_wish_for_a_partition_that_is_there_already_is_removed() -> None:
    disks = Disks("b")
    path = future(disks, "b")
    assert disks.machine(*DIRECTORIES).open().moves.wanted == ()
    assert not disks.disk.exists(path)


def test_a_wish_that_is_refused_is_shown_and_can_be_given_up() -> None:
    disks = Disks("a")
    path = future(disks, "b")
    machine = disks.machine(*DIRECTORIES)
    manager = machine.open()
    manager.moves.note_refusal(PARTITION, "it is cordoned")
    [shown] = manager.moves.progress()
    mark_bytes = disks.disk.file_size(f"{path}/{MOVE_MARK_FILE}")
    assert mark_bytes > 0
    assert shown == (PARTITION, "/a", "/b", MoveState.WAITING, mark_bytes, 0, "it is cordoned")
    assert manager.moves.give_up(PARTITION)
    assert not manager.moves.give_up(PARTITION)
    assert manager.moves.progress() == () == manager.moves.wanted
    machine.clock.advance(60_000)
    assert [name for name in disks.disk.list_directory("/b") if "orders" in name] == []


def test_a_wish_that_is_given_up_on_a_full_disk_gives_its_space_back() -> None:
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    machine = LogMachine(disk, CONFIG, data_dirs=("/a", "/b"), cordoned_dirs=("/b",), ids=SequentialIds())
    machine.start()
    path = f"/b/{PARTITION}.{MOVE.hex}-future"
    disk.make_directories(path)
    write_move_mark(disk, path, MoveMark(PARTITION, MOVE, ("x",)))
    disk = disk.killed()
    disk.names_are_full = True
    disk.fill("/b")
    machine = LogMachine(disk, CONFIG, data_dirs=("/a", "/b"), ids=SequentialIds(100))
    manager = machine.open()
    assert manager.moves.give_up(PARTITION)
    machine.clock.advance(60_000)
    assert not disk.inner.exists(path)


def test_a_directory_that_gave_up_its_older_copy_has_the_partition_no_more() -> None:
    disks = Disks("ab")
    disks.mark("b", "a")
    machine = disks.machine(*DIRECTORIES)
    manager = machine.open()
    assert [(one.path, one.partition_count, one.remaining_log_count) for one in manager.directories()] == [
        ("/a", 0, 0),
        ("/b", 1, 1),
        ("/c", 0, 0),
    ]
    assert manager.directory_of(PARTITION) == "/b"
    # What was put away is no log that nobody has closed.
    manager.open_log(PARTITION, TOPIC_ID, CONFIG)
    machine.stop()
    assert disks.machine(*DIRECTORIES).open().was_clean


class Unreadable(FaultyFileSystem):
    """Refuses to read the mark of one copy."""

    def read_file(self, path: str) -> bytes:
        if "/orders-0." in path and path.endswith(MOVE_MARK_FILE):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().read_file(path)


def test_a_copy_that_cannot_be_read_keeps_no_other_from_being_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Unreadable()
    machine = LogMachine(disk, CONFIG, data_dirs=("/a", "/b"), cordoned_dirs=("/b",), ids=SequentialIds())
    manager = machine.open()
    partitions = [TopicPartition("orders", number) for number in range(2)]
    for number, partition in enumerate(partitions):
        manager.open_log(partition, TOPIC_ID, CONFIG)
        path = f"/b/{partition}.{number:032x}-future"
        disk.make_directories(path)
        source_id = manager.directories()[0].directory_id
        write_move_mark(disk, path, MoveMark(partition, UUID(int=number), (source_id,)))
    manager.checkpoint()
    disk.inner.release_locks()
    again = LogMachine(disk, CONFIG, data_dirs=("/a", "/b"), ids=SequentialIds(100))
    found = again.open()
    assert [wanted.partition for wanted in found.moves.wanted] == partitions[1:]
    assert "the copy of a partition that was to move could not be settled" in caplog.text
    assert disk.inner.exists(f"/b/{partitions[0]}.{0:032x}-future")
