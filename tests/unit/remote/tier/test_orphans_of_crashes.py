"""A process dies at each operation of the store on its way to a commit, and nothing is left over after the
collection.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import pytest

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.tier.collector import Collector
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, FaultsAt
from tests.support.tiered.current_keys import left_over_keys
from tests.support.tiered.metadata_harness import MetadataHarness
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.tiered_store import TieredStore

DAY_MS = 24 * 3_600_000
T0 = TopicPartition("t", 0)


class Work(Protocol):
    """Work on a store that dies. Built anew for each death, always the same."""

    bucket: MemoryObjectStore
    clock: ManualClock

    def run(self, store: ObjectStore) -> None:
        """All of the work, through `store`."""
        ...

    def survivor(self) -> tuple[MetadataLog, Catalog]:
        """Another process, after the death."""
        ...


class UploadWork:
    """A server that uploads two objects."""

    def __init__(self) -> None:
        self._site = TieredSite(max_object_bytes=1, commit_settings=CommitSettings(fold_by_itself=False))
        self.bucket, self.clock = self._site.bucket, self._site.clock
        logs = self._site.start()
        logs.create_topic("t", 1, {})
        for _ in range(2):
            logs.append(logs.logs[T0], [Record(0, 5, b"k", b"v")])
            logs.seal()
        logs.close()

    def run(self, store: ObjectStore) -> None:
        self._site.store = store
        logs = self._site.start()
        logs.upload()

    def survivor(self) -> tuple[MetadataLog, Catalog]:
        self._site.store = self.bucket
        logs = self._site.start(MemoryFileSystem())
        return logs.metadata, logs.catalog


class CompactionWork:
    """A compaction of two objects."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryObjectStore(self.clock)
        self._tiered = TieredStore(MemoryFileSystem(), self.bucket, self.clock, SequentialIds(1))
        topic = self._tiered.catalog.create("state", 1, {"cleanup.policy": "compact"})
        tip = TopicIdPartition(topic.topic_id, 0)
        for offset in range(2):
            batch = encode_batch([Record(0, self.clock.now_ms(), b"k", b"v")], base_offset=offset)
            self._tiered.upload({tip: [batch]})

    def run(self, store: ObjectStore) -> None:
        self._tiered.compactor(store).run(("state",))

    def survivor(self) -> tuple[MetadataLog, Catalog]:
        return self._tiered.open_metadata(self.bucket, "collector"), self._tiered.catalog


class FoldWork:
    """Folds of a shard and of the catalog, each with a checkpoint to replace."""

    def __init__(self) -> None:
        self._harness = MetadataHarness()
        self.clock, self.bucket = self._harness.clock, self._harness.store
        catalog = self._harness.catalog()
        log, _ = self._harness.owned()
        for number in range(2):
            log.claim("owner", self._harness.ids.uuid())
            catalog.create(f"t{number}", 1)
        log.fold()
        catalog.fold()
        log.claim("owner", self._harness.ids.uuid())
        catalog.create("t", 1)

    def run(self, store: ObjectStore) -> None:
        self._harness.log(store=store).fold()
        self._harness.catalog(store=store).fold()

    def survivor(self) -> tuple[MetadataLog, Catalog]:
        return self._harness.log(), self._harness.catalog()


@pytest.mark.parametrize("work", [UploadWork, CompactionWork, FoldWork])
def test_a_death_at_any_operation_leaves_nothing_behind(work: Callable[[], Work]) -> None:
    trace = StoreTrace()
    first = work()
    first.run(FaultyObjectStore(first.bucket, Random(0), trace=trace))
    verbs = [entry.operation.verb for entry in trace.entries]
    assert "PUT" in verbs
    orphans = 0
    for number in range(len(verbs)):
        for fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER):
            one = work()
            with pytest.raises(ActorStopped):
                one.run(FaultyObjectStore(one.bucket, Random(0), FaultsAt({number: fault})))
            orphans += collected(one)
    assert orphans > 0, "some of the deaths leave orphans"


def collected(work: Work) -> int:
    """The number of orphans that the next days collect."""
    metadata, catalog = work.survivor()
    collector = Collector(work.bucket, metadata, catalog)
    orphans = 0
    for _ in range(5):
        orphans += sum(collector.run().orphan_counts.values())
        work.clock.advance(DAY_MS)
    assert left_over_keys(work.bucket, metadata) == set()
    assert left_over_keys(work.bucket, catalog) == set()
    assert {info.key for info in work.bucket.list("scratch/")} == set()
    metadata.check()
    return orphans
