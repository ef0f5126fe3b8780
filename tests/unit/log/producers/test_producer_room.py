"""How many producers logs remember: the idle ones go first, and a new one is refused where all are active."""

from __future__ import annotations

import pytest

from stratalog.base.errors import LimitExceededError, LogStoreError, OverloadedError
from stratalog.base.types import TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.log.producers.producer_room import IDLE_MS
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.idle_producers import LOOK_PERIOD_MS
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import DATA_DIR, TOPIC_ID, LogMachine

MINUTE_MS = 60_000


class Machine:
    """Logs with little room for producers."""

    def __init__(self, max_log_count: int = 4, max_count: int = 100) -> None:
        self.clock = ManualClock()
        scheduler = ManualScheduler(self.clock, collect_failures=True)
        settings = LogManagerSettings(
            data_dirs=(DATA_DIR,), max_log_producer_count=max_log_count, max_producer_count=max_count
        )
        disk = MemoryFileSystem()
        self.scheduler = scheduler
        self.manager = LogManager.open(disk, self.clock, scheduler, SequentialIds(), settings)
        self.quiet_tasks = scheduler.pending()

    def log(self, topic: str = "t") -> UnifiedLog:
        return self.manager.open_log(TopicPartition(topic, 0), TOPIC_ID, LogMachine().config)

    def batch(
        self, producer_id: int, sequence: int = 0, *, is_transactional: bool = False, age_ms: int = 0
    ) -> bytes:
        """A batch of that age."""
        producer = BatchProducer(producer_id, 0, sequence, is_transactional=is_transactional)
        return encode_batch([Record(0, self.clock.now_ms() - age_ms, None, b"x")], producer=producer)

    def send(self, log: UnifiedLog, *producer_ids: int, sequence: int = 0) -> list[object]:
        """Append for each producer, in one group; its offset or the class of its error."""
        batches = [self.batch(one, sequence) for one in producer_ids]
        outcomes: list[AppendInfo | LogStoreError] = log.appender.append_group(batches, 1)
        log.check()
        return [one.base_offset if isinstance(one, AppendInfo) else type(one) for one in outcomes]


def known(log: UnifiedLog) -> list[int]:
    return [entry.producer_id for entry in log.producers()]


def test_a_new_producer_is_refused_where_all_have_written_lately() -> None:
    machine = Machine()
    log = machine.log()
    assert machine.send(log, 1, 2, 3) == [0, 1, 2]
    # Also inside one group, whose producers the log does not know yet.
    assert machine.send(log, 4, 5, 6) == [3, LimitExceededError, LimitExceededError]
    [refusal] = log.appender.append_group([machine.batch(5)], 1)
    assert isinstance(refusal, LimitExceededError)
    assert not refusal.retriable
    assert refusal.fields == {"producer_count": 5, "max_producer_count": 4}
    # Known ones go on, and so do appends without a producer.
    assert machine.send(log, 1, 2, 3, 4, sequence=1) == [4, 5, 6, 7]
    log.appender.append_as_leader(encode_batch([Record(0, 0, None, b"x")]), 1)
    assert known(log) == [1, 2, 3, 4]


def test_those_that_were_idle_for_longest_make_room() -> None:
    machine = Machine()
    log = machine.log()
    for producer_id in (1, 2, 3, 4):
        machine.send(log, producer_id)
        machine.clock.advance(MINUTE_MS)
    machine.send(log, 1, sequence=1)
    machine.clock.advance(IDLE_MS - 3 * MINUTE_MS - 1)
    assert machine.send(log, 5) == [LimitExceededError], "producer 2 is idle a millisecond later"
    machine.clock.advance(1)
    assert machine.send(log, 5) == [5]
    assert known(log) == [1, 3, 4, 5]
    # The forgotten one may come again, as one that has expired, once there is room.
    assert machine.send(log, 2, sequence=7) == [LimitExceededError]
    machine.clock.advance(MINUTE_MS)
    assert machine.send(log, 2, sequence=7) == [6]
    assert known(log) == [1, 2, 4, 5]


def test_a_producer_that_writes_in_the_same_group_is_not_forgotten() -> None:
    machine = Machine(max_log_count=2)
    log = machine.log()
    machine.send(log, 1, 2)
    machine.clock.advance(IDLE_MS)
    batches = [machine.batch(1, 1), machine.batch(3), machine.batch(1, 2)]
    outcomes = log.appender.append_group(batches, 1)
    assert [isinstance(one, AppendInfo) for one in outcomes] == [True] * 3
    assert known(log) == [1, 3]
    log.check()


def test_all_logs_together_have_a_bound_and_give_back_what_they_had() -> None:
    machine = Machine(max_count=3)
    one, other = machine.log("one"), machine.log("other")
    assert machine.send(one, 1, 2) == [0, 1]
    assert machine.send(other, 1) == [0]
    assert machine.manager.producer_room.count == 3
    assert machine.send(other, 2) == [OverloadedError]
    machine.clock.advance(IDLE_MS)
    assert machine.send(other, 2) == [1]
    assert (known(one), known(other)) == ([2], [1, 2])
    # What became idle since the last look at all logs goes at once, if the log itself has it.
    machine.clock.advance(IDLE_MS - 2 * LOOK_PERIOD_MS)
    machine.send(one, 3)
    assert machine.send(other, 2, sequence=1) == [2]
    machine.manager.delete_log(one.topic_partition)
    assert machine.manager.producer_room.count == 2
    machine.clock.advance(24 * 60 * MINUTE_MS)
    other.remove_expired_producers()
    assert machine.manager.producer_room.count == 0
    assert machine.send(other, 5, 6, 7) == [3, 4, 5]
    machine.manager.close()
    assert machine.manager.producer_room.count == 0


def test_an_open_transaction_is_not_forgotten() -> None:
    machine = Machine(max_log_count=1)
    log = machine.log()
    log.appender.append_as_leader(machine.batch(1, is_transactional=True), 1)
    machine.clock.advance(IDLE_MS)
    assert machine.send(log, 2) == [LimitExceededError]
    with pytest.raises(LimitExceededError):
        log.appender.append_as_leader(machine.batch(3), 1)
    log.appender.append_end_transaction_marker(1, 0, 0, committed=True, leader_epoch=1)
    machine.clock.advance(IDLE_MS)
    assert machine.send(log, 2) == [2]
    assert known(log) == [2]


def test_a_producer_that_writes_records_of_the_past_is_not_idle() -> None:
    machine = Machine()
    log = machine.log()
    machine.clock.advance(100 * IDLE_MS)
    machine.send(log, 1, 2, 3)
    machine.clock.advance(IDLE_MS - MINUTE_MS)
    old = machine.batch(9, age_ms=4 * IDLE_MS)
    stored = log.appender.append_as_leader(old, 1)
    assert machine.send(log, 5) == [LimitExceededError], "the others have written within 15 minutes"
    machine.clock.advance(MINUTE_MS)
    assert machine.send(log, 5) == [4]
    again = log.appender.append_as_leader(old, 1)
    assert (again.base_offset, again.is_duplicate) == (stored.base_offset, True)
    assert known(log) == [2, 3, 5, 9]


def test_producers_that_a_start_or_a_truncation_has_loaded_were_active_then() -> None:
    machine = Machine()
    log = machine.log()
    machine.send(log, 1, 2, 3, 4)
    machine.send(log, 1, sequence=1)
    machine.clock.advance(IDLE_MS)
    machine.manager.truncate_to(log.topic_partition, 4)
    log.check()
    assert machine.send(log, 5) == [LimitExceededError]
    machine.clock.advance(IDLE_MS)
    machine.manager.let_go(log.topic_partition)
    assert machine.manager.producer_room.count == 0
    log = machine.log()
    log.check()
    assert (machine.manager.producer_room.count, known(log)) == (4, [1, 2, 3, 4])
    assert machine.send(log, 5) == [LimitExceededError]
    machine.clock.advance(IDLE_MS)
    assert machine.send(log, 5) == [4]


def test_idle_producers_of_all_logs_make_room_for_those_of_one() -> None:
    machine = Machine(max_log_count=100, max_count=8)
    one, two, three = machine.log("1"), machine.log("2"), machine.log("3")
    machine.send(one, 1, 2, 3)
    two.appender.append_as_leader(machine.batch(4, is_transactional=True), 1)
    machine.clock.advance(MINUTE_MS)
    assert machine.scheduler.pending() == machine.quiet_tasks
    assert machine.send(two, 5, 6, 7, 8) == [1, 2, 3, 4]
    assert machine.send(three, 9) == [OverloadedError]
    machine.clock.advance(IDLE_MS - 2 * MINUTE_MS)
    assert machine.send(three, 9) == [OverloadedError]
    assert machine.manager.producer_room.count == 8
    # Those that have been idle for longest go, down to three quarters of the bound.
    machine.clock.advance(MINUTE_MS)
    machine.clock.advance(LOOK_PERIOD_MS)
    assert (known(one), known(two)) == ([3], [4, 5, 6, 7, 8])
    assert machine.send(three, 9) == [0]
    machine.scheduler.run_due()
    assert machine.scheduler.pending() == machine.quiet_tasks, "the room is not nearly full any more"
    # Only idle ones of its own go at once.
    assert machine.send(three, 10) == [1]
    assert machine.send(three, 11) == [OverloadedError]
    machine.clock.advance(100 * IDLE_MS)
    assert 4 in known(two), "its transaction is open"
    for log in (one, two, three):
        log.check()
    assert machine.scheduler.failures == []
    machine.manager.close()
    assert machine.manager.producer_room.count == 0


def test_a_log_forgets_nothing_where_that_would_not_be_enough() -> None:
    machine = Machine(max_log_count=2)
    one, other = machine.log("one"), machine.log("other")
    machine.send(one, 1, 2)
    machine.send(other, 1)
    machine.clock.advance(IDLE_MS)
    # As after a start with a lower bound, before the first look at all logs.
    machine.manager.producer_room.max_total_count = 1
    assert machine.send(other, 2) == [OverloadedError]
    assert machine.send(one, 3) == [OverloadedError]
    assert (known(one), known(other)) == ([1, 2], [1])
    # The idle ones of the log itself are enough.
    machine.manager.producer_room.max_total_count = 2
    assert machine.send(one, 3) == [2]
    assert (known(one), known(other)) == ([3], [1])
    one.check()
    machine.scheduler.run_due()
    assert (known(one), known(other)) == ([3], [])


def test_those_of_all_logs_that_were_idle_for_longest_go_first() -> None:
    machine = Machine(max_log_count=100, max_count=8)
    one, two, three = machine.log("1"), machine.log("2"), machine.log("3")
    machine.send(two, 1, 2, 3)
    machine.clock.advance(4 * IDLE_MS)
    machine.send(one, 4, 5)
    machine.clock.advance(IDLE_MS)
    assert machine.send(three, 6, 7, 8) == [0, 1, 2]
    machine.scheduler.run_due()
    assert (known(one), known(two), known(three)) == ([4, 5], [3], [6, 7, 8])
    machine.send(one, 4, 5, sequence=1)
    machine.send(three, 9, 10)
    machine.scheduler.run_due()
    machine.send(three, 11)
    machine.scheduler.run_due()
    assert "forget idle producers" in machine.scheduler.pending(), "eight are active"
    machine.manager.close()
    assert "forget idle producers" not in machine.scheduler.pending()
