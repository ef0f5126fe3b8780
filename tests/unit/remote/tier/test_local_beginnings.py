"""Losses that only a local disk knows: they go on record behind what an upload has on its way, and they take
nothing that is live."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import TopicIdPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.retention.remote_retention import ExplainedPartition, RemoteRetention
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, FaultPlan, Operation, no_faults
from tests.support.tiered.late_sends import LateSends
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

HOUR_S = 3600
ALL_BYTES = 1 << 30
DROP = {"remote.copy.backlog.policy": "drop", "retention.ms": "-1"}


class ActingSends(LateSends):
    """Sends of objects, with an act while so many of them are on their way for the first time."""

    def __init__(self, site: TieredSite, act_at: int) -> None:
        super().__init__(site.clock, 0)
        self._act_at = act_at
        self.act: Callable[[], object] = lambda: None

    def run_beside(self, task: Callable[[], None]) -> None:
        super().run_beside(task)
        if self.max_count == self._act_at:
            self._act_at = 0
            self.act()


class World:
    """A topic with one partition of segments of ten records. Not thread-safe."""

    def __init__(self, config: dict[str, str]) -> None:
        self.site = TieredSite(max_object_bytes=600)
        self.plans: list[FaultPlan] = [no_faults]
        self.site.store = FaultyObjectStore(self.site.bucket, random.Random(0), self._newest)
        self.sends = ActingSends(self.site, 3)
        self.logs: TieredLogs = self.site.start(sends=self.sends, uploader_settings={"put_count": 3})
        self.logs.create_topic("t", 1, config)
        [self.log] = self.logs.logs.values()
        self.tip = TopicIdPartition(self.log.topic_id, 0)
        self.records: list[Record] = []

    def _newest(self, operation: Operation) -> Fault:
        return self.plans[-1](operation)

    @property
    def partition(self) -> TieredPartition:
        return self.logs.metadata.refresh().partition(self.tip)

    @property
    def first_offset(self) -> int:
        return self.log.local_log.segments.start_offset

    def fill(self, segment_count: int) -> None:
        for _ in range(segment_count):
            for _ in range(10):
                record = Record(0, self.site.clock.now_ms(), b"k", bytes(60))
                self.records += self.logs.append(self.log, [record])
            self.logs.seal()

    def drop(self, segment_count: int) -> int:
        segments = self.log.reader.segments()[:segment_count]
        return self.log.retention.drop_for_space(sum(one.size_bytes for one in segments), may_lose=True)

    def retain(self) -> list[int]:
        """The new log starts after a pass of retention."""
        retention, seq = RemoteRetention(self.logs.metadata), self.logs.catalog.seq
        report = retention.run([self.log], epoch=self.logs.claimed.epoch, catalog_seq=seq)
        assert not report.failed
        return [one.log_start_offset for one in report.advanced]

    def gaps(self) -> list[tuple[int, int, str]]:
        self.partition.check()
        return [
            (live.base_offset, live.end_offset, live.gap.reason)
            for live in self.partition.slices
            if live.gap is not None
        ]

    def offsets(self) -> list[int]:
        """The offsets that a reader gets from the store alone."""
        return [record.offset for record in self.logs.tiered_records(self.log)]


def log_start(world: World) -> int:
    return world.partition.log_start_beside(world.log.offsets.log_start_offset)


def test_what_is_on_its_way_is_not_dropped_and_no_gap_overtakes_it() -> None:
    world = World(DROP)
    world.fill(3)
    dropped_bytes: list[int] = []

    def act() -> None:
        dropped_bytes.append(world.log.retention.drop_for_space(ALL_BYTES, may_lose=True))
        world.retain()

    world.sends.act = act
    report = world.logs.upload()
    assert (report.failed, report.refused) == ([], [])
    assert dropped_bytes == [0]
    assert world.logs.tiered_records(world.log) == world.records
    assert world.log.retention.drop_for_space(ALL_BYTES, may_lose=True) > 0, "the pass has ended"
    assert (world.log.offsets.uploading_end_offset, world.gaps()) == (0, [])


def test_a_drop_while_nothing_is_on_its_way_is_recorded_by_the_next_upload_only() -> None:
    world = World(DROP)
    world.fill(1)
    world.logs.upload()
    world.fill(3)
    world.drop(2)
    assert world.first_offset == 20
    assert world.retain() == []
    assert world.gaps() == []
    world.logs.upload()
    assert world.gaps() == [(10, 20, "dropped_by_policy")]
    assert world.offsets() == [*range(10), *range(20, 40)]


def test_a_failed_upload_lets_go_of_the_segments() -> None:
    world = World(DROP)
    world.fill(3)
    world.plans.append(lambda one: Fault.FAILS if one.verb == "PUT" else Fault.NONE)
    with pytest.raises(StoreUnavailableError):
        world.logs.upload()
    assert world.log.offsets.uploading_end_offset == 0, "no object can be committed any more"
    assert world.drop(1) > 0


@pytest.mark.parametrize("fault", [Fault.LANDS_UNKNOWN, Fault.FAILS])
def test_a_commit_of_unknown_outcome_may_come_until_the_metadata_were_read(fault: Fault) -> None:
    """The disk gets its space, and a gap begins behind what has landed."""
    world = World(DROP)
    world.fill(3)
    is_away = False

    def goes_away(operation: Operation) -> Fault:
        nonlocal is_away
        if is_away:
            return Fault.FAILS
        is_away = operation.verb == "PUT" and operation.key.endswith("/head")
        return fault if is_away else Fault.NONE

    world.plans.append(goes_away)
    with pytest.raises(StoreUnavailableError):
        world.logs.upload()
    assert world.log.offsets.uploading_end_offset == 30
    assert world.drop(2) > 0
    with pytest.raises(StoreUnavailableError):
        world.logs.upload()
    assert world.log.offsets.uploading_end_offset == 30
    world.plans.append(no_faults)
    world.logs.upload()
    assert world.log.offsets.uploading_end_offset == 0
    [gap] = world.gaps()
    assert gap == ((0 if fault is Fault.FAILS else gap[0]), 20, "dropped_by_policy")
    assert (gap[0] > 0) == (fault is Fault.LANDS_UNKNOWN)
    assert world.offsets() == [*range(gap[0]), *range(20, 30)]


def expire_in_outage(world: World) -> None:
    """Two uploaded segments, and two that the retention of one hour has deleted on the disk alone."""
    world.fill(2)
    world.logs.upload()
    world.fill(2)
    world.site.clock.sleep(2 * HOUR_S)
    [moved] = RemoteRetention(world.logs.metadata).run_unreachable([world.log]).advanced
    assert (moved.log_start_offset, log_start(world)) == (40, 40)
    world.log.retention.delete_local_segments()
    world.fill(1)


def test_records_expire_in_an_outage_without_a_look_at_stored_slices() -> None:
    """The pages of the slices cannot be read while the store is away."""
    world = World({"retention.ms": str(HOUR_S * 1000)})
    world.fill(2)
    world.logs.upload()
    world.logs.metadata.fold()
    world.fill(2)
    world.plans.append(lambda _: Fault.FAILS)
    retention = RemoteRetention(world.logs.metadata)
    world.site.clock.sleep(HOUR_S // 2)
    report = retention.run_unreachable([world.log])
    assert (report.advanced, report.failed) == ((), ())
    world.site.clock.sleep(2 * HOUR_S)
    report = retention.run_unreachable([world.log])
    assert not report.failed
    assert [one.log_start_offset for one in report.advanced] == [40]


def configure(world: World, retention_ms: str) -> None:
    config = {"retention.ms": retention_ms}
    world.logs.catalog.alter(world.log.topic_id, config=config)
    world.log.reconfigure(LogConfig.from_overrides(config))


@pytest.mark.parametrize("retention_ms", ["-1", str(HOUR_S * 1000)])
def test_an_outdated_configuration_deletes_nothing_in_the_store(retention_ms: str) -> None:
    """Records that have expired on the disk are gone. The current configuration decides about tiered ones."""
    world = World({"retention.ms": str(HOUR_S * 1000)})
    expire_in_outage(world)
    configure(world, retention_ms)
    assert world.retain() == [], "before the loss is on record"
    assert log_start(world) == 40
    world.logs.upload()
    assert world.gaps() == [(20, 40, "expired")]
    assert (log_start(world), world.offsets()) == (0, [*range(20), *range(40, 50)])
    kept = [] if retention_ms == "-1" else [log_start(world) for _ in world.retain()]
    # What retention has left itself goes with the slices in front of it, not a retention later.
    assert kept in ([], [40])
    assert world.retain() == []
    assert world.offsets() == [*(range(20) if retention_ms == "-1" else ()), *range(40, 50)]


def test_the_log_start_of_an_outage_survives_a_restart_and_the_committed_one_counts_afterwards() -> None:
    world = World({"retention.ms": str(HOUR_S * 1000)})
    expire_in_outage(world)
    world.logs.close()
    logs = world.site.start()
    [log] = logs.logs.values()
    assert log.offsets.log_start_offset == 40
    logs.upload()
    assert world.gaps() == [(20, 40, "expired")]
    assert logs.metadata.state().partition(world.tip).log_start_beside(log.offsets.log_start_offset) == 0


def test_what_has_expired_before_the_first_upload_moves_the_log_start() -> None:
    world = World({"retention.ms": str(HOUR_S * 1000)})
    world.fill(2)
    world.site.clock.sleep(2 * HOUR_S)
    RemoteRetention(world.logs.metadata).run_unreachable([world.log])
    world.fill(1)
    world.logs.upload()
    assert (world.gaps(), log_start(world), world.offsets()) == ([], 20, [*range(20, 30)])


def test_an_expiry_and_a_drop_behind_it_are_two_gaps() -> None:
    world = World({**DROP, "retention.ms": str(HOUR_S * 1000)})
    expire_in_outage(world)
    world.fill(1)
    assert world.drop(1) > 0
    world.logs.upload()
    assert world.gaps() == [(20, 40, "expired"), (40, 50, "dropped_by_policy")]
    assert world.offsets() == [*range(20), *range(50, 60)]


@pytest.mark.parametrize("later_policy", ["drop", "block"])
def test_the_reason_of_a_gap_is_that_of_the_loss(later_policy: str) -> None:
    world = World(DROP)
    world.fill(4)
    world.drop(2)
    assert world.log.retention.space_drop_end_offset() == 20
    directory = world.log.local_log.directory
    world.logs.close()
    missing = [path for path in world.site.disk.contents() if path.startswith(f"{directory}/{20:020}.")]
    assert missing
    for path in missing:
        world.site.disk.unlink(path)
    config = {**DROP, "remote.copy.backlog.policy": later_policy}
    world.logs.catalog.alter(world.log.topic_id, config=config)
    logs = world.site.start()
    logs.upload()
    assert world.gaps() == [(0, 20, "dropped_by_policy"), (20, 30, "missing_on_local_disk")]
    [log] = logs.logs.values()
    assert [record.offset for record in logs.tiered_records(log)] == [*range(30, 40)]


def test_a_drop_of_tiered_segments_alone_notes_nothing() -> None:
    world = World(DROP)
    world.fill(3)
    world.logs.upload()
    assert world.drop(2) > 0
    assert world.log.retention.space_drop_end_offset() == 0


def test_a_log_that_is_not_uploaded_has_its_losses_on_record_too() -> None:
    world = World(DROP)
    world.fill(3)
    world.drop(2)
    idle: list[UnifiedLog] = [world.log]
    report = world.logs.uploader.upload([], epoch=world.logs.claimed.epoch, idle_logs=idle)
    assert report.object_count == 0
    assert (world.gaps(), world.partition.tiered_end_offset) == ([(0, 20, "dropped_by_policy")], 20)


def test_the_explanation_of_retention_says_that_a_partition_behind_its_tiered_end_waits() -> None:
    world = World({"retention.ms": str(HOUR_S * 1000)})
    expire_in_outage(world)
    [explained] = RemoteRetention(world.logs.metadata).explain([world.log])
    assert isinstance(explained, ExplainedPartition)
    assert (explained.log_start_offset, explained.new_log_start_offset) == (40, 40)
    assert explained.tiered.expired == ()
