"""A commit is at most 64 KiB, whatever it touches: what is larger is divided, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.commit import MAX_COMMIT_BYTES
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.replace_judge import MAX_LISTED_IN_REPLACE
from stratalog.remote.metadata.shard.shard_actions import Replace
from stratalog.remote.metadata.shard.shard_judge import (
    MANY_CLIPPED,
    MANY_REFUSED,
    MAX_LISTED,
    TOPIC_DELETED,
    LostRange,
)
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.restore.shard_replay import ShardReplay
from stratalog.remote.store_layout import format_history_name
from tests.support.logs.sampling import whole_only
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import MetadataHarness, Range
from tests.support.tiered.shard_states import require_same_state

COUNT = 5_000
TOPIC = UUID("cccccccc-0000-4000-8000-000000000003")
GONE = UUID("dddddddd-0000-4000-8000-000000000004")
MANY = [TopicIdPartition(TOPIC, 2_000_000_000 + number) for number in range(COUNT)]


def require_small_commits(harness: MetadataHarness, log: MetadataLog) -> int:
    """Every commit in the head is small; returns how many there are."""
    commits = harness.head().commits
    for commit in commits:
        assert len(commit.text.encode()) <= MAX_COMMIT_BYTES
    require_same_state(harness.log(read_only=True).state(), log.state())
    return len(commits)


def add_each(harness: MetadataHarness, log: MetadataLog, epoch: int, ranges: Iterable[Range]) -> None:
    """Make an object of each range live, with as few commits as they take."""
    made = [harness.put(log, one) for one in ranges]
    assert not log.add([(one.ref, one.entries()) for one in made], epoch).refused


def test_an_add_to_many_partitions_is_small_and_one_that_loses_many_is_refused(
    harness: MetadataHarness,
) -> None:
    log, epoch = harness.owned()
    log.drop_partitions(GONE, 0)
    harness.added(log, epoch, *((tip, 0, 1) for tip in MANY))
    assert len(harness.head().commits[-1].text) < 1_000
    for end, lost_count, is_live in ((1, MAX_LISTED, True), (2, MAX_LISTED + 1, False)):
        lost = [TopicIdPartition(GONE, 2_000_000_000 + number) for number in range(lost_count)]
        seq = log.state().seq
        made = harness.put(log, *((tip, 0, 1) for tip in lost), *((tip, end, end + 1) for tip in MANY[:10]))
        outcome = log.add([(made.ref, made.entries())], epoch)
        reasons = [refusal.reason for refusal in outcome.refused]
        assert reasons.count(TOPIC_DELETED) == lost_count
        assert reasons.count(MANY_REFUSED) == (0 if is_live else 10)
        assert (made.ref.name in log.state().objects) is is_live
        assert log.state().seq == seq + is_live
    require_small_commits(harness, log)


def test_many_objects_are_added_with_several_commits(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    tip = MANY[0]
    made = [harness.put(log, (tip, number, number + 1)) for number in range(400)]
    late = harness.put(log, (tip, 7, 8))
    outcome = log.add([(one.ref, one.entries()) for one in (*made, late)], epoch)
    assert [refusal.object_name for refusal in outcome.refused] == [late.ref.name]
    assert len(log.state().objects) == 400
    assert require_small_commits(harness, log) > 2
    again = log.add([(one.ref, one.entries()) for one in (*made, late)], epoch)
    assert [refusal.object_name for refusal in again.refused] == [late.ref.name]


@pytest.mark.parametrize("is_folded", [False, True])
def test_log_starts_of_many_partitions_move_with_several_commits(
    harness: MetadataHarness, is_folded: bool
) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, *((tip, 0, 1) for tip in MANY))
    add_each(harness, log, epoch, ((MANY[0], number, number + 1) for number in range(1, 900)))
    if is_folded:
        log.fold()
    seq = log.state().seq
    log.advance_log_start({tip: 1 if tip != MANY[0] else 800 for tip in MANY}, epoch=None, catalog_seq=None)
    assert log.state().seq > seq + 5
    assert {log.state().partition(tip).log_start_offset for tip in MANY[1:]} == {1}
    assert log.state().partition(MANY[0]).log_start_offset == 800
    assert len(log.state().partition(MANY[0]).slices) == 100
    require_small_commits(harness, log)
    log.check()
    # Dropping the topic has 100 objects left to name, and does so at once.
    seq = log.state().seq
    log.drop_partitions(TOPIC, 0)
    assert log.state().seq == seq + 1
    require_small_commits(harness, log)


def test_a_topic_with_many_objects_is_dropped_with_several_commits(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    ranges = ((MANY[number % 7], number // 7, number // 7 + 1) for number in range(1_200))
    add_each(harness, log, epoch, ranges)
    seq = log.state().seq
    log.drop_partitions(TOPIC, 0)
    assert log.state().seq > seq + 1
    assert not log.state().objects
    assert not log.state().partitions
    assert TOPIC in log.state().dropped_topics
    require_small_commits(harness, log)
    forgotten = log.forget(dropped.name for dropped in log.state().dropped)
    assert len(forgotten) == 1_200
    require_small_commits(harness, log)


def test_a_tier_of_many_objects_is_dropped_with_several_commits_from_its_end(
    harness: MetadataHarness,
) -> None:
    log, epoch = harness.owned()
    ranges = ((MANY[number % 2], number // 2, number // 2 + 1) for number in range(1_200))
    add_each(harness, log, epoch, ranges)
    log.fold()
    seq = log.state().seq
    assert not log.drop_tier(dict.fromkeys(MANY[:2], 0), epoch=epoch, catalog_seq=0).refused
    assert log.state().seq > seq + 1
    assert not log.state().objects
    assert {log.state().partition(tip).tiered_end_offset for tip in MANY[:2]} == {0}
    assert len(log.state().dropped_objects) == 1_200
    require_small_commits(harness, log)


def test_many_gaps_are_recorded_with_several_commits(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, *((tip, 0, 1) for tip in MANY[:2_500]))
    lost = [LostRange(tip, 1, 3, GapReason.EXPIRED) for tip in MANY[:2_500]]
    lost += [LostRange(tip, 0, 3, GapReason.EXPIRED) for tip in MANY[2_500:]]
    outcome = log.add_gaps(lost, epoch)
    assert not outcome.refused
    assert {log.state().partition(tip).tiered_end_offset for tip in MANY} == {3}
    assert require_small_commits(harness, log) > 10


def test_much_history_is_trimmed_with_several_commits(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    for _ in range(13):
        for _ in range(100):
            log.claim("again", harness.ids.uuid())
        log.fold()
    log.claim("again", harness.ids.uuid())
    log.fold()
    files = [
        TrackedFile(FileKind.HISTORY, format_history_name(number, number, harness.ids.uuid()), 1)
        for number in range(1, 1_301)
    ]
    assert set(log.trim_history(1_301, files)) == set(files)
    assert log.state().history_start_seq == 1_301
    assert len(harness.head().commits) == 4
    require_small_commits(harness, log)


def replaced(
    harness: MetadataHarness, log: MetadataLog, made: MockObject, count: int, covering: int, withdrawn: int
) -> tuple[int, bool]:
    """Replace the slices of many partitions; returns how many were refused, and whether it was committed."""
    tips = MANY[:count]
    inputs = {tip: SliceRanges.of(log.state().partition(tip).slices) for tip in tips}
    outcome = log.replace(
        inputs,
        sorted({name for ranges in inputs.values() for name in ranges.object_names}),
        [(made.ref, made.entries())],
        covers={tip: number < covering for number, tip in enumerate(tips)},
        catalog_seq=0,
        drops_records=False,
        withdrawn=dict.fromkeys(tips[:withdrawn], "clock"),
    )
    return len(outcome.refused), outcome.has_committed


@pytest.mark.parametrize(
    ("covering", "withdrawn", "moved", "refused"),
    [
        (10, 0, 10, 0),
        (3_990, 0, 3_990, 0),
        pytest.param(2_000, 0, 2_000, 0, marks=whole_only),
        (4_000, MAX_LISTED_IN_REPLACE, 4_000 - MAX_LISTED_IN_REPLACE, MAX_LISTED_IN_REPLACE),
        (4_000, MAX_LISTED_IN_REPLACE + 1, 3_999 - MAX_LISTED_IN_REPLACE, MAX_LISTED_IN_REPLACE + 1),
        pytest.param(4_000, 3_999, 1, 3_999, marks=whole_only),
    ],
)
def test_a_replacement_of_many_partitions_names_few_of_them(
    harness: MetadataHarness, covering: int, withdrawn: int, moved: int, refused: int
) -> None:
    log, epoch = harness.owned()
    for number in range(2):
        harness.added(log, epoch, *((tip, number, number + 1) for tip in MANY[:4_000]))
    made = harness.put(log, *((tip, 0, 2) for tip in MANY[:4_000]))
    assert replaced(harness, log, made, 4_000, covering, withdrawn) == (refused, moved > 0)
    compacted = [tip for tip in MANY[:4_000] if log.state().partition(tip).compacted_upto == 2]
    assert len(compacted) == moved
    (replace,) = harness.head().commits[-1].actions
    assert isinstance(replace, Replace)
    names_all = refused <= MAX_LISTED_IN_REPLACE
    assert (len(replace.refused), len(replace.refused_slices)) == ((refused, 0) if names_all else (0, 1))
    require_small_commits(harness, log)


def test_a_replacement_with_many_clipped_partitions_leaves_out_those_that_it_cannot_name(
    harness: MetadataHarness,
) -> None:
    """It once refused all of its partitions, and each later one with them did, too."""
    log, epoch = harness.owned()
    for number in range(2):
        harness.added(log, epoch, *((tip, number, number + 1) for tip in MANY[:4_000]))
    made = [harness.put(log, *((tip, 0, 2) for tip in tips)) for tips in (MANY[:1_000], MANY[1_000:4_000])]
    inputs = {tip: SliceRanges.of(log.state().partition(tip).slices) for tip in MANY[:4_000]}
    moved = [*MANY[100:900], *MANY[2_000:2_010]]
    log.advance_log_start(dict.fromkeys(moved, 1), epoch=epoch, catalog_seq=0)
    outcome = log.replace(
        inputs,
        sorted({name for ranges in inputs.values() for name in ranges.object_names}),
        [(one.ref, one.entries()) for one in made],
        covers=dict.fromkeys(inputs, True),
        catalog_seq=0,
        drops_records=False,
        withdrawn={MANY[3_000]: "clock"},
    )
    clipped = moved[:MAX_LISTED_IN_REPLACE]
    assert [tip for tip, _ in outcome.clipped] == clipped
    refused = {refusal.partition: refusal.reason for refusal in outcome.refused}
    assert refused == dict.fromkeys(moved[len(clipped) :], MANY_CLIPPED) | {MANY[3_000]: "clock"}
    compacted = {tip for tip in MANY[:4_000] if log.state().partition(tip).compacted_upto == 2}
    assert compacted == set(MANY[:4_000]) - refused.keys()
    for tip in refused:
        kept, planned = SliceRanges.of(log.state().partition(tip).slices), inputs[tip]
        assert kept == planned.without_first(planned.slice_count - kept.slice_count), "the inputs stay"
    replay = ShardReplay(ShardState(), harness.load_directory)
    for commit in harness.head().commits:
        replay.apply(commit)
    rebuilt = replay.finish().state
    for tip in (*moved, MANY[3_000], MANY[3_001]):
        assert rebuilt.partition(tip).slices == log.state().partition(tip).slices
    require_small_commits(harness, log)


def test_a_commit_that_cannot_be_divided_is_refused(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    with pytest.raises(InvalidRequestError) as caught:
        catalog.create("orders", 1, {"x" * 70_000: "1"})
    assert caught.value.fields["max_bytes"] == MAX_COMMIT_BYTES
    assert catalog.seq == 0
