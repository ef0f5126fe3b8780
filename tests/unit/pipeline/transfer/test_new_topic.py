"""A topic that begins with objects is there whole or not at all, whatever fails while it is published."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stratalog.base.errors import LogStoreError, TopicAlreadyExistsError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.transfer import row_batches, topic_import
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, FaultsAt, Operation
from tests.support.spark.small_export import STARTS, SmallExport
from tests.support.tiered.tiered_store import TieredStore


class SmallImport:
    """A store, and an export to import. Not thread-safe: one test uses it."""

    def __init__(self, *, hole: int = 0) -> None:
        clock = ManualClock()
        self._export = SmallExport(clock, hole=hole)
        self.store = MemoryObjectStore(clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, clock, SequentialIds(1))

    def run(self, store: ObjectStore) -> None:
        self._export.restore(store)

    def require_whole(self) -> None:
        entry = self.tiered.catalog.refresh().topics()["new"]
        for number, start in enumerate(STARTS):
            tip = TopicIdPartition(entry.topic_id, number)
            partition = self.tiered.partition(tip)
            assert (partition.log_start_offset, partition.tiered_end_offset) == (start, start + 3)
            assert [record.offset for record in self.tiered.records(tip)] == [*range(start, start + 3)]

    def require_nothing(self) -> None:
        """No slice, and no partition, of a topic that the catalog does not know."""
        known = self.tiered.catalog.refresh().entries
        state = self.tiered.metadata.refresh()
        assert "new" not in self.tiered.catalog.topics()
        assert all(tip.topic_id in known for tip in state.partitions), "verifications would find strangers"
        assert not any(state.partition(tip).slices for tip in state.partitions)


def operations_of(run: Callable[[ObjectStore], object], store: ObjectStore) -> list[Operation]:
    faulty = FaultyObjectStore(store, Random(0))
    run(faulty)
    return [entry.operation for entry in faulty.trace.entries]


def test_an_import_is_whole_or_nothing_whatever_request_fails() -> None:
    """Each request fails once, so that the outcome of a commit is unknown, and the import goes on or undoes
    what it has done."""
    world = SmallImport()
    count = 0
    for operation in operations_of(world.run, world.store):
        faults = (Fault.FAILS, Fault.LANDS_UNKNOWN) if operation.verb == "PUT" else (Fault.FAILS,)
        for fault in faults:
            world = SmallImport()
            faulty = FaultyObjectStore(world.store, Random(0), FaultsAt({operation.number: fault}))
            try:
                world.run(faulty)
            except LogStoreError:
                world.require_nothing()
            else:
                world.require_whole()
                count += 1
            world.tiered.metadata.check()
    assert count > 5, "most commits are repeated"


def failing_creation(world: SmallImport, count: int, fault: Fault = Fault.FAILS) -> int:
    """An import whose commits to the catalog fail, `count` of them; returns how many it has tried. Those that
    are still under way land after its end."""
    tried = 0

    def plan(operation: Operation) -> Fault:
        nonlocal tried
        if operation.verb == "PUT" and operation.key == "catalog/head":
            tried += 1
            return fault if tried <= count else Fault.NONE
        return Fault.NONE

    faulty = FaultyObjectStore(world.store, Random(0), plan)
    with pytest.raises(LogStoreError):
        world.run(faulty)
    faulty.release_all()
    return tried


def test_what_is_committed_goes_if_the_topic_cannot_be_created() -> None:
    tried = failing_creation(SmallImport(), 10_000)
    world = SmallImport()
    # The creation is given up; what undoes it succeeds.
    failing_creation(world, tried // 2)
    world.require_nothing()


def test_a_creation_that_lands_late_finds_the_topic_buried() -> None:
    tried = failing_creation(SmallImport(), 10_000)
    world = SmallImport()
    failing_creation(world, tried // 2, Fault.LANDS_LATE)
    world.require_nothing()


def test_the_name_is_taken_meanwhile() -> None:
    world = SmallImport()

    def before(operation: Operation) -> None:
        if operation.verb == "PUT" and "/data/" in operation.key and not world.tiered.catalog.topics():
            world.tiered.catalog.create("new", 1)

    with pytest.raises(TopicAlreadyExistsError):
        world.run(FaultyObjectStore(world.store, Random(0), before=before))
    assert [*world.tiered.catalog.refresh().topics()] == ["new"]
    state = world.tiered.metadata.refresh()
    assert not any(state.partition(tip).slices for tip in state.partitions)


def test_a_server_claims_the_shard_meanwhile() -> None:
    world = SmallImport()
    claims: list[int] = []

    def before(operation: Operation) -> None:
        if operation.verb == "PUT" and operation.key == "shards/0000/head" and len(claims) < 2:
            claims.append(world.tiered.metadata.claim("another", SequentialIds(50 + len(claims)).uuid()))

    world.run(FaultyObjectStore(world.store, Random(0), before=before))
    assert len(claims) == 2
    world.require_whole()


@pytest.mark.parametrize(
    ("object_bytes", "batch_rows", "object_count"), [(1, 8, 4), (4, 8, 4), (4, 1, 12), (1 << 20, 8, 1)]
)
def test_slices_tile_where_files_do_not(
    object_bytes: int, batch_rows: int, object_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have a hole between them, and the partition one at its end; each file in an object, or all, or
    one batch each, because the files say that they are small."""
    monkeypatch.setattr(topic_import, "OBJECT_BYTES", object_bytes)
    monkeypatch.setattr(row_batches, "BATCH_ROWS", batch_rows)
    world = SmallImport(hole=10)
    world.run(world.store)
    assert len(world.tiered.metadata.refresh().objects) == object_count
    entry = world.tiered.catalog.refresh().topics()["new"]
    for number, start in enumerate(STARTS):
        tip = TopicIdPartition(entry.topic_id, number)
        assert world.tiered.partition(tip).tiered_end_offset == start + 26
        offsets = [record.offset for record in world.tiered.records(tip)]
        assert offsets == [*range(start, start + 3), *range(start + 13, start + 16)]
    world.tiered.metadata.check()
