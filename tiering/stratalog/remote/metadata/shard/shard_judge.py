"""The judge: decides which actions on a shard are valid. Only writers use it; the outcome goes into the
commit.

Each judgement is a pure function of the state that the head's ETag names. So a commit that lands was valid
when it landed, however long it was on its way. Partitions are judged one by one: a deleted topic or a lost
race refuses only the slices that it concerns. An object without accepted slices is not committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.commit import ACTIONS_BYTES
from stratalog.remote.metadata.head.head_actions import Action
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.head.head_state import DELETED_TOPIC_KEPT_MS
from stratalog.remote.metadata.shard.live_slice import GapReason, LiveSlice
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW
from stratalog.remote.metadata.shard.shard_actions import (
    Add,
    AddGap,
    AdvanceLogStart,
    Claim,
    DropPartitions,
    LowerTieredEnd,
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
RECORDS_DELETED = "records_deleted"
ABOVE_TIERED_END = "above_tiered_end"
CONFIGURATION_CHANGED = "configuration_changed"
MANY_REFUSED = "many_refused"
"""So many other slices are refused that a commit cannot name them all, and none of them becomes live."""
MANY_CLIPPED = "many_clipped"
"""The log start has passed inputs of so many other partitions that a commit cannot name them all."""
NOT_FINALIZED = "not_finalized"
"""The finalized metadata version does not have the action."""
CLOCK = "clock"
"""The clocks of this process and of the store differ too much."""


MAX_LISTED = 500
"""Slices that one action may name."""
# About the longest text of these parts of actions.
_ADD_BYTES = 400
_LISTED_BYTES = 80
_NAME_BYTES = 64
_GAP_BYTES = 240
_MAX_EXPIRED = 100


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
    """Judges objects in order, slice by slice, as many as a commit takes. Raises NotOwnerError if `epoch` is
    not current."""
    require_epoch(state, epoch)
    size_bytes = 0
    actions: list[Action] = []
    refusals: list[Refusal] = []
    ends: dict[TopicIdPartition, int] = {}
    for ref, entries in objects:
        object_reason = object_refusal(state, ref)
        refused: list[RefusedSlice] = []
        taken: list[tuple[TopicIdPartition, int]] = []
        for entry in entries:
            tip = entry.topic_id_partition
            end_offset = ends.get(tip) if ends else None
            if end_offset is None:
                end_offset = state.partitions.get(tip, EMPTY_ROW).tiered_end_offset
            reason = object_reason or slice_refusal(state, entry, end_offset)
            if reason is None:
                taken.append((tip, entry.end_offset))
            else:
                refused.append(RefusedSlice(tip, reason))
        if len(refused) > MAX_LISTED and taken:
            refused += [RefusedSlice(tip, MANY_REFUSED) for tip, _ in taken]
            taken = []
        if taken:
            size_bytes += _ADD_BYTES + len(refused) * _LISTED_BYTES
            if actions and size_bytes > ACTIONS_BYTES:
                return Judgement(tuple(actions), tuple(refusals), is_whole=False)
            if len(objects) > 1:
                ends.update(taken)
            actions.append(Add(ref, tuple(refused)))
        refusals.extend(Refusal(ref.name, tip, reason) for tip, reason in refused)
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
    """Judges gaps one by one, as many as a commit takes: each begins at the tiered end of its partition, or
    where the one before it ends. A gap that is there already is nothing to do: an earlier attempt of this
    call may have landed.

    What has expired in a partition without slices is below the log start, which moves.

    `store_date_ms` is the time of the gaps, None if the clock is not trusted: then none is added, because
    retention goes by that time. Raises NotOwnerError if `epoch` is not current.
    """
    require_epoch(state, epoch)
    starts: list[PartitionOffset] = []
    gaps: list[AddGap] = []
    refusals: list[Refusal] = []
    ends: dict[TopicIdPartition, int] = {}
    gapped: set[TopicIdPartition] = set()
    is_whole = True
    for tip, base_offset, end_offset, reason in sorted(lost):
        if len(gaps) * _GAP_BYTES + len(starts) * _LISTED_BYTES > ACTIONS_BYTES:
            is_whole = False
            break
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
            # Log starts move first, so behind a gap of this commit there is a slice, too.
            has_slices = bool(partition.row.pieces) or tip in gapped
            if reason is GapReason.EXPIRED and not has_slices:
                starts.append(PartitionOffset(tip, end_offset))
            else:
                gapped.add(tip)
                gaps.append(AddGap(tip, base_offset, end_offset, reason.value, store_date_ms))
    moves = (AdvanceLogStart(tuple(starts), (), None),) if starts else ()
    return Judgement((*moves, *gaps), tuple(refusals), is_whole)


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
    """Judges moves of log starts, as many as a commit takes, the last one maybe in part. Only forward moves
    count; only an owner may go beyond the tiered end.

    Raises NotOwnerError if `epoch` is given and not current, PreconditionFailedError if the catalog seq
    is older than one that was used before.
    """
    if epoch is not None:
        require_epoch(state, epoch)
    require_fresh_catalog(state, catalog_seq)
    moved: list[PartitionOffset] = []
    refusals: list[Refusal] = []
    losses = _Losses(state, _LISTED_BYTES)
    for tip, offset in sorted(starts.items()):
        partition = state.partition(tip)
        if tip.topic_id in state.dropped_topics:
            refusals.append(Refusal("", tip, TOPIC_DELETED))
        elif offset <= partition.log_start_offset:
            continue
        elif offset > partition.tiered_end_offset and epoch is None:
            refusals.append(Refusal("", tip, ABOVE_TIERED_END))
        else:
            reached_offset = losses.take(partition, offset)
            if reached_offset > partition.log_start_offset:
                moved.append(PartitionOffset(tip, reached_offset))
            if reached_offset < offset:
                break
    is_whole = not losses.is_full
    actions = (AdvanceLogStart(tuple(moved), losses.emptied, catalog_seq),) if moved else ()
    return Judgement(actions, tuple(refusals), is_whole)


def judge_drop_slices(
    state: ShardState, tips: Collection[TopicIdPartition], epoch: int, catalog_seq: int
) -> Judgement[tuple[Refusal, ...]]:
    """Drops all slices of these partitions, as many as a commit takes, the newest ones first: the tiered end
    moves back to the log start, behind which the owner's disk has the records.

    Raises NotOwnerError if `epoch` is not current, PreconditionFailedError if the catalog seq is older than
    one that was used before.
    """
    require_epoch(state, epoch)
    require_fresh_catalog(state, catalog_seq)
    ends: list[PartitionOffset] = []
    refusals: list[Refusal] = []
    losses = _Losses(state, _LISTED_BYTES)
    for tip in sorted(tips):
        partition = state.partition(tip)
        if tip.topic_id in state.dropped_topics:
            refusals.append(Refusal("", tip, TOPIC_DELETED))
        elif partition.row.pieces:
            reached_offset = losses.take_from_end(partition)
            if reached_offset < partition.tiered_end_offset:
                ends.append(PartitionOffset(tip, reached_offset))
            if losses.is_full:
                break
    actions = (LowerTieredEnd(tuple(ends), catalog_seq, losses.emptied),) if ends else ()
    return Judgement(actions, tuple(refusals), is_whole=not losses.is_full)


class _Losses:
    """The slices that a commit takes from their objects, as many as it has room for. Not thread-safe: one
    judgement uses it."""

    def __init__(self, state: ShardState, listed_bytes: int) -> None:
        """`listed_bytes`: the size of a partition in the commit."""
        self._state = state
        self._listed_bytes = listed_bytes
        self._lost: dict[str, int] = defaultdict(int)
        self._emptied: list[str] = []
        self._size_bytes = 0
        self.is_full = False

    @property
    def emptied(self) -> tuple[str, ...]:
        """The objects that lose their last slice, by name."""
        return tuple(sorted(self._emptied))

    def take(self, partition: TieredPartition, offset: int) -> int:
        """Take the slices wholly below `offset`; returns the log start that they allow, which is lower where
        the commit is full."""
        self._size_bytes += self._listed_bytes
        if self._size_bytes > ACTIONS_BYTES:
            self.is_full = True
            return partition.log_start_offset
        for live in partition.slices:
            if live.end_offset > offset:
                break
            if self._size_bytes > ACTIONS_BYTES:
                self.is_full = True
                return max(live.base_offset, partition.log_start_offset)
            self._lose(live)
        return offset

    def take_from_end(self, partition: TieredPartition) -> int:
        """Take all slices, the newest one first; returns the tiered end that this allows, which is above the
        log start where the commit is full."""
        self._size_bytes += self._listed_bytes
        for live in reversed(partition.slices):
            if self._size_bytes > ACTIONS_BYTES:
                self.is_full = True
                return live.end_offset
            self._lose(live)
        return partition.log_start_offset

    def _lose(self, live: LiveSlice) -> None:
        if live.gap is None:
            name = live.object_name
            self._lost[name] += 1
            if self._lost[name] == self._state.objects[name].live_slices:
                self._emptied.append(name)
                self._size_bytes += _NAME_BYTES


def judge_drop_partitions(
    state: ShardState, topic_id: UUID, catalog_seq: int, store_date_ms: int
) -> Judgement[None]:
    """Drops the partitions of a topic, whose deletion the caller has seen in the catalog at `catalog_seq`.

    There is nothing to commit if that is already done. Where more objects lose their last slice than a commit
    can name, log starts move first.
    """
    require_fresh_catalog(state, catalog_seq)
    if topic_id in state.dropped_topics:
        return Judgement((), None)
    losses = _Losses(state, 0)
    tips = partitions_of(state, topic_id)
    for tip in tips:
        losses.take(state.partition(tip), state.partitions[tip].tiered_end_offset)
        if losses.is_full:
            ends = {one: state.partitions[one].tiered_end_offset for one in tips}
            return Judgement(judge_advance(state, ends, None, catalog_seq).actions, None, is_whole=False)
    expired = sorted(
        known
        for known, topic in state.dropped_topics.items()
        if topic.time_ms + DELETED_TOPIC_KEPT_MS < store_date_ms
    )
    drop = DropPartitions(topic_id, catalog_seq, losses.emptied, tuple(expired[:_MAX_EXPIRED]))
    return Judgement((drop,), None)


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
