"""A partition whose directory is gone stays offline until it is back, or until an operator gives it up."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import read_manifest
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_moments import SURVIVALS
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_machine import LogMachine, checkpoint

A, B = "/disk-a/logs", "/disk-b/logs"
CONFIG = LogConfig()
P, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID, NEW_ID = UUID(int=7), UUID(int=8)
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
END = 5


class Machine:
    """Two log directories, one partition with 5 records in A, of which none is in the store."""

    def __init__(
        self, disk: FaultyFileSystem | None = None, *, is_new: bool = True, ids: SequentialIds | None = None
    ) -> None:
        self.disk = disk or FaultyFileSystem()
        self.ids = ids or SequentialIds(0 if is_new else 1 << 20)
        self.process = LogMachine(self.disk, data_dirs=(A, B), ids=self.ids)
        self.manager: LogManager = self.process.open()
        self.manager.directories.bind_store("store")
        if is_new:
            fill(self.manager.open_log(P, TOPIC_ID, CONFIG, is_first_opening=True), END)
            checkpoint(self.manager)

    def restarted(self, *, is_killed: bool = False) -> Machine:
        if is_killed:
            return Machine(self.disk.killed(), is_new=False, ids=self.ids)
        self.process.stop()
        return Machine(self.disk, is_new=False, ids=self.ids)

    def lose(self, path: str = f"{A}/{P}") -> Machine:
        self.process.stop()
        self.disk.rename(path, "/lost")
        return Machine(self.disk, is_new=False, ids=self.ids)

    def open_log(self, start_offset: int = 0, topic_id: UUID = TOPIC_ID) -> UnifiedLog:
        return self.manager.open_log(P, topic_id, CONFIG, start_offset=start_offset)


def fill(log: UnifiedLog, count: int) -> None:
    for _ in range(count):
        log.appender.append_as_leader(BATCH, 1)
    log.flusher.flush()


def wanted(_partition: TopicPartition, _topic_id: UUID | None) -> PartitionClaim:
    return PartitionClaim.WANTED


def listed(disk: FaultyFileSystem, path: str = A) -> bool:
    return P in read_manifest(disk, path).partitions


@pytest.mark.parametrize("tiered_end_offset", [0, END - 1, END])
@pytest.mark.parametrize("is_killed", [False, True])
def test_it_stays_offline_until_it_is_back(tiered_end_offset: int, is_killed: bool) -> None:
    machine = Machine().lose()
    for _ in range(2):
        with pytest.raises(DataDirectoryError) as failure:
            machine.open_log(tiered_end_offset)
        assert failure.value.fields == {"path": f"{A}/{P}"}
        assert "make an empty directory at its path" in failure.value.message
        assert not machine.disk.exists(f"{A}/{P}")
        assert not machine.disk.exists(f"{B}/{P}")
        # Other work, and the end of a start, do not change that.
        machine.manager.open_log(OTHER, NEW_ID, CONFIG, is_first_opening=True)
        machine.manager.end_start(wanted)
        checkpoint(machine.manager)
        machine.manager.delete_log(OTHER)
        machine = machine.restarted(is_killed=is_killed)
    machine.process.stop()
    machine.disk.rename("/lost", f"{A}/{P}")
    log = Machine(machine.disk, is_new=False).open_log(tiered_end_offset)
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (0, END)


def test_an_empty_directory_lets_it_begin_anew_above_its_start_and_at_no_old_recovery_point() -> None:
    machine = Machine()
    machine.manager.log(P).increment_log_start_offset(2)
    machine = machine.lose()
    machine.disk.make_directories(f"{A}/{P}")
    machine.disk.sync_directory(A)
    machine = machine.restarted()
    log = machine.open_log()
    # Deleted records stay deleted.
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset, log.topic_id) == (2, 2, TOPIC_ID)
    log.appender.append_as_leader(BATCH, 1)
    log.appender.append_as_leader(BATCH, 1)
    for survival in SURVIVALS:
        found = Machine(machine.disk.reopened(survival), is_new=False).open_log()
        assert 2 <= found.offsets.log_end_offset <= 4, survival
        fill(found, 1)
        assert found.offsets.log_start_offset == 2


def test_one_of_another_topic_takes_its_name() -> None:
    machine = Machine().lose()
    fill(machine.manager.open_log(P, NEW_ID, CONFIG, is_first_opening=True), 1)
    assert machine.restarted().open_log(topic_id=NEW_ID).offsets.log_end_offset == 1


def test_a_deleted_topic_is_taken_out_of_the_manifest() -> None:
    machine = Machine().lose()
    with pytest.raises(DataDirectoryError):
        machine.open_log()
    assert machine.manager.forget_lost(P)
    assert not listed(machine.disk)
    assert machine.restarted().open_log(topic_id=NEW_ID).offsets.log_end_offset == 0


def test_one_that_is_there_or_may_be_elsewhere_is_not_lost() -> None:
    assert not Machine().restarted().manager.forget_lost(P)
    machine = Machine().lose(f"{A}/{P}")
    machine.process.stop()
    assert not LogMachine(machine.disk, data_dirs=(A,), ids=SequentialIds(1)).open().forget_lost(P)


def test_one_that_has_moved_is_lost_where_it_is_now() -> None:
    machine = Machine()
    assert machine.manager.begin_move(P, B).run() is MoveState.DONE
    machine = machine.lose(f"{B}/{P}")
    with pytest.raises(DataDirectoryError) as failure:
        machine.open_log()
    assert failure.value.fields["path"] == f"{B}/{P}"


@pytest.mark.parametrize("is_full", [False, True])
def test_a_deleted_partition_is_not_lost(is_full: bool) -> None:
    """Also where the disk had no room for the manifest, and not for another name either."""
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    machine = Machine(disk)
    if is_full:
        disk.fill(A)
    machine.manager.delete_log(P)
    machine = machine.restarted(is_killed=True)
    assert isinstance(machine.disk, FullFileSystem)
    machine.disk.fill(None)
    assert machine.open_log(topic_id=NEW_ID).offsets.log_end_offset == 0


@pytest.mark.parametrize("reason", ["delete", "fenced", "stray"])
def test_a_crash_while_one_is_put_away_leaves_all_of_it_or_nothing(reason: str) -> None:
    def put_away(machine: Machine) -> None:
        if reason == "delete":
            machine.manager.delete_log(P)
        elif reason == "fenced":
            machine.manager.set_aside(P, reason)
        else:
            machine.manager.let_go(P)
            machine.manager.open_log(P, NEW_ID, CONFIG)

    def verify(death: Death[Machine]) -> None:
        for disk in death.disks():
            log = Machine(disk, is_new=False).open_log(start_offset=1)
            # A stray that was not yet put away, or that is taken back, is whole.
            outcomes.add(log.offsets.log_end_offset)

    outcomes: set[int] = set()
    CrashSweep(Machine, put_away).at_deaths(verify, always=lambda line: line.startswith("rename"))
    assert outcomes == ({END} if reason == "stray" else {1, END})


def test_one_that_comes_back_after_a_kill_is_recovered() -> None:
    machine = Machine()
    machine.manager.log(P).appender.append_as_leader(BATCH, 1)
    disk = machine.disk.killed()
    disk.rename(f"{A}/{P}", "/lost")
    # This start and this stop say nothing of it.
    Machine(disk, is_new=False).process.stop()
    disk.rename("/lost", f"{A}/{P}")
    log = Machine(disk, is_new=False).open_log()
    assert not log.recovery_report.was_clean
    assert log.offsets.log_end_offset == END + 1
