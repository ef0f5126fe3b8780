"""A store is restored to each of its commits: what was readable then is readable in the new store."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from stratalog.base.errors import PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import RestorePlan, StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.sampling import some_seeds
from tests.support.tiered.restore_world import Readable, RestoreWorld
from tests.support.tiered.tiered_store import TieredStore


class Moment(NamedTuple):
    """A moment as an observer of the old store has written it down."""

    seq: int
    time_ms: int
    readable: Readable
    starts: dict[TopicIdPartition, int]


def restored(world: RestoreWorld, until: Until) -> tuple[TieredStore, RestorePlan]:
    """A new store, and a server on it."""
    identity = StoreIdentity.open(world.bucket)
    cut = StoreCutter(world.bucket, identity).cut(until)
    restore = StoreRestore(world.bucket, identity, cut, world.clock.now_ms())
    target = MemoryObjectStore(world.clock)
    restore.write(world.actor(target, restore.identity_for(target)), lambda _: None)
    tiered = TieredStore(MemoryFileSystem(), target, world.clock, world.ids)
    tiered.metadata.check()
    tiered.catalog.check()
    return tiered, restore.plan()


@pytest.mark.parametrize("seed", some_seeds(15))
def test_each_moment_is_restored(seed: int) -> None:
    world = RestoreWorld(seed)
    moments: list[Moment] = []
    steps: list[str] = []
    while len(steps) < 14:
        name = world.step()
        if name == "collect":
            # What it deletes cannot be restored: see below.
            moments.clear()
        steps.append(name)
        seq = world.tiered.metadata.refresh().seq
        moments.append(Moment(seq, world.clock.now_ms(), world.readable(), dict(world.log_starts())))
    for moment in moments:
        message = f"seed {seed}, commit {moment.seq}: {steps}"
        for until in (Until(time_ms=moment.time_ms), Until(seq=moment.seq, shard=0)):
            tiered, plan = restored(world, until)
            assert world.readable(tiered) == moment.readable, message
            starts = {tip: tiered.partition(tip).log_start_offset for tip in world.tips}
            assert starts == moment.starts, message
            assert plan.lost == (), message
            assert plan.shard_seqs == (moment.seq,), message


@pytest.mark.parametrize("seed", some_seeds(25))
def test_what_was_collected_since_is_not_needed(seed: int) -> None:
    """The newest state follows from its first commit on, although most objects of these are gone."""
    world = RestoreWorld(seed)
    steps = [world.step() for _ in range(25)]
    steps.append(world.step("collect"))
    steps.append(world.step("collect"))
    before, state = world.readable(), world.tiered.metadata.state()
    world.lose(*(info.key for info in world.bucket.list("shards/0000/checkpoints/")))
    tiered, plan = restored(world, Until(seq=state.seq, shard=0))
    assert world.readable(tiered) == before, f"seed {seed}: {steps}"
    assert not plan.lost
    for tip in world.tips:
        partition = tiered.partition(tip)
        row = state.partition(tip).row._replace(
            compacted_upto=partition.compacted_upto,
            end_mark=partition.end_mark,
            newest_ms=partition.row.newest_ms,
            pieces=tuple(state.partition(tip).slices),
        )
        assert partition == TieredPartition(tip, row)
        assert partition.compacted_upto <= state.partition(tip).compacted_upto


@pytest.mark.parametrize("seed", some_seeds(15))
def test_a_pinned_moment_outlasts_collections(seed: int) -> None:
    """A commit that was pinned long after it, wherever a pin was still granted."""
    world = RestoreWorld(seed)
    identity = StoreIdentity.open(world.bucket)
    moments: list[Moment] = []
    pinned: list[Moment] = []
    steps: list[str] = []
    until_ms = world.clock.now_ms() + 10_000 * 3_600_000
    for number in range(24):
        steps.append(world.step())
        seq = world.tiered.metadata.refresh().seq
        moments.append(Moment(seq, world.clock.now_ms(), world.readable(), dict(world.log_starts())))
        if number % 3 == 0:
            moment = world.random.choice(moments)
            cut = StoreCutter(world.bucket, identity).moment(Until(seq=moment.seq, shard=0))
            try:
                world.tiered.catalog.pin_commit("job", until_ms, cut.catalog_seq)
                world.tiered.metadata.pin_commit("job", until_ms, cut.shard_seq(0))
            except PreconditionFailedError:
                continue
            pinned.append(moment)
    for name in ("compact", "upload", "fold", "collect", "fold", "collect"):
        world.step(name)
    assert pinned, "the first moment can be pinned at once"
    for moment in pinned:
        message = f"seed {seed}, commit {moment.seq}: {steps}"
        tiered, plan = restored(world, Until(seq=moment.seq, shard=0))
        assert world.readable(tiered) == moment.readable, message
        assert plan.lost == (), message
        assert plan.gone == (), message


@pytest.mark.parametrize("seed", some_seeds(10))
def test_a_restored_store_works_on(seed: int) -> None:
    world = RestoreWorld(seed)
    for _ in range(12):
        world.step()
    before = world.readable()
    tiered, _ = restored(world, Until())
    world.bucket = tiered.store  # type: ignore[assignment]  # it is one in memory, too
    world.tiered = tiered
    assert world.readable() == before
    for name in ("upload", "compact", "fold", "upload", "collect", "upload"):
        world.step(name)
    after = world.readable()
    world.lose("shards/0000/head")
    world.rebuild()
    assert world.readable() == after, "objects that another store has written are taken"


def test_a_moment_that_is_gone_is_refused() -> None:
    world = RestoreWorld(1)
    for name in ("upload", "upload", "compact", "fold", "collect", "collect", "upload", "fold"):
        world.step(name)
    assert restored(world, Until())[1].lost == ()
    with pytest.raises(PreconditionFailedError) as refused:
        restored(world, Until(seq=3, shard=0))
    assert refused.value.fields["objects"] != "none"
    history = [info.key for info in world.bucket.list("shards/0000/history/")]
    world.lose(history[0], *(info.key for info in world.bucket.list("shards/0000/checkpoints/")))
    with pytest.raises(PreconditionFailedError) as refused:
        restored(world, Until(seq=3, shard=0))
    assert refused.value.fields["commit"] == 3
    newest_seq = world.tiered.metadata.state().seq
    with pytest.raises(PreconditionFailedError) as refused:
        restored(world, Until(seq=newest_seq, shard=0))
    assert refused.value.fields["missing_commit"] == 1
    with pytest.raises(PreconditionFailedError):
        restored(world, Until(seq=10_000, shard=0))
    with pytest.raises(PreconditionFailedError):
        restored(world, Until(seq=3, shard=1))
