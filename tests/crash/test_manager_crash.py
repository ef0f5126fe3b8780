"""A machine with two disks that dies at any operation of a life: start, create, append, move, delete, stop.

Each disk that the next process may find is opened as a server opens it: what topics that are gone have left
is deleted, moves that were cut off begin again, and each partition that the catalog has is in one directory,
with all that was promised. `make simulate` dies everywhere; other runs die at some operations.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from stratalog.base.types import TopicPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_opener import SoughtPartition
from stratalog.manager.moves.log_move import MoveState
from stratalog.manager.partitions.stray_partitions import PartitionClaim
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import DATA_DIRS, OTHER_DIR, SMALL_SEGMENTS, checkpoint, machine_on

CONFIG = replace(SMALL_SEGMENTS, retention_bytes=2500)
MOVED, DELETED, LATER = (TopicPartition("orders", number) for number in range(3))
FIRST_ID, SECOND_ID = UUID(int=1 << 100), UUID(int=2 << 100)


class Life:
    """A catalog, two disks and the ledger of each log. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.machine = machine_on(self.disk, CONFIG)
        self.catalog: dict[TopicPartition, UUID] = {}
        self.ledgers: dict[tuple[TopicPartition, UUID], LogLedger] = {}

    def run(self) -> None:
        """The whole of it."""
        manager = self.machine.open()
        manager.directories.bind_store("store")
        self.create(manager, {MOVED: FIRST_ID, DELETED: FIRST_ID})
        for partition in (MOVED, DELETED):
            self.use(manager.log(partition))
        checkpoint(manager)
        self.move(manager)
        self.delete(manager)
        self.create(manager, {DELETED: SECOND_ID, LATER: FIRST_ID})
        self.append(manager.log(DELETED), 3)
        self.machine.clock.advance(60_000)
        self.machine.stop()
        for log in self.open_all(self.machine.open()):
            self.append(log, 2)

    def create(self, manager: LogManager, topics: dict[TopicPartition, UUID]) -> None:
        """The catalog has a topic before a disk has its logs."""
        self.catalog |= topics
        self.ledgers |= {item: LogLedger() for item in topics.items()}
        manager.create_logs([SoughtPartition(*item, True) for item in topics.items()])
        for partition, topic_id in topics.items():
            manager.open_log(partition, topic_id, CONFIG, is_first_opening=True)

    def append(self, log: UnifiedLog, count: int) -> None:
        ledger = self.ledger(log)
        ledger.append(log, [ledger.batch(count)])

    def ledger(self, log: UnifiedLog) -> LogLedger:
        return self.ledgers[log.topic_partition, log.topic_id]

    def use(self, log: UnifiedLog) -> None:
        """Append, roll, flush, delete records, drop segments and truncate."""
        ledger = self.ledger(log)
        for number in range(5):
            ledger.append(log, [ledger.batch(8), ledger.batch(4)])
            if number == 2:
                ledger.flush(log)
        log.increment_log_start_offset(21)
        ledger.note_starts(log)
        log.retention.delete_old_segments()
        ledger.note_starts(log)
        ledger.truncate_to(log, log.offsets.log_end_offset - 5)
        self.append(log, 6)

    def move(self, manager: LogManager) -> None:
        """To the other disk, with appends beside it."""
        log = manager.log(MOVED)
        manager.moves.throttler = SteppedThrottler(self.machine.clock, lambda _: self.append(log, 2))
        assert manager.begin_move(MOVED, OTHER_DIR).run() is MoveState.DONE
        # What the log had is durable in the new place.
        self.ledger(log).durable_end_offset = log.offsets.recovery_point
        self.append(log, 3)
        self.ledger(log).flush(log)

    def delete(self, manager: LogManager) -> None:
        """The catalog forgets a topic before a disk does."""
        del self.catalog[DELETED]
        manager.delete_log(DELETED)

    def open_all(self, manager: LogManager) -> list[UnifiedLog]:
        """All logs of the catalog, as a start of the server opens them."""
        for partition, topic_id in manager.found.with_topics():
            if self.catalog.get(partition) != topic_id:
                manager.delete_leftover(partition, topic_id)
        logs = [manager.open_log(*item, CONFIG) for item in self.catalog.items()]
        manager.end_start(lambda partition, _: self.claim(partition))
        return logs

    def claim(self, partition: TopicPartition) -> PartitionClaim:
        return PartitionClaim.WANTED if partition in self.catalog else PartitionClaim.NONE


def verify_found(disk: FaultyFileSystem, life: Life, seed: int) -> str:
    """Open what is left, and go on with it; returns the directory that has the moved partition, if any."""
    machine = machine_on(disk, CONFIG, seed)
    manager = machine.open()
    manager.directories.bind_store("store")
    assert not manager.directories.missing()
    place = ""
    for log in life.open_all(manager):
        partition, ledger = log.topic_partition, life.ledger(log).copy()
        ledger.verify(log, after_crash=True)
        copies = [f"{path}/{partition}" for path in DATA_DIRS if disk.exists(f"{path}/{partition}")]
        wanted = [f"{one.target_path}/{one.partition}" for one in manager.moves.wanted]
        assert sorted([log.local_log.directory, *(path for path in wanted if path in copies)]) == sorted(
            copies
        )
        if partition == MOVED:
            place = log.local_log.directory.rpartition("/")[0]
        for one in manager.moves.wanted:
            if one.partition == partition:
                assert manager.begin_move(partition, one.target_path).run() is MoveState.DONE
        ledger.append(log, [ledger.batch(3)])
        ledger.flush(log)
        ledger.verify(log, after_crash=False)
    manager.check()
    machine.clock.advance(60_000)
    assert not machine.scheduler.failures
    machine.stop()
    names = [name for path in DATA_DIRS for name in disk.inner.list_directory(path)]
    assert not [name for name in names if name.endswith(("-delete", "-stray"))]
    manager = machine_on(disk, CONFIG, seed + 1).open()
    assert manager.was_clean
    assert len(life.open_all(manager)) == len(life.catalog)
    return place


def test_a_machine_that_dies_anywhere_has_each_partition_once_and_whole() -> None:
    places = set[str]()

    def verify(death: Death[Life]) -> None:
        for seed, disk in enumerate(death.disks(), 1):
            places.add(verify_found(disk, death.subject, 100 * seed))

    sweep = CrashSweep(Life, Life.run)
    manager = sweep.whole.machine.manager
    for log in manager.logs():
        sweep.whole.ledger(log).verify(log, after_crash=False)
    # The moments when the moved partition gets its place, and when names change, are in every sample.
    sweep.at_deaths(verify, always=lambda line: line.startswith("rename") and "manifest" in line)
    assert places == {"", *DATA_DIRS}
