"""The judge: decides which actions on a shard are valid. Only writers use it; the outcome goes into the
commit.

Each judgement is a pure function of the state that the head's ETag names. So a commit that lands was valid
when it landed, however long it was on its way. Partitions are judged one by one: a deleted topic or a lost
race refuses only the slices that it concerns. An object without accepted slices is not committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.head_actions import Action
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.head.head_state import DELETED_TOPIC_KEPT_MS
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW
from stratalog.remote.metadata.shard.shard_actions import (
    Add,
    AddGap,
    AdvanceLogStart,
    Claim,
    DropPartitions,
    PartitionOffset,
    RefusedSlice,
)
from stratalog.remote.metadata.shard.shard_builder import partitions_of
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry

NOT_AT_TIERED_END = "not_at_tiered_end"
TOPIC_DELETED = "topic_deleted"
BORN_BEFORE_HORIZON = "born_before_horizon"
KNOWN_ALREADY = "known_already"
INPUTS_CHANGED = "inputs_changed"
NOT_FROM_FIRST_SLICE = "not_from_first_slice"
ABOVE_TIERED_END = "above_tiered_end"
CONFIGURATION_CHANGED = "configuration_changed"
CLOCK = "clock"
"""The clocks of this process and of the store differ too much."""


class Refusal(NamedTuple):
    """A part of a request that the commit leaves out."""

    object_name: str
    """Empty unless an object is concerned."""
    partition: TopicIdPartition
    reason: str
    """One of the constants of this module."""


def judge_claim(state: ShardState, owner: str, uuid: UUID, at_least: int, endpoint: str) -> Judgement[int]:
    """Always valid. The outcome is the new epoch."""
    epoch = max(state.epoch + 1, at_least)
    return Judgement((Claim(owner, uuid, epoch, at_least, endpoint),), epoch)


def judge_add(
    state: ShardState, objects: Sequence[tuple[ObjectRef, Sequence[SliceEntry]]], epoch: int
) -> Judgement[tuple[Refusal, ...]]:
    """Judges objects in order, slice by slice. Raises NotOwnerError if `epoch` is not current."""
    require_epoch(state, epoch)
    actions: list[Action] = []
    refusals: list[Refusal] = []
    ends: dict[TopicIdPartition, int] = {}
    for ref, entries in objects:
        object_reason = object_refusal(state, ref)
        refused: list[RefusedSlice] = []
        taken: dict[TopicIdPartition, int] = {}
        for entry in entries:
            tip = entry.topic_id_partition
            end_offset = ends.get(tip) if ends else None
            if end_offset is None:
                end_offset = state.partitions.get(tip, EMPTY_ROW).tiered_end_offset
            reason = object_reason or slice_refusal(state, entry, end_offset)
            if reason is None:
                taken[tip] = entry.end_offset
            else:
                refused.append(RefusedSlice(tip, reason))
        refusals.extend(Refusal(ref.name, tip, reason) for tip, reason in refused)
        if taken:
            ends.update(taken)
            actions.append(Add(ref, tuple(refused)))
    return Judgement(tuple(actions), tuple(refusals))


class LostRange(NamedTuple):
    """Offsets [base, end) of a partition whose records never reached the store."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    reason: GapReason


def judge_add_gaps(
    state: ShardState, lost: Sequence[LostRange], epoch: int, store_date_ms: int | None
) -> Judgement[tuple[Refusal, ...]]:
    """Judges gaps one by one: each begins at the tiered end of its partition, or where the one before it
    ends. A gap that is there already is nothing to do: an earlier attempt of this call may have landed.

    What has expired in a partition without slices is below the log start, which moves.

    `store_date_ms` is the time of the gaps, None if the clock is not trusted: then none is added, because
    retention goes by that time. Raises NotOwnerError if `epoch` is not current.
    """
    require_epoch(state, epoch)
    starts: list[PartitionOffset] = []
    gaps: list[AddGap] = []
    refusals: list[Refusal] = []
    ends: dict[TopicIdPartition, int] = {}
    for tip, base_offset, end_offset, reason in sorted(lost):
        partition = state.partition(tip)
        if tip.topic_id in state.dropped_topics:
            refusals.append(Refusal("", tip, TOPIC_DELETED))
        elif _is_on_record(partition, end_offset):
            continue
        elif ends.get(tip, partition.tiered_end_offset) != base_offset:
            refusals.append(Refusal("", tip, NOT_AT_TIERED_END))
        elif store_date_ms is None:
            refusals.append(Refusal("", tip, CLOCK))
        else:
            ends[tip] = end_offset
            if reason is GapReason.EXPIRED and not partition.slices:
                starts.append(PartitionOffset(tip, end_offset))
            else:
                gaps.append(AddGap(tip, base_offset, end_offset, reason.value, store_date_ms))
    moves = (AdvanceLogStart(tuple(starts), (), None),) if starts else ()
    return Judgement((*moves, *gaps), tuple(refusals))


def _is_on_record(partition: TieredPartition, end_offset: int) -> bool:
    """Whether a gap ends there, or the log start has passed that."""
    if end_offset <= partition.log_start_offset:
        return True
    live = next(iter(partition.slices_from(end_offset - 1)), None)
    return live is not None and live.gap is not None and live.end_offset == end_offset


def judge_advance(
    state: ShardState,
    starts: Mapping[TopicIdPartition, int],
    epoch: int | None,
    catalog_seq: int | None,
) -> Judgement[tuple[Refusal, ...]]:
    """Judges moves of log starts. Only forward moves count; only an owner may go beyond the tiered end.

    Raises NotOwnerError if `epoch` is given and not current, PreconditionFailedError if the catalog seq
    is older than one that was used before.
    """
    if epoch is not None:
        require_epoch(state, epoch)
    require_fresh_catalog(state, catalog_seq)
    moved: list[PartitionOffset] = []
    refusals: list[Refusal] = []
    lost: dict[str, int] = defaultdict(int)
    for tip, offset in sorted(starts.items()):
        partition = state.partition(tip)
        if tip.topic_id in state.dropped_topics:
            refusals.append(Refusal("", tip, TOPIC_DELETED))
        elif offset <= partition.log_start_offset:
            continue
        elif offset > partition.tiered_end_offset and epoch is None:
            refusals.append(Refusal("", tip, ABOVE_TIERED_END))
        else:
            moved.append(PartitionOffset(tip, offset))
            for live in partition.slices:
                if live.end_offset > offset:
                    break
                if live.gap is None:
                    lost[live.object_name] += 1
    actions = (AdvanceLogStart(tuple(moved), emptied(state, lost), catalog_seq),) if moved else ()
    return Judgement(actions, tuple(refusals))


def judge_drop_partitions(
    state: ShardState, topic_id: UUID, catalog_seq: int, store_date_ms: int
) -> Judgement[None]:
    """Drops the partitions of a topic, whose deletion the caller has seen in the catalog at `catalog_seq`.

    There is nothing to commit if that is already done.
    """
    require_fresh_catalog(state, catalog_seq)
    if topic_id in state.dropped_topics:
        return Judgement((), None)
    lost: dict[str, int] = defaultdict(int)
    for tip in partitions_of(state, topic_id):
        for live in state.partition(tip).slices:
            if live.gap is None:
                lost[live.object_name] += 1
    expired = sorted(
        known
        for known, topic in state.dropped_topics.items()
        if topic.time_ms + DELETED_TOPIC_KEPT_MS < store_date_ms
    )
    return Judgement((DropPartitions(topic_id, catalog_seq, emptied(state, lost), tuple(expired)),), None)


def require_epoch(state: ShardState, epoch: int) -> None:
    """Raise NotOwnerError if another owner has claimed the shard since this epoch."""
    if epoch != state.epoch:
        raise state.claims[-1].not_owner()


def require_fresh_catalog(state: ShardState, catalog_seq: int | None) -> None:
    """Raise PreconditionFailedError if a newer catalog was used before: an old one deletes nothing."""
    if catalog_seq is not None and catalog_seq < state.catalog_seq:
        raise PreconditionFailedError(
            "a newer topic configuration was used here; read the catalog again and decide again",
            catalog_seq=catalog_seq,
            used_catalog_seq=state.catalog_seq,
        )


def object_refusal(state: ShardState, ref: ObjectRef) -> str | None:
    """The reason why no slice of an object can become live; None if there is no such reason."""
    if is_born_too_early(state, ref):
        return BORN_BEFORE_HORIZON
    if ref.name in state.objects or ref.name in state.dropped_objects:
        return KNOWN_ALREADY
    return None


def is_born_too_early(state: ShardState, ref: ObjectRef) -> bool:
    """Whether the object was born before the orphan horizon: an orphan sweep may have deleted it."""
    return ref.birth < state.orphan_horizon_seq


def slice_refusal(state: ShardState, entry: SliceEntry, tiered_end_offset: int) -> str | None:
    """The reason why one slice cannot become live; None if it can."""
    if state.dropped_topics and entry.topic_id in state.dropped_topics:
        return TOPIC_DELETED
    return NOT_AT_TIERED_END if entry.base_offset != tiered_end_offset else None


def emptied(state: ShardState, lost: Mapping[str, int]) -> tuple[str, ...]:
    """Names of the objects that lose their last live slice. `lost`: lost slices by name."""
    return tuple(sorted(name for name, count in lost.items() if state.objects[name].live_slices == count))
