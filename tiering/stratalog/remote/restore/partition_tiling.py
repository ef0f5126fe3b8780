"""Finds the slices of one partition when the commits that made them live are lost: pure functions.

Three kinds of slices compete for the offsets of a partition:

- **known** ones: of the newest state that is left (checkpoint and history). They are certain.
- **uploads** that this state does not know: committed after it, or never. An owner's first upload begins at
  or above every committed end of the owners before it. So an upload of a lower epoch that ends above that
  point was never committed. Nor was one of a lower epoch than that of the known state, which has all commits
  before its newest claim.
- **outputs** of compaction that this state does not know. One replaces its inputs, which its header names. It
  is taken only where everything that it covers is an input, an upload or nothing: if a known slice or
  another output is there that it was not made from, it is the left-over of a refused job.

Neither an upload nor an output reaches above the known tiered end if it was begun before the commit that
moved this end back. No uploader had the partition at that commit, and the inputs of a compaction above it
went with it. The local disk has these records, and the log must not begin above them.

Slices are never cut at their upper end, because the format cannot say so; at the lower end they are. Offsets
between two slices that no object has become a gap with the reason `object_lost`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.live_slice import Gap, GapReason, LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_entry import LastBatch, SliceEntry
from stratalog.remote.store_layout import seq_prefix


class Upload(NamedTuple):
    """A slice of an uploaded object that no known state has."""

    object_name: str
    epoch: int
    entry: SliceEntry


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """The slices of one partition that a compaction has made; a job that died half-way left holes in them.
    Immutable."""

    slices: Sequence[LiveSlice]
    inputs: frozenset[str]
    """The names of the objects that the job has read."""

    @property
    def base_offset(self) -> int:
        return self.slices[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.slices[-1].end_offset

    @property
    def has_holes(self) -> bool:
        """Whether the slices do not tile."""
        return any(one.end_offset != two.base_offset for one, two in itertools.pairwise(self.slices))


class LostOffsets(NamedTuple):
    """Offsets [base, end) of a partition that no object has."""

    partition: TopicIdPartition
    base_offset: int
    end_offset: int
    is_start: bool
    """Whether they lie before all others: retention may have deleted them. Log start moves over them."""


class Tiling(NamedTuple):
    """The partition as it can be put together, and what it lacks."""

    partition: TieredPartition
    lost: tuple[LostOffsets, ...]


def is_refused(row: PartitionRow, object_name: str, end_offset: int) -> bool:
    """Whether a slice of the object up to this offset was begun before the tiered end moved back below it.
    `row`: the partition in the known state."""
    return end_offset > row.tiered_end_offset and object_name < seq_prefix(row.lowered_seq)


def with_uploads(tiles: Sequence[LiveSlice], from_offset: int, uploads: Iterable[Upload]) -> list[LiveSlice]:
    """The tiles and, from an offset on, uploads: always the one that reaches farthest."""
    found = list(tiles)
    left = [one for one in _not_fenced([*uploads]) if one.entry.base_offset >= from_offset]
    position = from_offset
    while left := [one for one in left if one.entry.end_offset > position]:
        position = max(position, min(one.entry.base_offset for one in left))
        here = (one for one in left if one.entry.base_offset <= position)
        best = max(here, key=lambda one: (one.entry.end_offset, one.entry.base_offset, one.object_name))
        end_offset = best.entry.end_offset
        found.append(LiveSlice(best.object_name, position, end_offset, best.entry))
        position = end_offset
    return found


def _not_fenced(uploads: Sequence[Upload]) -> list[Upload]:
    """The uploads without those that end above the beginning of a later epoch's first upload."""
    starts: dict[int, int] = {}
    for one in uploads:
        starts[one.epoch] = min(starts.get(one.epoch, one.entry.base_offset), one.entry.base_offset)
    return [
        one
        for one in uploads
        if all(start >= one.entry.end_offset for epoch, start in starts.items() if epoch > one.epoch)
    ]


def with_output(
    tiles: Sequence[LiveSlice], output: Output, known_start: int, uploaded: Collection[str]
) -> list[LiveSlice] | None:
    """The tiles with the output in place of what it was made from; None if it was not made from these.

    `known_start`: below it the known state has nothing. `uploaded`: names of uploads; these never win.
    """
    end_offset = output.end_offset
    covered = [one for one in tiles if one.base_offset < end_offset and one.end_offset > output.base_offset]
    base_offset = max(output.base_offset, known_start)
    if output.has_holes or base_offset >= end_offset:
        return None
    for one in covered:
        is_within = output.base_offset <= one.base_offset and one.end_offset <= end_offset
        if one.gap is not None or not (
            one.object_name in uploaded or (is_within and one.object_name in output.inputs)
        ):
            return None
    below = [one for one in tiles if one.end_offset <= output.base_offset]
    above = [one for one in tiles if one.base_offset >= end_offset]
    # An upload across a boundary was never committed, because the inputs were. Its rest may be all there is.
    low_end = max((one.end_offset for one in covered if one.base_offset < base_offset), default=base_offset)
    crossing = [one for one in covered if one.base_offset < output.base_offset]
    behind = [
        one._replace(base_offset=end_offset)
        for one in covered
        if one.base_offset >= output.base_offset and one.end_offset > end_offset
    ]
    taken = [
        one._replace(base_offset=max(one.base_offset, low_end))
        for one in output.slices
        if one.end_offset > low_end
    ]
    return [*below, *crossing, *taken, *behind, *above]


def closed(
    tip: TopicIdPartition,
    before: TieredPartition,
    tiles: Iterable[LiveSlice],
    now_ms: int,
    newest_upload: LiveSlice | None = None,
) -> Tiling:
    """The partition of these tiles, which ascend; gaps fill what lies between them. `before`: the partition
    in the known state. `newest_upload`: the last of the uploads that it does not know, even if an output is
    in its place."""
    kept = [one for one in tiles if one.end_offset > before.log_start_offset]
    if not kept:
        return _emptied(tip, before)
    first_offset = kept[0].base_offset
    log_start_offset = max(before.log_start_offset, first_offset)
    lost: list[LostOffsets] = []
    if log_start_offset > before.log_start_offset:
        lost.append(LostOffsets(tip, before.log_start_offset, log_start_offset, is_start=True))
    made, holes = _with_tiles(tip, PartitionRow(log_start_offset, first_offset), kept, now_ms)
    lost += holes
    if before.tiered_end_offset > made.tiered_end_offset:
        # An offset has one record for ever: those of lost records are not given again.
        lost.append(LostOffsets(tip, made.tiered_end_offset, before.tiered_end_offset, is_start=False))
        made = _with_gap(tip, made, before.tiered_end_offset, now_ms)
    row = made._replace(
        end_mark=_end_mark(made.tiered_end_offset, before, newest_upload),
        stable_end_offset=max(made.stable_end_offset, before.stable_end_offset, log_start_offset),
        compacted_upto=before.compacted_upto,
        lowered_seq=before.row.lowered_seq,
    )
    return Tiling(TieredPartition(tip, row), tuple(lost))


def _end_mark(
    tiered_end_offset: int, before: TieredPartition, newest_upload: LiveSlice | None
) -> LastBatch | None:
    """The last batch before the tiered end as it was uploaded; None if no upload shows it. The local log has
    that batch, and not the one that a compaction has made of it."""
    if tiered_end_offset == before.tiered_end_offset:
        return before.end_mark
    if newest_upload is not None and tiered_end_offset == newest_upload.end_offset:
        return newest_upload.entry.last_batch
    return None


def extended(tip: TopicIdPartition, before: PartitionRow, tiles: Iterable[LiveSlice], now_ms: int) -> Tiling:
    """A partition that has slices with these tiles behind them, which ascend; gaps fill what lies between
    them. Its own slices stay where they are."""
    row, lost = _with_tiles(tip, before, tiles, now_ms)
    return Tiling(TieredPartition(tip, row), tuple(lost))


def _with_tiles(
    tip: TopicIdPartition, before: PartitionRow, tiles: Iterable[LiveSlice], now_ms: int
) -> tuple[PartitionRow, list[LostOffsets]]:
    """The row with the tiles, and with gaps for the offsets between them."""
    lost: list[LostOffsets] = []
    made, pieces = before, list(before.pieces)
    for live in tiles:
        if live.base_offset > made.tiered_end_offset:
            lost.append(LostOffsets(tip, made.tiered_end_offset, live.base_offset, is_start=False))
            made = _with_gap(tip, made, live.base_offset, now_ms)
            pieces.append(made.pieces[-1])
        # A row copies its pieces with each slice, and needs none but the first to know that it has any.
        made = made._replace(pieces=made.pieces[:1]).with_slice(live)
        pieces.append(live)
    return made._replace(pieces=tuple(pieces)), lost


def _with_gap(tip: TopicIdPartition, made: PartitionRow, end_offset: int, now_ms: int) -> PartitionRow:
    gap = Gap(GapReason.OBJECT_LOST.value, now_ms, made.open_transactions)
    return made.with_slice(LiveSlice.of_gap(tip, made.tiered_end_offset, end_offset, gap))


def _emptied(tip: TopicIdPartition, before: TieredPartition) -> Tiling:
    """A partition without slices begins at its end."""
    end_offset = before.tiered_end_offset
    lost = (
        (LostOffsets(tip, before.log_start_offset, end_offset, is_start=True),)
        if before.log_start_offset < end_offset
        else ()
    )
    row = PartitionRow(
        log_start_offset=end_offset,
        tiered_end_offset=end_offset,
        stable_end_offset=end_offset,
        end_mark=before.end_mark,
        compacted_upto=before.compacted_upto,
        lowered_seq=before.row.lowered_seq,
    )
    return Tiling(TieredPartition(tip, row), lost)
