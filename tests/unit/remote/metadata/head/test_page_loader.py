"""The cache of pages: the requests that it sends, together or one by one, and its counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.base.scheduler import run_here
from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.checkpoint_page import PageRef
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.head.page_loader import DiskUpkeep, PageLoader, run_in_order
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.read.disk_cache import DiskCache
from stratalog.remote.store_layout import format_checkpoint_name
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.tiered.counting_object_store import CountingObjectStore, RequestKind
from tests.support.tiered.metadata_harness import A0, A1, B0, MetadataHarness

PARTITIONS = (A0, A1, B0)
SETTINGS = CommitSettings(fold_by_itself=False, page_rows=3)


class World:
    """A folded shard with pages of three slices, whose reads are noted. Not thread-safe."""

    def __init__(self, capacity_bytes: int = 1 << 20) -> None:
        self.harness = MetadataHarness()
        self.store = CountingObjectStore(self.harness.store)
        _, self.epoch = self.harness.owned()
        log = self.harness.log(settings=SETTINGS)
        for number in range(12):
            self.harness.added(log, self.epoch, *((tip, number, number + 1) for tip in PARTITIONS))
        log.fold()
        self.batches: list[int] = []
        """How many pages each call has read together."""
        self.loader = PageLoader(capacity_bytes, self._run_all)
        self.log = self.open()

    @property
    def read_pages(self) -> list[str]:
        """The pages that were read since the last `forget_reads`, as often as that."""
        counts = self.store.counts()
        keys = [kind.kind for kind in counts if kind.verb == "GET" and "/pages/" in kind.kind]
        return [key for key in keys for _ in range(counts[RequestKind("GET", key)].requests)]

    def open(self) -> MetadataLog:
        """Another log with the same cache."""
        actor = replace(self.harness.actor("owner", store=self.store), loader=self.loader)
        log = MetadataLog.open(actor, 0, self.harness.load_directory, settings=SETTINGS)
        self.forget_reads()
        return log

    def forget_reads(self) -> None:
        self.batches.clear()
        self.store.reset()

    def pages(self) -> tuple[PageRef, ...]:
        checkpoint = self.harness.head().checkpoint
        assert checkpoint is not None
        return read_root(self.store, self.harness.layout, checkpoint).pages_of("slices")

    def _run_all(self, functions: Sequence[Callable[[], object]]) -> Sequence[object]:
        before = len(self.read_pages)
        results = run_in_order(functions)
        self.batches.append(len(self.read_pages) - before)
        return results


def test_advancing_many_partitions_reads_their_pages_together() -> None:
    world = World()
    world.log.advance_log_start(dict.fromkeys(PARTITIONS, 5), epoch=None, catalog_seq=0)
    assert world.batches == [len(world.read_pages)], "no page was read alone"
    assert len(set(world.read_pages)) == len(world.read_pages) > len(PARTITIONS)
    for tip in PARTITIONS:
        assert world.log.state().partition(tip).log_start_offset == 5
    world.log.check()


def test_a_replacement_reads_the_pages_of_its_inputs_together() -> None:
    world = World()
    made = world.harness.put(world.log, *((tip, 2, 7) for tip in PARTITIONS))
    inputs = {tip: SliceRanges.of(world.log.state().partition(tip).slices[2:7]) for tip in PARTITIONS}
    # Another process commits that job, and has read nothing yet.
    world.loader = PageLoader(1 << 20, world.loader.run_all)
    log = world.open()
    names = sorted({name for ranges in inputs.values() for name in ranges.object_names})
    log.replace(
        inputs,
        names,
        [(made.ref, made.entries())],
        covers=dict.fromkeys(PARTITIONS, False),
        catalog_seq=0,
        drops_records=False,
    )
    assert sum(world.batches) == len(world.read_pages) > 1, "no page was read alone"
    log.check()


def test_look_ups_are_counted() -> None:
    world = World()
    before = world.log.page_cache_stats
    first, second = world.pages()[:2]
    world.loader.read_ahead(world.store, world.harness.layout, [first])
    assert world.read_pages == [], "a page alone is read when it is wanted"
    for ref in (first, first, second):
        world.loader.page(world.store, world.harness.layout, ref)
    after = world.log.page_cache_stats
    assert (after.miss_count - before.miss_count, after.hit_count - before.hit_count) == (2, 1)
    assert after.entry_count - before.entry_count == 4, "each is there in both forms"
    assert after.eviction_count == 0
    world.loader.check()


def test_a_cache_that_is_full_evicts_and_reads_ahead_no_more_than_it_holds() -> None:
    pages = World().pages()
    capacity_bytes = 4 * max(page.size_bytes for page in pages)
    world = World(capacity_bytes)
    world.loader.read_ahead(world.store, world.harness.layout, world.pages())
    stored_bytes = capacity_bytes - capacity_bytes // 4
    assert sum(len(world.store.get(key).data) for key in world.read_pages) <= stored_bytes // 2
    for ref in world.pages():
        world.loader.page(world.store, world.harness.layout, ref)
    stats = world.loader.stats
    assert stats.eviction_count >= len(world.pages()) - 4
    assert stats.size_bytes <= stats.capacity_bytes
    world.loader.check()


class DiskWorld(World):
    """The same with the pages on disk as well. Not thread-safe."""

    def __init__(self, disk_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.filesystem = MemoryFileSystem()
        self.restart(disk_bytes)

    def restart(self, disk_bytes: int = 1 << 20) -> None:
        """Open the log in another process on the same disk."""
        self.disk = DiskCache(self.filesystem, "/data/pages", disk_bytes, run_here)
        self.disk.open()
        self.loader = PageLoader(1 << 20, self._run_all, self.disk)
        self.log = self.open()

    def keep(self, max_count: int = 1000) -> DiskUpkeep:
        upkeep = self.log.keep_pages(max_count)
        self.disk.check()
        return upkeep

    def fold(self) -> None:
        """Add slices behind all others, and fold them."""
        state = self.log.state()
        ends = {tip: state.partition(tip).tiered_end_offset for tip in PARTITIONS}
        self.harness.added(self.log, self.epoch, *((tip, end, end + 1) for tip, end in ends.items()))
        self.log.fold()

    def slices(self) -> list[LiveSlice]:
        """All slices, which takes all pages of slices."""
        return [live for tip in PARTITIONS for live in self.log.state().partition(tip).slices]

    def root_keys(self) -> set[str]:
        """The keys of all pages of the newest checkpoint."""
        checkpoint = self.harness.head().checkpoint
        assert checkpoint is not None
        pages = read_root(self.harness.store, self.harness.layout, checkpoint).pages
        return {self.harness.layout.page_key(page.name) for page in pages}

    def disk_keys(self) -> set[str]:
        return self.disk.keys(self.harness.layout.page_key(""))


def test_a_restart_needs_no_request_for_pages_that_were_fetched() -> None:
    world = DiskWorld()
    slices = world.slices()
    assert len(world.read_pages) == len(world.pages()), "each was fetched"
    world.restart()
    assert world.slices() == slices
    assert world.read_pages == []
    stats = world.log.page_disk_stats
    assert stats is not None
    assert stats.hit_count == len(world.pages())


def test_a_fold_reads_its_pages_on_disk_and_leaves_the_new_ones_there() -> None:
    world = DiskWorld()
    world.keep()
    world.forget_reads()
    world.fold()
    assert world.read_pages == [], "the fold merged pages of the disk"
    assert world.root_keys() <= world.disk_keys()
    world.restart()
    assert len(world.slices()) == 13 * len(PARTITIONS)
    assert world.read_pages == []


def test_missing_pages_are_fetched_a_few_at_a_time_and_old_ones_deleted() -> None:
    world = DiskWorld()
    wanted = world.root_keys()
    counts: list[int] = []
    while (upkeep := world.keep(max_count=3)).fetched_count:
        counts.append(upkeep.fetched_count)
        assert upkeep.deleted_count == 0
    assert sum(counts) == len(wanted) == len(world.disk_keys())
    assert set(counts[:-1]) == {3}
    assert len(counts) > 2
    world.fold()
    replaced = wanted - world.root_keys()
    assert replaced <= world.disk_keys()
    assert world.keep() == DiskUpkeep(0, 0, len(replaced))
    assert world.disk_keys() == world.root_keys()


def test_pages_of_a_fold_that_is_not_committed_yet_stay() -> None:
    world = DiskWorld()
    other = world.harness.layout.page_key(format_checkpoint_name(10**6, UUID(int=1)))
    old = world.harness.layout.page_key(format_checkpoint_name(1, UUID(int=2)))
    foreign = world.harness.layout.page_key("no-page")
    for key in (other, old, foreign):
        world.disk.offer(key, 0, b"page")
    assert world.keep().deleted_count == 2
    assert world.disk_keys() == world.root_keys() | {other}


CHANGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda contents: contents[:-1],
    lambda contents: contents[:-3] + b"xyz",
    lambda _: b"",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_page_on_disk_is_fetched_again(change: Callable[[bytes], bytes]) -> None:
    world = DiskWorld()
    slices = world.slices()
    for name in world.filesystem.list_directory("/data/pages"):
        path = f"/data/pages/{name}"
        contents = change(world.filesystem.read_file(path))
        world.filesystem.unlink(path)
        file = world.filesystem.open_append(path)
        file.append([contents])
        file.close()
    world.restart()
    assert world.slices() == slices
    assert len(world.read_pages) == len(world.pages())
    world.restart()
    assert world.slices() == slices
    assert world.read_pages == []


def test_another_page_under_the_name_of_one_is_fetched_again() -> None:
    world = DiskWorld()
    slices = world.slices()
    for page in world.pages():
        world.disk.forget(world.harness.layout.page_key(page.name), 0, 1)
        world.disk.offer(world.harness.layout.page_key(page.name), 0, b"x" * page.size_bytes)
    world.loader = PageLoader(1 << 20, world.loader.run_all, world.disk)
    world.log = world.open()
    assert world.slices() == slices
    assert len(world.read_pages) == len(world.pages())


def test_a_disk_that_is_too_small_is_filled_once() -> None:
    world = DiskWorld(disk_bytes=3 * 4096)
    assert world.keep().fetched_count == 0, "four do not fit"
    world.restart(disk_bytes=5 * 4096)
    assert world.keep().fetched_count == 4
    kept = world.disk_keys()
    assert world.keep() == DiskUpkeep()
    assert world.disk_keys() == kept
    world.disk.yield_space(1 << 20)
    assert world.keep() == DiskUpkeep(), "the disk is short of space"
    world.disk.yield_space(0)
    assert world.keep().fetched_count == 4


def test_without_a_disk_nothing_is_kept() -> None:
    world = World()
    assert world.log.keep_pages(1000) == DiskUpkeep()
    assert world.log.page_disk_stats is None
