"""Workers on real logs: the results, what ends them, and failing disks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from errno import ENOSPC
from queue import SimpleQueue

import pytest

from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_settings import CleanerSettings
from stratalog.cleaner.failure_kind import FailureKind
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine
from tests.support.logs.crash_sweep import CrashSweep, Failure
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR
from tests.support.logs.overwriting import flip

KEY_COUNT = 7
SEGMENT_COUNT = 8
END_OFFSET = 5 * SEGMENT_COUNT
BOTH = replace(COMPACTED, cleanup_policy=frozenset({"compact", "delete"}))


class PoolMachine(CleanerMachine):
    """With workers that clean. Used by one thread. `at_check` is called with the number of each look that a
    clean takes at whether it shall go on; `map_bytes` bounds its map."""

    def __init__(self, disk: FaultyFileSystem | None = None) -> None:
        super().__init__(disk)
        self.at_check: Callable[[int], None] = lambda _: None
        self.map_bytes = 1 << 20
        self.check_count = 0
        self._clean = LogClean(self.clock, SequentialIds()).run
        self.cleaner = self.pool(self.clean, CleanerSettings(thread_count=2))

    def clean(self, chosen: LogToClean, limits: CleanLimits) -> CleanResult:
        def check_done() -> None:
            self.check_count += 1
            self.at_check(self.check_count)
            limits.check_done()

        return self._clean(chosen, limits._replace(check_done=check_done, map_bytes=self.map_bytes))

    def write(self, log: UnifiedLog, count: int) -> None:
        """So many segments with some keys each."""
        for _ in range(count):
            first = log.offsets.log_end_offset
            records = [
                Record(0, self.clock.now_ms(), b"%d" % (offset % KEY_COUNT), b"%d" % offset)
                for offset in range(first, first + 5)
            ]
            log.appender.append_as_leader(encode_batch(records), 1)
            log.roll()

    def leftovers(self, log: UnifiedLog) -> list[str]:
        names = self.machine.disk.list_directory(log.local_log.directory)
        return [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


def values(log: UnifiedLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_local(log)}


def expected_values(end_offset: int) -> dict[bytes | None, bytes | None]:
    return {b"%d" % (offset % KEY_COUNT): b"%d" % offset for offset in range(end_offset)}


def is_clean(log: UnifiedLog) -> bool:
    return len(read_local(log)) == len(values(log))


def test_workers_clean_beside_each_other_and_beside_appends() -> None:
    machine = PoolMachine()
    logs = [machine.open(number) for number in range(4)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(10):
            for log in logs:
                machine.write(log, 3)
            cleaning = [pool.submit(machine.cleaner.clean_filthiest) for _ in range(4)]
            writing = pool.submit(machine.write, logs[0], 2)
            writing.result(60)
            assert sum(each.result(60) for each in cleaning)
            machine.cleaner.check()
    while machine.cleaner.clean_filthiest():
        pass
    for log in logs:
        assert values(log) == expected_values(log.offsets.log_end_offset)
        assert not machine.leftovers(log)
        log.check()
    stats = machine.cleaner.stats()
    assert stats.failures == ()
    assert 0 < stats.reclaimed_bytes < stats.cleaned_bytes


@pytest.mark.parametrize("kind", ["pause", "truncate", "delete", "policy", "directory", "stop"])
def test_whatever_ends_a_clean_finds_a_log_that_is_right(kind: str) -> None:
    """At each place where a clean looks whether it shall end."""
    number, was_ended = 1, True
    while was_ended:
        was_ended = end_at(number, kind)
        number += 1
    assert number > 5


def end_at(number: int, kind: str) -> bool:
    """False where the clean ended by itself before."""
    machine = PoolMachine()
    log = machine.open(0, replace(COMPACTED, segment_bytes=1024))
    machine.write(log, SEGMENT_COUNT)
    log.appender.append_as_leader(encode_batch([Record(0, machine.clock.now_ms(), b"truncated", b"")]), 1)
    signals, told = SimpleQueue[str](), threading.Event()

    def at_check(count: int) -> None:
        if count == number:
            signals.put("reached")
            assert told.wait(30)

    machine.at_check = at_check
    with ThreadPoolExecutor(2) as pool:
        cleaning = pool.submit(machine.cleaner.clean_filthiest)
        cleaning.add_done_callback(lambda _: signals.put("ended"))
        if signals.get(timeout=30) == "ended":
            assert cleaning.result()
            assert machine.cleaner.stats().clean_count == 1
            return False
        acting = None
        if kind == "policy":
            log.reconfigure(replace(COMPACTED, remote_storage_enable=True))
        elif kind == "directory":
            machine.manager.directory_failed(DATA_DIR)
        else:
            acting = pool.submit(ACTS[kind], machine, log)
            machine.clock.until_waiting()
        told.set()
        assert cleaning.result(30)
        if acting is not None:
            acting.result(30)
    assert machine.cleaner.stats().aborted_count == 1
    assert machine.manager.failures() == ()
    machine.cleaner.check()
    if kind != "delete":
        verify_ended(machine, log, kind)
    return True


def truncate(machine: PoolMachine, log: UnifiedLog) -> None:
    with machine.manager.paused(log.topic_partition):
        machine.manager.lower(log.topic_partition, END_OFFSET)
        log.truncation.truncate_to(END_OFFSET)


def pause(machine: PoolMachine, log: UnifiedLog) -> None:
    with machine.manager.paused(log.topic_partition):
        pass


def delete(machine: PoolMachine, log: UnifiedLog) -> None:
    with machine.manager.paused(log.topic_partition):
        machine.log_manager.delete_log(log.topic_partition)
        machine.manager.forget(log.topic_partition)


ACTS: dict[str, Callable[[PoolMachine, UnifiedLog], None]] = {
    "pause": pause,
    "stop": lambda machine, _: machine.cleaner.stop(),
    "truncate": truncate,
    "delete": delete,
}


def verify_ended(machine: PoolMachine, log: UnifiedLog, kind: str) -> None:
    """Check that the cleaned part is right, and that the rest is cleaned later, unless no clean may begin."""
    extra = {} if kind == "truncate" else {b"truncated": b""}
    assert not machine.leftovers(log)
    assert values(log) == expected_values(END_OFFSET) | extra
    log.check()
    if kind not in ("directory", "stop"):
        log.reconfigure(COMPACTED)
        assert machine.cleaner.clean_filthiest()
        assert values(log) == expected_values(END_OFFSET) | extra
        assert is_clean(log)


class CleanOnDisk:
    """Workers that are about to clean one log. Used by one thread."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.machine = PoolMachine(self.disk)
        self.log = self.machine.open(0)
        self.machine.write(self.log, 4)
        self.machine.cleaner.start()

    def run(self) -> None:
        self.machine.machine.scheduler.run_due()


def test_a_full_disk_is_no_damage() -> None:
    """Whichever operation of a clean it refuses: the log stays as it was, and the clean is tried again."""

    def verify(failure: Failure[CleanOnDisk]) -> None:
        machine, log = failure.subject.machine, failure.subject.log
        if log.availability.is_offline:
            # A sync or a rename was refused: what is on the disk is not known. An append never ends so.
            assert not sweep.trace[failure.operation - 1].startswith("append ")
            return
        assert values(log) == expected_values(20)
        assert {one.kind for one in machine.manager.failures()} <= {FailureKind.FULL_DISK}
        machine.clock.advance(60_000)
        assert machine.manager.failures() == ()
        assert is_clean(log)
        assert values(log) == expected_values(20)
        assert not machine.leftovers(log)
        log.check()

    sweep = CrashSweep(CleanOnDisk, CleanOnDisk.run, count=30)
    sweep.at_failures(verify, errors=(ENOSPC,))


def test_damage_names_the_segment_and_a_reset_tries_again_at_once() -> None:
    machine = PoolMachine()
    damaged, other = machine.open(0, BOTH), machine.open(1)
    for log in (damaged, other):
        machine.write(log, 4)
    machine.cleaner.start()
    path = f"{damaged.local_log.directory}/{5:020}.log"
    position = len(machine.machine.disk.read_file(path)) - 3
    flip(machine.machine.disk, path, position)
    machine.machine.scheduler.run_due()
    (failure,) = machine.cleaner.stats().failures
    assert (failure.partition, failure.kind) == (damaged.topic_partition, FailureKind.DAMAGE)
    assert path in failure.reason
    assert failure.dirty_bytes == sum(segment.size_bytes for segment in damaged.reader.segments())
    assert is_clean(other)
    # Its retention goes on.
    damaged.increment_log_start_offset(5)
    machine.cleaner.delete_old_segments()
    assert damaged.offsets.local_log_start_offset == 5
    flip(machine.machine.disk, path, position)
    assert machine.cleaner.reset(damaged.topic_partition)
    machine.machine.scheduler.run_due()
    assert machine.cleaner.stats().failures == ()
    assert is_clean(damaged)
