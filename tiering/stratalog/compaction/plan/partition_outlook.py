"""Judges how far one partition's slices may be compacted now, and whether it would pay.

The slices of a compacted partition have a head that may be compacted and a tail that may only be carried
along:

    slice:      first live | ... | last eligible |  first too young, undecided or refused | ...
    may be:     <------- compacted, carried ------->  <------------ carried ---------------->

A gap divides the slices into sections, because no job takes a gap in. Each section is compacted by itself,
one at a time, and the outlook is that of one. Only the first one covers the partition from its first live
slice: only there tombstones go, and `compacted_upto` ends with it. In another one, the first slice counts as
compacted already. Where a topic has a bound for slices (`slice_span`), such a section is divided further, so
that each becomes one slice.

A slice with transactions is left alone: this version does not decide which data was aborted. So is one that
ages by its upload, because retention would wait for the newest slice of its job. Any other slice may be
carried.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.keep_rules import is_due
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.shard_state import LiveObject
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_span import Extent, effective_extents, slice_extent

TRANSACTIONS_REFUSED = (
    "the slices hold transactions, which this version does not compact; they stay as they are until one does"
)

UNDATED_REFUSED = (
    "the records of some slices have no timestamp, so retention goes by the time of their upload; they stay"
    " in their objects until they expire, and nothing behind them is compacted"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutlook:
    """The slices of one partition, and how far they may be compacted. Immutable."""

    topic_id_partition: TopicIdPartition
    topic: TopicPolicy
    state: TieredPartition
    slices: tuple[LiveSlice, ...]
    first_stored_index: int
    """The index of the first slice that is no gap, so no record lies below it; else the count of slices."""
    eligible: range
    """The indexes of the slices, from the first of a section, that may be compacted; none of a plain
    topic."""
    dirty_count: int
    """The number of those, the last ones, that are not compacted yet."""
    due_index: int | None
    """The first eligible slice with tombstones whose horizon has passed, counted from the first eligible
    one."""
    movable: tuple[bool, ...]
    """For each slice: whether it may be carried into another object."""
    refusal: str | None
    """Why some slices cannot be moved."""
    extents: tuple[Extent, ...] = ()
    """For each slice its effective extent; none if the topic has no bound for slices."""

    @property
    def eligible_slices(self) -> tuple[LiveSlice, ...]:
        return self.slices[self.eligible.start : self.eligible.stop]

    def part_counts(self, first: int, end: int) -> tuple[int, ...]:
        """How many of the slices [first, end) each output slice replaces. Empty where one replaces all."""
        counts = tuple(self.topic.span.divide(self.extents[first:end]))
        return counts if len(counts) > 1 else ()

    @property
    def eligible_bytes(self) -> int:
        return sum(live.entry.data_bytes for live in self.eligible_slices)

    @property
    def dirty_bytes(self) -> int:
        first_dirty = len(self.eligible) - self.dirty_count
        return sum(live.entry.data_bytes for live in self.eligible_slices[first_dirty:])

    @property
    def least_run(self) -> int:
        """The number of slices, from the first eligible one, that a job must take to gain anything; 0 if
        nothing can be gained.
        """
        if self.dirty_count:
            return len(self.eligible) - self.dirty_count + 1
        return 0 if self.due_index is None else self.due_index + 1

    def pays(self, min_dirty_ratio: float, now_ms: int) -> bool:
        """Whether tombstones are due, or enough is dirty."""
        return self.due_index is not None or self.is_dirty(min_dirty_ratio, now_ms)

    def is_dirty(self, min_dirty_ratio: float, now_ms: int) -> bool:
        """Whether enough is not compacted yet, or some of it has waited for `max.compaction.lag.ms`."""
        if not self.dirty_count:
            return False
        oldest = self.eligible_slices[-self.dirty_count].entry
        if 0 <= oldest.min_timestamp <= now_ms - self.topic.max_compaction_lag_ms:
            return True
        return self.dirty_bytes >= min_dirty_ratio * self.eligible_bytes

    def idle_reason(self, merge_fanout: int, min_dirty_ratio: float) -> str:
        """Why no job has the partition, in words for people."""
        if not self.topic.is_compacted:
            return (
                "cleanup.policy is delete, so objects are only merged, at least"
                f" {merge_fanout} of one size class at once"
            )
        if self.dirty_count and self.dirty_bytes < min_dirty_ratio * self.eligible_bytes:
            return (
                f"{self.dirty_bytes} of {self.eligible_bytes} bytes are not compacted yet, and the rest of a"
                f" partition is rewritten once that is {min_dirty_ratio:.0%}; a topic that is named is"
                " compacted whether it pays or not"
            )
        if self.dirty_count:
            return "its objects are in another job; run the compaction again"
        is_blocked = self.eligible.stop < len(self.slices) and self.slices[self.eligible.stop].gap is None
        if is_blocked:
            return (
                "the next records are younger than min.compaction.lag.ms, a transaction before them is still"
                " open, or they have no timestamp and retention goes by their upload"
            )
        if any(live.gap is not None for live in self.slices):
            return (
                "compacted already, each part between lost offsets (gaps) by itself: a key may have a record"
                " in each part"
            )
        return "compacted already"


def outlook_of(
    tip: TopicIdPartition,
    topic: TopicPolicy,
    state: TieredPartition,
    *,
    now_ms: int,
    objects: Mapping[str, LiveObject],
    may_drop_tombstones: bool,
    min_dirty_ratio: float,
) -> PartitionOutlook:
    """Judge a partition: its first section that pays to compact, else the first with dirty slices, else the
    last one. Pure.
    """
    slices = tuple(state.slices)
    first_stored_index = next((index for index, live in enumerate(slices) if live.gap is None), len(slices))
    has_transactions = [_has_transactions(live) for live in slices]
    ages_by_upload = [_ages_by_upload(topic, live) for live in slices]
    refusal = UNDATED_REFUSED if topic.is_compacted and any(ages_by_upload) else None
    refusal = TRANSACTIONS_REFUSED if any(has_transactions) else refusal
    movable = tuple(
        live.object_name in objects and not is_refused and not ages
        for live, is_refused, ages in zip(slices, has_transactions, ages_by_upload, strict=True)
    )
    extents = tuple(_extents(topic, slices, objects))
    sections: list[range] = []
    if topic.is_compacted:
        sections += _sections(topic, state, slices, first_stored_index, movable, now_ms)
    if extents:
        sections = [
            part for section in sections for part in _within_span(section, topic, first_stored_index, extents)
        ]

    def judged(eligible: range) -> PartitionOutlook:
        judged_slices = slices[eligible.start : eligible.stop]
        if eligible.start == first_stored_index:
            dirty_count = sum(live.end_offset > state.compacted_upto for live in judged_slices)
            due = [index for index, live in enumerate(judged_slices) if _is_due(live, now_ms)]
        else:
            dirty_count, due = max(len(judged_slices) - 1, 0), []
        return PartitionOutlook(
            topic_id_partition=tip,
            topic=topic,
            state=state,
            slices=slices,
            first_stored_index=first_stored_index,
            eligible=eligible,
            dirty_count=dirty_count,
            due_index=due[0] if due and may_drop_tombstones else None,
            movable=movable,
            refusal=refusal,
            extents=extents,
        )

    outlooks = [judged(section) for section in sections or [range(0)]]
    paying = (outlook for outlook in outlooks if outlook.pays(min_dirty_ratio, now_ms))
    dirty = (outlook for outlook in outlooks if outlook.dirty_count)
    return next(itertools.chain(paying, dirty), outlooks[-1])


def _sections(
    topic: TopicPolicy,
    state: TieredPartition,
    slices: tuple[LiveSlice, ...],
    first: int,
    movable: tuple[bool, ...],
    now_ms: int,
) -> Iterator[range]:
    """The runs between gaps from the slice `first` on, up to the first one that may not be compacted, because
    a run has no holes."""
    for index in range(first, len(slices)):
        live = slices[index]
        if live.gap is not None:
            if first < index:
                yield range(first, index)
            first = index + 1
            continue
        is_too_young = (
            topic.min_compaction_lag_ms > 0
            and live.entry.max_timestamp > now_ms - topic.min_compaction_lag_ms
        )
        if not movable[index] or is_too_young or live.end_offset > state.stable_end_offset:
            yield range(first, index)
            return
    yield range(first, len(slices))


def _ages_by_upload(topic: TopicPolicy, live: LiveSlice) -> bool:
    """Whether retention goes by the time of the object, because no record has a time. The slice stays in the
    object of its upload then: in another one, it would be as young as the youngest slice there, and each
    further job would make it younger."""
    is_undated = live.entry.record_count > 0 and live.entry.max_timestamp <= NO_TIMESTAMP
    return is_undated and topic.span.has_time


def _extents(
    topic: TopicPolicy, slices: Sequence[LiveSlice], objects: Mapping[str, LiveObject]
) -> Iterator[Extent]:
    """The effective extents of the slices of a topic that has a bound for them."""
    if not topic.span.is_bounded:
        return

    def own(live: LiveSlice) -> Extent:
        is_stored = live.object_name in objects
        return slice_extent(live.entry, objects[live.object_name].uploaded_ms if is_stored else NO_TIMESTAMP)

    yield from effective_extents(map(own, slices))


def _within_span(
    section: range, topic: TopicPolicy, first_stored_index: int, extents: Sequence[Extent]
) -> Iterator[range]:
    """Divide a section behind a gap into sections that become one slice each, because the count of slices
    tells there what is compacted. The first section stays whole: `compacted_upto` tells."""
    if section.start == first_stored_index or not section:
        yield section
        return
    first = section.start
    for count in topic.span.divide(extents[section.start : section.stop]):
        yield range(first, first + count)
        first += count


def _has_transactions(live: LiveSlice) -> bool:
    entry = live.entry
    return entry.has_aborted or entry.marker_count > 0 or bool(entry.open_transactions)


def _is_due(live: LiveSlice, now_ms: int) -> bool:
    return live.entry.tombstone_count > 0 and is_due(live.entry.earliest_delete_horizon_ms, now_ms)
