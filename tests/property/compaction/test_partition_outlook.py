"""The outlook of a partition is that of its slices, judged one by one: the rules of docs/compaction.md with a
loop each, over the slices themselves and not over columns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from fractions import Fraction
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.compaction.plan import partition_outlook
from stratalog.compaction.plan.partition_outlook import (
    OutlookTerms,
    PartitionOutlook,
    Section,
    judge_partition,
    reaches_of,
)
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.slice_briefs import SliceBriefs
from stratalog.remote.objects.slice_span import Extent, SliceSpan, effective_extents
from tests.property.compaction.test_compaction_planner import LAG_MS, random_shard, random_topics
from tests.support.logs.sampling import Sampling
from tests.support.simulation.planned_shard import NOW_MS, slices_of

NO_TIME = -1


class Head(NamedTuple):
    """The first section as the rules have it."""

    eligible: range
    least_run: int
    dirty_bytes: int
    size_bytes: int
    is_forced: bool


class Rules:
    """The rules for one partition."""

    def __init__(
        self,
        topic: TopicPolicy,
        row: PartitionRow,
        slices: list[LiveSlice],
        uploaded_ms: int,
        terms: OutlookTerms,
    ) -> None:
        self.topic, self.row, self.slices, self.terms = topic, row, slices, terms
        self.uploaded_ms = uploaded_ms

    def is_movable(self, live: LiveSlice) -> bool:
        ages_by_upload = live.entry.record_count > 0 and live.entry.max_timestamp < 0
        return live.gap is None and not (ages_by_upload and self.topic.span.has_time)

    def newest_ms(self, live: LiveSlice) -> int:
        if live.entry.max_timestamp >= 0:
            return live.entry.max_timestamp
        return self.uploaded_ms if live.entry.record_count else NO_TIME

    def oldest_ms(self, live: LiveSlice) -> int:
        return live.entry.min_timestamp if live.entry.min_timestamp >= 0 else self.newest_ms(live)

    def is_decided(self, live: LiveSlice) -> bool:
        """Whether another job would decide no more of the slice."""
        return live.entry.stable_end_offset <= self.row.compacted_upto

    def dirty_part(self, live: LiveSlice) -> Fraction:
        """The part of a slice of the head that is not compacted."""
        base_offset = max(live.base_offset, self.row.log_start_offset)
        if not self.is_decided(live) or base_offset >= self.row.compacted_upto:
            return Fraction(1)
        left = max(live.end_offset - self.row.compacted_upto, 0)
        return Fraction(left, live.end_offset - base_offset)

    def dirty_bytes(self, live: LiveSlice) -> int:
        return int(live.entry.data_bytes * self.dirty_part(live))

    def compactable_end(self) -> int:
        if not self.topic.is_compacted:
            return 0
        for index, live in enumerate(self.slices):
            if live.gap is None and not self.may_be_compacted(live):
                return index
        return len(self.slices)

    def may_be_compacted(self, live: LiveSlice) -> bool:
        lag_ms = self.topic.min_compaction_lag_ms
        is_young = lag_ms > 0 and self.newest_ms(live) > NOW_MS - lag_ms
        if live.entry.max_timestamp < 0 and self.dirty_part(live) < 1:
            is_young = False
        return self.is_movable(live) and live.end_offset <= self.row.stable_end_offset and not is_young

    def first_stored_index(self) -> int:
        return next((index for index, live in enumerate(self.slices) if live.gap is None), len(self.slices))

    def head(self) -> Head | None:
        """The section up to the first gap; None if there is none. Only where a job may read all of it."""
        first = end = self.first_stored_index()
        while end < self.compactable_end() and self.slices[end].gap is None:
            end += 1
        section = self.slices[first:end]
        if not section:
            return None
        decided_count = sum(map(self.is_decided, section))
        settling_count = self.settling_count(section)
        dirty = section if decided_count < len(section) else []
        least_run = decided_count + 1 if dirty else settling_count
        return Head(
            range(first, first + self.affordable_count(section, least_run)),
            least_run,
            sum(map(self.dirty_bytes, dirty)),
            sum(live.entry.data_bytes for live in section),
            settling_count > 0 or any(map(self.has_waited, section)),
        )

    def settling_count(self, section: list[LiveSlice]) -> int:
        """The slices up to the one that decides all of the first slice with something due; 0 if none does."""
        for due in section:
            horizon_ms = due.entry.earliest_delete_horizon_ms
            may_have_due = due.entry.tombstone_count > 0 or due.entry.marker_count > 0
            is_due = horizon_ms is not None and horizon_ms <= NOW_MS
            if self.terms.may_drop_tombstones and may_have_due and is_due:
                behind = section[section.index(due) :]
                deciding = [live for live in behind if live.entry.stable_end_offset >= due.end_offset]
                return section.index(deciding[0]) + 1 if deciding else 0
        return 0

    def affordable_count(self, section: list[LiveSlice], least_run: int) -> int:
        """The longest run within the bytes of a job, or the shortest that compacts as much as it writes."""
        written_again = sum(live.entry.data_bytes - self.dirty_bytes(live) for live in section)
        for count in range(1, len(section)):
            taken = sum(live.entry.data_bytes for live in section[:count])
            is_over = taken + section[count].entry.data_bytes > self.terms.max_partition_bytes
            if is_over and count >= least_run and taken >= 2 * written_again:
                return count
        return len(section)

    def has_waited(self, live: LiveSlice) -> bool:
        lag_ms = self.topic.max_compaction_lag_ms
        is_old = 0 <= self.oldest_ms(live) <= NOW_MS - lag_ms
        is_compacted = self.is_decided(live) and self.dirty_part(live) < 1
        return is_old and not is_compacted


def test_an_outlook_is_that_of_its_slices() -> None:
    met = Counter[str]()
    for seed in Sampling().at_most(range(600), 150):
        random = Random(seed)
        topics = {
            topic_id: dataclasses.replace(
                policy, max_compaction_lag_ms=random.choice((2**63 - 1, NOW_MS - 2_000, NOW_MS))
            )
            for topic_id, policy in random_topics(random).items()
        }
        shard = random_shard(random, topics)
        max_job_bytes = random.choice((1_000, 100_000, 1 << 30))
        terms = OutlookTerms(
            now_ms=NOW_MS,
            may_drop_tombstones=random.random() < 0.8,
            max_inputs=64,
            most_inputs=64,
            max_job_bytes=max_job_bytes,
            max_partition_bytes=max_job_bytes * random.choice((1, 20)),
            min_dirty_ratio=random.choice((None, 0.0)),
        )
        uploaded_ms = NOW_MS - LAG_MS + random.randrange(2)
        for tip, made in shard.partitions.items():
            slices = [aged(random, live) for live in slices_of(made)]
            if slices:
                upto = random.choice((made.compacted_upto, random.randrange(made.tiered_end_offset + 1)))
                row = made._replace(compacted_upto=upto)
                rules = Rules(topics[tip.topic_id], row, slices, uploaded_ms, terms)
                uploads_ms = [uploaded_ms if live.gap is None else None for live in slices]
                briefs = SliceBriefs.of(slices)
                found = judge_partition(tip, rules.topic, row, briefs, uploads_ms, terms)
                try:
                    assert list(found.movable) == [int(rules.is_movable(live)) for live in slices]
                    met.update(require_outlook(found.outlook, rules))
                except AssertionError as error:
                    error.add_note(f"seed {seed}, {tip}")
                    raise
    assert set(met) == {"fresh", "forced", "unforced", "none", "blocked", "clipped", "partly dirty"}, met


def test_a_partition_with_nothing_compacted_is_judged_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its sums as slice by slice; also where a gap, or anything else, lets only the latter judge it."""
    met = Counter[str]()
    for seed in range(120):
        random = Random(seed)
        topics = {
            topic_id: dataclasses.replace(
                policy,
                is_compacted=True,
                min_compaction_lag_ms=0,
                max_compaction_lag_ms=2**63 - 1,
                span=SliceSpan(),
            )
            for topic_id, policy in random_topics(random).items()
        }
        terms = OutlookTerms(
            now_ms=NOW_MS,
            may_drop_tombstones=True,
            max_inputs=random.choice((2, 64)),
            most_inputs=64,
            max_job_bytes=1 << 30,
            max_partition_bytes=random.choice((1_000, 1 << 30)),
            min_dirty_ratio=None,
        )
        for tip, made in random_shard(random, topics).partitions.items():
            slices = slices_of(made)
            if slices:
                row = made._replace(compacted_upto=0) if random.random() < 0.7 else made
                uploads_ms = [NOW_MS if live.gap is None else None for live in slices]
                asked = tip, topics[tip.topic_id], row, SliceBriefs.of(slices), uploads_ms, terms
                found = judge_partition(*asked)
                with monkeypatch.context() as patching:
                    patching.setattr(partition_outlook, "_fresh_section", no_section)
                    assert judge_partition(*asked) == found, f"seed {seed}, {tip}"
                is_whole = found.outlook.section == fresh_section(len(slices), row.tiered_bytes)
                met["fresh" if is_whole else "gap" if None in uploads_ms else "other"] += 1
    assert min(met[kind] for kind in ("fresh", "gap", "other")) > 10, met


def no_section(*_: object) -> None:
    """Leaves a partition to the judgement slice by slice."""


def fresh_section(count: int, size_bytes: int) -> Section:
    """The section of a partition that a job takes as a whole, all of it dirty."""
    return Section(range(count), 1, size_bytes, size_bytes, size_bytes)


def aged(random: Random, live: LiveSlice) -> LiveSlice:
    """The slice, or the same without a time, as an old producer has written it."""
    if live.gap is not None or not live.entry.record_count or random.random() < 0.9:
        return live
    return live._replace(entry=live.entry._replace(min_timestamp=NO_TIME, max_timestamp=NO_TIME))


def require_outlook(outlook: PartitionOutlook, rules: Rules) -> set[str]:
    """Compare an outlook with the rules. Returns the names of the cases that it has met."""
    stop = rules.compactable_end()
    assert outlook.compactable_end == stop
    assert outlook.first_stored_index == rules.first_stored_index()
    assert outlook.has_gaps == any(live.gap is not None for live in rules.slices)
    assert outlook.is_blocked == (stop < len(rules.slices) and rules.slices[stop].gap is None)
    met = {"blocked"} if outlook.is_blocked else set[str]()
    head, section = rules.head(), outlook.section
    assert all(rules.slices[index].gap is None for index in section.eligible)
    ratio = rules.topic.min_dirty_ratio if rules.terms.min_dirty_ratio is None else 0.0
    if head is None:
        assert not section.eligible or section.eligible.start > outlook.first_stored_index
        return met | {"none"}
    enough = head.is_forced or head.dirty_bytes >= ratio * head.size_bytes
    pays = head.least_run > 0 and enough
    if pays or section.eligible.start == outlook.first_stored_index:
        assert section[:4] == head[:4]
        assert section.is_forced == head.is_forced
        assert section.eligible_bytes == sum(
            live.entry.data_bytes for live in rules.slices[head.eligible.start : head.eligible.stop]
        )
        met.add("forced" if head.is_forced else "unforced")
        if section == fresh_section(len(rules.slices), head.size_bytes):
            met.add("fresh")
        if len(head.eligible) < stop - head.eligible.start:
            met.add("clipped")
        if 0 < head.dirty_bytes < head.size_bytes:
            met.add("partly dirty")
    return met


@given(
    st.lists(st.tuples(st.integers(-1, 50), st.integers(0, 20), st.integers(0, 30))), st.integers(0, 2**32)
)
def test_parts_are_those_of_the_rule_for_spans(rows: list[tuple[int, int, int]], seed: int) -> None:
    random = Random(seed)
    span = SliceSpan(random.choice((3, 10, 2**63 - 1)), random.choice((1, 20, 60)))
    extents = [
        Extent(newest if newest < 0 else max(newest - width, 0), newest, size_bytes)
        for newest, width, size_bytes in rows
    ]
    reaches = reaches_of(span, iter(extents), len(extents))
    first = random.randrange(len(extents) + 1)
    end = random.randrange(first, len(extents) + 1)
    counts: list[int] = []
    index = first
    while index < end:
        counts.append(min(reaches[index], end - index))
        index += counts[-1]
    assert counts == list(span.divide(list(effective_extents(extents))[first:end]))
