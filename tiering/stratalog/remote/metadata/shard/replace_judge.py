"""Judges whether objects may replace the objects that they were made from.

A replacement was planned on one state and is judged on a later one. In between, log start may have passed the
first planned inputs of a partition. Then the output counts only for the remaining inputs: it is clipped to
begin where the first of them begins. That is right where the last record of a key stays, because it goes
last. Where records were compared by version, a deleted one may have beaten one that readers see. So such a
plan names the first offset that took part, and a log start above it refuses the partition. So does any other
change of the inputs (another compaction came first, the topic is deleted).
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.shard.shard_actions import PartitionOffset, RefusedSlice, Replace, slice_bits
from stratalog.remote.metadata.shard.shard_judge import (
    INPUTS_CHANGED,
    MANY_CLIPPED,
    NOT_FROM_FIRST_SLICE,
    RECORDS_DELETED,
    TOPIC_DELETED,
    Refusal,
    emptied,
    object_refusal,
    require_fresh_catalog,
)
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import NO_SLICES, SliceRanges
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry

MAX_INPUTS = 500
"""Objects that one replacement may read."""
MAX_LISTED_IN_REPLACE = 150
"""Partitions that one replacement may name, because a commit is small. Where more are clipped, the others
of these are refused; where more are named, the refused ones have bits instead."""

# An entry is a tuple, and its places are found in half the time of its names.
_RANGE = operator.itemgetter(
    *map(SliceEntry._fields.index, ("topic_id", "partition", "base_offset", "end_offset"))
)
_PARTITION = operator.itemgetter(0, 1)
_NO_OUTPUT = "every partition that was read has an output, and no other one has"


@dataclass(frozen=True, slots=True)
class ReplacePlan:
    """A planned replacement. Immutable."""

    inputs: Mapping[TopicIdPartition, SliceRanges]
    """The live slices that were read, by partition, in order, without gaps."""
    outputs: Sequence[tuple[ObjectRef, Sequence[SliceEntry]]]
    """For each partition they tile the range of its inputs."""
    covers: Mapping[TopicIdPartition, bool] = field(default_factory=dict[TopicIdPartition, bool])
    """Whether the job compacted everything of a partition from its first live slice on."""
    catalog_seq: int | None = None
    """Number of the catalog with the configuration that was used; needed where records were dropped."""
    withdrawn: Mapping[TopicIdPartition, str] = field(default_factory=dict[TopicIdPartition, str])
    """Partitions that keep their inputs whatever the state, with the reason."""
    compared_from: Mapping[TopicIdPartition, int] = field(default_factory=dict[TopicIdPartition, int])
    """The first offset that took part, of each partition whose records were compared by version."""

    def check(self, input_names: Sequence[str]) -> None:
        """Check that the plan is consistent. Raises InvalidRequestError if the plan contradicts itself."""
        require_request(bool(self.inputs), "a replacement has inputs")
        made = sorted(itertools.chain.from_iterable(map(_RANGE, entries) for _, entries in self.outputs))
        made_of = itertools.groupby(made, key=_PARTITION)
        for tip, planned in self.sorted_inputs():
            partition, ranges = next(made_of, (None, ()))
            require_request(partition == tip, _NO_OUTPUT)
            if planned.have_gaps:
                raise InvalidRequestError("a gap is never replaced", **tip.error_fields)
            _require_tiling(
                tip, planned, [(base_offset, end_offset) for *_, base_offset, end_offset in ranges]
            )
        require_request(next(made_of, None) is None, _NO_OUTPUT)
        read = set[str]().union(*{planned.object_names for planned in self.inputs.values()})
        require_request(read == set(input_names), "input names are those of the objects that were read")
        require_request(
            len(read) <= MAX_INPUTS, "read fewer objects in one job", inputs=len(read), max_inputs=MAX_INPUTS
        )

    def confirmed(self, catalog_seq: int, withdrawn: Mapping[TopicIdPartition, str]) -> ReplacePlan:
        """The plan with the number of the catalog that counts, where one is needed, and the partitions that
        keep their inputs; itself if it has these."""
        wanted_seq = None if self.catalog_seq is None else catalog_seq
        if (wanted_seq, withdrawn) == (self.catalog_seq, self.withdrawn):
            return self
        return replace(self, catalog_seq=wanted_seq, withdrawn=withdrawn)

    def sorted_inputs(self) -> list[tuple[TopicIdPartition, SliceRanges]]:
        """The inputs by partition, ascending."""
        return sorted(self.inputs.items(), key=operator.itemgetter(0))


def judge_replace(
    state: ShardState, plan: ReplacePlan
) -> Judgement[tuple[tuple[Refusal, ...], tuple[PartitionOffset, ...]]]:
    """The outcome: refusals, and the clipped partitions with their new base offset.

    Raises PreconditionFailedError if the plan's catalog seq is older than one that was used here.
    """
    require_fresh_catalog(state, plan.catalog_seq)
    reasons: dict[TopicIdPartition, str] = {}
    clipped: list[PartitionOffset] = []
    replaced: list[TopicIdPartition] = []
    lost: list[tuple[str, ...]] = []
    """The objects of the slices that go."""
    outputs_reason = next(filter(None, (object_refusal(state, ref) for ref, _ in plan.outputs)), None)
    for tip, planned in plan.sorted_inputs():
        partition = state.partition(tip)
        rest = remaining_inputs(partition, planned)
        is_clipped = rest is not planned
        reason = outputs_reason or (plan.withdrawn.get(tip) if plan.withdrawn else None)
        reason = reason or _partition_refusal(state, tip, partition, rest, plan)
        if reason is None and is_clipped and len(clipped) == MAX_LISTED_IN_REPLACE:
            reason = MANY_CLIPPED
        if reason is not None:
            reasons[tip] = reason
            continue
        replaced.append(tip)
        lost.append(rest.object_names)
        if is_clipped:
            clipped.append(PartitionOffset(tip, rest.base_offsets[0]))
    refusals: tuple[Refusal, ...] = ()
    if reasons:
        refusals = tuple(
            Refusal(ref.name, entry.topic_id_partition, reasons[entry.topic_id_partition])
            for ref, entries in plan.outputs
            for entry in entries
            if entry.topic_id_partition in reasons
        )
    if not replaced:
        return Judgement((), (refusals, ()))
    counts = Counter(itertools.chain.from_iterable(lost))
    action = _replacement(state, plan, replaced, counts, reasons, clipped)
    return Judgement((action,), (refusals, tuple(clipped)))


def remaining_inputs(partition: TieredPartition, planned: SliceRanges) -> SliceRanges:
    """The planned inputs that are live: all of them, or those behind log start; else none."""
    base_offset, end_offset = planned.base_offsets[0], planned.end_offsets[-1]
    live = partition.slices.ranges_between(base_offset, end_offset)
    if live == planned:
        return planned
    # Log start drops the first slices, so the rest is the beginning of what is left of the partition.
    rest = planned.without_first(planned.slice_count - live.slice_count)
    if live == rest != NO_SLICES and partition.row.pieces[0].base_offset == rest.base_offsets[0]:
        return rest
    return NO_SLICES


def _partition_refusal(
    state: ShardState,
    tip: TopicIdPartition,
    partition: TieredPartition,
    rest: SliceRanges,
    plan: ReplacePlan,
) -> str | None:
    if state.dropped_topics and tip.topic_id in state.dropped_topics:
        return TOPIC_DELETED
    if rest == NO_SLICES:
        return INPUTS_CHANGED
    # A record that is gone may have beaten one that is still there.
    if (
        plan.compared_from
        and tip in plan.compared_from
        and partition.log_start_offset > plan.compared_from[tip]
    ):
        return RECORDS_DELETED
    # Such a job may drop tombstones, so it must have read every older record of their keys.
    if plan.covers.get(tip, False) and not is_first_live(partition, rest):
        return NOT_FROM_FIRST_SLICE
    return None


def is_first_live(partition: TieredPartition, rest: SliceRanges) -> bool:
    """Whether no live slice lies below these; a gap has no records."""
    base_offset = rest.base_offsets[0]
    if partition.row.pieces[0].base_offset == base_offset:
        return True
    return not any(partition.slices.ranges_between(0, base_offset).object_names)


def _replacement(
    state: ShardState,
    plan: ReplacePlan,
    replaced: Sequence[TopicIdPartition],
    lost: Mapping[str, int],
    reasons: Mapping[TopicIdPartition, str],
    clipped: Sequence[PartitionOffset],
) -> Replace:
    """`lost`: the slices that the objects lose, by name."""
    dropped = set(emptied(state, lost))
    bases = dict(clipped)
    outputs = [(ref, entries) for ref, entries in plan.outputs if any(_live_entries(entries, reasons, bases))]
    covering = [tip for tip in replaced if plan.covers.get(tip, False)]
    is_part = 0 < len(covering) < len(replaced)
    has_many = len(reasons) + len(clipped) > MAX_LISTED_IN_REPLACE
    refused = () if has_many else tuple(RefusedSlice(tip, reason) for tip, reason in sorted(reasons.items()))
    return Replace(
        inputs=tuple(sorted(lost)),
        outputs=tuple(ref for ref, _ in outputs),
        refused=refused,
        refused_slices=tuple(slice_bits(entries, reasons) for _, entries in outputs) if has_many else (),
        clipped=tuple(clipped),
        still_live=tuple(sorted(lost.keys() - dropped)),
        is_compacting=len(covering) == len(replaced),
        compacting_slices=tuple(slice_bits(entries, frozenset(covering)) for _, entries in outputs)
        if is_part
        else (),
        catalog_seq=plan.catalog_seq,
    )


def _live_entries(
    entries: Sequence[SliceEntry],
    reasons: Mapping[TopicIdPartition, str],
    bases: Mapping[TopicIdPartition, int],
) -> Iterator[SliceEntry]:
    for entry in entries:
        tip = entry.topic_id_partition
        if tip not in reasons and entry.end_offset > bases.get(tip, 0):
            yield entry


def _require_tiling(tip: TopicIdPartition, planned: SliceRanges, made: list[tuple[int, int]]) -> None:
    """`made`: base and end of each output, ascending."""
    fault: str | None = None
    if not planned.slice_count:
        fault = "a partition that was read has inputs"
    elif not planned.tile:
        fault = "inputs of a partition follow one another"
    elif any(one[1] != two[0] for one, two in itertools.pairwise(made)):
        fault = "outputs of a partition tile"
    elif (made[0][0], made[-1][1]) != (planned.base_offsets[0], planned.end_offsets[-1]):
        fault = "outputs have the range of their inputs"
    if fault is not None:
        raise InvalidRequestError(fault, **tip.error_fields)


def require_request(is_valid: bool, message: str, **fields: object) -> None:
    """Raise InvalidRequestError with `message` unless `is_valid`."""
    if not is_valid:
        raise InvalidRequestError(message, **fields)
