"""The state of a shard after some commit: the partitions with their live slices, and the objects that hold
them.

A state is immutable and shares all that a commit did not touch with the state before it. So a snapshot costs
nothing and readers need no lock. `stratalog.remote.metadata.shard.shard_builder` makes the next one.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import NotOwnerError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.tiered_partition import EMPTY_PARTITION, TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef


class LiveObject(NamedTuple):
    """An object with at least one live slice."""

    ref: ObjectRef
    seq: int
    """The commit that added the object."""
    live_slices: int
    live_bytes: int
    """Data bytes of its live slices; compaction chooses objects by them."""
    uploaded_ms: int = 0
    """When its newest records were uploaded: the time of its commit, or of the newest of its inputs. Slices
    whose records have no timestamps are as old as that."""


class ShardClaim(NamedTuple):
    """The beginning of an epoch."""

    epoch: int
    owner: str
    endpoint: str
    """HOST:PORT where clients reach the owner; empty if it serves none."""
    uuid: UUID
    seq: int
    time_ms: int

    def not_owner(self) -> NotOwnerError:
        """The refusal of a former owner, which names this one."""
        return NotOwnerError(
            "another server has taken over this store, use that one; a restart of this one takes it back",
            owner=self.owner,
            endpoint=self.endpoint,
            epoch=self.epoch,
        )


class DroppedTopic(NamedTuple):
    """A deleted topic whose partitions are dropped. It is remembered so that a late upload cannot
    restore it.
    """

    seq: int
    time_ms: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardState(HeadState):
    """The partitions and objects of a shard after one commit. Immutable, so thread-safe."""

    partitions: PersistentMap[TopicIdPartition, TieredPartition] = dataclasses.field(
        default_factory=PersistentMap[TopicIdPartition, TieredPartition]
    )
    objects: PersistentMap[str, LiveObject] = dataclasses.field(
        default_factory=PersistentMap[str, LiveObject]
    )
    """Live objects by name."""
    claims: tuple[ShardClaim, ...] = ()
    """Epochs in order, the current one last."""
    dropped_topics: PersistentMap[UUID, DroppedTopic] = dataclasses.field(
        default_factory=PersistentMap[UUID, DroppedTopic]
    )

    def partition(self, tip: TopicIdPartition) -> TieredPartition:
        """The partition; an empty one if the shard does not know it."""
        found = self.partitions.get(tip)
        return EMPTY_PARTITION if found is None else found

    def check(self) -> None:
        live_slices: dict[str, int] = defaultdict(int)
        live_bytes: dict[str, int] = defaultdict(int)
        for tip, partition in self.partitions.items():
            partition.check()
            assert tip.topic_id not in self.dropped_topics, "a dropped topic has no partitions"
            stored = [live for live in partition.slices if live.gap is None]
            assert len({live.object_name for live in stored}) == len(stored), (
                "an object has at most one slice of a partition"
            )
            for live in partition.slices:
                assert live.entry.topic_id_partition == tip, "a slice belongs to its partition"
            for live in stored:
                live_slices[live.object_name] += 1
                live_bytes[live.object_name] += live.entry.data_bytes
        assert live_slices.keys() == set(self.objects), "exactly the objects with a live slice are live"
        for name, live_object in self.objects.items():
            assert live_object.ref.name == name, "an object is found under its name"
            assert live_object.live_slices == live_slices[name], "live slices are counted"
            assert live_object.live_bytes == live_bytes[name], "live bytes are counted"
            assert 1 <= live_object.seq <= self.seq, "a commit added each object"
            assert name not in self.dropped_objects, "a dropped object is not live"
        assert [claim.epoch for claim in self.claims] == sorted({claim.epoch for claim in self.claims}), (
            "epochs grow"
        )
        assert self.epoch == (self.claims[-1].epoch if self.claims else 0), "the newest claim has the epoch"
        self.check_bookkeeping()
