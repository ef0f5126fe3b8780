"""The planner on random shards: what it may choose, and that it comes to an end.

Jobs are carried out on the state alone, as a commit would, until nothing is planned (`planned_shard`).
"""

from __future__ import annotations

import dataclasses
import itertools
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import MAX_INPUTS_OF_A_REPLACE, CompactionSettings
from stratalog.compaction.job_history import JobHistory
from stratalog.compaction.plan import job_assembly
from stratalog.compaction.plan.compaction_job import (
    CompactionJob,
    JobReason,
    PartitionRun,
    Refusal,
    RunMode,
)
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.run_selection import RunSelection
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import Gap, GapReason, LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_entry import OpenTransaction
from stratalog.remote.objects.slice_span import UNBOUNDED, SliceSpan
from stratalog.testing.manual_clock import ManualClock
from tests.support.simulation.planned_shard import NOW_MS, Shard, Topics, entry_of, slices_of, topic, uploads
from tests.support.tiered.shard_states import row_of

LAG_MS = 500


def random_shard(random: Random, topics: Topics) -> Shard:
    """Uploads of random partitions, some slices of which retention and earlier jobs have taken away again."""
    shard = Shard()
    tips = [TopicIdPartition(topic_id, partition) for topic_id in topics for partition in range(3)]
    ends = dict.fromkeys(tips, 0)
    opened: dict[TopicIdPartition, int] = {}
    for _ in range(random.randrange(1, 14)):
        chosen = sorted(random.sample(tips, random.randrange(1, len(tips) + 1)))
        sizes = [random.choice((0, 100, 3_000, 50_000)) for _ in chosen]
        name = shard.new_object(sum(sizes))
        position = 0
        for tip, size_bytes in zip(chosen, sizes, strict=True):
            base, end = ends[tip], ends[tip] + random.randrange(1, 50)
            ends[tip] = end
            tombstone_count = random.choice((0, 0, 2)) if size_bytes else 0
            has_markers = size_bytes > 0 and random.random() < 0.3
            has_horizon = tombstone_count > 0 or has_markers
            horizon_ms = random.choice((None, NOW_MS - 1, NOW_MS + 1)) if has_horizon else None
            # A transaction is open, ends, or another one begins.
            opened[tip] = random.choice((end, end, opened.get(tip, end), random.randrange(base, end)))
            open_transactions = (OpenTransaction(1, opened[tip]),) if opened[tip] < end else ()
            newest_ms = random.choice((0, NOW_MS - LAG_MS // 2, shard.seq * 1_000))
            entry = entry_of(
                topics[tip.topic_id],
                tip.partition,
                base,
                end,
                size_bytes,
                position=position,
                tombstone_count=tombstone_count,
                horizon_ms=horizon_ms,
                min_timestamp=min(newest_ms, random.choice((0, newest_ms))),
                max_timestamp=newest_ms,
                has_markers=has_markers,
                open_transactions=open_transactions,
            )
            position += size_bytes
            before = shard.partitions.get(tip, PartitionRow())
            after = before.with_slice(LiveSlice(name, base, end, entry))
            if random.random() < 0.1:
                ends[tip] = end + random.randrange(1, 5)
                gap = Gap(GapReason.DROPPED_BY_POLICY.value, NOW_MS)
                after = after.with_slice(LiveSlice.of_gap(tip, end, ends[tip], gap))
            shard.partitions[tip] = after
    for tip, partition in shard.partitions.items():
        start = random.choice((0, 0, random.randrange(partition.tiered_end_offset + 1)))
        upto = random.choice((0, partition.pieces[random.randrange(len(partition.pieces))].end_offset))
        compacted = TieredPartition(tip, partition._replace(compacted_upto=upto))
        shard.partitions[tip] = compacted.with_log_start(start).row
    return shard


def random_topics(random: Random) -> Topics:
    policies = [
        topic(
            number,
            is_compacted=random.random() < 0.6,
            lag_ms=random.choice((0, LAG_MS)),
            span=random.choice((UNBOUNDED, SliceSpan(max_ms=3_000), SliceSpan(max_bytes=60_000))),
            min_dirty_ratio=random.choice((0.0, 0.5, 1.0)),
            retention_ms=random.choice((1_000, 100_000, 2**63 - 1)),
        )
        for number in range(1, random.randrange(2, 6))
    ]
    return {policy.topic_id: policy for policy in policies}


def random_settings(random: Random) -> CompactionSettings:
    return CompactionSettings(
        spool_directory="/spool",
        max_inputs_per_job=random.choice((2, 5, 64)),
        max_job_bytes=random.choice((1_000, 100_000, 1 << 30)),
        merge_fanout=random.choice((3, 4)),
    )


def require_valid(job: CompactionJob, state: ShardState, settings: CompactionSettings) -> None:
    job.check()
    if len(job.inputs) > settings.max_inputs_per_job:
        # A partition whose full pass needs more has them.
        assert len(job.inputs) <= MAX_INPUTS_OF_A_REPLACE
        longest = max(job.runs, key=lambda run: len(run.slices))
        assert longest.covers
        assert longest.mode is RunMode.COMPACT
        assert len(longest.slices) > settings.max_inputs_per_job
    for run in job.runs:
        partition = state.partition(run.topic_id_partition)
        slices = tuple(partition.slices)
        first = slices.index(run.slices[0])
        assert slices[first : first + len(run.slices)] == run.slices
        assert run.covers == all(live.gap is not None for live in slices[:first])
        assert all(live.gap is None for live in run.slices)
        require_within_span(run, partition)
        if run.mode is RunMode.COMPACT:
            assert run.topic.is_compacted
            assert run.end_offset <= partition.stable_end_offset
            lag_ms = run.topic.min_compaction_lag_ms
            assert not lag_ms or all(live.entry.max_timestamp <= NOW_MS - lag_ms for live in run.slices)


def require_within_span(run: PartitionRun, partition: TieredPartition) -> None:
    """No output slice of several inputs keeps a record for longer, or more bytes, than the topic allows. A
    record is as old as the newest one up to it."""
    span = run.topic.span
    newest_ms = max(
        (live.entry.max_timestamp for live in partition.slices if live.end_offset <= run.base_offset),
        default=-1,
    )
    for part in (run.slices[first:end] for first, end in run.parts):
        start_ms = max(newest_ms, part[0].entry.min_timestamp)
        newest_ms = max(newest_ms, *(live.entry.max_timestamp for live in part))
        if len(part) > 1:
            assert newest_ms - start_ms <= span.max_ms
            assert sum(live.entry.data_bytes for live in part) <= span.max_bytes


@given(st.integers(0, 2**32))
@example(311737)
def test_plans_are_valid_and_come_to_an_end(seed: int) -> None:
    random = Random(seed)
    topics = random_topics(random)
    shard = random_shard(random, topics)
    settings = random_settings(random)
    slice_count = sum(len(row.pieces) for row in shard.partitions.values())
    for _ in range(4 * slice_count + 10):
        state = shard.state()
        state.check()
        planned = plan(state, topics, NOW_MS, settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_assembly, "_KEPT_RUNS", 0)
            again = plan(state, topics, NOW_MS, settings)
        chosen_again = list(again.jobs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunSelection, "select", None)
            assert list(planned.jobs) == chosen_again, "runs are kept, or chosen again"
        assert planned.refusals == again.refusals, "the planner is a function"
        assert list(planned.idle()) == list(again.idle())
        if not planned.jobs:
            break
        used = [name for job in planned.jobs for name in job.input_names]
        assert len(used) == len(set(used)), "jobs of a plan share no input"
        for job in planned.jobs:
            require_valid(job, state, settings)
            shard.commit(job)
    else:
        raise AssertionError("the planner never stops planning")
    require_done(shard, topics, settings)


def require_done(shard: Shard, topics: Topics, settings: CompactionSettings) -> None:
    """Where nothing more is planned, nothing is left that should have been."""
    for tip, partition in shard.partitions.items():
        policy = topics[tip.topic_id]
        if not policy.is_compacted or not partition.pieces:
            continue
        sections = [
            list(section)
            for is_gap, section in itertools.groupby(
                eligible_slices(policy, partition), lambda live: live.gap is not None
            )
            if not is_gap
        ]
        read = MAX_INPUTS_OF_A_REPLACE
        for number, eligible in enumerate(sections):
            # Behind a gap each part that may become one slice is compacted by itself.
            is_one = policy.span == UNBOUNDED and bytes_of(eligible) <= settings.max_job_bytes
            judged, dirty = eligible, eligible[1:] if is_one else []
            if number == 0:
                judged = eligible[:read]
                dirty = [live for live in judged if live.entry.stable_end_offset > partition.compacted_upto]
            assert not dirty or bytes_of(dirty) < policy.min_dirty_ratio * bytes_of(judged)
        for live in sections[0][:read] if sections else ():
            horizon_ms = live.entry.earliest_delete_horizon_ms
            if sections[0][:read][-1].entry.stable_end_offset < live.end_offset:
                break
            may_be_due = live.entry.tombstone_count or live.entry.marker_count
            assert not may_be_due or horizon_ms is None or horizon_ms > NOW_MS


def bytes_of(slices: list[LiveSlice]) -> int:
    return sum(live.entry.data_bytes for live in slices)


def eligible_slices(policy: TopicPolicy, partition: PartitionRow) -> list[LiveSlice]:
    """Slices that may be compacted: all up to the first slice that is too young, or has records above the
    stable end."""
    latest = NOW_MS - policy.min_compaction_lag_ms if policy.min_compaction_lag_ms else NOW_MS
    eligible: list[LiveSlice] = []
    for live in slices_of(partition):
        if live.end_offset > partition.stable_end_offset or live.entry.max_timestamp > latest:
            break
        eligible.append(live)
    return eligible


@given(st.integers(0, 2**32))
def test_a_plan_for_some_topics_has_them_in_every_job(seed: int) -> None:
    random = Random(seed)
    topics = random_topics(random)
    shard = random_shard(random, topics)
    only = frozenset(random.sample(sorted(topics), 1))
    for job in plan(shard.state(), topics, NOW_MS, random_settings(random), only=only).jobs:
        assert any(run.topic_id_partition.topic_id in only for run in job.runs)


@given(st.integers(0, 2**32))
def test_what_is_excluded_or_unknown_is_left_alone_and_reported(seed: int) -> None:
    random = Random(seed)
    topics = random_topics(random)
    shard = random_shard(random, topics)
    excluded = {tip: "tried a moment ago" for tip in shard.partitions if random.random() < 0.4}
    unknown = random.choice(sorted(topics))
    known = {topic_id: policy for topic_id, policy in topics.items() if topic_id != unknown}
    planned = plan(shard.state(), known, NOW_MS, random_settings(random), excluded=excluded)
    moved = {run.topic_id_partition for job in planned.jobs for run in job.runs}
    assert not moved & excluded.keys()
    assert not any(tip.topic_id == unknown for tip in moved)
    reported = {refusal.topic_id_partition for refusal in planned.refusals}
    with_slices = {tip for tip, partition in shard.partitions.items() if partition.pieces}
    assert {tip for tip in with_slices if tip in excluded or tip.topic_id == unknown} <= reported


@given(st.integers(0, 2**32))
def test_jobs_without_room_become_smaller_until_each_is_the_least(seed: int) -> None:
    """Whatever is refused: the next plan has no job that takes as much of the same objects."""
    random = Random(seed)
    topics = random_topics(random)
    state = random_shard(random, topics).state()
    settings = random_settings(random)
    history = JobHistory(ManualClock(), lambda: 0)
    refused: list[CompactionJob] = []
    for _ in range(60):
        jobs = plan(state, topics, NOW_MS, settings, rooms=history.rooms).jobs
        refused = [job for job in jobs if not job.is_least]
        for job in jobs:
            require_valid(job, state, settings)
        for job in refused:
            history.outgrown(job)
        if not refused:
            return
    raise AssertionError([(job.reason, len(job.inputs), len(job.runs)) for job in refused])


def test_a_clean_object_is_left_alone_until_a_horizon_has_passed() -> None:
    policy = topic(1, is_compacted=True)
    topics = {policy.topic_id: policy}
    shard = uploads(policy, [1_000], tombstone_count=1)
    tip = TopicIdPartition(policy.topic_id, 0)
    (live,) = TieredPartition(tip, shard.partitions[tip]).slices
    entry = live.entry._replace(earliest_delete_horizon_ms=NOW_MS)
    shard.partitions[tip] = shard.partitions[tip]._replace(
        compacted_upto=10, pieces=(live._replace(entry=entry),)
    )
    settings = CompactionSettings(spool_directory="/spool")
    assert not plan(shard.state(), topics, NOW_MS - 1, settings).jobs
    assert not plan(shard.state(), topics, NOW_MS, settings, may_drop_tombstones=False).jobs
    (job,) = plan(shard.state(), topics, NOW_MS, settings).jobs
    assert job.runs[0].settles_tombstones


def test_a_job_beyond_its_bytes_compacts_as_much_as_it_writes_again() -> None:
    """It once took one new slice at a time: the whole partition was written again for each of them."""
    policy = topic(1, is_compacted=True)
    shard = uploads(policy, [50_000] + [10_000] * 9)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=10)
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=1_000)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert job.runs[0].covers
    assert len(job.runs[0].slices) == 1 + 5
    shard = uploads(policy, [50_000] * 3)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert len(job.runs[0].slices) == 1, "nothing is written again, so the bytes bound the job"


def test_a_large_partition_behind_what_a_job_may_read_comes_to_rest() -> None:
    """Its first slices fill jobs. They were once joined and divided again for ever."""
    policy = topic(1, is_compacted=True)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard = uploads(policy, [1_000] * 4 + [300] * 6)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=40)
    settings = CompactionSettings(spool_directory="/spool", max_inputs_per_job=4, max_job_bytes=1_000)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert [live.base_offset for live in job.runs[0].slices] == [40, 50, 60]
    for _ in range(5):
        for job in plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs:
            shard.commit(job)
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert [live.entry.data_bytes for live in slices_of(shard.partitions[tip])][:4] == [1_000] * 4
    assert len(slices_of(shard.partitions[tip])) < 4 + 6
    # Where it pays, a longer job takes all, and its outputs have the bytes of a job, too.
    eager = dataclasses.replace(policy, min_dirty_ratio=0)
    shard = uploads(eager, [1_000] * 4 + [300] * 6, max_slice_bytes=1_000)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=40)
    (job,) = plan(shard.state(), {eager.topic_id: eager}, NOW_MS, settings).jobs
    assert len(job.inputs) == 10
    shard.commit(job)
    assert shard.partitions[tip].compacted_upto == 100
    assert len(slices_of(shard.partitions[tip])) > 4
    assert not plan(shard.state(), {eager.topic_id: eager}, NOW_MS, settings).jobs
    # Slices that fit a job together become fewer, and then it reads on.
    shard = uploads(eager, [300] * 4 + [1_000])
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=40)
    (job,) = plan(shard.state(), {eager.topic_id: eager}, NOW_MS, settings).jobs
    assert job.runs[0].covers


def test_slices_behind_a_head_that_does_not_pay_become_larger_until_it_does() -> None:
    policy = topic(1, is_compacted=True)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard = uploads(policy, [10_000] + [1_500] * 40)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=10)
    settings = CompactionSettings(
        spool_directory="/spool", max_inputs_per_job=4, max_job_bytes=12_000, target_object_bytes=1
    )
    runs: list[tuple[bool, int]] = []
    while jobs := plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs:
        runs += [(job.runs[0].covers, len(job.runs[0].slices)) for job in jobs]
        for job in jobs:
            shard.commit(job)
    first = [covers for covers, _ in runs].index(True)
    assert first > 3, "three slices behind the first one were made larger"
    assert runs[first] == (True, 3), "it compacts as much as it writes again"
    assert shard.partitions[tip].compacted_upto > 100


@pytest.mark.parametrize(
    ("first_ms", "is_forced"), [(0, True), (-1, False), (-5, False), (10 * NOW_MS, False)]
)
def test_any_overdue_slice_forces_a_compaction(first_ms: int, *, is_forced: bool) -> None:
    """The first dirty slice alone once told it: without a time, or with a future one, it hid the others."""
    policy = dataclasses.replace(topic(1, is_compacted=True), max_compaction_lag_ms=NOW_MS - 500)
    tip = TopicIdPartition(policy.topic_id, 0)
    settings = CompactionSettings(spool_directory="/spool")

    def is_planned(*times_ms: int, uploaded_ms: int = 501) -> bool:
        shard = dated(policy, [0, *times_ms])
        first = slices_of(shard.partitions[tip])[0]
        large = first.entry._replace(data_bytes=90_000)
        shard.partitions[tip] = row_of(
            [first._replace(entry=large), *slices_of(shard.partitions[tip])[1:]]
        )._replace(compacted_upto=10)
        shard.uploaded_ms = uploaded_ms
        return bool(plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs)

    assert is_planned(first_ms, 500)
    assert is_planned(first_ms, 501) == is_forced
    # Records without a time are as old as their upload.
    assert is_planned(first_ms, 501, uploaded_ms=500) == (is_forced or first_ms < 0)


def test_the_minimum_lag_of_records_without_a_time_goes_by_their_upload() -> None:
    policy = topic(1, is_compacted=True, lag_ms=LAG_MS)
    tip = TopicIdPartition(policy.topic_id, 0)
    settings = CompactionSettings(spool_directory="/spool")
    shard = dated(policy, [-1, -1, -1])

    def planned(uploaded_ms: int) -> list[int]:
        shard.uploaded_ms = uploaded_ms
        jobs = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
        return [len(run.slices) for job in jobs for run in job.runs]

    assert planned(NOW_MS - LAG_MS + 1) == []
    assert planned(NOW_MS - LAG_MS) == [3]
    # What was compacted has waited for long enough, however young its company was.
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=10)
    state = shard.state()
    names = [live.object_name for live in slices_of(shard.partitions[tip])]
    young = state.objects[names[0]]._replace(uploaded_ms=NOW_MS)
    objects = {**dict(state.objects.items()), names[0]: young}
    mixed = dataclasses.replace(state, objects=PersistentMap(objects.items()))
    (job,) = plan(mixed, {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert len(job.runs[0].slices) == 3


def test_little_new_data_waits_but_not_for_ever() -> None:
    policy = topic(1, is_compacted=True)
    shard = uploads(policy, [90_000, 1_000], max_timestamp=NOW_MS - 100)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=10)
    settings = CompactionSettings(spool_directory="/spool")
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    impatient = dataclasses.replace(policy, max_compaction_lag_ms=NOW_MS)
    assert plan(shard.state(), {policy.topic_id: impatient}, NOW_MS, settings).jobs
    asked_for = plan(
        shard.state(), {policy.topic_id: policy}, NOW_MS, settings, only=frozenset({policy.topic_id})
    )
    assert asked_for.jobs


def test_small_plain_objects_are_merged() -> None:
    policy = topic(1, is_compacted=False)
    topics = {policy.topic_id: policy}
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=4)
    assert not plan(uploads(policy, [1_000] * 3).state(), topics, NOW_MS, settings).jobs
    (job,) = plan(uploads(policy, [1_000] * 4).state(), topics, NOW_MS, settings).jobs
    assert len(job.inputs) == 4
    assert job.runs[0].mode is RunMode.CARRY


def dated(policy: TopicPolicy, times_ms: list[int]) -> Shard:
    """A shard with an object of 1,000 bytes for each time."""
    shard = uploads(policy, [1_000] * len(times_ms))
    tip = TopicIdPartition(policy.topic_id, 0)
    partition = shard.partitions[tip]
    shard.partitions[tip] = row_of(
        [
            live._replace(entry=live.entry._replace(min_timestamp=time_ms, max_timestamp=time_ms))
            for live, time_ms in zip(slices_of(partition), times_ms, strict=True)
        ]
    )
    return shard


def test_a_merge_ends_each_slice_at_the_bound_of_its_topic() -> None:
    policy = topic(1, is_compacted=False, span=SliceSpan(max_ms=3))
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=4)
    shard = dated(policy, list(range(8)))
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert (job.runs[0].part_counts, job.output_count) == ((4, 4), 2)
    # With fewer objects for each output a merge makes too little of them.
    shard = dated(policy, [0, 2, 4, 6, 8, 10, 12, 14])
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs


def test_records_out_of_order_do_not_keep_objects_from_being_merged() -> None:
    policy = topic(1, is_compacted=False, span=SliceSpan(max_ms=3))
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=4)
    shard = dated(policy, [100, 5, 101, 5, 102, 5, 103, 5])
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert (len(job.inputs), job.output_count) == (8, 1)


def test_a_compaction_is_divided_and_covers_its_partition_all_the_same() -> None:
    policy = topic(1, is_compacted=True, span=SliceSpan(max_bytes=2_500))
    shard = uploads(policy, [1_000] * 5)
    topics = {policy.topic_id: policy}
    (job,) = plan(shard.state(), topics, NOW_MS, CompactionSettings(spool_directory="/spool")).jobs
    assert job.runs[0].covers
    assert list(job.runs[0].parts) == [(0, 2), (2, 4), (4, 5)]
    shard.commit(job)
    assert shard.partitions[TopicIdPartition(policy.topic_id, 0)].compacted_upto == 50
    assert not plan(shard.state(), topics, NOW_MS, CompactionSettings(spool_directory="/spool")).jobs


def test_a_slice_that_ages_by_its_upload_stays_in_its_object() -> None:
    policy = topic(1, is_compacted=False, span=SliceSpan(max_ms=1_000))
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=4)
    shard = dated(policy, [-1] * 4)
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    lasting = dataclasses.replace(policy, span=UNBOUNDED)
    assert plan(shard.state(), {policy.topic_id: lasting}, NOW_MS, settings).jobs


def test_a_partition_of_more_parts_than_a_job_may_read_keeps_to_its_bound() -> None:
    """16 days are 16 slices at the bound. They once became one slice, which stayed for all of them."""
    policy = topic(1, is_compacted=True, span=SliceSpan(max_bytes=1_000), min_dirty_ratio=0)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard = uploads(policy, [1_000] * 16)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=50)
    settings = CompactionSettings(spool_directory="/spool", max_inputs_per_job=6)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    shard.commit(job)
    assert [live.entry.data_bytes for live in slices_of(shard.partitions[tip])][6:] == [1_000] * 10
    assert shard.partitions[tip].compacted_upto == 60
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    shard.commit(job)
    assert [live.entry.data_bytes for live in slices_of(shard.partitions[tip])] == [1_000] * 16
    assert shard.partitions[tip].compacted_upto == 160, "a longer job covers all"
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs, "no job gains nothing"


def test_behind_what_a_job_may_read_small_slices_become_fewer_within_the_bound() -> None:
    policy = topic(1, is_compacted=True, span=SliceSpan(max_bytes=1_000), min_dirty_ratio=0)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard = uploads(policy, [1_000] * 3 + [300] * 6)
    settings = CompactionSettings(spool_directory="/spool", max_inputs_per_job=3)
    for _ in range(9):
        for job in plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs:
            shard.commit(job)
    assert shard.partitions[tip].compacted_upto == 90
    assert len(slices_of(shard.partitions[tip])) < 3 + 6
    assert all(live.entry.data_bytes <= 1_000 for live in slices_of(shard.partitions[tip]))


def test_a_head_of_small_slices_becomes_shorter_until_all_of_it_is_compacted() -> None:
    policy = topic(1, is_compacted=True, min_dirty_ratio=0)
    tip = TopicIdPartition(policy.topic_id, 0)
    shard = uploads(policy, [1_000] * 12)
    shard.partitions[tip] = shard.partitions[tip]._replace(compacted_upto=80)
    settings = CompactionSettings(spool_directory="/spool", max_inputs_per_job=3)
    for _ in range(12):
        for job in plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs:
            shard.commit(job)
    assert shard.partitions[tip].compacted_upto == 120


def shared_objects(
    policy: TopicPolicy, object_count: int, partition_count: int, *, size_bytes: int = 1_000
) -> Shard:
    """A shard whose objects have a slice of each partition."""
    shard = Shard()
    rows = {TopicIdPartition(policy.topic_id, number): PartitionRow() for number in range(partition_count)}
    for number in range(object_count):
        name = shard.new_object(size_bytes * partition_count)
        for tip, row in rows.items():
            entry = entry_of(policy, tip.partition, number, number + 1, size_bytes)
            rows[tip] = row.with_slice(LiveSlice(name, number, number + 1, entry))
    shard.partitions = rows
    return shard


def with_markers(row: PartitionRow) -> PartitionRow:
    """The row with a marker in each slice."""
    slices = [live._replace(entry=live.entry._replace(marker_count=1)) for live in slices_of(row)]
    return row_of(slices)


@pytest.mark.parametrize("trouble", ["transactions", "excluded", "undated", "unknown"])
def test_one_partition_in_trouble_does_not_keep_the_others_from_being_merged(trouble: str) -> None:
    policy = topic(1, is_compacted=False)
    topics = {policy.topic_id: policy}
    shard = shared_objects(policy, 100, 5)
    tip = TopicIdPartition(policy.topic_id, 2)
    excluded: dict[TopicIdPartition, str] = {}
    if trouble == "transactions":
        shard.partitions[tip] = with_markers(shard.partitions[tip])
    elif trouble == "excluded":
        excluded[tip] = "tried a moment ago"
    else:
        # The same offsets, of a partition that no job may touch.
        other = topic(2, is_compacted=False, span=SliceSpan(max_ms=1_000))
        if trouble == "undated":
            topics[other.topic_id] = other
        row = shard.partitions.pop(tip)
        tip = TopicIdPartition(other.topic_id, 0)
        shard.partitions[tip] = row_of(
            [
                live._replace(
                    entry=entry_of(other, 0, live.base_offset, live.end_offset, 1_000, max_timestamp=-1)
                )
                for live in slices_of(row)
            ]
        )
    settings = CompactionSettings(spool_directory="/spool")
    jobs = plan(shard.state(), topics, NOW_MS, settings, excluded=excluded).jobs
    assert [(job.reason, len(job.inputs)) for job in jobs] == [(JobReason.MERGE, 64), (JobReason.MERGE, 36)]
    moved = {run.topic_id_partition for job in jobs for run in job.runs}
    is_moved = trouble == "transactions"
    assert moved == (set(shard.partitions) if is_moved else set(shard.partitions) - {tip})
    for job in jobs:
        shard.commit(job)
    state = shard.state()
    kept = [live for live in state.objects.values() if live.live_slices == 1]
    assert len(kept) == (0 if is_moved else 100)
    assert all(live.live_bytes == 1_000 for live in kept), "an object's live bytes are those that it keeps"
    assert not plan(state, topics, NOW_MS, settings, excluded=excluded).jobs, "no job is planned for nothing"
    again = plan(state, topics, NOW_MS, settings).jobs
    assert [job.reason for job in again][:1] == ([JobReason.SPACE] if trouble == "excluded" else [])


def test_a_run_that_is_too_short_to_decide_anything_is_not_taken() -> None:
    """The partition does not pay, and the object that it shares is kept by another one."""
    policy = topic(1, is_compacted=True)
    dirty, waiting, stuck = (TopicIdPartition(policy.topic_id, number) for number in range(3))
    shard = shared_objects(policy, 1, 3)
    (shared,) = slices_of(shard.partitions[waiting])
    for tip, sizes in ((dirty, [9_000]), (waiting, [90_000, 1_000])):
        row = shard.partitions[tip]
        for number, size_bytes in enumerate(sizes, 1):
            entry = entry_of(policy, tip.partition, number, number + 1, size_bytes)
            row = row.with_slice(LiveSlice(shard.new_object(size_bytes), number, number + 1, entry))
        shard.partitions[tip] = row
    shard.partitions[waiting] = shard.partitions[waiting]._replace(compacted_upto=2)
    settings = CompactionSettings(spool_directory="/spool")
    topics = {policy.topic_id: policy}
    (job,) = plan(shard.state(), topics, NOW_MS, settings, excluded={stuck: "it has failed"}).jobs
    assert shared.object_name in job.input_names
    assert [run.topic_id_partition for run in job.runs] == [dirty]


def test_a_partition_that_is_only_carried_moves_and_stays_as_it_is() -> None:
    policy = topic(1, is_compacted=True)
    shard = uploads(policy, [1_000] * 4)
    tip = TopicIdPartition(policy.topic_id, 0)
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=4)
    planned = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings, carried={tip: "may not"})
    (job,) = planned.jobs
    assert (job.reason, job.runs[0].mode) == (JobReason.MERGE, RunMode.CARRY)
    assert planned.refusals == (Refusal(tip, "may not"),)


def test_a_small_partition_in_large_objects_is_compacted_without_the_others() -> None:
    """It once took 64 objects of any size with it."""
    big = topic(1, is_compacted=False)
    small = topic(2, is_compacted=True)
    shard = shared_objects(big, 8, 1, size_bytes=90_000)
    tip = TopicIdPartition(small.topic_id, 0)
    row = PartitionRow()
    for live in slices_of(shard.partitions[TopicIdPartition(big.topic_id, 0)]):
        entry = entry_of(small, 0, live.base_offset, live.end_offset, 100, position=89_000)
        row = row.with_slice(LiveSlice(live.object_name, live.base_offset, live.end_offset, entry))
    shard.partitions[tip] = row
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=200_000, target_object_bytes=1)
    topics = {one.topic_id: one for one in (big, small)}
    jobs = plan(shard.state(), topics, NOW_MS, settings).jobs
    assert [run.topic_id_partition for job in jobs for run in job.runs] == [tip]
    assert len(jobs[0].inputs) == 8
    shard.commit(jobs[0])
    assert shard.partitions[tip].compacted_upto == 8


def test_a_job_counts_the_bytes_of_a_partition_once() -> None:
    """Small partitions in two groups of large objects fit one job."""
    big = topic(1, is_compacted=False)
    small = topic(2, is_compacted=True)
    shard = shared_objects(big, 8, 1, size_bytes=90_000)
    larger = slices_of(shard.partitions[TopicIdPartition(big.topic_id, 0)])
    for number in range(4):
        row = PartitionRow()
        for place, live in enumerate(larger[:4] if number < 2 else larger[4:]):
            entry = entry_of(small, number, place, place + 1, 100, position=80_000 + 100 * number)
            row = row.with_slice(LiveSlice(live.object_name, place, place + 1, entry))
        shard.partitions[TopicIdPartition(small.topic_id, number)] = row
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=1_600, target_object_bytes=1)
    topics = {one.topic_id: one for one in (big, small)}
    (job,) = plan(shard.state(), topics, NOW_MS, settings).jobs
    assert [run.topic_id_partition.partition for run in job.runs] == [0, 1, 2, 3]


def test_a_job_that_has_failed_comes_last_and_becomes_smaller() -> None:
    policy, other = topic(1, is_compacted=False), topic(2, is_compacted=True)
    topics = {one.topic_id: one for one in (policy, other)}
    shard = uploads(policy, [1_000] * 16)
    tip = TopicIdPartition(other.topic_id, 0)
    row = PartitionRow()
    for number in range(3):
        name = shard.new_object(9_000)
        row = row.with_slice(
            LiveSlice(name, number, number + 1, entry_of(other, 0, number, number + 1, 9_000))
        )
    shard.partitions[tip] = row
    settings = CompactionSettings(spool_directory="/spool", merge_fanout=3, max_inputs_per_job=16)

    def planned(count: int) -> list[tuple[JobReason, int]]:
        failures = {live.object_name: count for live in slices_of(row)} if count else {}
        jobs = plan(shard.state(), topics, NOW_MS, settings, failures=failures).jobs
        return [(job.reason, len(job.inputs)) for job in jobs]

    assert planned(0) == [(JobReason.DIRTY, 3), (JobReason.MERGE, 16)]
    assert planned(1) == [(JobReason.MERGE, 16), (JobReason.DIRTY, 3)]
    assert planned(8) == [(JobReason.MERGE, 16), (JobReason.DIRTY, 1)]
    merged = {
        live.object_name: 4 for live in slices_of(shard.partitions[TopicIdPartition(policy.topic_id, 0)])
    }
    jobs = plan(shard.state(), topics, NOW_MS, settings, failures=merged).jobs
    assert [len(job.inputs) for job in jobs] == [3, 4, 4, 4, 4]


def test_a_partition_whose_jobs_fail_is_compacted_alone() -> None:
    policy = topic(1, is_compacted=True)
    shard = shared_objects(policy, 2, 3)
    settings = CompactionSettings(spool_directory="/spool")
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert len(job.runs) == 3
    failures = dict.fromkeys(job.input_names, 2)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings, failures=failures).jobs
    assert len(job.runs) == 1


def test_an_object_of_mostly_dead_bytes_is_rewritten() -> None:
    """Retention has taken most of it, and one partition keeps the rest for long."""
    policy = topic(1, is_compacted=False)
    brief, lasting = (TopicIdPartition(policy.topic_id, number) for number in range(2))
    shard = Shard()
    name = shard.new_object(5_000)
    for tip, size_bytes, position in ((brief, 4_000, 0), (lasting, 1_000, 4_000)):
        entry = entry_of(policy, tip.partition, 0, 10, size_bytes, position=position)
        shard.partitions[tip] = row_of([LiveSlice(name, 0, 10, entry)])
    settings = CompactionSettings(spool_directory="/spool")
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    shard.partitions[brief] = TieredPartition(brief, shard.partitions[brief]).with_log_start(10).row
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert (job.reason, [run.topic_id_partition for run in job.runs]) == (JobReason.SPACE, [lasting])
    shard.commit(job)
    assert not plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs


def test_a_long_transaction_beyond_the_bytes_of_a_job_is_taken_up_to_its_marker_and_alone() -> None:
    """A smaller job would decide nothing, so it is known to be the smallest one."""
    policy = topic(1, is_compacted=True, min_dirty_ratio=0)
    tip, other = (TopicIdPartition(policy.topic_id, number) for number in range(2))
    shard = shared_objects(policy, 10, 2, size_bytes=10_000)
    opened = (OpenTransaction(7, 1),)
    shard.partitions[tip] = row_of(
        [
            live._replace(
                entry=live.entry._replace(open_transactions=opened, stable_end_offset=1)
                if 1 <= live.base_offset < 6
                else live.entry
            )
            for live in slices_of(shard.partitions[tip])
        ]
    )._replace(compacted_upto=1)
    shard.partitions[other] = shard.partitions[other]._replace(compacted_upto=10)
    settings = CompactionSettings(spool_directory="/spool", max_job_bytes=20_000)
    (job,) = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings).jobs
    assert [(run.topic_id_partition, len(run.slices)) for run in job.runs] == [(tip, 7)]
    assert job.is_least
    shard.commit(job)
    assert shard.partitions[tip].compacted_upto == 7


def test_slices_beyond_a_bound_that_was_lowered_stay_by_themselves() -> None:
    """A retention was shortened, or a limit lowered: what is too wide is joined with nothing, and no job is
    made for it again and again."""
    wide = topic(1, is_compacted=True, min_dirty_ratio=0)
    shard = uploads(wide, [9_000, 9_000, 100, 100])
    settings = CompactionSettings(spool_directory="/spool")
    lowered = dataclasses.replace(wide, span=SliceSpan(max_bytes=1_000))
    (job,) = plan(shard.state(), {wide.topic_id: lowered}, NOW_MS, settings).jobs
    assert list(job.runs[0].parts) == [(0, 1), (1, 2), (2, 4)]
    shard.commit(job)
    assert not plan(shard.state(), {wide.topic_id: lowered}, NOW_MS, settings).jobs


@pytest.mark.parametrize("reason", [JobReason.DIRTY, JobReason.MERGE, JobReason.SPACE])
def test_a_job_that_has_become_small_enough_is_known_to_be_the_least(reason: JobReason) -> None:
    """Each round of failures makes it smaller, until it is the least; not one step earlier, nor never."""
    policy = topic(1, is_compacted=reason is JobReason.DIRTY)
    shard = shared_objects(policy, 12, 2)
    if reason is JobReason.SPACE:
        brief, _ = sorted(shard.partitions)
        end_offset = shard.partitions[brief].tiered_end_offset
        shard.partitions[brief] = (
            TieredPartition(brief, shard.partitions[brief]).with_log_start(end_offset).row
        )
    settings = CompactionSettings(spool_directory="/spool", min_live_ratio=0.9)
    sizes: list[int] = []
    failures = dict[str, int]()
    while True:
        jobs = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings, failures=failures).jobs
        job = next(one for one in jobs if one.reason is reason)
        sizes.append(len(job.inputs) * len(job.runs))
        assert not failures or sizes[-1] <= sizes[-2]
        if job.is_least:
            break
        assert len(sizes) < 12, "it never becomes the least"
        failures = {live.ref.name: 2 * len(sizes) for live in shard.state().objects.values()}
    assert sizes[0] > sizes[-1]
    assert sizes[-1] == {JobReason.DIRTY: 1, JobReason.MERGE: 4 * 2, JobReason.SPACE: 1}[reason]
