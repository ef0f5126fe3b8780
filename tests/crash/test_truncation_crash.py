"""A machine that dies at every operation of a truncation of a follower's log, which has holes.

A follower takes batches at the offsets that they have, so holes lie between them; what is cut there leaves
the log at the end that was asked for, above its last batch. No death on the way may be taken for a loss.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION, PARTITION_DIR, LogMachine
from tests.support.logs.sampling import Sampling

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, remote_storage_enable=False)


class Step(NamedTuple):
    """A batch of one record at that offset, or a cut there."""

    does_append: bool
    offset: int


def random_steps(seed: int) -> list[Step]:
    """The last one is a cut."""
    source, end_offset, steps = random.Random(seed), 0, list[Step]()
    for _ in range(source.randrange(2, 6)):
        for _ in range(source.randrange(1, 4)):
            steps.append(Step(does_append=True, offset=end_offset + source.choice((0, 0, 1, 70, 1000))))
            end_offset = steps[-1].offset + 1
        end_offset = source.randrange(max(1, end_offset - 1500), end_offset + 1)
        steps.append(Step(does_append=False, offset=end_offset))
    return steps


# The second cut leaves an empty segment in the hole that the first one has left, and moves it.
TWICE_IN_A_HOLE = [Step(True, 0), Step(True, 100), Step(False, 50), Step(True, 200), Step(False, 120)]
HISTORIES = [TWICE_IN_A_HOLE, *map(random_steps, range(12))]


class Follower:
    """A log that went all these steps but the last one, everything acknowledged."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.disk = FaultyFileSystem()
        self.machine = LogMachine(self.disk, CONFIG)
        self.log = self.machine.start()
        for does_append, offset in steps[:-1]:
            (self.append if does_append else self.truncate)(offset)
        self.log.flush()
        self.machine.checkpoint()
        self.target = steps[-1].offset

    def append(self, offset: int) -> None:
        record = Record(0, self.machine.clock.now_ms(), b"k", bytes(100))
        self.log.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=1))

    def truncate(self, offset: int) -> None:
        assert self.machine.manager is not None
        self.machine.manager.truncate_to(PARTITION, offset)


def offsets(log: UnifiedLog) -> list[int]:
    return [record.offset for record in read_local(log)]


@pytest.mark.parametrize("steps", HISTORIES)
def test_a_death_in_a_truncation_loses_nothing_below_it_and_refuses_no_start(steps: list[Step]) -> None:
    whole = Follower(steps)
    before, former_end_offset = offsets(whole.log), whole.log.log_end_offset
    first = whole.disk.operation_count
    whole.truncate(whole.target)
    last = whole.disk.operation_count
    kept = [offset for offset in before if offset < whole.target]
    assert offsets(whole.log) == kept
    # Each batch is of one record, so nothing lies over the cut: what comes next must not be numbered below.
    assert whole.log.log_end_offset == whole.target
    sampling = Sampling()
    for operation in range(first + 1, last + 1):
        dying = Follower(steps)
        assert offsets(dying.log) == before
        dying.disk.crash_at(operation)
        with pytest.raises(SimulatedCrash):
            dying.truncate(dying.target)
        survivals = sampling.some(ALL_SURVIVALS, 4)
        for disk in (dying.disk.killed(), *map(dying.disk.reopened, survivals)):
            log = LogMachine(disk, CONFIG).start()
            log.check()
            assert offsets(log)[: len(kept)] == kept
            assert set(offsets(log)) <= set(before)
            assert log.log_end_offset <= former_end_offset
            log.append_as_leader(encode_batch([Record(0, 1, b"k", b"v")]), 2)
            log.check()


@pytest.mark.parametrize("survival", ALL_SURVIVALS)
def test_what_was_cut_never_comes_back_behind_what_came_in_its_place(survival: Survival) -> None:
    """Where neither snapshots nor leader epochs change with the cut, nothing else makes the names durable."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, dataclasses.replace(CONFIG, segment_bytes=600))
    log = machine.start()
    for offset in range(12):
        append_one(log, offset, b"old")
    second_base = log.segments()[1].base_offset
    assert second_base == 3
    machine.stop()
    for name in disk.list_directory(PARTITION_DIR):
        if name.endswith(".snapshot"):
            disk.unlink(f"{PARTITION_DIR}/{name}")
    log = machine.start()
    log.truncate_to(1)
    for offset in range(1, second_base):
        append_one(log, offset, b"new")
    log.flush()
    machine.checkpoint()
    found = LogMachine(disk.after_crash(survival), CONFIG).start()
    found.check()
    assert [record.value[:3] for record in read_local(found) if record.value] == [b"old", b"new", b"new"]


def append_one(log: UnifiedLog, offset: int, text: bytes) -> None:
    record = Record(0, 1000, b"k", text.ljust(100))
    log.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=1))


@pytest.mark.parametrize("is_cut_fully", [False, True])
def test_a_death_in_a_cut_brings_no_deleted_record_back(is_cut_fully: bool) -> None:
    """The log starts inside the batch that goes, or above where it begins anew."""

    def deleting() -> tuple[FaultyFileSystem, LogMachine]:
        disk = FaultyFileSystem()
        machine = LogMachine(disk, CONFIG)
        log = machine.start()
        for base_offset in (0, 1):
            records = [Record(0, machine.clock.now_ms(), b"k", b"v")] * (1 + 11 * base_offset)
            log.append_as_follower(encode_batch(records, base_offset=base_offset, leader_epoch=1))
        log.flush()
        log.increment_log_start_offset(5)
        machine.checkpoint()
        return disk, machine

    def cut(machine: LogMachine) -> None:
        assert machine.manager is not None
        if is_cut_fully:
            machine.manager.truncate_fully_and_start_at(PARTITION, 3)
        else:
            machine.manager.truncate_to(PARTITION, 7)

    disk, machine = deleting()
    first = disk.operation_count
    cut(machine)
    machine.stop()
    end_offset = LogMachine(disk, CONFIG).start().log_end_offset
    assert end_offset == (3 if is_cut_fully else 1)
    for operation in range(first + 1, disk.operation_count + 1):
        disk, machine = deleting()
        disk.crash_at(operation)
        try:
            cut(machine)
        except SimulatedCrash:
            pass
        for found in (disk.killed(), *map(disk.reopened, ALL_SURVIVALS)):
            log = LogMachine(found, CONFIG).start()
            log.check()
            assert all(offset >= 5 for offset in offsets(log)), operation
