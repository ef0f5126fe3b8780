"""A follower whose next batch lies farther behind its log than a segment's indexes reach, on machines that
die at every operation, or whose disk fails there.

What was flushed stays, the transaction that is open before the hole too, which no batch tells of when
retention has taken its segment.
"""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.full_filesystem import FullFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, LogMachine
from tests.support.logs.plain_batches import NO_PRODUCER, batch

FAR = 2**31
CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, index_interval_bytes=0)
TRANSACTIONAL = BatchProducer(7, 0, 0, is_transactional=True)


def placed(base_offset: int, count: int = 1, producer: BatchProducer = NO_PRODUCER) -> bytes:
    return batch(count, base_offset=base_offset, leader_epoch=1, producer=producer)


class Follower:
    """The follower of a log with an open transaction; `acknowledged`: offsets of records whose flush has
    returned."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        self.disk = disk if disk is not None else FaultyFileSystem()
        self.machine = LogMachine(self.disk, CONFIG, producer_id_expiration_ms=NEVER_MS)
        self.log = self.machine.start()
        self.acknowledged: list[int] = []

    def begin(self) -> None:
        self.log.appender.append_as_follower(placed(0, 10) + placed(10, producer=TRANSACTIONAL))
        self.log.flusher.flush()
        self.machine.checkpoint()
        self.acknowledged += range(11)

    def go_on(self) -> None:
        """The first hole is short of what indexes take, but the request reaches beyond; then wide ones."""
        for request in ((2000, 11 + FAR), (3 * FAR,), (6 * FAR, 6 * FAR + 70, 9 * FAR)):
            self.log.appender.append_as_follower(b"".join(map(placed, request)))
            self.log.flusher.flush()
            self.acknowledged += request

    def go_on_and_drop(self) -> None:
        """And retention takes the segment of the transaction."""
        self.go_on()
        self.acknowledged = [offset for offset in self.acknowledged if offset >= FAR]
        self.log.increment_log_start_offset(FAR)
        self.log.retention.delete_old_segments()
        self.log.flusher.flush()


def offsets(log: UnifiedLog) -> list[int]:
    return [record.offset for record in read_local(log)]


def in_transactions(log: UnifiedLog) -> list[tuple[int, int | None]]:
    return [(entry.producer_id, entry.current_txn_first_offset) for entry in log.producers()]


def begun() -> Follower:
    follower = Follower()
    follower.begin()
    return follower


def test_a_death_at_any_moment_loses_nothing_that_was_flushed() -> None:
    sweep = CrashSweep(begun, Follower.go_on_and_drop)
    sweep.whole.log.check()
    assert offsets(sweep.whole.log) == sweep.whole.acknowledged
    assert len(sweep.whole.log.reader.segments()) > 2
    every = {*range(11), 2000, *sweep.whole.acknowledged}

    def verify(death: Death[Follower]) -> None:
        for disk in death.disks():
            log = Follower(disk).log
            log.check()
            found = offsets(log)
            assert set(death.subject.acknowledged) <= set(found) <= every
            assert in_transactions(log) == [(7, 10)]
            assert log.offsets.last_stable_offset == max(10, log.offsets.log_start_offset)
            log.appender.append_as_follower(placed(20 * FAR))
            log.appender.append_as_leader(placed(0), 2)
            log.check()
            assert offsets(log) == [*found, 20 * FAR, 20 * FAR + 1]

    sweep.at_deaths(verify)


def test_an_error_at_any_moment_leaves_a_log_that_goes_on_or_is_offline() -> None:
    sweep = CrashSweep(begun, Follower.go_on)
    every = set(sweep.whole.acknowledged)

    def verify(failure: Failure[Follower]) -> None:
        failing = failure.subject
        if not failing.log.availability.is_offline:
            failing.log.check()
            failing.log.appender.append_as_leader(placed(0), 2)
            failing.log.check()
        log = Follower(failing.disk.killed()).log
        log.check()
        found = set(offsets(log))
        assert set(failing.acknowledged) <= found
        # And what went on from where it could.
        assert len(found - every) <= 1
        assert in_transactions(log) == [(7, 10)]

    sweep.at_failures(verify, expected=(DataDirectoryError,))


def test_a_full_disk_refuses_the_hole_and_nothing_has_changed() -> None:
    disk = FullFileSystem()
    follower = Follower(disk)
    follower.begin()
    disk.fill(DATA_DIR)
    with pytest.raises(DataDirectoryError):
        follower.go_on()
    disk.fill(None)
    assert not follower.log.availability.is_offline
    follower.log.check()
    follower.go_on()
    follower.log.check()
    assert offsets(follower.log) == follower.acknowledged


def test_an_empty_log_begins_where_its_first_batch_does() -> None:
    follower = Follower()
    follower.log.appender.append_as_follower(placed(FAR + 100))
    follower.log.check()
    assert follower.log.offsets.log_start_offset == FAR + 100
    assert follower.log.reader.read(follower.log.offsets.log_start_offset, 1000).batches
    follower.log.flusher.flush()
    again = Follower(follower.disk.killed())
    assert (again.log.offsets.log_start_offset, again.log.offsets.log_end_offset) == (FAR + 100, FAR + 101)
