"""When a log begins a new segment: each part of Kafka's rule at its boundary."""

from __future__ import annotations

import dataclasses
import itertools
import random
from bisect import bisect_left

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.log.append.roll_rule import RollRule
from stratalog.log.append_info import AppendInfo
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.header import TimestampType
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.plain_batches import batch

UNLIMITED = LogConfig(segment_bytes=2**31 - 1, segment_ms=2**63 - 1, index_interval_bytes=0)
FAR = 2**31


def bases(log: UnifiedLog) -> list[int]:
    log.check()
    return [info.base_offset for info in log.reader.segments()]


def bases_after(config: LogConfig, requests: list[bytes]) -> list[int]:
    log = LogMachine(config=config).start()
    for request in requests:
        log.appender.append_as_leader(request, 1)
    return bases(log)


def segment(base_offset: int, *, first_ms: int) -> LogSegment:
    """With one batch."""
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    resources = SegmentResources.over(disk)
    made = LogSegment.create(resources, "/d", base_offset, created_ms=0, index_interval_bytes=0)
    made.append([b"x"], [AppendedBatch(1, base_offset, base_offset, first_ms, 0)])
    return made


class DrawsOnly(random.Random):
    """Chance that a test decides, and that is asked no more often than it says."""

    def __init__(self, *fractions: float) -> None:
        super().__init__(0)
        self.fractions = list(fractions)

    def random(self) -> float:
        return self.fractions.pop(0)


@pytest.mark.parametrize(("spare_bytes", "expected"), [(0, [0]), (-1, [0, 1])])
def test_a_segment_may_be_as_large_as_segment_bytes_and_no_larger(
    spare_bytes: int, expected: list[int]
) -> None:
    request = batch(value_bytes=600)
    config = dataclasses.replace(UNLIMITED, segment_bytes=2 * len(request) + spare_bytes)
    assert bases_after(config, [request] * 2) == expected


@pytest.mark.parametrize(
    ("times_ms", "expected"),
    [
        ([1000, 1500], [0]),
        ([1000, 1501], [0, 1]),
        # From the first batch, whatever came between.
        ([1000, 1400, 1501], [0, 2]),
        ([1000, 400, 1100, 1500], [0]),
        # An old record is no reason, nor is one that comes behind it.
        ([1000, 1, 1499], [0]),
        # A first batch without a time lets the clock count, and that stands still here.
        ([-1, 1000, 1501], [0]),
        # What is new counts from its own first.
        ([1000, 1501, 1502, 2001, 2002], [0, 1, 4]),
    ],
)
def test_a_segment_is_as_old_as_its_first_batch(times_ms: list[int], expected: list[int]) -> None:
    config = dataclasses.replace(UNLIMITED, segment_ms=500)
    requests = [batch(timestamp_ms=timestamp_ms) for timestamp_ms in times_ms]
    assert bases_after(config, requests) == expected


@pytest.mark.parametrize(
    ("times_ms", "last_ms", "expected"),
    [
        ([1000, 1400], 1500, [0]),
        ([1000, 1400], 1501, [0, 2]),
        ([1400, 1000], 1900, [0]),
        ([1400, 1000], 1901, [0, 2]),
        # Without a time the clock counts, and that stands still here.
        ([-1, 1000], 9000, [0]),
    ],
)
def test_the_first_batch_of_a_first_request_is_the_first(
    times_ms: list[int], last_ms: int, expected: list[int]
) -> None:
    config = dataclasses.replace(UNLIMITED, segment_ms=500)
    first = b"".join(batch(timestamp_ms=timestamp_ms) for timestamp_ms in times_ms)
    assert bases_after(config, [first, batch(timestamp_ms=last_ms)]) == expected


def test_where_the_log_gives_the_times_a_segment_is_as_old_by_these() -> None:
    config = dataclasses.replace(
        UNLIMITED, segment_ms=500, message_timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    machine = LogMachine(config=config)
    log = machine.start()
    for passed_ms, sent_ms, expected in (
        (0, 1000, [0]),
        (500, 9000, [0]),
        (1, 9000, [0, 2]),
        (499, 1, [0, 2]),
        (2, 9000, [0, 2, 4]),
    ):
        machine.clock.advance(passed_ms)
        log.appender.append_as_leader(batch(timestamp_ms=sent_ms), 1)
        assert bases(log) == expected


@pytest.mark.parametrize(
    ("policies", "segment_ms", "expected"),
    [({"compact"}, 10**9, [0, 2]), ({"compact"}, 400, [0, 1, 2]), ({"delete"}, 10**9, [0])],
)
def test_what_waits_for_compaction_is_not_kept_from_it_by_the_active_segment(
    policies: set[str], segment_ms: int, expected: list[int]
) -> None:
    config = dataclasses.replace(
        UNLIMITED,
        cleanup_policy=frozenset(policies),
        segment_ms=segment_ms,
        max_compaction_lag_ms=500,
        remote_storage_enable=False,
    )
    requests = [batch(timestamp_ms=timestamp_ms) for timestamp_ms in (1000, 1500, 1901)]
    assert bases_after(config, requests) == expected


def test_the_first_batch_stays_the_first_after_a_restart() -> None:
    for first_ms, expected in ((1000, [0, 2]), (-1, [0])):
        machine = LogMachine(config=dataclasses.replace(UNLIMITED, segment_ms=500))
        log = machine.start()
        log.appender.append_as_leader(batch(timestamp_ms=first_ms), 1)
        log.appender.append_as_leader(batch(timestamp_ms=1400), 1)
        machine.stop()
        log = machine.start()
        # Without a time in the first batch, the clock's counts.
        log.appender.append_as_leader(batch(timestamp_ms=1501), 1)
        log.appender.append_as_leader(batch(timestamp_ms=1990), 1)
        assert bases(log) == expected


@pytest.mark.parametrize(
    ("segment_index_bytes", "counts"),
    [
        # The time index takes 2 entries of 12 bytes, one of which closes it; a first batch makes none.
        (24, [2, 2]),
        (35, [2, 2]),
        (36, [3, 3]),
        (40, [3, 3]),
        (48, [4, 4]),
    ],
)
def test_a_full_index_ends_a_segment(segment_index_bytes: int, counts: list[int]) -> None:
    config = dataclasses.replace(UNLIMITED, segment_index_bytes=segment_index_bytes)
    requests = [batch(timestamp_ms=1000 + number) for number in range(sum(counts) + 1)]
    assert bases_after(config, requests) == [0, *itertools.accumulate(counts)]


@pytest.mark.parametrize(("segment_index_bytes", "count"), [(40, 6), (47, 6), (48, 7)])
def test_the_offset_index_is_full_where_equal_times_make_no_entries(
    segment_index_bytes: int, count: int
) -> None:
    config = dataclasses.replace(UNLIMITED, segment_index_bytes=segment_index_bytes)
    assert bases_after(config, [batch()] * (count + 1)) == [0, count]


@pytest.mark.parametrize(
    ("last_offset", "expected"), [(FAR - 1, [0]), (FAR, [0, 1]), (FAR + 1, [0, FAR + 1])]
)
def test_an_offset_that_no_index_takes_ends_a_segment(last_offset: int, expected: list[int]) -> None:
    log = LogMachine(config=UNLIMITED).start()
    log.appender.append_as_follower(batch())
    log.appender.append_as_follower(batch(base_offset=last_offset))
    assert bases(log) == expected


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0, FAR - 1, FAR], [0, FAR]),
        ([0, 1, FAR + 5, FAR + 6], [0, FAR + 5]),
        ([0, FAR, 2 * FAR, 2 * FAR + 1], [0, 1, 2 * FAR]),
        ([0, 3 * FAR, 3 * FAR + 1, 9 * FAR], [0, 3 * FAR, 9 * FAR]),
        ([FAR, FAR + 1, 2 * FAR], [FAR, FAR + 2]),
    ],
    ids=str,
)
def test_an_offset_that_no_index_takes_ends_a_segment_inside_a_request(
    offsets: list[int], expected: list[int]
) -> None:
    machine = LogMachine(config=UNLIMITED)
    log = machine.start()
    request = b"".join(batch(base_offset=offset) for offset in offsets)
    assert log.appender.append_as_follower(request) == AppendInfo(offsets[0], offsets[-1], len(request))
    assert bases(log) == expected
    machine.stop()
    log = machine.start()
    assert bases(log) == expected
    found, offset = b"", offsets[0]
    while offset < log.offsets.log_end_offset:
        data = log.reader.read(offset, 2**20)
        found, offset = found + data.batches, data.next_offset
    assert found == request


def test_what_follows_a_refused_part_of_a_request_is_not_stored() -> None:
    log = LogMachine(config=UNLIMITED).start()
    epochs = {0: 3, FAR: 2, 2 * FAR: 3}
    with pytest.raises(CorruptRecordError):
        log.appender.append_as_follower(
            b"".join(batch(base_offset=offset, leader_epoch=epoch) for offset, epoch in epochs.items())
        )
    assert (bases(log), log.offsets.log_end_offset) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("segment_ms", "jitter_ms", "fraction", "limit_ms"),
    [
        (500, 0, None, 500),
        (500, 1, 0.999, 500),
        (500, 100, 0.0, 500),
        (500, 100, 0.25, 475),
        (500, 100, 0.9999, 401),
        # As in Kafka, no more than the age itself; one millisecond of it is always left.
        (500, 500, 0.9999, 1),
        (500, 2**63 - 1, 0.9999, 1),
        (500, 2**63 - 1, 0.5, 250),
        (1, 7, 0.9999, 1),
        (2**63 - 1, 2**63 - 1, 1 - 2**-53, 1024 - 1),
    ],
)
def test_jitter_shortens_the_age(
    segment_ms: int, jitter_ms: int, fraction: float | None, limit_ms: int
) -> None:
    config = dataclasses.replace(UNLIMITED, segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
    rule = RollRule(DrawsOnly(*([] if fraction is None else [fraction])))
    active = segment(0, first_ms=0)
    for waited_ms, expected in ((limit_ms, False), (limit_ms + 1, True), (limit_ms, False)):
        found = rule.must_roll(
            active, config, size_bytes=100, last_offset=1, max_timestamp_ms=waited_ms, now_ms=0
        )
        assert found is expected


def test_jitter_is_drawn_once_for_each_segment_and_follows_altered_keys() -> None:
    rule = RollRule(DrawsOnly(0.5, 0.25))

    def limit_ms(active: LogSegment, jitter_ms: int, segment_ms: int = 1000) -> int:
        config = dataclasses.replace(UNLIMITED, segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
        times_ms = range(1001, 3001)
        return bisect_left(
            times_ms,
            True,
            key=lambda time_ms: rule.must_roll(
                active, config, size_bytes=1, last_offset=9, max_timestamp_ms=time_ms, now_ms=0
            ),
        )

    first, second = segment(0, first_ms=1000), segment(5, first_ms=1000)
    assert [limit_ms(first, jitter_ms) for jitter_ms in (0, 600, 200, 600)] == [1000, 700, 900, 700]
    assert limit_ms(first, 600, segment_ms=300) == 150
    assert [limit_ms(second, 600), limit_ms(second, 600)] == [850, 850]


IDLE = dataclasses.replace(
    UNLIMITED, cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=500, remote_storage_enable=False
)


@pytest.mark.parametrize(
    ("config", "first_ms", "now_ms", "expected"),
    [
        (IDLE, 1000, 1500, False),
        (IDLE, 1000, 1501, True),
        # Of the future, or of a past clock.
        (IDLE, 1000, 10, False),
        # Without a time it counts from its making, at 0.
        (IDLE, -1, 500, False),
        (IDLE, -1, 501, True),
        (dataclasses.replace(IDLE, segment_ms=300), 1000, 1301, True),
        (dataclasses.replace(IDLE, segment_ms=300, max_compaction_lag_ms=2**63 - 1), 1000, 9999, False),
        (dataclasses.replace(IDLE, cleanup_policy=frozenset({"delete"})), 1000, 9999, False),
        (dataclasses.replace(IDLE, cleanup_policy=frozenset({"compact", "delete"})), 1000, 1501, True),
    ],
)
def test_an_idle_segment_is_rolled_as_if_an_append_came(
    config: LogConfig, first_ms: int, now_ms: int, *, expected: bool
) -> None:
    active = segment(7, first_ms=first_ms)
    assert RollRule(random.Random(0)).must_roll_idle(active, config, now_ms) is expected
    if config.max_compaction_lag_ms < 2**63 - 1:
        asked = {"size_bytes": 1, "last_offset": 8, "max_timestamp_ms": now_ms, "now_ms": now_ms}
        assert RollRule(random.Random(0)).must_roll(active, config, **asked) is (
            expected and config.is_compacted
        )


def test_where_old_data_trickles_in_idle_segments_are_as_old_as_the_others() -> None:
    rule = RollRule(random.Random(0))
    assert rule.must_roll_idle(segment(0, first_ms=1), IDLE, 10_000)
    # The roll has failed: another one is due.
    assert rule.must_roll_idle(segment(0, first_ms=1), IDLE, 10_001)
    assert not rule.must_roll_idle(segment(1, first_ms=1), IDLE, 10_002)
    assert not rule.must_roll_idle(segment(1, first_ms=1), IDLE, 10_501)
    assert rule.must_roll_idle(segment(1, first_ms=1), IDLE, 10_502)
    # One that an append has begun is another one.
    assert rule.must_roll_idle(segment(5, first_ms=1), IDLE, 10_503)
    assert not rule.must_roll_idle(segment(6, first_ms=1), IDLE, 10_504)
    # The clock was put back: the roll does not wait for it.
    assert rule.must_roll_idle(segment(6, first_ms=1), IDLE, 9_000)


def test_an_idle_segment_has_the_jitter_that_an_append_meets() -> None:
    config = dataclasses.replace(IDLE, segment_jitter_ms=100)
    rule, active = RollRule(DrawsOnly(0.5)), segment(7, first_ms=1000)
    asked = {"size_bytes": 1, "last_offset": 8}
    assert not rule.must_roll(active, config, **asked, max_timestamp_ms=1450, now_ms=0)
    assert not rule.must_roll_idle(active, config, 1450)
    assert rule.must_roll_idle(active, config, 1451)
