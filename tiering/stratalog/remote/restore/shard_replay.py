"""Applies the commits of a shard where the objects that they brought are gone.

A commit names an object, and the object's directory names its slices. So without the object nothing says
which slices a commit brought. Most often that does not matter: the object was dropped again before the moment
that is looked for, and collected since. Otherwise its offsets become gaps, as far as its neighbours show
them.

The bookkeeping of files (dropped ones, pins, folds) is left as it was before the first of these commits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stratalog.base.errors import ObjectNotFoundError, StoreNotUsableError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW
from stratalog.remote.metadata.shard.shard_actions import (
    Add,
    AddGap,
    AdvanceLogStart,
    Claim,
    DropPartitions,
    LowerTieredEnd,
    Replace,
)
from stratalog.remote.metadata.shard.shard_builder import LoadDirectory, apply_commit
from stratalog.remote.metadata.shard.shard_checkpoint import shard_detached
from stratalog.remote.metadata.shard.shard_state import DroppedTopic, ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.restore.partition_tiling import LostOffsets, closed
from stratalog.remote.restore.shard_rebuild import live_objects


class Replayed(NamedTuple):
    """A state that was reached without some of its objects."""

    state: ShardState
    lost: tuple[LostOffsets, ...]
    gone: tuple[str, ...]
    """The objects that are gone and were live at the end. Slices of theirs may be lost that no neighbour
    shows."""


class ShardReplay:
    """Applies commits one after the other. Not thread-safe: one command uses it."""

    def __init__(self, state: ShardState, load_directory: LoadDirectory) -> None:
        self._state = state
        self._load_directory = load_directory
        self._rows = dict(state.partitions.items())
        self._tiles = {tip: [*state.partition(tip).slices] for tip in self._rows}
        self._refs: dict[str, ObjectRef] = {}
        self._gone: set[str] = set()
        self._dropped_topics = dict(state.dropped_topics.items())

    def apply(self, commit: Commit) -> None:
        """Apply one more commit. Raises StoreNotUsableError if newer software has made it."""
        if commit.unknown_action is not None:
            raise StoreNotUsableError(
                "newer software has made a commit; upgrade first",
                seq=commit.seq,
                action=commit.unknown_action,
            )
        claims = tuple(action for action in commit.actions if isinstance(action, Claim))
        claim_only = dataclasses.replace(commit, actions=claims)
        self._state = apply_commit(self._state, claim_only, self._load_directory)
        for action in commit.actions:
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
                    self._lower(action, commit)
                case DropPartitions():
                    self._drop(action, commit)
                case _:
                    pass

    def finish(self) -> Replayed:
        """The state after the last commit."""
        partitions: dict[TopicIdPartition, TieredPartition] = {}
        lost: list[LostOffsets] = []
        for tip, row in self._rows.items():
            tiling = closed(tip, TieredPartition(tip, row), self._tiles[tip], self._state.time_ms)
            partitions[tip] = tiling.partition
            lost += tiling.lost
        state = self._state
        objects = live_objects(state.objects, partitions, self._refs, state.seq, state.time_ms)
        state = dataclasses.replace(
            self._state,
            partitions=PersistentMap((tip, partition.row) for tip, partition in partitions.items()),
            objects=PersistentMap(objects.items()),
            dropped_objects=PersistentMap(
                (name, one) for name, one in self._state.dropped_objects.items() if name not in objects
            ),
            dropped_topics=PersistentMap(self._dropped_topics.items()),
        )
        return Replayed(shard_detached(state), tuple(lost), tuple(sorted(self._gone)))

    def _add(self, add: Add) -> None:
        refused = {tip for tip, _ in add.refused}
        for entry in self._directory(add.object):
            if entry.topic_id_partition not in refused:
                live = LiveSlice(add.object.name, entry.base_offset, entry.end_offset, entry)
                self._append(entry.topic_id_partition, live)

    def _add_gap(self, add: AddGap) -> None:
        tiles = self._tiles.get(add.partition, [])
        opened = tiles[-1].entry.open_transactions if tiles else ()
        gap = Gap(add.reason, add.time_ms, opened)
        self._append(add.partition, LiveSlice.of_gap(add.partition, add.base_offset, add.end_offset, gap))

    def _append(self, tip: TopicIdPartition, live: LiveSlice) -> None:
        before = self._rows.get(tip, EMPTY_ROW)
        self._rows[tip] = before._replace(
            tiered_end_offset=live.end_offset, end_mark=live.entry.last_batch or before.end_mark
        )
        self._tiles.setdefault(tip, []).append(live)

    def _replace(self, replace: Replace) -> None:
        still_live = set(replace.still_live)
        self._forget(name for name in replace.inputs if name not in still_live)
        self._use_catalog(replace.catalog_seq)
        made: dict[TopicIdPartition, list[LiveSlice]] = {}
        compacted: set[TopicIdPartition] = set()
        clipped = dict(replace.clipped)
        # Where an output is gone its inputs stay: they have the same records.
        for number, ref in enumerate(replace.outputs):
            entries = self._directory(ref)
            compacted.update(replace.compacted_in(number, entries))
            refused = replace.refused_in(number, entries)
            for entry in entries:
                base_offset = max(entry.base_offset, clipped.get(entry.topic_id_partition, 0))
                if entry.topic_id_partition not in refused and base_offset < entry.end_offset:
                    live = LiveSlice(ref.name, base_offset, entry.end_offset, entry)
                    made.setdefault(entry.topic_id_partition, []).append(live)
        if not self._gone.isdisjoint(ref.name for ref in replace.outputs):
            # Some of the inputs are read again.
            compacted.clear()
        for tip, slices in made.items():
            for run in _runs(slices):
                self._put_in_place(tip, run)
            last = max(slices, key=lambda live: live.end_offset)
            end_offset = last.end_offset
            before = self._rows.get(tip, EMPTY_ROW)
            upto = last.entry.stable_end_offset if tip in compacted else 0
            self._rows[tip] = before._replace(
                tiered_end_offset=max(before.tiered_end_offset, end_offset),
                # The upload that ended there is gone, and with it its last batch.
                end_mark=before.end_mark if end_offset <= before.tiered_end_offset else None,
                compacted_upto=max(before.compacted_upto, upto),
            )

    def _put_in_place(self, tip: TopicIdPartition, slices: Sequence[LiveSlice]) -> None:
        """Put slices that tile in the place of what lies in their range."""
        base_offset, end_offset = slices[0].base_offset, slices[-1].end_offset
        tiles = self._tiles.setdefault(tip, [])
        below = [live for live in tiles if live.base_offset < base_offset]
        low_end = below[-1].end_offset if below else base_offset
        taken = [
            live._replace(base_offset=max(live.base_offset, low_end))
            for live in slices
            if live.end_offset > low_end
        ]
        # An input may reach beyond, where the next output is gone.
        above = [
            live._replace(base_offset=max(live.base_offset, end_offset))
            for live in tiles
            if live.base_offset >= base_offset and live.end_offset > end_offset
        ]
        self._tiles[tip] = [*below, *taken, *above]

    def _advance(self, advance: AdvanceLogStart) -> None:
        self._forget(advance.dropped)
        self._use_catalog(advance.catalog_seq)
        for tip, offset in advance.starts:
            before = self._rows.get(tip, EMPTY_ROW)
            self._rows[tip] = before._replace(
                log_start_offset=offset, tiered_end_offset=max(before.tiered_end_offset, offset)
            )
            self._tiles[tip] = [live for live in self._tiles.get(tip, ()) if live.end_offset > offset]

    def _lower(self, lower: LowerTieredEnd, commit: Commit) -> None:
        self._forget(lower.dropped)
        self._use_catalog(lower.catalog_seq)
        for tip, offset in lower.ends:
            before = self._rows.get(tip, EMPTY_ROW)
            self._rows[tip] = before._replace(
                tiered_end_offset=offset,
                stable_end_offset=before.log_start_offset,
                end_mark=None,
                compacted_upto=min(before.compacted_upto, offset),
                lowered_seq=commit.seq,
            )
            self._tiles[tip] = [live for live in self._tiles.get(tip, ()) if live.end_offset <= offset]

    def _drop(self, drop: DropPartitions, commit: Commit) -> None:
        self._forget(drop.dropped)
        self._use_catalog(drop.catalog_seq)
        for tip in [tip for tip in self._rows if tip.topic_id == drop.topic_id]:
            del self._rows[tip], self._tiles[tip]
        self._dropped_topics[drop.topic_id] = DroppedTopic(commit.seq, commit.time_ms)
        for topic_id in drop.expired:
            self._dropped_topics.pop(topic_id, None)

    def _directory(self, ref: ObjectRef) -> Sequence[SliceEntry]:
        """The slices of an object; none if it is gone."""
        self._refs[ref.name] = ref
        try:
            return self._load_directory(ref)
        except ObjectNotFoundError:
            self._gone.add(ref.name)
            return ()

    def _forget(self, names: Iterable[str]) -> None:
        """These objects are dropped: it does not matter any more whether they are there."""
        self._gone.difference_update(names)

    def _use_catalog(self, catalog_seq: int | None) -> None:
        seen_seq = max(self._state.catalog_seq, catalog_seq or 0)
        self._state = dataclasses.replace(self._state, catalog_seq=seen_seq)


def _runs(slices: Iterable[LiveSlice]) -> list[list[LiveSlice]]:
    """The slices in rows that tile."""
    runs: list[list[LiveSlice]] = []
    for live in sorted(slices, key=lambda one: one.base_offset):
        if runs and runs[-1][-1].end_offset == live.base_offset:
            runs[-1].append(live)
        else:
            runs.append([live])
    return runs
