"""The cleaner's manager beside a dictionary: any mixture of cleans and pauses leaves them equal.

Pauses that wait are threads of their own. A thread says, under the manager's condition, that it waits, so
what happens next is decided by the rules and never by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.cleaner.cleaner_failures import FIRST_DELAY_MS, MAX_DELAY_MS
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.unified_log import UnifiedLog
from tests.support.cleaner.cleaner_machine import CleanerMachine
from tests.support.logs.log_machine import DATA_DIR

LOG_COUNT = 3
CHOICES = st.integers(0, 99)
PARTITIONS = st.integers(0, LOG_COUNT - 1)


class CleanerManagerMachine(RuleBasedStateMachine):
    """`pauses`: by partition, how many pauses have begun and not ended. `waiting`: those that have not begun.
    `checkpoint`: what shall be on the disk. `failed`: when a partition that failed is tried again."""

    @initialize()
    def begin(self) -> None:
        self.machine = CleanerMachine()
        self.manager = self.machine.manager
        self.pool = ThreadPoolExecutor(32)
        self.running: dict[TopicPartition, LogToClean] = {}
        self.pauses: dict[TopicPartition, int] = {}
        self.waiting: dict[TopicPartition, list[Future[None]]] = {}
        self.checkpoint: dict[TopicPartition, int] = {}
        self.failed: dict[TopicPartition, int] = {}
        for number in range(LOG_COUNT):
            self.machine.fill(self.machine.open(number), 1 + number)

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for partition in list(self.running):
                self.end(partition, lambda found: self.manager.release(found.partition))
            self.pool.shutdown()

    def log(self, number: int) -> UnifiedLog:
        return self.machine.log_manager.log(self.machine.partition(number))

    def dirty_segments(self, log: UnifiedLog) -> list[int]:
        """End offsets of the sealed segments that were not cleaned, by the dictionary."""
        clean_end_offset = self.checkpoint.get(log.topic_partition, 0)
        return [info.end_offset for info in log.reader.segments()[:-1] if info.end_offset > clean_end_offset]

    def is_due(self, log: UnifiedLog) -> bool:
        partition = log.topic_partition
        is_free = partition not in self.running and not self.pauses.get(partition)
        sizes = [info.size_bytes for info in log.reader.segments()[:-1]]
        dirty_bytes = sum(sizes[len(sizes) - len(self.dirty_segments(log)) :])
        may_try = self.failed.get(partition, 0) <= self.machine.clock.now_ms()
        return is_free and may_try and dirty_bytes > sum(sizes) / 2

    @rule(number=PARTITIONS, record_count=st.integers(1, 9))
    def append(self, number: int, record_count: int) -> None:
        self.machine.fill(self.log(number), record_count)

    @rule()
    def take(self) -> None:
        due = {log.topic_partition: log for log in self.machine.log_manager.logs() if self.is_due(log)}
        found = self.manager.take_filthiest()
        if found is None:
            assert not due
            return
        assert found.log is due[found.partition]
        assert found.first_dirty_offset == self.checkpoint.get(found.partition, 0)
        assert found.first_uncleanable_offset == self.dirty_segments(found.log)[-1]
        self.running[found.partition] = found
        self.manager.check_done(found.log)

    @rule(number=PARTITIONS)
    def hold(self, number: int) -> None:
        log = self.log(number)
        partition = log.topic_partition
        with self.manager.held(log) as is_held:
            assert is_held == (partition not in self.running and not self.pauses.get(partition))

    @rule(number=PARTITIONS)
    def pause(self, number: int) -> None:
        partition = self.machine.partition(number)
        if partition not in self.running:
            self.manager.pause(partition)
            self.pauses[partition] = self.pauses.get(partition, 0) + 1
        elif len(self.waiting.get(partition, ())) < 3:
            self.waiting.setdefault(partition, []).append(self.pool.submit(self.manager.pause, partition))
            self.machine.clock.until_threads_wait(sum(map(len, self.waiting.values())))

    @precondition(lambda self: any(self.pauses.values()))
    @rule(choice=CHOICES)
    def resume(self, choice: int) -> None:
        paused = sorted(partition for partition, count in self.pauses.items() if count)
        partition = paused[choice % len(paused)]
        self.manager.resume(partition)
        self.pauses[partition] -= 1

    @precondition(lambda self: any(self.pauses.values()))
    @rule(choice=CHOICES, offset=st.integers(0, 20))
    def truncate(self, choice: int, offset: int) -> None:
        paused = sorted(partition for partition, count in self.pauses.items() if count)
        log = self.machine.log_manager.log(paused[choice % len(paused)])
        starts = [info.base_offset for info in log.reader.segments() if info.base_offset <= offset]
        self.manager.lower(log.topic_partition, starts[-1])
        log.truncation.truncate_to(starts[-1])
        if self.checkpoint.get(log.topic_partition, 0) > starts[-1]:
            self.checkpoint[log.topic_partition] = starts[-1]

    @precondition(lambda self: self.running)
    @rule(choice=CHOICES, is_whole=st.booleans())
    def done(self, choice: int, *, is_whole: bool) -> None:
        found = self.chosen(choice)
        offset = found.first_uncleanable_offset if is_whole else found.first_dirty_offset + 1
        self.end(found.partition, lambda found: self.manager.done(found, offset))
        self.checkpoint[found.partition] = offset
        self.failed.pop(found.partition, None)

    @precondition(lambda self: self.running)
    @rule(choice=CHOICES)
    def done_nothing(self, choice: int) -> None:
        found = self.chosen(choice)
        self.end(found.partition, lambda found: self.manager.done(found, found.first_dirty_offset))
        self.note_failure(found.partition)

    @precondition(lambda self: self.running)
    @rule(choice=CHOICES)
    def fail(self, choice: int) -> None:
        found = self.chosen(choice)
        self.end(found.partition, lambda found: self.manager.failed(found.log, CorruptRecordError("bad")))
        self.note_failure(found.partition)

    @precondition(lambda self: self.running)
    @rule(choice=CHOICES)
    def give_up(self, choice: int) -> None:
        self.end(self.chosen(choice).partition, lambda found: self.manager.release(found.partition))

    @rule(number=PARTITIONS)
    def reset(self, number: int) -> None:
        partition = self.machine.partition(number)
        had_failed = any(failure.partition == partition for failure in self.manager.failures())
        assert self.manager.reset(partition) == had_failed
        self.failed.pop(partition, None)

    @rule(is_enough=st.booleans())
    def wait(self, *, is_enough: bool) -> None:
        self.machine.clock.advance(MAX_DELAY_MS if is_enough else FIRST_DELAY_MS // 3)

    def chosen(self, choice: int) -> LogToClean:
        return self.running[sorted(self.running)[choice % len(self.running)]]

    def note_failure(self, partition: TopicPartition) -> None:
        (failure,) = (failure for failure in self.manager.failures() if failure.partition == partition)
        delay_ms = failure.next_try_ms - self.machine.clock.now_ms()
        assert FIRST_DELAY_MS / 2 < delay_ms <= MAX_DELAY_MS
        self.failed[partition] = failure.next_try_ms

    def end(self, partition: TopicPartition, end: Callable[[LogToClean], None]) -> None:
        """End the clean: the task that waits for it has the log."""
        found = self.running.pop(partition)
        end(found)
        for pausing in self.waiting.pop(partition, []):
            pausing.result(timeout=30)
            self.pauses[partition] = self.pauses.get(partition, 0) + 1

    @invariant()
    def is_as_the_model(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        for partition, found in self.running.items():
            if self.waiting.get(partition):
                with pytest.raises(CleaningAbortedError):
                    self.manager.check_done(found.log)
            else:
                self.manager.check_done(found.log)
        assert not any(pausing.done() for waiting in self.waiting.values() for pausing in waiting)
        path = f"{DATA_DIR}/{CLEANER_OFFSET_FILE}"
        disk = self.machine.machine.disk
        on_disk = parse_checkpoint(disk.read_file(path).decode()) if disk.exists(path) else {}
        assert on_disk == self.checkpoint


def test_any_mixture_of_cleans_and_pauses_leaves_them_equal() -> None:
    run_state_machine_as_test(CleanerManagerMachine, settings=settings(stateful_step_count=40))
