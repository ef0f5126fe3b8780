"""How far the log start moves, against a list of units, and through the whole stack."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    CorruptRecordError,
    FencedError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.read.segment_info import SegmentInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.header import MAX_TIMESTAMP_POSITION
from stratalog.record.record import Record
from stratalog.remote.tier.remote_retention import (
    RemoteRetention,
    RetentionReport,
    RetentionUnit,
    log_start_after,
)
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.tiered_logs import TieredLogs

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


def is_older(row: list[RetentionUnit], retention_ms: int) -> bool:
    """Whether the first of the row is; one without timestamps is as old as the first behind it with one."""
    known = [unit.max_timestamp for unit in row if unit.max_timestamp >= 0]
    return row[0].is_empty or (bool(known) and NOW_MS - known[0] > retention_ms)


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
    for number in range(len(gone)):
        behind_bytes = sum(later.size_bytes for later in units[number + 1 :])
        is_too_much = 0 <= retention_bytes <= behind_bytes
        is_old = is_time_known and retention_ms >= 0 and is_older(units[number:], retention_ms)
        assert is_too_much or is_old
    if left and not left[0].is_active:
        behind_bytes = sum(later.size_bytes for later in left[1:])
        assert retention_bytes < 0 or behind_bytes < retention_bytes
        assert not is_time_known or retention_ms < 0 or not is_older(left, retention_ms)


def test_a_topic_that_is_only_compacted_keeps_everything() -> None:
    units = [RetentionUnit(5, 100, 0)]
    config = LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0, retention_bytes=0)
    assert log_start_after(units, config, NOW_MS) is None
    both = dataclasses.replace(config, cleanup_policy=frozenset({"compact", "delete"}))
    assert log_start_after(units, both, NOW_MS) == 5


class World:
    def __init__(self, config: dict[str, str], *, max_object_bytes: int = 1 << 20, skew_ms: int = 0) -> None:
        self.clock = ManualClock()
        store_clock = ManualClock(self.clock.now_ms() - skew_ms) if skew_ms else self.clock
        self.objects_left: int | None = None
        self.store = FaultyObjectStore(MemoryObjectStore(store_clock), random.Random(0), self.fault)
        self.disk = MemoryFileSystem()
        self.logs = TieredLogs(
            self.disk, self.store, self.clock, SequentialIds(1), max_object_bytes=max_object_bytes
        )
        self.topic = self.logs.create_topic("t", 1, config)
        self.log: UnifiedLog = self.logs.logs[TopicPartition("t", 0)]
        self.tip = TopicIdPartition(self.topic.topic_id, 0)

    def append(
        self, *, age_ms: int = 0, timestamp_ms: int | None = None, is_sealed: bool = True, upload: bool = True
    ) -> None:
        """A batch with one record, of now or as told; a segment of its own if it is sealed."""
        timestamp_ms = self.clock.now_ms() - age_ms if timestamp_ms is None else timestamp_ms
        self.logs.append(self.log, [Record(0, timestamp_ms, b"k", b"v" * 100)])
        if is_sealed:
            self.logs.seal()
        if is_sealed and upload:
            self.logs.upload()

    def upload_one_object(self) -> None:
        """As if the bucket went away after the first one."""
        self.objects_left = 1
        with contextlib.suppress(StoreUnavailableError):
            self.logs.upload()
        self.objects_left = None

    def fault(self, operation: Operation) -> Fault:
        if self.objects_left is None or operation.verb != "PUT" or "/data/" not in operation.key:
            return Fault.NONE
        self.objects_left -= 1
        return Fault.NONE if self.objects_left >= 0 else Fault.FAILS

    def delete_records(self, before_offset: int) -> None:
        """As the call of that name does: committed first, then told to the log."""
        starts = {self.tip: before_offset}
        self.logs.metadata.advance_log_start(starts, epoch=self.logs.claimed.epoch, catalog_seq=None)
        partition = self.logs.metadata.state().partition(self.tip)
        self.log.update_tiered_end_offset(partition.tiered_end_offset)
        self.log.increment_log_start_offset(partition.log_start_offset)

    def retain(self, catalog_seq: int | None = None) -> RetentionReport:
        retention = RemoteRetention(self.logs.metadata)
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


def test_a_segment_that_is_tiered_in_part_is_counted_once() -> None:
    """Of three batches in a segment the first is in the store: 342 bytes behind it, 513 in all."""
    for retention_bytes, log_start_offset in ((343, 0), (342, 1)):
        world = World({"retention.bytes": str(retention_bytes), "retention.ms": "-1"}, max_object_bytes=200)
        for _ in range(3):
            world.append(is_sealed=False)
        world.logs.seal()
        world.upload_one_object()
        assert (world.log.tiered_end_offset, world.log.size_bytes) == (1, 3 * 171)
        world.retain()
        world.check_starts_at(log_start_offset)


def test_the_rest_of_a_segment_that_is_tiered_in_part_keeps_what_is_behind_it() -> None:
    """An object filled up inside of a segment: its first record is tiered and old, the second is new."""
    world = World({"retention.ms": str(HOUR_MS)}, max_object_bytes=200)
    world.append(age_ms=2 * HOUR_MS, is_sealed=False)
    world.append(upload=False)
    world.append(age_ms=2 * HOUR_MS, upload=False)
    world.upload_one_object()
    assert world.logs.metadata.state().partition(world.tip).tiered_end_offset == 1
    world.retain()
    world.check_starts_at(1)


def test_a_log_start_inside_of_a_segment_keeps_the_rest_of_it() -> None:
    """Somebody deleted the first record of two, so that nothing is tiered below the second one."""
    world = World({"retention.ms": str(HOUR_MS)})
    world.append(is_sealed=False)
    world.append(upload=False)
    world.append(age_ms=2 * HOUR_MS, upload=False)
    world.delete_records(1)
    assert world.retain().advanced == ()
    world.check_starts_at(1)
    world.clock.advance(HOUR_MS + 1)
    world.retain()
    world.check_starts_at(3)


@given(st.data())
def test_no_record_that_is_young_enough_goes_and_in_time_all_do(data: st.DataObject) -> None:
    """However segments and objects are cut: against nothing but the age of each record."""
    world = World({"retention.ms": str(HOUR_MS)}, max_object_bytes=400)
    ages_ms: list[int] = []
    for step in data.draw(st.lists(st.sampled_from("aaasuodlr"), max_size=25)):
        if step == "a":
            ages_ms.append(data.draw(st.sampled_from([0, 2 * HOUR_MS])))
            world.append(age_ms=ages_ms[-1], is_sealed=False)
        elif step == "s":
            world.logs.seal()
        elif step == "u":
            world.logs.upload()
        elif step == "o":
            world.upload_one_object()
        elif step == "d":
            world.delete_records(data.draw(st.integers(world.log.log_start_offset, len(ages_ms))))
        elif step == "l":
            world.log.delete_local_segments(ignore_retention=True)
        else:
            before = world.log.log_start_offset
            world.retain()
            after = world.log.log_start_offset
            assert all(age_ms > HOUR_MS for age_ms in ages_ms[before:after])
    world.logs.seal()
    world.clock.advance(HOUR_MS + 1)
    world.retain()
    world.check_starts_at(len(ages_ms))


def test_what_is_uploaded_and_dropped_here_during_a_pass_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({"retention.ms": str(HOUR_MS)})
    world.append(upload=False)
    world.append(age_ms=2 * HOUR_MS, upload=False)
    segments = world.log.segments

    def segments_after_upload() -> tuple[SegmentInfo, ...]:
        world.logs.upload()
        world.log.delete_local_segments(ignore_retention=True)
        return segments()

    monkeypatch.setattr(world.log, "segments", segments_after_upload)
    assert world.retain().advanced == ()
    world.check_starts_at(0)


def test_a_record_without_a_timestamp_goes_with_what_is_behind_it() -> None:
    world = World({"retention.ms": str(HOUR_MS)})
    for upload in (True, True, False):
        world.append(timestamp_ms=-1, upload=upload)
    world.clock.advance(10 * HOUR_MS)
    assert world.retain().advanced == (), "nothing says how old they are"
    world.append(upload=False)
    assert world.retain().advanced == ()
    world.clock.advance(HOUR_MS + 1)
    assert world.retain().advanced == ((TopicPartition("t", 0), 4),)
    world.append(timestamp_ms=-1)
    assert world.retain().advanced == ()
    world.check_starts_at(4)


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
    world = World({"retention.ms": str(HOUR_MS)}, skew_ms=6 * 60_000)
    world.append(age_ms=2 * HOUR_MS)
    report = world.retain()
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
    retention = RemoteRetention(world.logs.metadata)
    report = retention.run([broken, world.log], epoch=world.logs.claimed.epoch, catalog_seq=seq)
    assert [failed.topic_partition for failed in report.failed] == [broken.topic_partition]
    assert [advanced.topic_partition for advanced in report.advanced] == [world.log.topic_partition]
    world.check_starts_at(1)


def test_what_is_on_this_disk_only_does_not_go_by_an_age_that_is_damaged() -> None:
    world = World({"retention.ms": str(HOUR_MS), "retention.bytes": "-1"})
    world.append()
    for _ in range(3):
        world.append(upload=False)
    path = f"{world.log.directory}/{2:020d}.log"
    data = bytearray(world.disk.read_file(path))
    data[MAX_TIMESTAMP_POSITION + 7] ^= 1
    file = world.disk.open_append(path)
    file.truncate(0)
    file.append([data])
    world.clock.advance(3 * HOUR_MS)
    for _ in range(2):
        (failed,) = world.retain().failed
        assert isinstance(failed.error, CorruptRecordError)
        partition = world.logs.metadata.refresh().partition(world.tip)
        assert partition.log_start_offset == world.log.log_start_offset == 2
    # By size it goes as every other: a disk must not grow without end.
    world.log.reconfigure(dataclasses.replace(world.log.config, retention_bytes=0))
    world.retain()
    assert world.logs.metadata.refresh().partition(world.tip).log_start_offset == 4
