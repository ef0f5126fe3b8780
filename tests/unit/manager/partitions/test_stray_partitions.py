"""Directories named like partitions of no topic: set aside if that is certain, else left and logged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import REBUILD
from stratalog.manager.directories.manifest import (
    MANIFEST_FILE,
    AsideEntry,
    PartitionState,
    read_manifest,
)
from stratalog.manager.log_manager import LogManager
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep
from tests.support.logs.edited_manifest import edit_manifest
from tests.support.logs.log_machine import LogMachine, checkpoint

A, B = "/disk-a/logs", "/disk-b/logs"
CONFIG = LogConfig()
KEPT, GHOST = TopicPartition("kept", 0), TopicPartition("ghost", 0)
KEPT_ID, GHOST_ID, OTHER_ID = UUID(int=1), UUID(int=2), UUID(int=3)
NEW_ID = UUID(int=4 << 100)
MARKER = ".kafka_cleanshutdown"
IDS = SequentialIds()
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])


def claim_of(partition: TopicPartition, topic_id: UUID | None) -> PartitionClaim:
    """The store has one topic, and remembers another one that was deleted."""
    if partition == KEPT:
        return PartitionClaim.WANTED
    return PartitionClaim.KNOWN if topic_id == OTHER_ID else PartitionClaim.NONE


def fill(manager: LogManager, partition: TopicPartition, topic_id: UUID, count: int = 3) -> None:
    log = manager.open_log(partition, topic_id, CONFIG)
    for _ in range(count):
        log.appender.append_as_leader(BATCH, 1)
    log.flusher.flush()


def machine_with_ghost(disk: FileSystem | None = None, *dirs: str, ids: SequentialIds = IDS) -> LogMachine:
    """Was killed with a log of `kept` and one of `ghost`, both in A; of the latter record 0 was deleted."""
    machine = LogMachine(disk, data_dirs=dirs or (A,), ids=ids)
    manager = machine.open()
    manager.directories.bind_store("store")
    manager.directories.alter_cordons(dirs[1:])
    fill(manager, KEPT, KEPT_ID)
    fill(manager, GHOST, GHOST_ID)
    manager.directories.alter_cordons(None)
    manager.log(GHOST).increment_log_start_offset(1)
    checkpoint(manager)
    machine.kill()
    return machine


def restarted(machine: LogMachine) -> LogManager:
    """Only the topic `kept` is known."""
    manager = machine.open()
    manager.open_log(KEPT, KEPT_ID, CONFIG)
    manager.end_start(claim_of)
    return manager


def strays_in(disk: FileSystem, path: str = A) -> list[str]:
    return [name for name in disk.list_directory(path) if name.endswith("-stray")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "named like a partition" in one.getMessage()]


def test_one_of_an_unknown_topic_is_set_aside_once_and_spoils_no_marker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = machine_with_ghost()
    with caplog.at_level(logging.WARNING):
        manager = restarted(machine)
    [stray] = strays_in(machine.disk)
    assert not machine.disk.exists(f"{A}/{GHOST}")
    [told] = warnings(caplog)
    assert f"path=`{A}/{stray}`" in told
    assert f"former_path=`{A}/{GHOST}`" in told
    [status] = manager.directories.statuses()
    assert (status.partition_count, status.remaining_log_count, status.set_aside_count) == (1, 0, 1)
    assert manager.found.set_aside() == {A: [f"{A}/{stray}"]}
    machine.stop()
    assert machine.disk.exists(f"{A}/{MARKER}")
    caplog.clear()
    manager = restarted(machine)
    assert (manager.was_clean, warnings(caplog)) == (True, [])
    assert manager.directories.statuses()[0].set_aside_count == 1
    # It stays.
    machine.clock.advance(1_000_000)
    assert strays_in(machine.disk) == [stray]


class GhostMachine:
    """Another process of the machine with the ghost, which has opened the other log."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        machine_with_ghost(self.disk.inner, ids=SequentialIds())
        self.manager = LogMachine(self.disk, data_dirs=(A,), ids=SequentialIds(1000)).open()
        self.manager.open_log(KEPT, KEPT_ID, CONFIG)


def require_here_or_there(disks: Iterable[FaultyFileSystem], outcomes: set[bool]) -> None:
    """A process that knows the topic has its records, but for those that were deleted."""
    for disk in disks:
        is_aside = bool(strays_in(disk))
        outcomes.add(is_aside)
        assert is_aside or disk.exists(f"{A}/{GHOST}")
        log = (
            LogMachine(disk, data_dirs=(A,), ids=SequentialIds(2000)).open().open_log(GHOST, GHOST_ID, CONFIG)
        )
        assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (1, 3)


def test_a_crash_while_it_is_set_aside_leaves_it_here_or_there() -> None:
    outcomes = set[bool]()
    sweep = CrashSweep(GhostMachine, lambda ghost: ghost.manager.end_start(claim_of))
    sweep.at_deaths(lambda death: require_here_or_there(death.disks(), outcomes))
    assert outcomes == {False, True}


def test_a_topic_that_is_known_again_has_its_log_again_with_all_that_is_known_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = machine_with_ghost()
    restarted(machine)
    machine.stop()
    manager = restarted(machine)
    log = manager.open_log(GHOST, GHOST_ID, CONFIG)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (1, 3)
    assert not log.recovery_report.was_clean, "it was never closed"
    assert "is taken back" in caplog.text
    assert (strays_in(machine.disk), manager.directories.statuses()[0].set_aside_count) == ([], 0)
    manager.check()
    machine.stop()
    assert machine.open().open_log(GHOST, GHOST_ID, CONFIG).recovery_report.was_clean


def by_the_end_of_a_start(machine: LogMachine) -> LogManager:
    return restarted(machine)


def by_another_topic_of_the_name(machine: LogMachine) -> LogManager:
    manager = machine.open()
    fill(manager, GHOST, NEW_ID, count=9)
    manager.log(GHOST).increment_log_start_offset(7)
    manager.delete_log(GHOST)
    return manager


@pytest.mark.parametrize("set_aside", [by_the_end_of_a_start, by_another_topic_of_the_name])
@pytest.mark.parametrize("is_used_between", [False, True])
def test_where_it_starts_is_kept_with_it_if_another_has_the_name_meanwhile(
    set_aside: Callable[[LogMachine], LogManager], is_used_between: bool
) -> None:
    machine = machine_with_ghost()
    manager = set_aside(machine)
    [stray] = strays_in(machine.disk)
    manifest = read_manifest(machine.disk, A)
    assert GHOST not in manifest.partitions
    assert manifest.aside[stray] == AsideEntry(GHOST, GHOST_ID, 1, 3)
    assert b"ghost 0" not in machine.disk.read_file(f"{A}/{RECOVERY_POINT_FILE}")
    if is_used_between:
        manager.open_log(GHOST, NEW_ID, CONFIG, is_first_opening=True)
        manager.delete_log(GHOST)
    machine.stop()
    for start_offset in (1, 2):
        manager = machine.open()
        log = manager.open_log(GHOST, GHOST_ID, CONFIG)
        assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (start_offset, 3)
        assert stray not in read_manifest(machine.disk, A).aside
        # What is deleted since then is known the next time.
        log.increment_log_start_offset(2)
        checkpoint(manager)
        machine.kill()
        set_aside(machine)
        machine.kill()


def test_a_crash_while_it_is_taken_back_leaves_it_here_or_there() -> None:
    class AsideMachine(GhostMachine):
        def __init__(self) -> None:
            super().__init__()
            self.manager.end_start(claim_of)

    outcomes = set[bool]()
    sweep = CrashSweep(AsideMachine, lambda ghost: ghost.manager.open_log(GHOST, GHOST_ID, CONFIG))
    sweep.at_deaths(lambda death: require_here_or_there(death.disks(), outcomes))
    assert outcomes == {False, True}


def test_its_import_epoch_comes_back_with_it() -> None:
    machine = machine_with_ghost()
    edit_manifest(machine.disk, A, GHOST, GHOST_ID, import_epoch=5)
    manager = machine.open()
    manager.open_log(GHOST, OTHER_ID, CONFIG)
    assert manager.import_epoch(GHOST) is None
    manager.delete_log(GHOST)
    manager.open_log(GHOST, GHOST_ID, CONFIG)
    assert manager.import_epoch(GHOST) == 5


def test_a_manifest_that_is_made_anew_finds_it_by_its_name() -> None:
    machine = machine_with_ghost()
    restarted(machine)
    machine.stop()
    [stray] = strays_in(machine.disk)
    # Nothing says whose these are: a name that was cut, and a directory without the file of the topic.
    machine.disk.make_directories(f"{A}/{'x' * 200}.{UUID(int=5).hex}-stray")
    machine.disk.make_directories(f"{A}/other-0.{UUID(int=6).hex}-stray")
    replace_file(machine.disk, f"{A}/{MANIFEST_FILE}", REBUILD)
    manager = restarted(machine)
    assert read_manifest(machine.disk, A).aside == {stray: AsideEntry(GHOST, GHOST_ID, 0, 0)}
    log = manager.open_log(GHOST, GHOST_ID, CONFIG)
    # Its log start is lost, so the deleted record is back.
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, 3)


def test_one_that_was_just_created_does_not_get_it() -> None:
    machine = machine_with_ghost()
    manager = restarted(machine)
    assert manager.open_log(GHOST, GHOST_ID, CONFIG, is_first_opening=True).offsets.log_end_offset == 0
    assert len(strays_in(machine.disk)) == 1


def test_of_two_that_were_set_aside_an_operator_chooses() -> None:
    disk = MemoryFileSystem()
    for path in (A, B):
        machine_with_ghost(disk, path)
        machine = LogMachine(disk, data_dirs=(path,), ids=IDS)
        restarted(machine)
        machine.kill()
    paths = [f"{path}/{stray}" for path in (A, B) for stray in strays_in(disk, path)]
    manager = LogMachine(disk, data_dirs=(A, B), ids=IDS).open()
    with pytest.raises(DataDirectoryError) as failure:
        manager.open_log(GHOST, GHOST_ID, CONFIG)
    assert failure.value.fields == {"path": paths[0], "other_path": paths[1]}
    assert not disk.exists(f"{A}/{GHOST}")


def put_doubt(disk: MemoryFileSystem, doubt: str) -> None:
    if doubt == "known topic":
        edit_manifest(disk, A, GHOST, OTHER_ID)
    elif doubt == "import":
        edit_manifest(disk, A, GHOST, GHOST_ID, import_epoch=5)
    else:
        assert doubt == "new"
        text = disk.read_file(f"{A}/meta.properties")
        replace_file(disk, f"{A}/meta.properties", text.replace(b"store.id", b"x"))


DOUBTS = {
    "known topic": "the catalog knows its topic",
    "import": "an import that was cut off",
    "new": "belonged to no store before",
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_one_that_may_be_a_topics_is_logged_stays_and_spoils_no_marker(
    doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine = machine_with_ghost()
    disk = machine.memory
    put_doubt(disk, doubt)
    files = disk.list_directory(f"{A}/{GHOST}")
    for is_clean in (False, True, True):
        caplog.clear()
        manager = restarted(machine)
        [told] = warnings(caplog)
        assert DOUBTS[doubt] in told
        assert f"path=`{A}/{GHOST}`" in told
        assert (strays_in(disk), disk.list_directory(f"{A}/{GHOST}")) == ([], files)
        [status] = manager.directories.statuses()
        assert (status.partition_count, status.remaining_log_count, status.set_aside_count) == (1, 0, 1)
        assert manager.found.set_aside() == {A: [f"{A}/{GHOST}"]}
        assert manager.was_clean is is_clean
        assert manager.log(KEPT).recovery_report.was_clean is is_clean
        manager.check()
        machine.stop()
        assert disk.exists(f"{A}/{MARKER}")


def test_one_that_stays_is_never_taken_for_closed() -> None:
    machine = machine_with_ghost()
    put_doubt(machine.memory, "import")
    restarted(machine)
    machine.stop()
    assert machine.disk.read_file(f"{A}/{MARKER}") == b'{"version":0}'
    assert read_manifest(machine.disk, A).partitions[GHOST].state is PartitionState.STRAY
    manager = machine.open()
    assert manager.was_clean
    report = manager.open_log(GHOST, GHOST_ID, CONFIG).recovery_report
    assert not report.was_clean
    assert manager.open_log(KEPT, KEPT_ID, CONFIG).recovery_report.was_clean
    assert read_manifest(machine.disk, A).partitions[GHOST].state is PartitionState.LIVE


def test_nothing_is_set_aside_while_a_directory_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    machine = machine_with_ghost(None, A, B)
    without = LogMachine(machine.disk, data_dirs=(A,), ids=IDS)
    restarted(without)
    assert strays_in(machine.disk) == []
    [told] = warnings(caplog)
    assert "a log directory is missing or offline" in told


def test_one_that_moves_is_left_to_its_move() -> None:
    machine = machine_with_ghost(None, A, B)
    edit_manifest(machine.disk, B, GHOST, GHOST_ID, state=PartitionState.INCOMING, move_number=1)
    manager = restarted(machine)
    assert manager.moves.is_wanted(GHOST)
    assert strays_in(machine.disk) == []


def test_one_that_is_not_listed_stays_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    machine = machine_with_ghost()
    other = f"{A}/other-0"
    machine.disk.make_directories(other)
    for is_clean in (False, True):
        caplog.clear()
        manager = restarted(machine)
        assert manager.was_clean is is_clean
        assert any("does not list it" in one and f"path=`{other}`" in one for one in warnings(caplog))
        assert other in manager.found.set_aside()[A]
        machine.stop()
    assert machine.disk.exists(other)


def test_one_that_cannot_be_set_aside_stays_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    for number in (errno.EACCES, errno.EIO):
        ghost = GhostMachine()
        ghost.disk.fail_where(lambda line: line.startswith(f"rename {A}/{GHOST} "), number=number)
        ghost.manager.end_start(claim_of)
        assert ghost.disk.inner.exists(f"{A}/{GHOST}")
    assert "it could not be set aside" in caplog.text
    assert "strays could not be looked at" in caplog.text


def test_what_a_recovery_has_to_look_at_is_kept_with_it() -> None:
    machine = machine_with_ghost()
    restarted(machine)
    machine.stop()
    [stray] = strays_in(machine.disk)
    assert isinstance(machine.disk, MemoryFileSystem)
    path = f"{A}/{stray}/{0:020d}.log"
    size = machine.disk.file_size(path)
    file = machine.disk.open_append(path)
    file.truncate(size - 1)
    file.close()
    with pytest.raises(DataDirectoryError):
        restarted(machine).open_log(GHOST, GHOST_ID, CONFIG)


def test_what_is_no_topics_does_not_count_where_new_partitions_go() -> None:
    machine = machine_with_ghost(None, A, B)
    put_doubt(machine.memory, "import")
    manager = restarted(machine)
    # Both have one then, and the next one goes to the first.
    fill(manager, TopicPartition("new", 0), UUID(int=5))
    fill(manager, TopicPartition("new", 1), UUID(int=5))
    assert manager.directory_of(TopicPartition("new", 0)) == B
    assert manager.directory_of(TopicPartition("new", 1)) == A
