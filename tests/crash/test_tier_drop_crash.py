"""A store that fails at every request of the end of a tier, and a machine that dies in it.

The log has tiered segments that the disk has, too, older ones that only the store has, and records that the
store never got. Whatever happens, the disk keeps all of its records, a repetition ends the tier, and another
upload brings all that the disk has to the store again.
"""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreUnavailableError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.tier.tier_drop import UPLOAD_UNDER_WAY, LeavingLogs
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultOn, FaultPlan, Operation, no_faults
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.tiered.tiered_site import TieredSite

GONE, TIERED, PENDING = 2, 3, 2
END = GONE + TIERED + PENDING
ON = {"retention.ms": "-1"}
OFF = ON | {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
HEAD = "shards/0000/head"


class Leaving(TieredSite):
    """A log that is to leave the store. All of its records are durable."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = FaultyFileSystem()
        self.plans: list[FaultPlan] = [no_faults]
        self.store = FaultyObjectStore(self.bucket, Random(0), self._plan)
        self.logs = self.start(self.faulty)
        topic = self.logs.create_topic("t", 1, ON)
        self.tip = TopicIdPartition(topic.topic_id, 0)
        for number in range(END):
            self.append()
            self.logs.seal()
            if number == GONE - 1:
                self.logs.upload()
                self.log.retention.delete_local_segments(ignore_retention=True)
            if number == GONE + TIERED - 1:
                self.logs.upload()
        assert self.local_offsets() == [*range(GONE, END)]
        assert self.partition.tiered_end_offset == GONE + TIERED

    def _plan(self, operation: Operation) -> Fault:
        return self.plans[-1](operation)

    @property
    def log(self) -> UnifiedLog:
        return self.logs.logs[TopicPartition("t", 0)]

    @property
    def partition(self) -> TieredPartition:
        return self.logs.metadata.refresh().partition(self.tip)

    def append(self) -> None:
        self.logs.append(self.log, [Record(0, self.clock.now_ms(), b"k", bytes(100))])

    def local_offsets(self) -> list[int]:
        return [one.base_offset for one in self.log.reader.segments() if one.size_bytes]

    def free_space(self) -> None:
        """Delete every local segment of which the log believes that the store has it."""
        self.log.retention.drop_for_space(1 << 40, may_lose=False)
        self.log.retention.delete_local_segments(ignore_retention=True)

    def on_another(self, disk: FileSystem) -> None:
        """The next server on that disk, over a copy of the bucket, where the topic is not tiered any more."""
        copy = MemoryObjectStore(self.clock)
        for found in self.bucket.list(""):
            copy.put(found.key, self.bucket.get(found.key).data)
        self.store = copy
        self.logs = self.start(disk, opens=False)
        topic = self.logs.catalog.alter_config(self.tip.topic_id, lambda _: OFF)
        self.logs.open_topic(topic)


def check_dropped(site: Leaving, begin: int = GONE) -> None:
    """The tier is gone, the disk has all of its records, and the store gets them again."""
    partition = site.partition
    partition.check()
    assert (partition.log_start_offset, partition.tiered_end_offset, len(partition.slices)) == (
        begin,
        begin,
        0,
    )
    assert site.local_offsets() == [*range(GONE, END)]
    assert site.log.offsets.log_start_offset == begin
    # The topic is tiered again.
    site.logs.keep_tiers()
    site.append()
    site.logs.seal()
    assert not site.logs.upload().refused
    assert [record.offset for record in site.logs.tiered_records(site.log)] == [*range(begin, END + 1)]
    site.free_space()
    assert site.log.offsets.local_log_start_offset == END + 1, "the disk may let go of them again"
    site.log.check()


def test_a_tier_goes_and_the_disk_keeps_all_that_it_has() -> None:
    site = Leaving()
    assert site.logs.drop_tiers().dropped == (TopicPartition("t", 0),)
    site.free_space()
    check_dropped(site)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS_OF_VERB["PUT"] if fault is not Fault.NONE])
@pytest.mark.parametrize("occurrence", [1, 2])
def test_whatever_the_store_does_no_record_of_the_disk_is_lost(fault: Fault, occurrence: int) -> None:
    site = Leaving()
    site.plans.append(FaultOn(fault, "PUT", HEAD, occurrence))
    try:
        site.logs.drop_tiers()
    except StoreUnavailableError:
        site.free_space()
        assert site.local_offsets() == [*range(GONE, END)]
    except ActorStopped:
        site.store = site.bucket
        site.logs = site.start(site.faulty.killed())
    site.plans.append(no_faults)
    site.logs.drop_tiers()
    site.free_space()
    check_dropped(site)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS_OF_VERB["PUT"] if fault is not Fault.NONE])
@pytest.mark.parametrize("occurrence", [1, 2])
def test_a_topic_that_is_tiered_again_meanwhile_loses_no_record_of_its_disk(
    fault: Fault, occurrence: int
) -> None:
    """A commit that lands after all must not find that the disk has let go of what it drops."""
    site = Leaving()
    site.plans.append(FaultOn(fault, "PUT", HEAD, occurrence))
    faulty = site.store
    assert isinstance(faulty, FaultyObjectStore)
    try:
        site.logs.drop_tiers()
    except StoreUnavailableError:
        pass
    except ActorStopped:
        site.store = site.bucket
        site.logs = site.start(site.faulty.killed())
    site.plans.append(no_faults)
    for _ in range(2):
        site.logs.metadata.refresh()
        site.logs.keep_tiers()
        site.free_space()
        faulty.release_all()
    site.logs.seal()
    for _ in range(2):
        site.append()
        site.logs.seal()
        site.logs.upload()
        site.logs.keep_tiers()
        site.free_space()
    partition = site.partition
    offsets = [record.offset for record in site.logs.tiered_records(site.log)]
    assert offsets == [*range(partition.log_start_offset, END + 2)]
    assert partition.log_start_offset <= GONE
    assert site.log.offsets.local_log_start_offset == END + 2, "nothing holds the disk for ever"


def drop_late(site: Leaving, occurrence: int) -> FaultyObjectStore:
    """A drop whose commit of that number lands late, and whose store is away until the call has ended."""
    faulty = site.store
    assert isinstance(faulty, FaultyObjectStore)
    late = FaultOn(Fault.LANDS_LATE, "PUT", HEAD, occurrence)
    seen: list[Fault] = []

    def goes_away(operation: Operation) -> Fault:
        seen.append(Fault.FAILS if Fault.LANDS_LATE in seen else late(operation))
        return seen[-1]

    site.plans.append(goes_away)
    with pytest.raises(StoreUnavailableError):
        site.logs.drop_tiers()
    site.plans.append(no_faults)
    site.logs.metadata.refresh()
    return faulty


def check_tiered_again(site: Leaving) -> None:
    """The topic stays in the store, which gets all that the disk has, and then the disk may let go of it."""
    site.logs.keep_tiers()
    site.append()
    site.logs.seal()
    assert not site.logs.upload().refused
    assert [record.offset for record in site.logs.tiered_records(site.log)] == [*range(GONE, END + 1)]
    site.free_space()
    assert site.log.offsets.local_log_start_offset == END + 1, "nothing holds the disk for ever"


@pytest.mark.parametrize("occurrence", [1, 2])
def test_a_late_commit_finds_that_the_disk_has_what_it_drops(occurrence: int) -> None:
    """The store goes away behind a commit, comes back, and the topic is tiered again before it lands."""
    site = Leaving()
    faulty = drop_late(site, occurrence)
    site.logs.keep_tiers()
    site.free_space()
    assert site.local_offsets() == [*range(GONE, END)], "it may still land"
    faulty.release_all()
    assert site.partition.tiered_end_offset == (GONE if occurrence == 2 else GONE + TIERED)
    check_tiered_again(site)


def test_a_late_commit_finds_it_also_after_a_call_that_was_refused() -> None:
    """The topic is tiered again just before the later call would have dropped the slices."""
    site = Leaving()
    faulty = drop_late(site, 2)
    all_logs = [*site.logs.logs.values()]
    answers = iter([all_logs, all_logs, []])
    with pytest.raises(PreconditionFailedError):
        site.logs.tier_drop.run(
            lambda: LeavingLogs(site.logs.catalog.refresh().seq, next(answers)),
            leader_epoch=lambda: site.logs.claimed.epoch,
        )
    site.logs.keep_tiers()
    site.free_space()
    assert site.local_offsets() == [*range(GONE, END)], "it may still land"
    faulty.release_all()
    assert site.partition.tiered_end_offset == GONE
    check_tiered_again(site)


def test_a_tier_waits_for_the_uploads_of_its_partition() -> None:
    site = Leaving()
    turns = site.logs.turns
    turns.take([site.tip], "an uploader")
    [refused] = site.logs.drop_tiers().refused
    assert refused.reason == UPLOAD_UNDER_WAY
    assert site.partition.tiered_end_offset == GONE + TIERED
    turns.release([site.tip], "an uploader")
    assert site.logs.drop_tiers().dropped


class Switching:
    """The workload of the sweep: the tier goes, then the log becomes one without tiers."""

    def __init__(self) -> None:
        self.site = Leaving()
        self.disk = self.site.faulty

    def run(self) -> None:
        self.site.log.increment_log_start_offset(GONE + 1)
        self.site.logs.metadata.advance_log_start(
            {self.site.tip: GONE + 1}, epoch=self.site.logs.claimed.epoch, catalog_seq=None
        )
        self.site.logs.drop_tiers()
        self.site.log.reconfigure(LogConfig.from_overrides(OFF))


def test_a_death_while_a_log_becomes_one_without_tiers_brings_nothing_back() -> None:
    sweep = CrashSweep(Switching, Switching.run)
    assert sweep.whole.site.log.offsets.log_start_offset == GONE + 1

    def verify(death: Death[Switching]) -> None:
        for disk in death.disks():
            site = death.subject.site
            begin = site.partition.log_start_offset
            site.on_another(disk)
            assert site.local_offsets() == [*range(GONE, END)]
            assert site.log.offsets.log_start_offset == max(begin, GONE)
            site.log.check()

    sweep.at_deaths(verify)
