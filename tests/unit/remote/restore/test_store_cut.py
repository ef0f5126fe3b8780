"""Catalog and shards are cut at one moment."""

from __future__ import annotations

import random

import pytest

from stratalog.base.errors import PreconditionFailedError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.restore.store_cut import StoreCut, StoreCutter, Until
from stratalog.remote.restore.store_restore import StoreRestore
from tests.support.tiered.metadata_harness import BY_HAND, MetadataHarness


class TwoShards:
    """A store of two shards with a commit every second: one of the catalog, of shard 0, of shard 1."""

    def __init__(self) -> None:
        self.harness = MetadataHarness(shard_count=2)
        actor, load = self.harness.actor("owner"), self.harness.load_directory
        catalog = self.harness.catalog()
        shards = [MetadataLog.open(actor, number, load, settings=BY_HAND) for number in range(2)]
        self.times: list[int] = []
        """The time of each commit, in the order of the rounds."""
        for number in range(3):
            self.harness.clock.advance(1000)
            catalog.create(f"t{number}", 1)
            self.times.append(self.harness.clock.now_ms())
            for shard in shards:
                self.harness.clock.advance(1000)
                shard.claim("owner", self.harness.ids.uuid())
                self.times.append(self.harness.clock.now_ms())
        self.harness.clock.advance(1000)
        catalog.fold()
        for shard in shards:
            shard.fold()

    def cut(self, until: Until) -> StoreCut:
        return StoreCutter(self.harness.store, self.harness.identity).cut(until)


def seqs(cut: StoreCut) -> tuple[int, ...]:
    return (cut.catalog.seq, *(state.seq for state in cut.shards))


def test_a_time_takes_what_every_log_had_by_then() -> None:
    store = TwoShards()
    assert seqs(store.cut(Until(time_ms=store.times[0] - 1))) == (0, 0, 0)
    for count, time_ms in enumerate(store.times, 1):
        expected = tuple((count + 2 - position) // 3 for position in range(3))
        assert seqs(store.cut(Until(time_ms=time_ms))) == expected
        assert seqs(store.cut(Until(time_ms=time_ms + 999))) == expected
    assert seqs(store.cut(Until())) == (4, 4, 4), "the folds, too"


def test_a_commit_stands_for_its_time() -> None:
    store = TwoShards()
    assert seqs(store.cut(Until(seq=2))) == (2, 1, 1)
    assert seqs(store.cut(Until(seq=2, shard=0))) == (2, 2, 1)
    assert seqs(store.cut(Until(seq=2, shard=1))) == (2, 2, 2)
    with pytest.raises(PreconditionFailedError):
        store.cut(Until(seq=2, shard=2))
    with pytest.raises(PreconditionFailedError):
        store.cut(Until(seq=5))


def test_a_commit_is_meant_among_those_of_the_same_time() -> None:
    store = TwoShards()
    catalog = store.harness.catalog()
    for name in ("u", "v"):
        catalog.create(name, 1)
    assert store.cut(Until(seq=5)).catalog.named("v") is None
    assert store.cut(Until(seq=6)).catalog.named("v") is not None


def test_all_logs_of_a_cut_are_restored() -> None:
    store = TwoShards()
    cut = store.cut(Until(seq=2))
    restore = StoreRestore(store.harness.store, store.harness.identity, cut, store.harness.clock.now_ms())
    target = MemoryObjectStore(store.harness.clock)
    identity = restore.identity_for(target)
    actor = StoreActor(
        store=target,
        clock=store.harness.clock,
        random_source=random.Random(0),
        ids=store.harness.ids,
        identity=identity,
        writer=Writer("restore", "test"),
    )
    restore.write(actor, lambda _: None)
    assert identity.store_id != store.harness.identity.store_id
    again = StoreCutter(target, identity).cut(Until())
    assert sorted(again.catalog.topics()) == ["t0", "t1"]
    assert [state.epoch for state in again.shards] == [2, 2], "a claim on top of the one of the cut"
