"""A lost head is rebuilt: what was readable before is readable again, whatever had happened."""

from __future__ import annotations

import pytest

from stratalog.base.types import TopicIdPartition
from tests.support.logs.sampling import some_seeds
from tests.support.tiered.restore_world import Readable, RestoreWorld

SHARD, CATALOG = "shards/0000/head", "catalog/head"
STEPS = 25


def from_starts(readable: Readable, starts: dict[TopicIdPartition, int]) -> Readable:
    return {tip: [one for one in found if one[0] >= starts[tip]] for tip, found in readable.items()}


@pytest.mark.parametrize("seed", some_seeds(60))
def test_what_was_readable_is_readable_again(seed: int) -> None:
    world = RestoreWorld(seed)
    steps = [world.step() for _ in range(world.random.randint(1, STEPS))]
    before, starts = world.readable(), dict(world.log_starts())
    ends = {tip: world.tiered.partition(tip).tiered_end_offset for tip in world.tips}
    epoch = world.tiered.metadata.state().epoch
    has_lost_catalog = seed % 3 == 0
    world.lose(SHARD, *([CATALOG] if has_lost_catalog else []))
    plan = world.rebuild()
    message = f"seed {seed}: {steps}"
    # Deletions that only the head knew are undone, and nothing else is.
    assert from_starts(world.readable(), starts) == from_starts(before, starts), message
    after_fold = steps[len(steps) - steps[::-1].index("fold") :] if "fold" in steps else steps
    if "advance" not in after_fold:
        assert world.readable() == before, message
        assert dict(world.log_starts()) == starts, message
    assert {tip: world.tiered.partition(tip).tiered_end_offset for tip in world.tips} == ends, message
    assert world.tiered.metadata.state().epoch > epoch, "former owners are fenced"
    shard = plan.shards[0].report
    assert all(lost.is_start for lost in shard.lost), message
    if has_lost_catalog:
        names = {entry.name for entry in world.tiered.catalog.topics().values()}
        assert names >= {
            name for tip, name in zip(world.tips, ("state", "state", "events"), strict=True) if ends[tip]
        }


@pytest.mark.parametrize("seed", some_seeds(20))
def test_a_rebuilt_shard_works_on(seed: int) -> None:
    """Uploads, compactions, folds and another loss follow."""
    world = RestoreWorld(seed)
    for _ in range(2):
        for _ in range(STEPS):
            world.step()
        for name in ("fold", "upload"):
            world.step(name)
        before = world.readable()
        world.lose(SHARD)
        world.rebuild()
        assert world.readable() == before, f"seed {seed}"
        for name in ("upload", "compact", "fold", "upload", "fold"):
            world.step(name)
        world.tiered.metadata.check()
