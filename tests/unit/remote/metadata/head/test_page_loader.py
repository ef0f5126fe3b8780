"""The cache of pages: the requests that it sends, together or one by one, and its counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.checkpoint_page import PageRef
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.head.page_loader import PageLoader, run_in_order
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
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
    inputs = {tip: world.log.state().partition(tip).slices[2:7] for tip in PARTITIONS}
    # Another process commits that job, and has read nothing yet.
    world.loader = PageLoader(1 << 20, world.loader.run_all)
    log = world.open()
    names = sorted({live.object_name for slices in inputs.values() for live in slices})
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
