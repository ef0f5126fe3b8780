"""A machine that dies at every operation of a truncation of a follower's log, which has holes.

A follower takes batches at the offsets that they have, so holes lie between them; what is cut there leaves
the log at the end that was asked for, above its last batch. No death on the way may be taken for a loss.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION, PARTITION_DIR, LogMachine

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
        self.log.flusher.flush()
        self.machine.checkpoint()
        self.target = steps[-1].offset

    def append(self, offset: int) -> None:
        record = Record(0, self.machine.clock.now_ms(), b"k", bytes(100))
        self.log.appender.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=1))

    def truncate(self, offset: int) -> None:
        self.machine.manager.truncate_to(PARTITION, offset)


def offsets(log: UnifiedLog) -> list[int]:
    return [record.offset for record in read_local(log)]


@pytest.mark.parametrize("steps", HISTORIES)
def test_a_death_in_a_truncation_loses_nothing_below_it_and_refuses_no_start(steps: list[Step]) -> None:
    former = Follower(steps)
    before, former_end_offset = offsets(former.log), former.log.offsets.log_end_offset
    sweep = CrashSweep(lambda: Follower(steps), lambda follower: follower.truncate(follower.target), count=8)
    target = sweep.whole.target
    kept = [offset for offset in before if offset < target]
    assert offsets(sweep.whole.log) == kept
    # Each batch is of one record, so nothing lies over the cut: what comes next must not be numbered below.
    assert sweep.whole.log.offsets.log_end_offset == target

    def verify(death: Death[Follower]) -> None:
        for disk in death.disks():
            log = LogMachine(disk, CONFIG).start()
            log.check()
            assert offsets(log)[: len(kept)] == kept
            assert set(offsets(log)) <= set(before)
            assert log.offsets.log_end_offset <= former_end_offset
            log.appender.append_as_leader(encode_batch([Record(0, 1, b"k", b"v")]), 2)
            log.check()

    sweep.at_deaths(verify)


@pytest.mark.parametrize("survival", ALL_SURVIVALS)
def test_what_was_cut_never_comes_back_behind_what_came_in_its_place(survival: Survival) -> None:
    """Where neither snapshots nor leader epochs change with the cut, nothing else makes the names durable."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, dataclasses.replace(CONFIG, segment_bytes=600))
    log = machine.start()
    for offset in range(12):
        append_one(log, offset, b"old")
    second_base = log.reader.segments()[1].base_offset
    assert second_base == 3
    machine.stop()
    for name in disk.list_directory(PARTITION_DIR):
        if name.endswith(".snapshot"):
            disk.unlink(f"{PARTITION_DIR}/{name}")
    log = machine.start()
    log.truncation.truncate_to(1)
    for offset in range(1, second_base):
        append_one(log, offset, b"new")
    log.flusher.flush()
    machine.checkpoint()
    found = LogMachine(disk.after_crash(survival), CONFIG).start()
    found.check()
    assert [record.value[:3] for record in read_local(found) if record.value] == [b"old", b"new", b"new"]


def append_one(log: UnifiedLog, offset: int, text: bytes) -> None:
    record = Record(0, 1000, b"k", text.ljust(100))
    log.appender.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=1))


class Deleting:
    """A log whose records below 5, inside its last batch, are deleted."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.machine = LogMachine(self.disk, CONFIG)
        log = self.machine.start()
        for base_offset in (0, 1):
            records = [Record(0, self.machine.clock.now_ms(), b"k", b"v")] * (1 + 11 * base_offset)
            log.appender.append_as_follower(encode_batch(records, base_offset=base_offset, leader_epoch=1))
        log.flusher.flush()
        log.increment_log_start_offset(5)
        self.machine.checkpoint()

    def cut(self) -> None:
        self.machine.manager.truncate_to(PARTITION, 7)

    def cut_fully(self) -> None:
        self.machine.manager.truncate_fully_and_start_at(PARTITION, 3)


@pytest.mark.parametrize(("cut", "end_offset"), [(Deleting.cut, 1), (Deleting.cut_fully, 3)])
def test_a_death_in_a_cut_brings_no_deleted_record_back(
    cut: Callable[[Deleting], None], end_offset: int
) -> None:
    """The log starts inside the batch that goes, or above where it begins anew."""
    sweep = CrashSweep(Deleting, cut)
    sweep.whole.machine.stop()
    assert LogMachine(sweep.whole.disk, CONFIG).start().offsets.log_end_offset == end_offset

    def verify(death: Death[Deleting]) -> None:
        for disk in death.disks():
            log = LogMachine(disk, CONFIG).start()
            log.check()
            assert all(offset >= 5 for offset in offsets(log))

    sweep.at_deaths(verify)
