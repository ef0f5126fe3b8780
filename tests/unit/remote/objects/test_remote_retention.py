"""How far the log start moves, against a list of units, and through the whole stack."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import FencedError, PreconditionFailedError, StoreUnavailableError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.retention import RemoteRetention, RetentionReport, RetentionUnit, log_start_after
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from stratalog.testing.tiered_logs import TieredLogs

NOW_MS = 10_000
HOUR_MS = 3_600_000


@st.composite
def unit_rows(draw: st.DrawFn) -> list[RetentionUnit]:
    offset = 0
    row: list[RetentionUnit] = []
    for _ in range(draw(st.integers(0, 6))):
        offset += draw(st.integers(1, 5))
        is_empty = draw(st.booleans())
        timestamp = -1 if is_empty else draw(st.integers(-1, NOW_MS))
        row.append(RetentionUnit(offset, draw(st.integers(0, 10)), timestamp, is_empty))
    if draw(st.booleans()):
        row.append(RetentionUnit(offset + 1, draw(st.integers(0, 10)), 0, is_active=True))
    return row


@given(unit_rows(), st.integers(-1, 12_000), st.integers(-1, 40), st.booleans())
def test_the_front_goes_while_it_is_old_or_too_much(
    units: list[RetentionUnit], retention_ms: int, retention_bytes: int, is_time_known: bool
) -> None:
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes)
    now_ms = NOW_MS if is_time_known else None
    offset = log_start_after(units, config, now_ms)
    gone = [unit for unit in units if offset is not None and unit.end_offset <= offset]
    left = units[len(gone) :]
    assert units[: len(gone)] == gone, "a run from the front"
    assert not any(unit.is_active for unit in gone)
    # What the limits say, of each unit by itself.
    for number, unit in enumerate(gone):
        behind_bytes = sum(later.size_bytes for later in units[number + 1 :])
        is_too_much = 0 <= retention_bytes <= behind_bytes
        age_ms = NOW_MS - unit.max_timestamp
        is_old = (
            is_time_known
            and retention_ms >= 0
            and (unit.is_empty or (unit.max_timestamp >= 0 and age_ms > retention_ms))
        )
        assert is_too_much or is_old
    if left and not left[0].is_active:
        first, behind_bytes = left[0], sum(later.size_bytes for later in left[1:])
        assert retention_bytes < 0 or behind_bytes < retention_bytes
        assert (
            not is_time_known
            or retention_ms < 0
            or (not first.is_empty and not 0 <= first.max_timestamp < NOW_MS - retention_ms)
        )


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    units = [RetentionUnit(5, 100, 0)]
    config = LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0, retention_bytes=0)
    assert log_start_after(units, config, NOW_MS) is None
    both = dataclasses.replace(config, cleanup_policy=frozenset({"compact", "delete"}))
    assert log_start_after(units, both, NOW_MS) == 5


class World:
    def __init__(self, config: dict[str, str]) -> None:
        self.clock = ManualClock()
        self.store = MemoryObjectStore(self.clock)
        self.logs = TieredLogs(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        self.topic = self.logs.create_topic("t", 1, config)
        self.log: UnifiedLog = self.logs.logs[TopicPartition("t", 0)]
        self.tip = TopicIdPartition(self.topic.topic_id, 0)

    def append(self, *, upload: bool = True) -> None:
        """A segment with one record of now."""
        self.logs.append(self.log, [Record(0, self.clock.now_ms(), b"k", b"v" * 100)])
        self.logs.seal()
        if upload:
            self.logs.upload()

    def retain(self, catalog_seq: int | None = None) -> RetentionReport:
        retention = RemoteRetention(self.clock, self.logs.metadata)
        seq = self.logs.catalog.confirm([self.topic]) if catalog_seq is None else catalog_seq
        return retention.run([self.log], epoch=self.logs.claimed.epoch, catalog_seq=seq)

    def check_starts_at(self, offset: int) -> None:
        partition = self.logs.metadata.refresh().partition(self.tip)
        assert (partition.log_start_offset, self.log.log_start_offset) == (offset, offset)
        self.logs.metadata.check()
        self.log.check()


def test_slices_expire_by_time() -> None:
    world = World({"retention.ms": str(HOUR_MS)})
    world.append()
    world.clock.advance(HOUR_MS // 2)
    world.append()
    assert world.retain().advanced == ()
    world.clock.advance(HOUR_MS // 2 + 1)
    (advanced,) = world.retain().advanced
    assert advanced == (TopicPartition("t", 0), 1)
    world.check_starts_at(1)
    assert len(world.logs.metadata.state().dropped) == 1, "the object waits for the collector"


def test_size_counts_all_tiers_and_segments_go_that_were_never_uploaded() -> None:
    world = World({"retention.bytes": "400", "retention.ms": "-1"})
    for number in range(6):
        world.append(upload=number < 3)
    size_bytes = world.log.segments()[0].size_bytes
    assert 150 < size_bytes < 200
    # 400 bytes stay with three segments; slices and local segments count alike.
    assert world.retain().advanced == ((TopicPartition("t", 0), 3),)
    world.check_starts_at(3)
    for _ in range(2):
        world.append(upload=False)
    world.retain()
    world.check_starts_at(5)
    assert world.logs.metadata.state().partition(world.tip).tiered_end_offset == 5
    world.logs.upload()
    assert [record.offset for record in world.logs.tiered_records(world.log)] == [5, 6, 7]


def test_a_segment_that_is_tiered_in_part_is_not_counted_twice() -> None:
    """Of three batches in a segment the first is in the store: 513 bytes in all, and 400 have to stay."""
    clock = ManualClock()
    store = MemoryObjectStore(clock)
    data_puts: list[str] = []

    def one_data_put(operation: Operation) -> Fault:
        if operation.verb == "PUT" and "/data/" in operation.key:
            data_puts.append(operation.key)
            return Fault.NONE if len(data_puts) == 1 else Fault.FAILS
        return Fault.NONE

    faulty = FaultyObjectStore(store, random.Random(0), one_data_put)
    logs = TieredLogs(MemoryFileSystem(), faulty, clock, SequentialIds(1), max_object_bytes=200)
    topic = logs.create_topic("t", 1, {"retention.bytes": "400", "retention.ms": "-1"})
    (log,) = logs.logs.values()
    for _ in range(3):
        logs.append(log, [Record(0, 5, b"k", b"v" * 100)])
    logs.seal()
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    assert (log.tiered_end_offset, log.size_bytes) == (1, 3 * 171)
    seq = logs.catalog.confirm([topic])
    assert RemoteRetention(clock, logs.metadata).run([log], epoch=1, catalog_seq=seq).advanced == ()


def test_nothing_is_committed_where_nothing_moves() -> None:
    world = World({"retention.ms": "-1"})
    world.append()
    seq = world.logs.metadata.state().seq
    world.clock.advance(1000 * HOUR_MS)
    assert world.retain().advanced == ()
    assert world.logs.metadata.state().seq == seq


def test_the_high_watermark_is_not_passed() -> None:
    world = World({"retention.ms": "0", "min.durability": "disk"})
    world.logs.append(world.log, [Record(0, world.clock.now_ms(), b"k", b"v")])
    world.log.roll()
    world.clock.advance(10)
    assert world.log.high_watermark == 0
    assert world.retain().advanced == ()


def test_a_clock_that_is_wrong_expires_nothing() -> None:
    world = World({"retention.ms": str(HOUR_MS)})
    world.append()
    world.clock.advance(2 * HOUR_MS)
    own_clock = ManualClock(world.clock.now_ms() + 6 * 60_000)
    retention = RemoteRetention(own_clock, world.logs.metadata)
    report = retention.run([world.log], epoch=1, catalog_seq=1)
    assert (report.advanced, report.clock_skew_ms) == ((), 6 * 60_000)
    world.check_starts_at(0)


def test_a_configuration_older_than_one_that_was_used_deletes_nothing() -> None:
    world = World({"retention.ms": "0"})
    world.append()
    world.clock.advance(10)
    world.logs.catalog.create("another", 1, {})
    world.retain()
    world.append()
    world.clock.advance(10)
    with pytest.raises(PreconditionFailedError):
        world.retain(catalog_seq=1)
    world.check_starts_at(1)


def test_a_former_owner_deletes_nothing() -> None:
    world = World({"retention.ms": "0"})
    world.append()
    world.clock.advance(10)
    world.logs.metadata.claim("somebody else", SequentialIds(9).uuid())
    with pytest.raises(FencedError):
        world.retain()
    assert world.log.log_start_offset == 0


def test_a_topic_that_was_cut_before_it_was_tiered_starts_where_it_was_cut() -> None:
    world = World({"retention.ms": "-1"})
    for _ in range(2):
        world.append(upload=False)
    world.log.increment_log_start_offset(1)
    world.log.delete_local_segments()
    assert world.logs.upload().failed, "there is a gap below the local log"
    world.retain()
    world.check_starts_at(1)
    assert world.logs.upload().slice_count == 1
    assert [record.offset for record in world.logs.tiered_records(world.log)] == [1]


def test_a_partition_whose_disk_fails_does_not_hold_up_the_others() -> None:
    world = World({"retention.ms": "0"})
    other = world.logs.create_topic("other", 1, {"retention.ms": "0"})
    world.append()
    broken = world.logs.logs[TopicPartition("other", 0)]
    broken.close()
    world.clock.advance(10)
    seq = world.logs.catalog.confirm([world.topic, other])
    retention = RemoteRetention(world.clock, world.logs.metadata)
    report = retention.run([broken, world.log], epoch=world.logs.claimed.epoch, catalog_seq=seq)
    assert [failed.topic_partition for failed in report.failed] == [broken.topic_partition]
    assert [advanced.topic_partition for advanced in report.advanced] == [world.log.topic_partition]
    world.check_starts_at(1)
