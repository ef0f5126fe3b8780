"""Exclusions that outlive the process: why, and since when."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import Compactor, CompactorConfig
from stratalog.compaction.exclusion.exclusion_file import ExclusionFile
from stratalog.compaction.job_history import Exclusion, JobHistory
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.stores.archiving_store import ArchivingStore
from tests.support.tiered.tiered_store import TieredStore

PATH = "/data/scratch/0000/exclusions.json"
RETRY_MS = 5 * 60_000
YEAR_MS = 365 * 24 * 60 * 60_000


class World:
    """A compacted partition, one of whose objects the store has archived."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.began_ms = self.clock.now_ms()
        self.store = ArchivingStore(self.clock)
        self.disk = MemoryFileSystem()
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
        self.tip = TopicIdPartition(topic.topic_id, 0)
        name = ""
        for offset in range(2):
            batch = encode_batch([Record(0, 0, b"key", b"%d" % offset)], base_offset=offset, leader_epoch=1)
            name = self.tiered.upload({self.tip: [batch]})
        self.shard = self.tiered.shard(self.store)
        self.store.archived.add(self.tiered.layout.data_key(name))

    def restarted(self) -> Compactor:
        return Compactor(
            self.disk,
            self.clock,
            SequentialIds(2),
            self.shard,
            CompactionSettings(spool_directory="/data/scratch/0000/compaction"),
            CompactorConfig(exclusions_path=PATH),
        )


def test_since_when_a_partition_is_excluded_outlives_a_restart() -> None:
    """It began anew with each start of the server."""
    world = World()
    since_ms = world.clock.now_ms()
    world.restarted().run()
    world.clock.advance(1_000)
    compactor = world.restarted()
    found = compactor.exclusions()[world.tip]
    assert (found.since_ms, found.until_ms, found.failure_count) == (since_ms, since_ms + RETRY_MS, 1)
    assert "archived" in found.reason
    assert not compactor.plan().jobs, "it is left alone, as before"
    world.clock.advance(RETRY_MS)
    compactor = world.restarted()
    assert not compactor.excluded(), "its time is over"
    assert compactor.exclusions(), "it has not been compacted yet"
    compactor.run()
    found = world.restarted().exclusions()[world.tip]
    assert (found.since_ms, found.failure_count) == (since_ms, 2)


@pytest.mark.parametrize("how", ["reset", "compacted"])
def test_what_is_over_is_over_for_the_next_process_too(how: str) -> None:
    world = World()
    compactor = world.restarted()
    compactor.run()
    if how == "reset":
        assert compactor.reset(world.tip)
    else:
        world.store.archived.clear()
        world.clock.advance(RETRY_MS)
        world.restarted().run()
    assert ExclusionFile(world.disk, PATH).read() == {}


def test_what_a_run_leaves_out_without_a_try_keeps_its_time() -> None:
    world = World()
    since_ms = world.clock.now_ms()
    world.restarted().run(left_alone={world.tip: "offline"})
    world.clock.advance(1_000)
    compactor = world.restarted()
    compactor.run(left_alone={world.tip: "offline"})
    assert compactor.exclusions() == {world.tip: Exclusion("offline", since_ms, None, 0)}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_that_was_ahead_excludes_no_partition_for_long(is_restarted: bool) -> None:
    """The clock of a machine is wrong at its start, a partition fails, and then the clock is corrected."""
    world = World()
    now_ms = world.clock.now_ms()
    clock = ManualClock(now_ms + 10 * YEAR_MS)
    history = JobHistory(clock, lambda: RETRY_MS, ExclusionFile(world.disk, PATH))
    [job] = world.restarted().plan().jobs
    history.exclude(job, frozenset({world.tip}), RuntimeError("damaged"))
    clock.set_wall_ms(now_ms)
    if is_restarted:
        # The first look is not before its time is over.
        history = JobHistory(clock, lambda: RETRY_MS, ExclusionFile(world.disk, PATH))
    else:
        found = history.exclusions()[world.tip]
        assert (found.since_ms, found.until_ms) == (now_ms, now_ms + RETRY_MS)
    clock.set_wall_ms(now_ms + RETRY_MS)
    assert not history.excluded()


def test_the_failures_of_a_topic_are_forgotten_once_it_is_deleted() -> None:
    """Their rows stayed in the file for ever."""
    world = World()
    compactor = world.restarted()
    compactor.run()
    assert ExclusionFile(world.disk, PATH).read()[world.tip].failure_count == 1
    world.tiered.catalog.delete(world.tip.topic_id)
    for _ in range(2):
        compactor.run()
        # As long as its slices are there.
        left = ExclusionFile(world.disk, PATH).read()[world.tip]
        assert (left.failure_count, left.until_ms, left.since_ms) == (0, None, world.began_ms)
        assert "not in the catalog" in left.reason
        world.clock.advance(1_000)
    JobHistory(world.clock, lambda: RETRY_MS, ExclusionFile(world.disk, PATH)).note_left_out(
        [], frozenset(), is_whole=True
    )
    assert ExclusionFile(world.disk, PATH).read() == {}


@pytest.mark.parametrize("data", [b"", b"{}}", b"[1]", b'[["x", 0, "", 0, null, 0, false]]', b"\xff"])
def test_a_damaged_file_is_no_obstacle(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.disk.make_directories("/data/scratch/0000")
    world.disk.open_append(PATH).append([data])
    compactor = world.restarted()
    assert not compactor.exclusions()
    assert "begin anew" in caplog.text
    compactor.run()
    assert list(ExclusionFile(world.disk, PATH).read()) == [world.tip]


def test_a_full_disk_is_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    disk = FullFileSystem()
    disk.fill("/data")
    file = ExclusionFile(disk, PATH)
    file.write({TopicIdPartition(UUID(int=1), 0): Exclusion("damaged", 1, 2, 1)})
    assert "a restart forgets" in caplog.text
    assert file.read() == {}
