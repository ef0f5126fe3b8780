"""Retention by age where the batches are damaged that a segment's age follows from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.log_retention import DAMAGED_AGAIN_S
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.header import HEADER_SIZE, MAX_TIMESTAMP_POSITION
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.segment.log_segment import LogSegment
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip

HOUR_MS = 3_600_000


def test_a_segment_whose_age_is_damaged_stays_and_that_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The newest batch lost its time to a flipped bit: the segment is not old for it."""
    for number, ages_h in enumerate([(2,), (2, 1)]):
        caplog.clear()
        config = LogConfig(remote_storage_enable=False, retention_ms=4 * HOUR_MS)
        log = started_with_damage(config, len(ages_h) - 1, ages_h=ages_h)
        assert log.reader.segments()[0].max_timestamp_ms == -1
        assert isinstance(log.reader.segments()[0].damage, CorruptRecordError)
        for _ in range(3):
            assert log.retention.delete_old_segments() == 0
        assert log.offsets.log_start_offset == 0
        [told] = [record.getMessage() for record in caplog.records if "age" in record.getMessage()]
        assert "whose age is unknown" in told, number
        assert "base_offset=`0`" in told
        # It is as much in the way of what is too much as any other.
        log.reconfigure(LogConfig(remote_storage_enable=False, retention_ms=-1, retention_bytes=0))
        assert log.retention.delete_old_segments() > 0
        assert log.offsets.log_start_offset > 0


def test_what_is_dropped_by_age_has_true_checksums(caplog: pytest.LogCaptureFixture) -> None:
    """Index and header may agree, and the batch may be damaged all the same: nothing vouches for it then."""
    log = started_with_damage(
        LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS), 1, HEADER_SIZE + 20, ages_h=(5, 4)
    )
    assert log.reader.segments()[0].max_timestamp_ms == DEFAULT_NOW_MS - 4 * HOUR_MS
    assert log.retention.delete_old_segments() == 0
    assert "whose age is unknown" in caplog.text
    assert log.reader.segments(1)[0].damage is not None


def test_a_damaged_segment_is_read_again_only_where_its_file_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = LogConfig(remote_storage_enable=False, retention_ms=HOUR_MS)
    machine = LogMachine(config=config)
    log = started_with_damage(config, 1, HEADER_SIZE + 20, ages_h=(5, 4), machine=machine)
    prove, proven = LogSegment.prove_max_timestamp, list[int]()

    def noting(segment: LogSegment, on_read: Callable[[], None]) -> None:
        proven.append(segment.base_offset)
        prove(segment, on_read)

    monkeypatch.setattr(LogSegment, "prove_max_timestamp", noting)
    for _ in range(3):
        assert log.retention.delete_old_segments() == 0
    assert proven == [0]
    path = log.local_log.segments[0].path
    flip(machine.disk, path, machine.disk.file_size(path) // 2 + HEADER_SIZE + 20)
    machine.disk.set_modified_ms(path, DEFAULT_NOW_MS)
    assert log.retention.delete_old_segments() == 1
    assert proven == [0, 0]


def test_a_damaged_segment_whose_file_was_restored_with_its_time_goes_within_an_hour() -> None:
    config = LogConfig(remote_storage_enable=False, retention_ms=3 * HOUR_MS)
    machine = LogMachine(config=config)
    log = started_with_damage(config, 1, HEADER_SIZE + 20, ages_h=(5, 4), machine=machine)
    assert log.retention.delete_old_segments() == 0
    machine.clock.advance(DAMAGED_AGAIN_S * 1000)
    # Still damaged: another hour.
    assert log.retention.delete_old_segments() == 0
    path = log.local_log.segments[0].path
    modified_ms = machine.disk.modified_ms(path)
    flip(machine.disk, path, machine.disk.file_size(path) // 2 + HEADER_SIZE + 20)
    machine.disk.set_modified_ms(path, modified_ms)
    machine.clock.advance(DAMAGED_AGAIN_S * 1000 - 1)
    assert log.retention.delete_old_segments() == 0
    machine.clock.advance(1)
    assert log.retention.delete_old_segments() == 1


def test_a_damaged_segment_that_is_tiered_goes_by_the_time_of_its_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its records are in the object store: damage costs nothing."""
    log = started_with_damage(LogConfig(retention_ms=-1, local_retention_ms=HOUR_MS), 1)
    assert log.reader.segments()[0].damage is not None
    log.update_tiered_end_offset(2)
    assert log.retention.delete_local_segments() == 1
    assert "age is unknown" not in caplog.text


def started_with_damage(
    config: LogConfig,
    ordinal: int,
    position: int = MAX_TIMESTAMP_POSITION + 2,
    ages_h: tuple[int, ...] = (2, 1),
    machine: LogMachine | None = None,
) -> UnifiedLog:
    """A log that was closed and started again, with one byte of a batch of its first segment changed."""
    machine = machine or LogMachine(config=config)
    log = machine.start()
    sizes: list[int] = []
    for age_h in ages_h:
        batch = encode_batch([Record(0, DEFAULT_NOW_MS - age_h * HOUR_MS, b"k", b"v" * 100)])
        sizes.append(len(batch))
        log.appender.append_as_leader(batch, 1)
    log.roll()
    log.appender.append_as_leader(encode_batch([Record(0, DEFAULT_NOW_MS, b"k", b"v")]), 1)
    machine.stop()
    flip(machine.disk, segment_path(PARTITION_DIR, 0, LOG_SUFFIX), sum(sizes[:ordinal]) + position)
    return machine.start()
