"""Applies commits to the state of a shard. Followers and writers use the same code, which decides nothing.

A commit contains every outcome. Values that follow from the state (an object's count of live slices, an input
that lost its last one) are compared with the commit; a difference means that the store contradicts itself:
StoreCorruptError.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Container, Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile
from stratalog.remote.metadata.head.head_state import (
    DROPPED,
    ChangedRows,
    after_action,
    after_commit,
    contradiction,
    drop_file,
)
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW, PartitionRow
from stratalog.remote.metadata.shard.shard_actions import (
    Add,
    AddGap,
    AdvanceLogStart,
    Claim,
    DropPartitions,
    LowerTieredEnd,
    Replace,
)
from stratalog.remote.metadata.shard.shard_state import (
    OBJECTS,
    PARTITIONS,
    DroppedTopic,
    LiveObject,
    ShardClaim,
    ShardState,
)
from stratalog.remote.metadata.shard.slice_columns import SliceColumns, SliceRanges
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry

LoadDirectory = Callable[[ObjectRef], Sequence[SliceEntry]]
"""Reads the directory of an object that a commit brings."""


def apply_commit(
    state: ShardState, commit: Commit, load_directory: LoadDirectory, root: CheckpointRoot | None = None
) -> ShardState:
    """The state after `commit`; `root` is that of the checkpoint which a fold in it names. Raises
    StoreCorruptError if the commit cannot follow the state, and the errors of `load_directory` and of pages
    (ObjectNotFoundError if the head of the commit is old).
    """
    state = after_commit(state, commit)
    for action in commit.actions:
        match action:
            case Claim():
                state = _apply_claim(state, action, commit)
            case Add() | AddGap() | Replace() | AdvanceLogStart() | LowerTieredEnd() | DropPartitions():
                builder = _Builder(state, commit, load_directory)
                builder.apply(action)
                state = builder.finish()
            case _:
                state = after_action(state, action, commit, root)
    return state


def _apply_claim(state: ShardState, claim: Claim, commit: Commit) -> ShardState:
    if claim.epoch <= state.epoch:
        raise contradiction(commit, "its epoch is not above the one before", epoch=claim.epoch)
    taken = ShardClaim(
        epoch=claim.epoch,
        owner=claim.owner,
        endpoint=claim.endpoint,
        uuid=claim.uuid,
        seq=commit.seq,
        time_ms=commit.time_ms,
    )
    return dataclasses.replace(state, epoch=claim.epoch, claims=(*state.claims, taken))


class _LostSlices:
    """The slices that a commit takes from its objects, as numbers: a job may replace a hundred thousand. Not
    thread-safe: one call uses it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        """By the name of the object. Gaps do not count: they have none."""
        self.sizes: dict[str, int] = defaultdict(int)
        """Their data, in bytes."""

    def add(self, slices: SliceColumns) -> None:
        counts, sizes = self.counts, self.sizes
        for name, data_bytes in zip(slices.ranges.object_names, slices.data_bytes, strict=True):
            if name:
                counts[name] += 1
                sizes[name] += data_bytes


class _Builder:
    """Builds the next state for actions that move slices. Not thread-safe: one call uses it."""

    def __init__(self, state: ShardState, commit: Commit, load_directory: LoadDirectory) -> None:
        self._state = state
        self._commit = commit
        self._load_directory = load_directory
        self._partitions = state.partitions.evolve()
        self._objects = state.objects.evolve()
        self._dropped = state.dropped_objects.evolve()
        self._dropped_topics = state.dropped_topics.evolve()
        self._changed_partitions: list[TopicIdPartition] = []
        self._changed_objects: list[str] = []
        self._dropped_names: list[str] = []
        self._unfolded_slices = state.unfolded_slices
        self._catalog_seq = state.catalog_seq

    def apply(
        self, action: Add | AddGap | Replace | AdvanceLogStart | LowerTieredEnd | DropPartitions
    ) -> None:
        match action:
            case Add():
                self._add(action)
            case AddGap():
                self._add_gap(action)
            case Replace():
                self._replace(action)
            case AdvanceLogStart():
                self._advance(action)
            case LowerTieredEnd():
                self._lower(action)
            case DropPartitions():
                self._drop_topic(action)

    def finish(self) -> ShardState:
        state = self._state
        changes = (
            (PARTITIONS, self._changed_partitions),
            (OBJECTS, self._changed_objects),
            (DROPPED, self._dropped_names),
        )
        changed = tuple(ChangedRows(state.seq, kind, keys) for kind, keys in changes if keys)
        return dataclasses.replace(
            state,
            partitions=self._partitions.finish(),
            objects=self._objects.finish(),
            dropped_objects=self._dropped.finish(),
            dropped_topics=self._dropped_topics.finish(),
            changed=state.changed + changed,
            unfolded_slices=self._unfolded_slices,
            catalog_seq=self._catalog_seq,
        )

    def _add(self, add: Add) -> None:
        refused = {tip for tip, _ in add.refused}
        name, own_bucket = add.object.name, self._partitions.own_bucket
        tips: list[TopicIdPartition] = []
        slice_bytes = 0
        for entry in self._load_directory(add.object):
            tip = entry.topic_id_partition
            if refused and tip in refused:
                continue
            rows = own_bucket(tip)
            before = rows.get(tip, EMPTY_ROW)
            live = LiveSlice(name, entry.base_offset, entry.end_offset, entry)
            if live.base_offset != before.tiered_end_offset or live.end_offset <= live.base_offset:
                raise self._contradiction("a slice does not begin at the tiered end", **tip.error_fields)
            rows[tip] = before.with_slice(live)
            tips.append(tip)
            slice_bytes += entry.data_bytes
        self._changed_partitions += tips
        self._unfolded_slices += len(tips)
        self._add_object(add.object, len(tips), slice_bytes, self._commit.time_ms)

    def _add_gap(self, add: AddGap) -> None:
        before = self._row(add.partition)
        if add.base_offset != before.tiered_end_offset or add.end_offset <= add.base_offset:
            raise self._contradiction("a gap does not begin at the tiered end", **add.partition.error_fields)
        gap = Gap(add.reason, add.time_ms, before.open_transactions)
        live = LiveSlice.of_gap(add.partition, add.base_offset, add.end_offset, gap)
        self._change(add.partition, before, before.with_slice(live))

    def _replace(self, replace: Replace) -> None:
        self._use_catalog(replace.catalog_seq)
        directories = [self._load_directory(ref) for ref in replace.outputs]
        outputs = self._output_slices(replace, directories)
        compacted: Container[TopicIdPartition] = ()
        if not replace.is_compacting:
            numbered = enumerate(directories)
            compacted = {tip for number, entries in numbered for tip in replace.compacted_in(number, entries)}
        lost = _LostSlices()
        for tip, slices in outputs.items():
            # A key is hashed each time it is looked up.
            rows = self._partitions.own_bucket(tip)
            before = TieredPartition(tip, rows.get(tip, EMPTY_ROW), self._state.pages)
            after = before.with_replaced(slices, are_compacted=replace.is_compacting or tip in compacted)
            if after is None:
                raise self._contradiction(
                    "an output does not have the range of live slices", **tip.error_fields
                )
            if after.lost.ranges.have_gaps:
                raise self._contradiction("it replaces a gap", **tip.error_fields)
            lost.add(after.lost)
            rows[tip] = after.row
            self._note_change(tip, before.row, after.row)
        still_live = set(replace.still_live)
        self._drop_slices(lost, {name for name in replace.inputs if name not in still_live})
        self._add_outputs(replace, outputs)

    def _output_slices(
        self, replace: Replace, directories: Sequence[Sequence[SliceEntry]]
    ) -> dict[TopicIdPartition, list[LiveSlice]]:
        clipped = dict(replace.clipped)
        outputs: dict[TopicIdPartition, list[LiveSlice]] = {}
        for number, (ref, entries) in enumerate(zip(replace.outputs, directories, strict=True)):
            refused = replace.refused_in(number, entries)
            for entry in entries:
                tip = entry.topic_id_partition
                if refused and tip in refused:
                    continue
                base_offset = max(entry.base_offset, clipped.get(tip, 0)) if clipped else entry.base_offset
                if base_offset < entry.end_offset:
                    live = LiveSlice(ref.name, base_offset, entry.end_offset, entry)
                    outputs.setdefault(tip, []).append(live)
        for tip, slices in outputs.items():
            if len(slices) > 1:
                slices.sort(key=lambda live: live.base_offset)
                if not SliceRanges.of(slices).tile:
                    raise self._contradiction("outputs of a partition do not tile", **tip.error_fields)
        return outputs

    def _add_outputs(self, replace: Replace, outputs: dict[TopicIdPartition, list[LiveSlice]]) -> None:
        counts: dict[str, int] = defaultdict(int)
        sizes: dict[str, int] = defaultdict(int)
        for slices in outputs.values():
            for live in slices:
                counts[live.object_name] += 1
                sizes[live.object_name] += live.entry.data_bytes
        uploaded_ms = max(self._state.objects[name].uploaded_ms for name in replace.inputs)
        for ref in replace.outputs:
            self._add_object(ref, counts[ref.name], sizes[ref.name], uploaded_ms)

    def _advance(self, advance: AdvanceLogStart) -> None:
        self._use_catalog(advance.catalog_seq)
        lost = _LostSlices()
        for tip, offset in advance.starts:
            before = self._partition(tip)
            if offset <= before.log_start_offset:
                raise self._contradiction("log start does not move forward", **tip.error_fields)
            after = before.with_log_start(offset)
            lost.add(after.lost)
            self._change(tip, before.row, after.row)
        self._drop_slices(lost, set(advance.dropped))

    def _lower(self, lower: LowerTieredEnd) -> None:
        self._use_catalog(lower.catalog_seq)
        lost = _LostSlices()
        for tip, offset in lower.ends:
            before = self._partition(tip)
            after = before.with_tiered_end(offset)
            if after is None:
                raise self._contradiction("a tiered end does not move back to a boundary", **tip.error_fields)
            lost.add(after.lost)
            self._change(tip, before.row, after.row._replace(lowered_seq=self._commit.seq))
        self._drop_slices(lost, set(lower.dropped))

    def _drop_topic(self, drop: DropPartitions) -> None:
        self._use_catalog(drop.catalog_seq)
        lost = _LostSlices()
        for tip in partitions_of(self._state, drop.topic_id):
            partition = self._partition(tip)
            lost.add(partition.slices.columns_between(0, partition.tiered_end_offset))
            self._unfolded_slices -= self._partitions.pop(tip).unfolded_count
            self._changed_partitions.append(tip)
        self._drop_slices(lost, set(drop.dropped))
        self._dropped_topics[drop.topic_id] = DroppedTopic(self._commit.seq, self._commit.time_ms)
        for topic_id in drop.expired:
            if topic_id in self._dropped_topics:
                self._dropped_topics.pop(topic_id)

    def _row(self, tip: TopicIdPartition) -> PartitionRow:
        return self._partitions.get(tip) or EMPTY_ROW

    def _partition(self, tip: TopicIdPartition) -> TieredPartition:
        return TieredPartition(tip, self._row(tip), self._state.pages)

    def _change(self, tip: TopicIdPartition, before: PartitionRow, after: PartitionRow) -> None:
        self._partitions[tip] = after
        self._note_change(tip, before, after)

    def _note_change(self, tip: TopicIdPartition, before: PartitionRow, after: PartitionRow) -> None:
        self._changed_partitions.append(tip)
        self._unfolded_slices += after.unfolded_count - before.unfolded_count

    def _add_object(self, ref: ObjectRef, slices: int, slice_bytes: int, uploaded_ms: int) -> None:
        if ref.name in self._objects or ref.name in self._dropped:
            raise self._contradiction("it adds an object that is already known", object=ref.name)
        if slices == 0:
            raise self._contradiction("it adds an object without slices", object=ref.name)
        self._objects[ref.name] = LiveObject(ref, self._commit.seq, slices, slice_bytes, uploaded_ms)
        self._changed_objects.append(ref.name)

    def _drop_slices(self, lost: _LostSlices, dropped: set[str]) -> None:
        """Subtract slices from their objects. Exactly the objects in `dropped` have none left then."""
        counts = lost.counts
        for name in dropped - counts.keys():
            raise self._contradiction("it drops an object that loses no slice", object=name)
        for name, count in counts.items():
            live_object = self._state.objects[name]
            left = live_object.live_slices - count
            assert left >= 0, "live slices are counted"
            if (left == 0) != (name in dropped):
                raise self._contradiction("it is wrong about the last slice of an object", object=name)
            self._changed_objects.append(name)
            if left:
                left_bytes = live_object.live_bytes - lost.sizes[name]
                self._objects[name] = live_object._replace(live_slices=left, live_bytes=left_bytes)
            else:
                self._objects.pop(name)
                file = TrackedFile(FileKind.DATA, name, live_object.ref.size_bytes)
                drop_file(self._dropped, file, self._commit, live_object.seq)
                self._dropped_names.append(name)

    def _use_catalog(self, catalog_seq: int | None) -> None:
        if catalog_seq is None:
            return
        if catalog_seq < self._catalog_seq:
            raise self._contradiction(
                "it used an older catalog than an earlier commit", catalog_seq=catalog_seq
            )
        self._catalog_seq = catalog_seq

    def _contradiction(self, what: str, **fields: object) -> Exception:
        return contradiction(self._commit, what, **fields)


def partitions_of(state: ShardState, topic_id: object) -> list[TopicIdPartition]:
    """The known partitions of a topic, in order."""
    return sorted(tip for tip in state.partitions if tip.topic_id == topic_id)
