"""The state of a shard after some commit: the partitions with their live slices, and the objects that hold
them.

A state is immutable and shares all that a commit did not touch with the state before it. So a snapshot costs
nothing and readers need no lock. `stratalog.remote.metadata.shard.shard_builder` makes the next one.

Slices are what grows, so a state has only those in memory that no checkpoint has yet. The others are in the
checkpoint's pages, which are loaded when they are needed.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import NotOwnerError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW, PartitionRow, StoredSlices
from stratalog.remote.metadata.shard.slice_pages import OffsetRange, SlicePages
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef

PARTITIONS = "partitions"
"""The kind of the checkpoint rows of partitions."""
OBJECTS = "objects"
"""The kind of the checkpoint rows of live objects."""


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
        """The refusal of a server that is not the owner, which names this one."""
        return NotOwnerError(
            "another server owns this shard of the store; use that one"
            if self.owner
            else "no server owns this shard of the store yet; start the one that is to own it",
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

    partitions: PersistentMap[TopicIdPartition, PartitionRow] = dataclasses.field(
        default_factory=PersistentMap[TopicIdPartition, PartitionRow]
    )
    """The rows of the partitions: all that is known of them without their slices. `partition` has these."""
    pages: SlicePages | None = dataclasses.field(default=None, compare=False)
    """The stored slices; None without a checkpoint."""
    unfolded_slices: int = dataclasses.field(default=0, compare=False)
    """Slices that are in memory because no checkpoint has them yet."""
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
        return TieredPartition(tip, self.partitions.get(tip, EMPTY_ROW), self.pages)

    def known_partition(self, tip: TopicIdPartition) -> TieredPartition | None:
        """The partition; None if the shard does not know it."""
        row = self.partitions.get(tip)
        return None if row is None else TieredPartition(tip, row, self.pages)

    def read_ahead(self, ranges: Iterable[OffsetRange]) -> None:
        """Read the pages together that it takes to remove these ranges from their partitions. Raises as
        `SlicePages` does."""
        if self.pages is not None:
            self.pages.read_ahead(one for each in ranges for one in self._stored_ranges(each))

    def _stored_ranges(self, wanted: OffsetRange) -> Iterator[OffsetRange]:
        """The parts of a range that are stored, each with the end of its piece, which is counted anew."""
        tip, base_offset, end_offset = wanted
        for piece in self.partitions.get(tip, EMPTY_ROW).pieces:
            is_hit = piece.base_offset < end_offset and base_offset < piece.end_offset
            if is_hit and isinstance(piece, StoredSlices):
                start_offset = max(base_offset, piece.base_offset)
                yield OffsetRange(tip, start_offset, min(end_offset + 1, piece.end_offset))
                yield OffsetRange(tip, piece.end_offset - 1, piece.end_offset)

    @property
    def unfolded_rows(self) -> int:
        return super(ShardState, self).unfolded_rows + self.unfolded_slices

    def check_rows(self) -> None:
        """Check all that needs no page."""
        for tip, row in self.partitions.items():
            row.check()
            assert tip.topic_id not in self.dropped_topics, "a dropped topic has no partitions"
        in_partitions = sum(row.tiered_bytes for row in self.partitions.values())
        in_objects = sum(live_object.live_bytes for live_object in self.objects.values())
        assert in_partitions == in_objects, "partitions and objects have the same live bytes"
        unfolded = sum(row.unfolded_count for row in self.partitions.values())
        assert unfolded == self.unfolded_slices, "slices in memory are counted"
        for name, live_object in self.objects.items():
            assert live_object.ref.name == name, "an object is found under its name"
            assert 1 <= live_object.seq <= self.seq, "a commit added each object"
            assert name not in self.dropped_objects, "a dropped object is not live"
        assert [claim.epoch for claim in self.claims] == sorted({claim.epoch for claim in self.claims}), (
            "epochs grow"
        )
        assert self.epoch == (self.claims[-1].epoch if self.claims else 0), "the newest claim has the epoch"
        self.check_bookkeeping()

    def check(self) -> None:
        """Check everything: loads all pages. Raises as `SlicePages` does."""
        live_slices: dict[str, int] = defaultdict(int)
        live_bytes: dict[str, int] = defaultdict(int)
        for tip in self.partitions:
            partition = self.partition(tip)
            partition.check()
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
            assert live_object.live_slices == live_slices[name], "live slices are counted"
            assert live_object.live_bytes == live_bytes[name], "live bytes are counted"
        self.check_rows()
