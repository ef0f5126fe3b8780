"""The choice of what to clean in a log, beside an oracle that goes through offsets one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.types import TopicPartition
from stratalog.cleaner.log_to_clean import (
    LogToClean,
    dirty_bytes,
    first_dirty_offset,
    first_ms_on,
    is_cleaned_here,
    log_to_clean,
)
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.retention import newest_ms_on
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine

HOUR_MS = 3_600_000
PRODUCER_ID = 9


@dataclass(slots=True)
class Told:
    """A log as the test filled it. Used by one thread."""

    log: UnifiedLog
    now_ms: int
    times_ms: dict[int, list[int]] = field(default_factory=dict)
    """By segment, the times of its batches; a batch has the time of the file where it has none of its own."""
    unstable_offset: int | None = None
    sequence: int = 0


APPENDS = st.tuples(st.sampled_from(["plain", "transactional"]), st.integers(1, 4), st.integers(-5, 5))
STEPS = st.one_of(
    APPENDS,
    APPENDS,
    st.tuples(st.sampled_from(["roll", "roll", "untimed", "end", "wait"]), st.just(0), st.just(0)),
)
LAGS = st.sampled_from([0, 1, HOUR_MS, 3 * HOUR_MS])
MAX_LAGS = st.sampled_from([LONG_MAX, LONG_MAX, 3 * HOUR_MS, 4 * HOUR_MS])


def told(machine: CleanerMachine, log: UnifiedLog, steps: list[tuple[str, int, int]]) -> Told:
    found = Told(log, machine.clock.now_ms())
    for kind, count, hours in steps:
        now_ms = machine.clock.now_ms()
        end_offset, time_ms = log.offsets.log_end_offset, now_ms + hours * HOUR_MS
        if kind == "roll":
            log.roll()
        elif kind == "wait":
            machine.clock.advance(HOUR_MS)
        elif kind == "end":
            if found.unstable_offset is not None:
                log.appender.append_end_transaction_marker(PRODUCER_ID, 0, 0, committed=False, leader_epoch=1)
                found.times_ms.setdefault(log.local_log.segments.active.base_offset, []).append(now_ms)
                found.unstable_offset = None
        else:
            producer = BatchProducer()
            if kind == "transactional":
                producer = BatchProducer(PRODUCER_ID, 0, found.sequence, is_transactional=True)
                found.sequence += count
                found.unstable_offset = end_offset if found.unstable_offset is None else found.unstable_offset
            written_ms = -1 if kind == "untimed" else time_ms
            records = [Record(0, written_ms, b"k", bytes(50 * count))] * max(count, 1)
            log.appender.append_as_leader(encode_batch(records, producer=producer), 1)
            # The append may have rolled: a segment is no older than the longest lag.
            found.times_ms.setdefault(log.local_log.segments.active.base_offset, []).append(written_ms)
    found.now_ms = machine.clock.now_ms()
    return found


def expected(found: Told, checkpoint: int | None, machine: CleanerMachine) -> tuple[int, int, int, int, int]:
    """First dirty and first uncleanable offset, clean and cleanable bytes, and the delay."""
    log, config = found.log, found.log.local_log.config
    stable_offset = log.offsets.log_end_offset if found.unstable_offset is None else found.unstable_offset
    dirty_offset = log.offsets.log_start_offset
    if checkpoint is not None and log.offsets.log_start_offset <= checkpoint <= log.offsets.log_end_offset:
        dirty_offset = checkpoint
    uncleanable_offset, clean_bytes, cleanable_bytes = dirty_offset, 0, 0
    oldest_ms: int | None = None
    is_open = True
    for segment in log.reader.segments()[:-1]:
        offsets = range(segment.base_offset, segment.end_offset)
        if not all(offset < stable_offset for offset in offsets):
            break
        if all(offset < dirty_offset for offset in offsets):
            clean_bytes += segment.size_bytes
            continue
        path = f"{log.local_log.directory}/{segment.base_offset:020}.log"
        file_ms = machine.machine.disk.modified_ms(path)
        times_ms = found.times_ms[segment.base_offset]
        begun_ms = times_ms[0] if times_ms[0] >= 0 else file_ms
        oldest_ms = begun_ms if oldest_ms is None else min(oldest_ms, begun_ms)
        newest_ms = max(times_ms) if max(times_ms) >= 0 else file_ms
        if config.min_compaction_lag_ms and found.now_ms - newest_ms < config.min_compaction_lag_ms:
            is_open = False
        if is_open:
            uncleanable_offset = segment.end_offset
            cleanable_bytes += segment.size_bytes
    delay_ms = 0
    if config.max_compaction_lag_ms != LONG_MAX and oldest_ms is not None:
        delay_ms = max(0, found.now_ms - oldest_ms - config.max_compaction_lag_ms)
    return dirty_offset, uncleanable_offset, clean_bytes, cleanable_bytes, delay_ms


def looked_at(machine: CleanerMachine, found: Told, checkpoint: int | None) -> LogToClean:
    disk = machine.machine.disk
    return log_to_clean(
        found.log,
        first_dirty_offset(found.log, checkpoint),
        newest_ms_on(disk),
        first_ms_on(disk),
        found.now_ms,
    )


@given(
    steps=st.lists(STEPS, max_size=25),
    min_lag_ms=LAGS,
    max_lag_ms=MAX_LAGS,
    start_offset=st.sampled_from([0, 7]),
    deleted_count=st.sampled_from([0, 0, 3, 9]),
    checkpoint=st.one_of(st.none(), st.integers(0, 60)),
)
def test_the_range_is_what_the_rules_say(
    steps: list[tuple[str, int, int]],
    min_lag_ms: int,
    max_lag_ms: int,
    start_offset: int,
    deleted_count: int,
    checkpoint: int | None,
) -> None:
    machine = CleanerMachine()
    config = replace(COMPACTED, min_compaction_lag_ms=min_lag_ms, max_compaction_lag_ms=max_lag_ms)
    log = machine.open(0, replace(config, message_timestamp_after_max_ms=LONG_MAX), start_offset=start_offset)
    found = told(machine, log, steps)
    log.increment_log_start_offset(min(log.offsets.high_watermark, start_offset + deleted_count))
    log.retention.delete_old_segments()
    chosen = looked_at(machine, found, checkpoint)
    assert chosen[1:6] == expected(found, checkpoint, machine)
    assert chosen.first_uncleanable_offset <= min(
        log.offsets.last_stable_offset, log.local_log.segments.active.base_offset
    ) or (chosen.cleanable_bytes == 0)
    assert chosen.cleanable_bytes <= dirty_bytes(log, chosen.first_dirty_offset)
    assert chosen.is_forced == (chosen.compaction_delay_ms > 0)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4),
    ratio=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    forced=st.integers(0, 3),
    paused=st.integers(0, 5),
)
def test_the_filthiest_log_that_is_due_is_next(
    sizes: list[tuple[int, int]], ratio: float, forced: int, paused: int
) -> None:
    machine = CleanerMachine()
    config = replace(COMPACTED, min_cleanable_dirty_ratio=ratio)
    ratios: dict[TopicPartition, float] = {}
    for number, (clean_count, dirty_count) in enumerate(sizes):
        log = machine.open(number, replace(config, min_cleanable_dirty_ratio=0.0))
        for _ in range(clean_count):
            machine.fill(log, 1)
        if clean_count:
            first = machine.manager.take_filthiest()
            assert first is not None
            machine.manager.done(first, clean_count)
        for _ in range(dirty_count):
            machine.fill(log, 1)
        # Until all are made, no worker cleans it.
        log.reconfigure(replace(config, cleanup_policy=frozenset({"delete"})))
        share = dirty_count / (clean_count + dirty_count) if clean_count + dirty_count else 0.0
        if dirty_count and (share > ratio or number == forced) and number != paused:
            ratios[log.topic_partition] = share
    for number, log in enumerate(machine.log_manager.logs()):
        lag_ms = 1 if number == forced else LONG_MAX
        log.reconfigure(replace(config, max_compaction_lag_ms=lag_ms))
    machine.clock.advance(5)
    taken: list[TopicPartition] = []
    with machine.manager.paused(machine.partition(paused)):
        while (found := machine.manager.take_filthiest()) is not None:
            assert found.cleanable_ratio == pytest.approx(ratios[found.partition])
            taken.append(found.partition)
    assert sorted(taken) == sorted(ratios)
    shares = [ratios[partition] for partition in taken]
    assert shares == sorted(shares, reverse=True)
    machine.manager.check()


@pytest.mark.parametrize("is_tiered", [False, True])
@pytest.mark.parametrize("policy", [{"compact"}, {"delete"}, {"compact", "delete"}])
def test_only_compacted_logs_that_are_not_tiered_are_cleaned(policy: set[str], *, is_tiered: bool) -> None:
    config = LogConfig(cleanup_policy=frozenset(policy), remote_storage_enable=is_tiered)
    assert is_cleaned_here(config) == ("compact" in policy and not is_tiered)
    machine = CleanerMachine()
    machine.fill(machine.open(0, config), 2)
    assert (machine.manager.take_filthiest() is not None) == is_cleaned_here(config)


def test_a_tiered_log_that_became_a_local_one_is_cleaned_from_what_is_here() -> None:
    machine = CleanerMachine()
    log = machine.open(0, LogConfig(cleanup_policy=frozenset({"compact"})))
    machine.fill(log, 2, 2, 2)
    log.update_tiered_end_offset(4)
    log.retention.delete_local_segments(ignore_retention=True)
    assert log.offsets.log_start_offset == 0
    log.reconfigure(COMPACTED)
    found = machine.manager.take_filthiest()
    assert found is not None
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (4, 6)
