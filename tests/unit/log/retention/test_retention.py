"""Segments that may go, and those that must stay: local retention of tiered logs, total retention of the
others."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from stratalog.base.errors import DataDirectoryError, OffsetOutOfRangeError
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.retention_outlook import ExpiryRule
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.log_segment import LogSegment
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.sampling import some_seeds

HOUR_MS = 3_600_000
COMPACTED = frozenset({"compact"})


def fill(log: UnifiedLog, segment_count: int, *, age_step_ms: int = HOUR_MS) -> None:
    """So many segments of one record each, the newest one hour old, each older one an hour older; and an
    active one."""
    for number in range(segment_count):
        timestamp = DEFAULT_NOW_MS - (segment_count - number) * age_step_ms
        log.appender.append_as_leader(encode_batch([Record(0, timestamp, b"k", b"v" * 200)]), 1)
        log.roll()


def started(config: LogConfig) -> tuple[LogMachine, UnifiedLog]:
    machine = LogMachine(config=config)
    return machine, machine.start()


def test_a_tiered_log_drops_only_what_is_in_the_object_store() -> None:
    _, log = started(LogConfig(retention_ms=0))
    fill(log, 5)
    assert log.retention.delete_local_segments() == 0
    assert log.retention.delete_local_segments(ignore_retention=True) == 0
    log.update_tiered_end_offset(3)
    assert log.retention.delete_local_segments() == 3
    assert (log.offsets.log_start_offset, log.offsets.local_log_start_offset) == (0, 3)
    assert log.offsets.earliest_pending_upload_offset == 3
    log.update_tiered_end_offset(2)
    assert log.offsets.tiered_end_offset == 3
    log.check()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LogConfig(retention_ms=3 * HOUR_MS), 2),
        (LogConfig(retention_ms=-1), 0),
        (LogConfig(retention_ms=-1, local_retention_ms=3 * HOUR_MS), 2),
        (LogConfig(retention_ms=3 * HOUR_MS, local_retention_ms=2 * HOUR_MS), 3),
        (LogConfig(retention_ms=-1, retention_bytes=650), 2),
        (LogConfig(retention_ms=-1, local_retention_bytes=300), 3),
        (LogConfig(retention_ms=-1, local_retention_bytes=0), 4),
        (LogConfig(retention_ms=-1, cleanup_policy=COMPACTED, local_retention_ms=0), 4),
        (LogConfig(retention_ms=-1, cleanup_policy=COMPACTED, local_retention_ms=-1), 0),
        (LogConfig(retention_ms=-1, cleanup_policy=COMPACTED), 1),
        (LogConfig(cleanup_policy=COMPACTED | {"delete"}), 1),
        (LogConfig(retention_ms=3 * HOUR_MS, cleanup_policy=COMPACTED), 2),
        (LogConfig(retention_ms=-1, cleanup_policy=COMPACTED, local_retention_ms=5 * HOUR_MS), 0),
    ],
)
def test_local_retention_follows_the_total_one_where_it_is_minus_two(
    config: LogConfig, expected: int
) -> None:
    _, log = started(config)
    fill(log, 5)
    log.update_tiered_end_offset(4)
    assert log.reader.segments()[0].size_bytes * 3 in range(601, 900)
    assert log.retention.delete_local_segments() == expected
    assert log.offsets.local_log_start_offset == expected
    assert log.offsets.log_start_offset == 0


COMPACTED_FOR_EVER = LogConfig(retention_ms=-1, cleanup_policy=COMPACTED)


@pytest.mark.parametrize(
    ("config", "tiered_end_offset", "compacted_upto", "expected"),
    [
        (COMPACTED_FOR_EVER, 10, 10, 4),
        (COMPACTED_FOR_EVER, 10, 4, 2),
        (COMPACTED_FOR_EVER, 10, 5, 2),
        (COMPACTED_FOR_EVER, 10, 0, 0),
        (COMPACTED_FOR_EVER, 4, 10, 2),
        (replace(COMPACTED_FOR_EVER, cleanup_policy=COMPACTED | {"delete"}), 10, 4, 2),
        (replace(COMPACTED_FOR_EVER, cleanup_policy=frozenset({"delete"})), 10, 10, 0),
        (replace(COMPACTED_FOR_EVER, local_retention_ms=HOUR_MS), 10, 10, 0),
        (replace(COMPACTED_FOR_EVER, local_retention_ms=-1), 10, 10, 0),
        (replace(COMPACTED_FOR_EVER, remote_log_copy_disable=True), 10, 10, 0),
    ],
)
def test_sealed_segments_go_once_the_object_store_has_compacted_all_of_their_records(
    config: LogConfig, tiered_end_offset: int, compacted_upto: int, expected: int
) -> None:
    _, log = started(config)
    records = [Record(0, DEFAULT_NOW_MS, b"k", b"v")] * 2
    for number in range(5):
        log.appender.append_as_leader(encode_batch(records), 1)
        if number < 4:
            log.roll()
    log.update_tiered_end_offset(tiered_end_offset)
    outlook = log.retention.explain(compacted_upto=compacted_upto)
    assert [(one.rule, one.base_offset) for one in outlook.expired] == [
        (ExpiryRule.COMPACTION, 2 * number) for number in range(expected)
    ]
    assert log.retention.delete_local_segments() == 0
    assert log.retention.delete_local_segments(compacted_upto=compacted_upto) == expected
    assert (log.offsets.log_start_offset, log.offsets.local_log_start_offset) == (0, 2 * expected)
    assert log.offsets.log_end_offset == 10, "the active segment is not rolled for it"
    log.check()


def test_segments_that_go_by_age_and_by_compaction_have_their_own_reasons() -> None:
    _, log = started(LogConfig(retention_ms=2 * HOUR_MS, cleanup_policy=COMPACTED))
    fill(log, 5)
    log.update_tiered_end_offset(5)
    outlook = log.retention.explain(compacted_upto=4)
    assert [one.rule for one in outlook.expired] == [
        *[ExpiryRule.LOCAL_RETENTION_MS] * 3,
        ExpiryRule.COMPACTION,
    ]
    assert outlook.next is not None
    assert outlook.next.base_offset == 4
    assert outlook.next.reason.endswith("it goes sooner once a compaction covers it")


def test_a_compacted_segment_without_timestamps_has_the_age_of_its_file() -> None:
    machine, log = started(LogConfig(retention_ms=-1, cleanup_policy=COMPACTED))
    log.appender.append_as_leader(encode_batch([Record(0, -1, b"k", b"v")]), 1)
    log.roll()
    log.update_tiered_end_offset(1)
    machine.disk.set_modified_ms(log.local_log.segments[0].path, machine.clock.now_ms())
    machine.clock.advance(4 * HOUR_MS)
    assert log.retention.delete_local_segments() == 0
    machine.clock.advance(1)
    assert log.retention.delete_local_segments() == 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LogConfig(remote_storage_enable=False, retention_ms=3 * HOUR_MS), 2),
        (LogConfig(remote_storage_enable=False, retention_ms=0), 5),
        (LogConfig(remote_storage_enable=False, retention_ms=-1), 0),
        (LogConfig(remote_storage_enable=False, retention_ms=-1, retention_bytes=700), 2),
        (
            LogConfig(
                remote_storage_enable=False, retention_ms=3 * HOUR_MS, cleanup_policy=frozenset({"compact"})
            ),
            0,
        ),
        (LogConfig(remote_storage_enable=False, retention_ms=0, cleanup_policy=frozenset()), 0),
        (LogConfig(retention_ms=3 * HOUR_MS, remote_storage_enable=True), 0),
    ],
)
def test_total_retention_moves_the_log_start(config: LogConfig, expected: int) -> None:
    _, log = started(config)
    fill(log, 5)
    assert 2 * log.reader.segments()[0].size_bytes < 700 < 3 * log.reader.segments()[0].size_bytes
    assert log.retention.delete_old_segments() == expected
    assert log.offsets.log_start_offset == log.offsets.local_log_start_offset == expected
    assert log.offsets.log_end_offset == 5
    log.check()


def test_a_record_of_the_future_keeps_its_segment_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = LogConfig(
        remote_storage_enable=False, retention_ms=HOUR_MS, message_timestamp_after_max_ms=9 * HOUR_MS
    )
    machine, log = started(config)
    fill(log, 3, age_step_ms=-HOUR_MS)
    for _ in range(3):
        assert log.retention.delete_old_segments() == 0
    assert log.retention.future_segment_count == 1
    [told] = [record.getMessage() for record in caplog.records]
    assert "whose records are in the future" in told
    assert f"base_offset=`0` newest_ms=`{DEFAULT_NOW_MS + 3 * HOUR_MS}` now_ms=`{DEFAULT_NOW_MS}`" in told
    # The segment is deleted otherwise, and the next one is reported.
    log.increment_log_start_offset(1)
    assert log.retention.delete_old_segments() == 1
    assert log.retention.delete_old_segments() == 0
    assert log.retention.future_segment_count == 1
    machine.clock.advance(5 * HOUR_MS)
    assert log.retention.delete_old_segments() == 2
    assert len(caplog.records) == 2
    assert log.retention.future_segment_count == 0, "its time has come"


@pytest.mark.parametrize("seed", some_seeds(30))
def test_start_size_and_age_are_judged_one_after_the_other(seed: int) -> None:
    """The oracle has the three rules as they are documented: each over what the one before has left."""
    draw = random.Random(seed)
    log_start = draw.randint(0, 6)
    config = LogConfig(
        remote_storage_enable=False,
        retention_ms=draw.choice([-1, 0, HOUR_MS, 4 * HOUR_MS]),
        retention_bytes=draw.choice([-1, 0, 700, 1500, 3000]),
        min_durability=Durability.DISK,
    )
    _, log = started(config)
    for _ in range(8):
        age_ms = draw.choice([0, HOUR_MS // 2, 2 * HOUR_MS, 9 * HOUR_MS])
        value = b"v" * draw.randint(0, 500)
        log.appender.append_as_leader(encode_batch([Record(0, DEFAULT_NOW_MS - age_ms, b"k", value)]), 1)
        log.roll()
        if draw.random() < 0.4:
            log.flusher.flush()
    log_start = min(log_start, log.offsets.high_watermark)
    log.increment_log_start_offset(log_start)
    left = list(log.reader.segments())
    while len(left) > 1 and left[0].end_offset <= log.offsets.log_start_offset:
        left.pop(0)
    while (
        config.retention_bytes >= 0
        and len(left) > 1
        and left[0].end_offset <= log.offsets.high_watermark
        and sum(one.size_bytes for one in left[1:]) >= config.retention_bytes
    ):
        left.pop(0)
    while (
        config.retention_ms >= 0
        and len(left) > 1
        and left[0].end_offset <= log.offsets.high_watermark
        and DEFAULT_NOW_MS - left[0].max_timestamp_ms > config.retention_ms
    ):
        left.pop(0)
    log.retention.delete_old_segments()
    assert [one.base_offset for one in log.reader.segments()] == [one.base_offset for one in left], (
        f"seed {seed}"
    )
    log.check()


def test_records_without_a_timestamp_are_as_old_as_their_file() -> None:
    machine = LogMachine(config=LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS))
    machine.disk = MemoryFileSystem(now_ms=machine.clock.now_ms)
    log = machine.start()
    log.appender.append_as_leader(encode_batch([Record(0, -1, b"k", b"v")]), 1)
    assert log.retention.delete_old_segments() == 0
    machine.clock.advance(HOUR_MS + 1)
    assert log.retention.delete_old_segments() == 1


def test_a_log_that_was_never_flushed_keeps_its_start_in_a_power_loss() -> None:
    """The name of its directory is not durable before the first flush, or the first segment that goes."""
    machine, log = started(LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS))
    fill(log, 3)
    assert log.retention.delete_old_segments() == 2
    machine.crash(Survival(Kept.ALL, Kept.NONE))
    assert machine.start().offsets.log_start_offset == 2


def test_a_start_behind_what_is_durable_is_kept_here_though_the_store_says_where_a_log_starts() -> None:
    """Else other records got the offsets of deleted ones, and went as soon as the store is asked."""
    machine, log = started(LogConfig(retention_ms=-1))
    fill(log, 1)
    log.flusher.flush()
    fill(log, 3)
    log.increment_log_start_offset(3)
    machine.crash(Survival(Kept.NONE, Kept.ALL))
    log = machine.start()
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (3, 3)
    assert log.recovery_report.lost_end_offset == 1
    log.check()


def test_producers_of_what_went_are_remembered_after_a_power_loss() -> None:
    """Only a snapshot has them by then, which nothing else had synced."""
    machine, log = started(LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS))
    producer = BatchProducer(7, 0, 0)
    log.appender.append_as_leader(
        encode_batch([Record(0, DEFAULT_NOW_MS - 2 * HOUR_MS, b"k", b"v")] * 3, producer=producer), 1
    )
    log.roll()
    fill(log, 1)
    assert log.retention.delete_old_segments() == 1
    machine.crash(Survival(Kept.NONE, Kept.ALL))
    [entry] = machine.start().producers()
    assert (entry.producer_id, entry.next_sequence) == (7, 3)


def test_what_lies_below_the_log_start_goes_from_a_tiered_log_too() -> None:
    _, log = started(LogConfig(retention_ms=-1))
    fill(log, 3)
    log.increment_log_start_offset(2)
    assert log.retention.delete_local_segments() == 2


def test_a_log_that_the_store_is_ahead_of_is_not_the_one_that_was_uploaded() -> None:
    _, log = started(LogConfig())
    fill(log, 2)
    with pytest.raises(DataDirectoryError) as failure:
        log.update_tiered_end_offset(3)
    assert failure.value.fields["tiered_end_offset"] == 3


def test_a_reader_whose_segment_is_being_dropped_gets_the_new_start() -> None:
    starts: list[object] = []
    readers: list[threading.Thread] = []

    def read() -> None:
        with pytest.raises(OffsetOutOfRangeError) as refused:
            log.reader.read(0, 1000)
        starts.append(refused.value.fields["log_start_offset"])

    def look(name: str, path: str) -> None:
        if name != "rename":
            return
        if path.endswith(".log.deleted") and not readers:
            assert log.reader.read(0, 1000).next_offset > 0, "nothing has happened yet"
        elif path.endswith(".timeindex.deleted"):
            # The log file has its other name by now.
            readers.append(threading.Thread(target=read))
            readers[-1].start()

    disk = HookedDisk()
    log = LogMachine(disk, LogConfig(remote_storage_enable=False, retention_ms=3 * HOUR_MS)).start()
    fill(log, 5)
    disk.before = look
    assert log.retention.delete_old_segments() == 2
    for reader in readers:
        reader.join()
    assert starts == [2, 2]


def test_segments_are_proven_beside_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads them from some batch on, which may be all of them: no append shall wait for that."""
    _, log = started(LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS))
    fill(log, 3)
    prove, proven = LogSegment.prove_max_timestamp, list[int]()

    def prove_beside_an_append(segment: LogSegment, on_read: Callable[[], None]) -> None:
        batch = encode_batch([Record(0, DEFAULT_NOW_MS, b"k", b"v")])
        with ThreadPoolExecutor(1) as threads:
            threads.submit(log.appender.append_as_leader, batch, 1).result(10)
        proven.append(segment.base_offset)
        prove(segment, on_read)

    monkeypatch.setattr(LogSegment, "prove_max_timestamp", prove_beside_an_append)

    assert log.retention.delete_old_segments() == 2
    assert (proven, log.offsets.log_start_offset) == ([0, 1], 2)
    log.check()


def test_each_read_of_a_proof_is_progress() -> None:
    """A large segment takes long on a slow disk, and its disk was said not to answer meanwhile."""
    looks: list[int] = []
    log: UnifiedLog | None = None

    def before(name: str, _: str) -> None:
        if name == "read_at" and log is not None:
            looks.append(log.retention.look_count)

    machine = LogMachine(
        config=LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS), disk=HookedDisk(before)
    )
    log = machine.start()
    timestamp = DEFAULT_NOW_MS - 2 * HOUR_MS
    for _ in range(8):
        batch = encode_batch([Record(0, timestamp, b"k", bytes(500_000))])
        log.appender.append_as_leader(batch, 1)
    log.roll()
    steps: list[None] = []
    log.reader.segments(log.offsets.log_end_offset, on_segment=lambda: steps.append(None))
    assert len(steps) > 4
    looks.clear()
    assert log.retention.delete_old_segments() == 1
    assert len({*looks}) > 3, looks


def test_what_was_appended_behind_a_proof_is_proven_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = started(LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS))
    prove = LogSegment.prove_max_timestamp

    def append(segment: LogSegment, on_read: Callable[[], None] = lambda: None) -> None:
        prove(segment, on_read)
        log.appender.append_as_leader(encode_batch([Record(0, DEFAULT_NOW_MS - 5 * HOUR_MS, b"k", b"v")]), 1)

    append(log.local_log.segments.active)
    with monkeypatch.context() as patched:
        patched.setattr(LogSegment, "prove_max_timestamp", append)
        assert log.retention.delete_old_segments() == 0
    assert log.retention.delete_old_segments() == 1
    assert log.offsets.log_start_offset == log.offsets.log_end_offset == 2
    log.check()


def test_a_segment_of_the_future_counts_as_long_as_it_is_there_and_judged_by_its_age() -> None:
    config = LogConfig(
        remote_storage_enable=False, retention_ms=HOUR_MS, message_timestamp_after_max_ms=9 * HOUR_MS
    )
    machine, log = started(config)
    fill(log, 3, age_step_ms=-HOUR_MS)
    log.retention.delete_old_segments()
    assert log.retention.future_segment_count == 1
    log.reconfigure(replace(config, retention_ms=-1))
    log.retention.delete_old_segments()
    assert log.retention.future_segment_count == 0, "no rule asks for its age"
    log.reconfigure(config)
    log.retention.delete_old_segments()
    assert log.retention.future_segment_count == 1
    log.increment_log_start_offset(log.offsets.log_end_offset)
    log.retention.delete_old_segments()
    assert log.retention.future_segment_count == 0, "it is gone"
    machine.stop()
