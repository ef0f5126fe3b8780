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

A job reads a bounded number of objects, so the first section ends there. The rest of it waits until the
slices before it have become fewer. Where a job over them does not pay, because it could take too little of
the rest, slices of the rest become one whenever they fill it: then a job takes more. Where that is not
enough, because slices are full, a job reads as many objects as one commit may replace. Meanwhile, where the
bound for slices, or the bytes of a job, keep the first ones apart for ever, the rest is compacted like a
section behind a gap, and a key may have a record in each part. That is for ever where even the longest job
is too short: the outlook says so.

A job has the bytes of the settings, or more if it would compact fewer than it writes again. So what a large
partition costs for each new byte does not grow with the partition.

A job that ends in the middle of a transaction leaves its records undecided, and `compacted_upto` ends with
the first of them. So a slice counts as compacted if `compacted_upto` has reached its stable end: a job that
takes it again would decide no more. Only a slice behind it, with a higher stable end, makes the next job pay.
Then all that lies above `compacted_upto` is dirty, slices inside of a long transaction included.
No job goes beyond the stable end of the partition, because a reader of committed records does not see a newer
record there yet.

A slice that ages by its upload stays in its object, because retention would wait for the newest slice of its
job. Any other slice may be carried.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.log.config_key import LONG_MAX
from stratalog.record.header import NO_TIMESTAMP
from stratalog.record.keep_rules import is_due
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.objects.slice_span import Extent, SliceSpan, effective_extents, slice_extent

UNDATED_REFUSED = (
    "the records of some slices have no timestamp, so retention goes by the time of their upload; they stay"
    " in their objects until they expire, and nothing behind them is compacted"
)

TOO_MANY_SLICES = (
    "one job would have to read more objects than a commit may replace, so the partition is compacted in"
    " parts, each of which may have a record of a key, and compacted_upto stands still; raise"
    " remote.compaction.job.max.bytes, so that fewer slices hold it"
)

NEVER_MS = -1
MOST_SLICES = (1 << 16) - 1
"""No run takes more slices."""

Reaches: TypeAlias = "array[int]"
"""For each slice the number of slices, from it on, that one output slice may replace; at least 1."""


class Section(NamedTuple):
    """Consecutive slices that are compacted together. Immutable."""

    eligible: range
    """The indexes of the slices, from the first one that a covering job takes, that it may take."""
    least_run: int
    """The number of slices, from the first eligible one, that a job must take to gain anything; 0 if nothing
    can be gained."""
    dirty_bytes: int
    """Bytes that are not compacted yet, of those that a job could read at all."""
    size_bytes: int
    """Bytes that a job could read at all."""
    eligible_bytes: int
    is_forced: bool = False
    """Whether it pays whatever is dirty: a horizon of tombstones or markers has passed, some of the dirty
    bytes have waited for `max.compaction.lag.ms`, or other slices wait for these to become fewer."""

    overdue_since_ms: int = NEVER_MS
    """Since when the oldest of the dirty records is over `max.compaction.lag.ms`, in milliseconds since 1970
    UTC; -1 if none is."""

    def first_bytes(self, count: int) -> int:
        """The bytes of the first `count` eligible slices, an estimate: dirty ones count as equals."""
        dirty_count = len(self.eligible) - self.least_run + 1
        left_count = min(len(self.eligible) - count, dirty_count)
        if left_count <= 0:
            return self.eligible_bytes
        return self.eligible_bytes - min(self.dirty_bytes, self.eligible_bytes) * left_count // dirty_count

    def pays(self, min_dirty_ratio: float) -> bool:
        """Whether it is forced, or enough is dirty."""
        if not self.least_run:
            return False
        return self.is_forced or self.dirty_bytes >= min_dirty_ratio * self.size_bytes


NO_SECTION = Section(range(0), 0, 0, 0, 0)


class PartitionOutlook(NamedTuple):
    """The outlook of one partition: a few numbers, whatever its slices. Immutable."""

    topic_id_partition: TopicIdPartition
    topic: TopicPolicy
    log_start_offset: int
    compacted_upto: int
    """Below this offset at most one record of each key is left."""
    first_stored_index: int
    """The index of the first slice that is no gap, so no record lies below it; else the count of slices."""
    compactable_end: int
    """Slices below this index may be compacted, unless they are gaps; 0 for a plain topic."""
    section: Section
    """The section that a covering job takes next."""
    min_dirty_ratio: float
    """The part of a section's bytes that must be dirty."""
    has_gaps: bool
    is_blocked: bool
    """Whether a slice may not be compacted, and those behind it neither."""
    refusal: str | None
    """Why some slices are not compacted, or not moved."""

    @property
    def pays(self) -> bool:
        return self.section.pays(self.min_dirty_ratio)

    def idle_reason(self, merge_fanout: int) -> str:
        """Why no job has the partition, in words for people."""
        section = self.section
        if not self.topic.is_compacted:
            return (
                "cleanup.policy is delete, so objects are only merged, at least"
                f" {merge_fanout} of one size class at once"
            )
        if section.least_run and not self.pays:
            return (
                f"{section.dirty_bytes} of {section.size_bytes} bytes are not compacted yet, and the rest of"
                f" a partition is rewritten once that is {self.min_dirty_ratio:.0%}; a topic that is named is"
                " compacted whether it pays or not"
            )
        if section.least_run:
            return "its objects are in another job; run the compaction again"
        if self.is_blocked:
            return (
                "the next records are younger than min.compaction.lag.ms, a transaction before them is still"
                " open, or they have no timestamp and retention goes by their upload"
            )
        if self.has_gaps:
            return (
                "compacted already, each part between lost offsets (gaps) by itself: a key may have a record"
                " in each part"
            )
        return "compacted already"


class OutlookTerms(NamedTuple):
    """The terms of a plan, the same for all partitions."""

    now_ms: int
    may_drop_tombstones: bool
    max_inputs: int
    """Objects that a job may read."""
    most_inputs: int
    """Objects that a job of one partition may read where fewer do not pay; at least `max_inputs`."""
    max_job_bytes: int
    """Bytes that one output slice may have, and that a job may always read."""
    max_partition_bytes: int
    """Bytes of one partition that a job may always read."""
    min_dirty_ratio: float | None
    """In place of that of the topics, if any."""


class JudgedPartition(NamedTuple):
    """The outlook of a partition, and the fate of each of its slices."""

    outlook: PartitionOutlook
    movable: bytearray
    """For each slice 1 if it may be carried into another object, else 0."""
    reaches: Reaches


def judge_partition(
    tip: TopicIdPartition,
    topic: TopicPolicy,
    row: PartitionRow,
    slices: SliceBriefs,
    uploads_ms: Sequence[int | None],
    terms: OutlookTerms,
    *,
    carries_only: str | None = None,
) -> JudgedPartition:
    """Judge a partition: its first section that pays to compact, else the first with dirty slices, else the
    last one. Pure.

    `uploads_ms` has for each slice the time of the upload of its object; None for a gap. `carries_only`: why
    nothing is compacted, if so.
    """
    ratio = topic.min_dirty_ratio if terms.min_dirty_ratio is None else terms.min_dirty_ratio
    fresh = None if carries_only is not None else _fresh_section(topic, row, slices, uploads_ms, terms)
    if fresh is not None:
        count = slices.slice_count
        outlook = PartitionOutlook(
            topic_id_partition=tip,
            topic=topic,
            log_start_offset=row.log_start_offset,
            compacted_upto=row.compacted_upto,
            first_stored_index=0,
            compactable_end=count,
            section=fresh,
            min_dirty_ratio=ratio,
            has_gaps=False,
            is_blocked=False,
            refusal=None,
        )
        return JudgedPartition(outlook, bytearray(b"\x01") * count, array("H", [MOST_SLICES]) * count)
    judgement = _Judgement(topic, row, slices, uploads_ms, terms)
    refusal = judgement.refusal() if carries_only is None else carries_only
    stop = judgement.compactable_end() if topic.is_compacted and carries_only is None else 0
    section = _best_section(judgement.sections(stop), ratio)
    if not section.pays(ratio) and judgement.is_beyond_a_job(stop):
        refusal = refusal or TOO_MANY_SLICES
    outlook = PartitionOutlook(
        topic_id_partition=tip,
        topic=topic,
        log_start_offset=row.log_start_offset,
        compacted_upto=row.compacted_upto,
        first_stored_index=judgement.first_stored_index,
        compactable_end=stop,
        section=section,
        min_dirty_ratio=ratio,
        has_gaps=bool(judgement.gaps),
        is_blocked=stop < slices.slice_count and slices.gaps[stop] is None,
        refusal=refusal,
    )
    return JudgedPartition(outlook, judgement.movable, judgement.reaches)


def _fresh_section(
    topic: TopicPolicy,
    row: PartitionRow,
    slices: SliceBriefs,
    uploads_ms: Sequence[int | None],
    terms: OutlookTerms,
) -> Section | None:
    """The section of a partition that one job takes as a whole, with nothing compacted and nothing out of the
    ordinary, as most new ones of a shard with many; None for any other, which `_Judgement` judges slice by
    slice."""
    count, size_bytes = slices.slice_count, sum(slices.data_bytes)
    is_fresh = (
        topic.takes_all_ages
        and count <= terms.max_inputs
        and size_bytes <= terms.max_partition_bytes
        and slices.end_offsets[-1] <= row.stable_end_offset
        and min(slices.stable_end_offsets) > row.compacted_upto
        and None not in uploads_ms
        and not any(slices.tombstone_counts)
        and not any(slices.marker_counts)
    )
    if not is_fresh:
        return None
    return Section(range(count), 1, size_bytes, size_bytes, size_bytes)


def _best_section(sections: Iterator[Section], min_dirty_ratio: float) -> Section:
    best = NO_SECTION
    for section in sections:
        if section.pays(min_dirty_ratio):
            return section
        best = best if best.least_run else section
    return best


class _Judgement:
    """The judgement of one partition, over its slices as columns. Most partitions have nothing out of the
    ordinary, and then no rule looks at their slices one by one. Not thread-safe: one call uses it."""

    def __init__(
        self,
        topic: TopicPolicy,
        row: PartitionRow,
        slices: SliceBriefs,
        uploads_ms: Sequence[int | None],
        terms: OutlookTerms,
    ) -> None:
        self._topic = topic
        self._row = row
        self._slices = slices
        self._terms = terms
        self._uploads_ms = uploads_ms
        self.gaps = slices.gap_indexes()
        """The indexes of the gaps."""
        # The gaps in front are the first numbers.
        self.first_stored_index = sum(map(operator.eq, self.gaps, itertools.count())) if self.gaps else 0
        self.movable = bytearray(map(operator.is_not, uploads_ms, itertools.repeat(None)))
        undated = self._undated()
        for index in undated:
            self.movable[index] = 0
        self._has_undated = bool(undated)
        count = slices.slice_count
        self.reaches = reaches_of(topic.span, map(self._extent, range(count)), count)
        self._clean = bytearray(map(row.compacted_upto.__ge__, slices.stable_end_offsets))
        """For each slice of the head 1 if a job could decide no more of it, else 0."""
        self._bytes_before = list(itertools.accumulate(slices.data_bytes, initial=0))

    def refusal(self) -> str | None:
        return UNDATED_REFUSED if self._has_undated and self._topic.is_compacted else None

    def _undated(self) -> Sequence[int]:
        """The slices that age by their upload, because no record has a time. Such a slice stays in the object
        of its upload where retention goes by time: in another one, it would be as young as the youngest slice
        there, and each further job would make it younger."""
        # In most partitions each slice has a record with a time.
        if not self._topic.span.has_time or min(self._slices.max_timestamps) > NO_TIMESTAMP:
            return ()
        counts_and_times = zip(self._slices.record_counts, self._slices.max_timestamps, strict=True)
        return [
            index
            for index, (record_count, newest_ms) in enumerate(counts_and_times)
            if record_count > 0 and newest_ms <= NO_TIMESTAMP
        ]

    def compactable_end(self) -> int:
        """The index of the first slice that may not be compacted, because a run has no holes."""
        stable_end_offset, gap = self._row.stable_end_offset, self._slices.gaps
        has_lag = self._topic.min_compaction_lag_ms > 0
        all_can_move = self.movable.count(0) == len(self.gaps)
        if all_can_move and not has_lag and self._slices.end_offsets[-1] <= stable_end_offset:
            # As in most partitions: offsets ascend.
            return self._slices.slice_count
        for index, end_offset in enumerate(self._slices.end_offsets):
            if gap[index] is not None:
                continue
            is_undecided = end_offset > stable_end_offset
            if not self.movable[index] or is_undecided or (has_lag and self._is_too_young(index)):
                return index
        return self._slices.slice_count

    def _is_too_young(self, index: int) -> bool:
        slices = self._slices
        newest_ms = self._extent(index).newest_ms
        if slices.record_counts[index] and slices.min_timestamps[index] <= NO_TIMESTAMP:
            # The age of records without a time is that of their upload, beside whatever others they lie.
            if self._is_compacted(index):
                # The job that has compacted it has made its upload as young as its newest input.
                return False
            newest_ms = max(newest_ms, self._uploads_ms[index] or newest_ms)
        return newest_ms > self._terms.now_ms - self._topic.min_compaction_lag_ms

    def sections(self, stop: int) -> Iterator[Section]:
        """The sections up to the slice `stop`, in order."""
        for section in self._between_gaps(stop):
            if section.start != self.first_stored_index:
                yield from self._parts(section)
                continue
            head = self._head(section, self._terms.max_inputs)
            yield head
            # It does not pay.
            if len(section) > self._terms.max_inputs:
                clean_count = self._clean_count(section)
                rest = section[min(clean_count, self._terms.max_inputs) :]
                whole = (self._head(section, self._terms.most_inputs),)
                parts = self._full_parts(rest)
                # Where compacted slices leave no room in a job, parts that come again and again must not keep
                # the others waiting.
                is_crowded = 2 * clean_count > self._terms.max_inputs
                yield from itertools.chain(whole, parts) if is_crowded else itertools.chain(parts, whole)
                if not head.least_run:
                    yield from self._parts(rest)

    def is_beyond_a_job(self, stop: int) -> bool:
        """Whether the first section, up to the slice `stop`, has dirty slices and is more than any job may
        read."""
        section = next(self._between_gaps(stop), range(0))
        is_first = section.start == self.first_stored_index
        is_longer = len(section) > self._terms.most_inputs
        return is_first and is_longer and self._clean_count(section) < len(section)

    def _between_gaps(self, stop: int) -> Iterator[range]:
        first = self.first_stored_index
        for gap in (*self.gaps, stop):
            end = min(gap, stop)
            if first < end:
                yield range(first, end)
            first = max(first, end + 1)

    def _head(self, section: range, most_inputs: int) -> Section:
        """The first section, as far as a job of so many inputs may read it."""
        head = section[:most_inputs]
        clean_count = self._clean_count(section)
        due_index = self._due_index(section)
        settling_index = None if due_index is None else self._settling_index(section, due_index)
        least_run, taken = 0, head
        if clean_count < len(head):
            least_run = clean_count + 1
        elif settling_index is not None and settling_index in head:
            least_run = settling_index - head.start + 1
        elif clean_count < len(section) or settling_index is not None:
            # There is more to do, and it waits until these slices have become fewer.
            taken = self._mergeable(head)
            least_run = min(2, len(taken))
        judged = head if clean_count < len(head) else section
        # Where nothing would be decided, nothing is dirty.
        dirty = judged if clean_count < len(section) else judged[:0]
        eligible = self._affordable(taken, least_run)
        overdue_since_ms = self._overdue_since_ms(section)
        return Section(
            eligible,
            least_run,
            dirty_bytes=self._bytes_of(dirty) - self._compacted_bytes(dirty),
            size_bytes=self._bytes_of(judged),
            eligible_bytes=self._bytes_of(eligible),
            is_forced=settling_index is not None or overdue_since_ms != NEVER_MS,
            overdue_since_ms=overdue_since_ms,
        )

    def _affordable(self, head: range, least_run: int) -> range:
        """The slices that fit a job's bytes, or so many that it compacts as much as it writes again."""
        if self._bytes_of(head) <= self._terms.max_partition_bytes:
            return head
        clean_bytes = self._compacted_bytes(head)
        for count in range(max(least_run, 1), len(head)):
            is_enough = self._bytes_of(head[:count]) >= 2 * clean_bytes
            if is_enough and self._bytes_of(head[: count + 1]) > self._terms.max_partition_bytes:
                return head[:count]
        return head

    def _clean_count(self, section: range) -> int:
        return sum(self._clean[section.start : section.stop])

    def _bytes_of(self, section: range) -> int:
        return self._bytes_before[section.stop] - self._bytes_before[section.start]

    def _is_compacted(self, index: int) -> bool:
        """Whether a job has compacted that slice of the head, maybe without deciding all of its records."""
        return bool(self._clean[index]) and self._base_offset(index) < self._row.compacted_upto

    def _compacted_bytes(self, section: range) -> int:
        """The bytes of the slices of the head that are compacted, as far as offsets tell."""
        compacted_bytes = 0
        for index in itertools.compress(section, self._clean[section.start : section.stop]):
            if self._is_compacted(index):
                data_bytes, end_offset = self._slices.data_bytes[index], self._slices.end_offsets[index]
                undecided = max(0, end_offset - self._row.compacted_upto)
                compacted_bytes += data_bytes - data_bytes * undecided // (
                    end_offset - self._base_offset(index)
                )
        return compacted_bytes

    def _base_offset(self, index: int) -> int:
        return self._slices.end_offsets[index - 1] if index else self._row.log_start_offset

    def _due_index(self, section: range) -> int | None:
        """The first slice with tombstones or markers whose horizon has passed."""
        slices = self._slices
        if not self._terms.may_drop_tombstones or not (
            any(slices.tombstone_counts) or any(slices.marker_counts)
        ):
            return None
        return next(
            (
                index
                for index in section
                if slices.tombstone_counts[index] + slices.marker_counts[index] > 0
                and is_due(slices.earliest_delete_horizons_ms[index], self._terms.now_ms)
            ),
            None,
        )

    def _settling_index(self, section: range, due_index: int) -> int | None:
        """The last slice of the shortest job in which each record of the slice `due_index` is decided: only
        there its tombstones go."""
        end_offset, stable_end_offsets = self._slices.end_offsets[due_index], self._slices.stable_end_offsets
        settling = (
            index for index in section[due_index - section.start :] if stable_end_offsets[index] >= end_offset
        )
        return next(settling, None)

    def _overdue_since_ms(self, section: range) -> int:
        """Since when the oldest of the slices of the head that are not compacted has waited for too long; -1
        if none has."""
        lag_ms = self._topic.max_compaction_lag_ms
        if lag_ms == LONG_MAX:
            return NEVER_MS
        ends_ms = (
            self._extent(index).oldest_ms + lag_ms
            for index in section
            if not self._is_compacted(index) and self._has_waited(index)
        )
        return min(ends_ms, default=NEVER_MS)

    def _mergeable(self, section: range) -> range:
        """The first slices that become fewer, up to one that no neighbour fits; none if bounds keep all
        apart. The others are not written again: nothing in them is dirty."""
        reaches = self._reaches_of_jobs(section)
        start = next((place for place, reach in enumerate(reaches) if reach > 1), len(section))
        stop = start
        while stop < len(section) and reaches[stop] > 1:
            stop += reaches[stop]
        return section[start:stop]

    def _parts(self, section: range) -> Iterator[Section]:
        """The parts of another section that become one slice each: the count of slices tells there what is
        compacted."""
        reaches = self._reaches_of_jobs(section)
        place = 0
        while place < len(section):
            part = section[place : place + reaches[place]]
            if len(part) > 1:
                yield self._part(part, is_forced=any(map(self._has_waited, part[1:])))
            place += len(part)

    def _full_parts(self, section: range) -> Iterator[Section]:
        """The parts of this section that are full: the next slice does not fit, or there are as many as a job
        may read. A slice that is half full stands by itself, so that each is written again a few times."""
        reaches = self._reaches_of_jobs(section)
        place = 0
        while place < len(section):
            index = section[place]
            is_half = 2 * self._slices.data_bytes[index] > self._terms.max_job_bytes
            part = section[place : place + (1 if is_half else reaches[place])]
            is_full = part.stop < section.stop or len(part) >= self._terms.max_inputs
            if len(part) > 1 and is_full:
                yield self._part(part, is_forced=True)
            place += len(part)

    def _part(self, part: range, *, is_forced: bool) -> Section:
        size_bytes = self._bytes_of(part)
        dirty_bytes = size_bytes - self._slices.data_bytes[part.start]
        eligible = part[: self._terms.max_inputs]
        return Section(
            eligible=eligible,
            least_run=2,
            dirty_bytes=dirty_bytes,
            size_bytes=size_bytes,
            eligible_bytes=self._bytes_of(eligible),
            is_forced=is_forced,
        )

    def _reaches_of_jobs(self, section: range) -> Reaches:
        """How many of these slices become one, from each one on, if outputs have no more bytes than a job."""
        span = self._topic.span
        span = SliceSpan(span.max_ms, min(span.max_bytes, self._terms.max_job_bytes))
        return reaches_of(span, map(self._extent, section), len(section))

    def _extent(self, index: int) -> Extent:
        uploaded_ms = self._uploads_ms[index]
        measure = self._slices.measure(index)
        return slice_extent(measure, NO_TIMESTAMP if uploaded_ms is None else uploaded_ms)

    def _has_waited(self, index: int) -> bool:
        """Whether that slice has waited for the longest lag."""
        lag_ms = self._topic.max_compaction_lag_ms
        if lag_ms == LONG_MAX:
            return False
        return NO_TIMESTAMP < self._extent(index).oldest_ms <= self._terms.now_ms - lag_ms


def reaches_of(span: SliceSpan, extents: Iterator[Extent], count: int) -> Reaches:
    """Count the extents, from each one on, that are within the bound together: the parts that
    `SliceSpan.divide` finds, whichever extent it begins with. Linear in their number."""
    if not span.is_bounded:
        return array("H", [MOST_SLICES]) * count
    effective = list(effective_extents(extents))
    oldest_ms: list[int] = [NO_TIMESTAMP] * count
    following_ms = NO_TIMESTAMP
    for index in reversed(range(count)):
        # The first one with a time tells the age of those before it.
        following_ms = (
            effective[index].oldest_ms if effective[index].newest_ms > NO_TIMESTAMP else following_ms
        )
        oldest_ms[index] = following_ms
    reaches = array("H")
    end = size_bytes = 0
    for first in range(count):
        while end < count and (
            end == first
            or span.holds(
                Extent(oldest_ms[first], effective[end].newest_ms, size_bytes + effective[end].size_bytes)
            )
        ):
            size_bytes += effective[end].size_bytes
            end += 1
        reaches.append(min(end - first, MOST_SLICES))
        size_bytes -= effective[first].size_bytes
    return reaches
