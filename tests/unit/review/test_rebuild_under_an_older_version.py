"""A head that is rebuilt keeps the metadata version that was finalized: nobody has said that older software goes."""

from __future__ import annotations

import dataclasses

from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from tests.support.tiered.restore_world import RestoreWorld

SHARD = "shards/0000/head"


def head_of(world: RestoreWorld) -> Head:
    return Head.decode(world.bucket.get(SHARD).data, SHARD, SHARD_ACTIONS)


def test_a_rebuild_finalizes_nothing() -> None:
    world = RestoreWorld(1)
    older = dataclasses.replace(head_of(world), read_version=2, write_version=2)
    world.bucket.put(SHARD, older.encode())
    world.reopen()
    for name in ("upload", "fold", "upload", "fold"):
        world.step(name)
    assert head_of(world).write_version == 2
    world.lose(SHARD)
    world.rebuild()
    assert head_of(world).write_version == 2
