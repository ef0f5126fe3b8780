"""A partition whose directory is gone behind our back stays offline; nobody misses what was put away on
purpose."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.manager.partitions.partition_metadata import write_partition_metadata
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_moments import SURVIVALS, deaths
from tests.support.logs.log_machine import LogMachine

A, B = "/disk-a/logs", "/disk-b/logs"
CONFIG = LogConfig()
P, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID, NEW_ID = UUID(int=7), UUID(int=8)
BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
END = 5
IDS = SequentialIds()
GONE = "is gone from its log directory"


class Machine:
    """Two log directories, one partition with 5 records in A, of which none is in the store."""

    def __init__(self, disk: FaultyFileSystem | None = None, *, is_new: bool = True) -> None:
        self.disk = disk or FaultyFileSystem()
        self.process = LogMachine(self.disk, data_dirs=(A, B), ids=IDS)
        self.manager: LogManager = self.process.open()
        self.manager.bind_store("store")
        if is_new:
            fill(self.manager.open_log(P, TOPIC_ID, CONFIG, is_first_opening=True), END)
            self.manager.checkpoint()

    def restarted(self, *, is_killed: bool = False) -> Machine:
        if is_killed:
            return Machine(self.disk.killed(), is_new=False)
        self.process.stop()
        return Machine(self.disk, is_new=False)

    def lose(self, path: str = f"{A}/{P}") -> Machine:
        self.process.stop()
        self.disk.rename(path, "/lost")
        return Machine(self.disk, is_new=False)

    def open_log(self, start_offset: int = 0, topic_id: UUID = TOPIC_ID) -> UnifiedLog:
        return self.manager.open_log(P, topic_id, CONFIG, start_offset=start_offset)


def fill(log: UnifiedLog, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(BATCH, 1)
    log.flush()


def claim(kind: PartitionClaim) -> Callable[[TopicPartition, UUID | None], PartitionClaim]:
    return lambda _partition, _topic_id: kind


def entries(disk: FaultyFileSystem, path: str) -> bytes:
    return disk.read_file(f"{path}/{RECOVERY_POINT_FILE}")


@pytest.mark.parametrize("tiered_end_offset", [0, END - 1])
def test_one_whose_records_are_nowhere_else_stays_offline_until_it_is_back(tiered_end_offset: int) -> None:
    machine = Machine().lose()
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match=GONE) as failure:
            machine.open_log(tiered_end_offset)
        assert failure.value.fields == {
            "path": f"{A}/{P}",
            "known_end_offset": END,
            "tiered_end_offset": tiered_end_offset,
        }
        assert "make an empty directory at its path" in failure.value.message
        assert not machine.disk.exists(f"{A}/{P}")
        assert not machine.disk.exists(f"{B}/{P}")
        # Whatever else is written, and at the end of a start, it is remembered.
        machine.manager.open_log(OTHER, NEW_ID, CONFIG, is_first_opening=True)
        machine.manager.end_start(claim(PartitionClaim.WANTED))
        machine.manager.checkpoint()
        machine.manager.delete_log(OTHER)
        machine = machine.restarted()
    machine.process.stop()
    machine.disk.rename("/lost", f"{A}/{P}")
    log = Machine(machine.disk, is_new=False).open_log(tiered_end_offset)
    assert (log.log_start_offset, log.log_end_offset) == (0, END)
    assert log.recovery_report.was_clean


def test_one_whose_records_were_deleted_is_remembered_by_where_it_started() -> None:
    machine = Machine()
    machine.manager.log(P).increment_log_start_offset(3)
    machine = machine.lose()
    machine.disk.unlink(f"{A}/{RECOVERY_POINT_FILE}")
    machine = machine.restarted(is_killed=True)
    with pytest.raises(DataDirectoryError, match=GONE) as failure:
        machine.open_log()
    assert failure.value.fields["known_end_offset"] == 3


@pytest.mark.parametrize("tiered_end_offset", [END, END + 3])
def test_one_whose_records_are_in_the_store_goes_on_from_there_and_it_is_told(
    tiered_end_offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine().lose()
    with caplog.at_level(logging.WARNING):
        log = machine.open_log(tiered_end_offset)
    assert (log.log_end_offset, log.local_log_start_offset) == (tiered_end_offset, tiered_end_offset)
    [told] = [message for message in caplog.messages if GONE in message]
    assert f"path=`{A}/{P}`" in told
    assert f"known_end_offset=`{END}` tiered_end_offset=`{tiered_end_offset}`" in told
    # From then on it is as any other.
    fill(log, 2)
    machine.manager.checkpoint()
    caplog.clear()
    assert machine.restarted(is_killed=True).open_log().log_end_offset == tiered_end_offset + 2
    assert caplog.messages == []


def test_where_not_even_a_checkpoint_is_left_it_begins_anew_and_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The meta.properties alone were copied, say."""
    machine = Machine().lose()
    machine.process.stop()
    machine.disk.unlink(f"{A}/{RECOVERY_POINT_FILE}")
    machine = Machine(machine.disk, is_new=False)
    caplog.clear()
    assert machine.open_log().log_end_offset == 0
    [told] = caplog.messages
    assert "orders-0 is in no log directory, and begins anew where its tiered data ends; one" in told
    assert f"path=`{A}`" in told
    # It is as any other from then on, and so is one that a new log directory gets.
    for start_new in (False, True):
        machine = Machine() if start_new else machine.restarted()
        caplog.clear()
        machine.manager.open_log(OTHER, NEW_ID, CONFIG)
        assert caplog.messages == []


def test_an_empty_directory_lets_it_begin_anew_and_nothing_old_is_believed() -> None:
    """Its recovery point least of all: what the new log loses in a crash would be taken for damage."""
    machine = Machine()
    machine.manager.log(P).increment_log_start_offset(2)
    machine = machine.lose()
    machine.disk.make_directories(f"{A}/{P}")
    machine.disk.sync_directory(A)
    machine = machine.restarted()
    log = machine.open_log()
    # What was deleted stays deleted.
    assert (log.log_start_offset, log.log_end_offset, log.topic_id) == (2, 2, TOPIC_ID)
    log.append_as_leader(BATCH, 1)
    log.append_as_leader(BATCH, 1)
    for survival in SURVIVALS:
        found = Machine(machine.disk.reopened(survival), is_new=False).open_log()
        assert 2 <= found.log_end_offset <= 4, survival
        fill(found, 1)
        assert found.log_start_offset == 2


def test_one_that_is_new_is_missed_by_nobody() -> None:
    machine = Machine().lose()
    log = machine.manager.open_log(P, NEW_ID, CONFIG, is_first_opening=True)
    fill(log, 1)
    assert machine.restarted().open_log(topic_id=NEW_ID).log_end_offset == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_a_topic_that_was_deleted_is_missed_by_no_other_one_of_its_name(is_full: bool) -> None:
    """Also where the disk was too full for writing down that it is gone, and by one whose creation was cut
    off before it had a directory."""
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    machine = Machine(disk)
    if is_full:
        disk.fill(A)
    machine.manager.delete_log(P)
    assert (f"{P.topic} 0".encode() in entries(disk, A)) is is_full
    machine = machine.restarted(is_killed=True)
    assert isinstance(machine.disk, FullFileSystem)
    machine.disk.fill(None)
    machine.manager.end_start(claim(PartitionClaim.NONE))
    assert b"orders" not in entries(machine.disk, A)
    machine = machine.restarted(is_killed=True)
    assert machine.open_log(topic_id=NEW_ID).log_end_offset == 0


def test_one_that_was_deleted_and_created_at_once_is_not_missed_while_it_lies_beside_it() -> None:
    disk = FullFileSystem(MemoryFileSystem(can_reserve=False))
    machine = Machine(disk)
    disk.fill(A)
    machine.manager.delete_log(P)
    # Killed when the catalog has the new one.
    machine = machine.restarted(is_killed=True)
    assert isinstance(machine.disk, FullFileSystem)
    machine.disk.fill(None)
    assert b"orders 0 5" in entries(machine.disk, A)
    assert machine.open_log(topic_id=NEW_ID).log_end_offset == 0


def test_a_crash_while_one_is_set_aside_does_not_make_it_lost() -> None:
    """It is missed by nobody: what it was is for a human, and it goes on where its tiered data ends."""
    rehearsal = Machine()
    first = rehearsal.disk.operation_count + 1
    rehearsal.manager.set_aside(P, "fenced")
    outcomes: set[int] = set()
    for operation, part in deaths(rehearsal.disk.trace, first):
        machine = Machine()
        machine.disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            machine.manager.set_aside(P, "fenced")
        for survival in SURVIVALS:
            found = Machine(machine.disk.reopened(survival), is_new=False)
            outcomes.add(found.open_log(start_offset=1).log_end_offset)
    assert outcomes == {1, END}


def test_one_that_was_set_aside_is_not_missed_when_it_is_opened_again_at_once() -> None:
    machine = Machine()
    machine.manager.set_aside(P, "fenced")
    assert machine.open_log(start_offset=1).log_end_offset == 1


def test_a_crash_while_one_is_deleted_leaves_all_of_it_or_nothing_that_is_missed() -> None:
    rehearsal = Machine()
    first = rehearsal.disk.operation_count + 1
    rehearsal.manager.delete_log(P)
    for operation, part in deaths(rehearsal.disk.trace, first):
        machine = Machine()
        machine.disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            machine.manager.delete_log(P)
        for survival in SURVIVALS:
            found = Machine(machine.disk.reopened(survival), is_new=False)
            assert found.open_log(topic_id=NEW_ID).log_end_offset == 0


def moved() -> Machine:
    """To B, where A could not write down that it is not there any more."""
    disk = FaultyFileSystem()
    machine = Machine(disk)
    stale = entries(disk, A)
    assert machine.manager.begin_move(P, B).run() is MoveState.DONE
    machine.process.stop()
    assert disk.exists(f"{B}/{P}")
    assert b"orders" not in entries(disk, A)
    disk.unlink(f"{A}/{RECOVERY_POINT_FILE}")
    file = disk.open_append(f"{A}/{RECOVERY_POINT_FILE}")
    file.append([stale])
    file.close()
    return Machine(disk, is_new=False)


def test_one_that_has_moved_is_not_missed_where_it_was() -> None:
    machine = moved()
    assert machine.open_log().log_end_offset == END
    assert b"orders" not in entries(machine.disk, A)
    # It is where it is now.
    machine = machine.lose(f"{B}/{P}")
    with pytest.raises(DataDirectoryError, match=GONE) as failure:
        machine.open_log()
    assert failure.value.fields["path"] == f"{B}/{P}"


def test_one_that_may_be_where_nobody_can_look_is_not_gone() -> None:
    machine = Machine().lose()
    machine.process.stop()
    manager = LogMachine(machine.disk, data_dirs=(A,), ids=IDS).open()
    assert not manager.forget_lost(P)
    assert b"orders" not in entries(machine.disk, A)


def test_one_that_has_moved_and_is_deleted_is_missed_nowhere() -> None:
    machine = moved()
    assert not machine.manager.forget_lost(P)
    assert b"orders" in entries(machine.disk, A)
    machine.manager.delete_log(P)
    assert b"orders" not in entries(machine.disk, A) + entries(machine.disk, B)


def test_where_the_former_place_cannot_be_written_it_is_opened_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = moved()
    before = machine.disk.operation_count
    machine.open_log()
    [at] = [
        number
        for number, one in enumerate(machine.disk.trace, 1)
        if number > before and one.startswith("rename") and f"{A}/{RECOVERY_POINT_FILE}" in one
    ]
    machine = moved()
    machine.disk.fail_at(at, number=errno.EACCES)
    with caplog.at_level(logging.INFO):
        assert machine.open_log().log_end_offset == END
    assert "a checkpoint still has an entry of orders-0" in caplog.text
    machine.manager.checkpoint()
    assert b"orders" not in entries(machine.disk, A)


def test_what_a_broker_knew_is_left_as_it_was() -> None:
    machine = Machine().lose()
    machine.process.stop()
    file = machine.disk.open_append(f"{A}/meta.properties")
    file.append([b"cluster.id=x\n"])
    file.close()
    machine = Machine(machine.disk, is_new=False)
    machine.manager.end_start(claim(PartitionClaim.NONE))
    assert b"orders 0 5" in entries(machine.disk, A)


def not_flushed(disk: FaultyFileSystem | None = None) -> Machine:
    """The checkpoints know of the partition, and of none of its records."""
    machine = Machine(disk, is_new=False)
    log = machine.manager.open_log(P, TOPIC_ID, CONFIG, is_first_opening=True)
    machine.manager.checkpoint()
    log.append_as_leader(BATCH, 1)
    assert b"orders 0 0" in entries(machine.disk, A)
    return machine


@pytest.mark.parametrize("tiered_end_offset", [0, END])
def test_one_that_was_not_closed_may_have_had_more_than_is_known_and_stays_offline(
    tiered_end_offset: int,
) -> None:
    machine = not_flushed()
    disk = machine.disk.killed()
    disk.rename(f"{A}/{P}", "/lost")
    machine = Machine(disk, is_new=False)
    for is_killed in (False, True, False):
        with pytest.raises(DataDirectoryError, match="was not closed in order") as failure:
            machine.open_log(tiered_end_offset)
        assert GONE in failure.value.message
        assert failure.value.fields == {
            "path": f"{A}/{P}",
            "known_end_offset": 0,
            "tiered_end_offset": tiered_end_offset,
        }
        # Others are opened and closed in order, and that says nothing of this one.
        machine.manager.open_log(OTHER, NEW_ID, CONFIG)
        machine = machine.restarted(is_killed=is_killed)
    machine.process.stop()
    machine.disk.rename("/lost", f"{A}/{P}")
    assert Machine(machine.disk, is_new=False).open_log().log_end_offset == 1


@pytest.mark.parametrize("was_tried", [False, True])
def test_starts_that_do_not_come_to_open_it_do_not_make_it_a_new_one(was_tried: bool) -> None:
    """The store does not answer, say: such a start ends in order."""
    disk = not_flushed().disk.killed()
    disk.rename(f"{A}/{P}", "/lost")
    machine = Machine(disk, is_new=False)
    if was_tried:
        with pytest.raises(DataDirectoryError, match="was not closed in order"):
            machine.open_log()
    for is_killed in (False, False, True, False):
        machine = machine.restarted(is_killed=is_killed)
    with pytest.raises(DataDirectoryError, match="was not closed in order"):
        machine.open_log()


def test_who_deletes_its_topic_knows_that_it_is_gone() -> None:
    disk = not_flushed().disk.killed()
    disk.rename(f"{A}/{P}", "/lost")
    machine = Machine(disk, is_new=False)
    with pytest.raises(DataDirectoryError, match=GONE):
        machine.open_log()
    machine.manager.delete_log(P)
    assert b"orders" not in entries(machine.disk, A)
    machine = machine.restarted()
    assert machine.open_log(topic_id=NEW_ID).log_end_offset == 0


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_empty_directory_ends_it_and_from_then_on_it_is_as_any_other(is_stopped: bool) -> None:
    disk = not_flushed().disk.killed()
    disk.rename(f"{A}/{P}", "/lost")
    machine = Machine(disk, is_new=False)
    with pytest.raises(DataDirectoryError, match=GONE):
        machine.open_log(END)
    if is_stopped:
        machine = machine.restarted()
    machine.disk.make_directories(f"{A}/{P}")
    machine = machine.restarted()
    assert machine.open_log(END).log_end_offset == END
    machine = machine.restarted()
    assert machine.open_log(END).recovery_report.was_clean
    # Closed in order, and all of it in the store.
    machine.process.stop()
    machine.disk.rename(f"{A}/{P}", "/lost-again")
    assert Machine(machine.disk, is_new=False).open_log(END).log_end_offset == END


def test_what_a_crash_takes_back_was_never_lost() -> None:
    """Created, known to the checkpoints, appended to, deleted and created again, on a machine that dies at
    any moment: whoever is opened next is there, or begins anew."""

    def work(machine: Machine) -> None:
        for topic_id in (TOPIC_ID, NEW_ID):
            log = machine.manager.open_log(P, topic_id, CONFIG, is_first_opening=True)
            machine.manager.checkpoint()
            log.append_as_leader(BATCH, 1)
            log.flush()
            log.increment_log_start_offset(1)
            machine.manager.checkpoint()
            if topic_id == TOPIC_ID:
                machine.manager.delete_log(P)

    rehearsal = Machine(is_new=False)
    first = rehearsal.disk.operation_count + 1
    work(rehearsal)
    count = 0
    for operation, part in deaths(rehearsal.disk.trace, first):
        for survival in SURVIVALS:
            machine = Machine(is_new=False)
            machine.disk.crash_at(operation, part=part)
            with pytest.raises(SimulatedCrash):
                work(machine)
            found = Machine(machine.disk.reopened(survival), is_new=False)
            # The one that the catalog has by then.
            is_deleted = any("-delete" in name for name in machine.disk.trace)
            topic_id = NEW_ID if is_deleted else TOPIC_ID
            assert found.open_log(topic_id=topic_id).log_end_offset <= 1, (operation, part, survival)
            count += 1
    assert count > 200


@pytest.mark.parametrize("is_first_opening", [False, True])
def test_a_crash_while_another_topics_is_set_aside_does_not_make_it_lost(is_first_opening: bool) -> None:
    """What the checkpoints still know is what was noted in it."""

    def open_new(machine: Machine) -> UnifiedLog:
        return machine.manager.open_log(P, NEW_ID, CONFIG, is_first_opening=is_first_opening)

    def stopped() -> Machine:
        machine = Machine()
        machine.manager.log(P).increment_log_start_offset(2)
        machine.process.stop()
        return machine

    rehearsal = Machine(stopped().disk, is_new=False)
    first = rehearsal.disk.operation_count + 1
    open_new(rehearsal)
    for operation, part in deaths(rehearsal.disk.trace, first):
        for survival in (None, *SURVIVALS):
            machine = Machine(stopped().disk, is_new=False)
            machine.disk.crash_at(operation, part=part)
            with pytest.raises(SimulatedCrash):
                open_new(machine)
            disk = machine.disk.killed() if survival is None else machine.disk.reopened(survival)
            found = Machine(disk, is_new=False)
            log = found.manager.open_log(P, NEW_ID, CONFIG)
            assert (log.log_start_offset, log.log_end_offset) == (0, 0), (operation, part, survival)
            assert any(name.endswith("-stray") for name in found.disk.list_directory(A))


def test_what_was_set_aside_explains_no_other_loss() -> None:
    machine = Machine().restarted()
    fill(machine.manager.open_log(P, NEW_ID, CONFIG, is_first_opening=True), END + 1)
    assert any(name.endswith("-stray") for name in machine.disk.list_directory(A))
    machine.manager.checkpoint()
    holder = machine.manager.directory_of(P)
    machine = machine.lose(f"{holder}/{P}")
    with pytest.raises(DataDirectoryError, match=GONE):
        machine.open_log(topic_id=NEW_ID)


def test_an_empty_second_directory_of_the_topic_is_set_aside_as_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    machine.process.stop()
    machine.disk.make_directories(f"{B}/{P}")
    write_partition_metadata(machine.disk, f"{B}/{P}", TOPIC_ID)
    machine = Machine(machine.disk, is_new=False)
    assert machine.open_log().log_end_offset == END
    [told] = [message for message in caplog.messages if "was set aside" in message]
    assert "the local log of orders-0 has no record, and another log directory has the partition, and" in told
    assert f"path=`{B}/" in told
