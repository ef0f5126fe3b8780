"""Each action of a shard: what makes it valid, what is refused in part, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.base.errors import FencedError, InvalidRequestError, PreconditionFailedError, StoreCorruptError
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.head_actions import Forget
from stratalog.remote.metadata.shard.metadata_log import AddOutcome, MetadataLog
from stratalog.remote.metadata.shard.shard_actions import (
    AdvanceLogStart,
    Claim,
    DropPartitions,
    PartitionOffset,
)
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_judge import (
    ABOVE_TIERED_END,
    BORN_BEFORE_HORIZON,
    KNOWN_ALREADY,
    NOT_AT_TIERED_END,
    TOPIC_DELETED,
    Refusal,
    judge_add,
)
from stratalog.remote.objects.slice_entry import LastBatch
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import (
    A0,
    A1,
    B0,
    TOPIC_A,
    TOPIC_B,
    MetadataHarness,
    ranges_of,
    slices_of,
)

THIRTY_DAYS_MS = 30 * 24 * 3600 * 1000


@pytest.fixture
def harness() -> MetadataHarness:
    return MetadataHarness()


def add(log: MetadataLog, epoch: int, *made: MockObject) -> AddOutcome:
    outcome = log.add([(one.ref, one.entries()) for one in made], epoch)
    log.check()
    return outcome


def test_epochs_grow(harness: MetadataHarness) -> None:
    log = harness.log()
    assert log.state().epoch == 0
    first, second = harness.ids.uuid(), harness.ids.uuid()
    assert log.claim("one", first) == 1
    assert log.claim("two", second, at_least=7) == 7
    assert log.claim("three", harness.ids.uuid(), at_least=3) == 8
    first_claim = log.state().claims[0]
    assert (first_claim.owner, first_claim.uuid, first_claim.epoch) == ("one", first, 1)
    log.check()


def test_add_moves_the_ends(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5), (B0, 0, 3))
    harness.added(log, epoch, (A0, 5, 6))
    partition = log.state().partition(A0)
    assert partition.tiered_end_offset == partition.stable_end_offset == 6
    assert partition.end_mark == LastBatch(5, 0, 5)
    assert log.state().partition(B0).tiered_end_offset == 3
    live = log.state().objects[made.ref.name]
    assert (live.seq, live.live_slices, live.live_bytes) == (2, 2, 80)
    log.check()


def test_an_owner_that_was_replaced_adds_nothing(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    other = harness.log()
    other.claim("owner-2", harness.ids.uuid())
    made = harness.put(log, (A0, 0, 5))
    with pytest.raises(FencedError) as caught:
        add(log, epoch, made)
    assert caught.value.fields == {"epoch": 1, "current_epoch": 2}
    assert other.refresh().objects.get(made.ref.name) is None


def test_slices_are_judged_one_by_one(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (A1, 0, 2))
    made = harness.put(log, (A0, 4, 9), (A1, 2, 4), (B0, 1, 2))
    outcome = add(log, epoch, made)
    assert outcome.refused == (
        Refusal(made.ref.name, A0, NOT_AT_TIERED_END),
        Refusal(made.ref.name, B0, NOT_AT_TIERED_END),
    )
    assert ranges_of(log, A1)[-1] == (made.ref.name, 2, 4)
    assert log.state().partition(A0).tiered_end_offset == 5
    assert harness.log().state() == log.state(), "a follower takes the outcome from the commit"


def test_an_object_of_which_nothing_is_left_is_not_committed(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    seq = log.state().seq
    outcome = add(log, epoch, harness.put(log, (A0, 1, 2)))
    assert [refusal.reason for refusal in outcome.refused] == [NOT_AT_TIERED_END]
    assert outcome.seq == log.state().seq == seq


def test_objects_of_one_commit_follow_one_another(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    first, second = harness.put(log, (A0, 0, 5)), harness.put(log, (A0, 5, 7))
    bad = harness.put(log, (A0, 5, 8))
    outcome = add(log, epoch, first, second, bad)
    assert [refusal.object_name for refusal in outcome.refused] == [bad.ref.name]
    assert ranges_of(log, A0) == [(first.ref.name, 0, 5), (second.ref.name, 5, 7)]


def test_an_object_is_added_once(harness: MetadataHarness) -> None:
    """A second call with the same object reports what the first one did, and commits nothing."""
    log, epoch = harness.owned()
    made = harness.put(log, (A0, 0, 5), (A1, 3, 4))
    first = add(log, epoch, made)
    assert first.refused == (Refusal(made.ref.name, A1, NOT_AT_TIERED_END),)
    seq = log.state().seq
    assert add(log, epoch, made).refused == first.refused
    log.fold()
    assert add(log, epoch, made).refused == first.refused, "the commit is in the history now"
    assert log.state().seq == seq + 1, "only the fold"


def test_somebody_elses_object_is_not_added_again(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    later = log.claim("owner-2", harness.ids.uuid())
    outcome = add(log, later, made)
    assert [refusal.reason for refusal in outcome.refused] == [KNOWN_ALREADY]


def test_objects_from_before_the_horizon_are_refused(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    state = replace(log.state(), horizon=1)
    too_old, young = harness.put_born(0, (A0, 0, 5)), harness.put_born(1, (A1, 0, 5))
    judgement = judge_add(state, [(x.ref, x.entries()) for x in (too_old, young)], epoch)
    assert judgement.outcome == (Refusal(too_old.ref.name, A0, BORN_BEFORE_HORIZON),)
    assert len(judgement.actions) == 1


def test_requests_that_make_no_sense(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    with pytest.raises(InvalidRequestError):
        add(log, epoch, harness.put(log, (A0, 0, 5), (A0, 5, 6)))
    with pytest.raises(InvalidRequestError):
        add(log, epoch, harness.put(log, (A0, 0, 0)))


def test_log_start_drops_what_lies_wholly_below(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    first = harness.added(log, epoch, (A0, 0, 5), (B0, 0, 1))
    second = harness.added(log, epoch, (A0, 5, 10))
    outcome = log.advance_log_start({A0: 7}, epoch=None, catalog_seq=4)
    log.check()
    assert outcome.refused == ()
    partition = log.state().partition(A0)
    assert (partition.log_start_offset, partition.tiered_end_offset) == (7, 10)
    assert ranges_of(log, A0) == [(second.ref.name, 5, 10)]
    assert log.state().objects[first.ref.name].live_slices == 1, "the other partition's slice lives"
    assert log.state().catalog_seq == 4
    log.advance_log_start({A0: 10, B0: 1}, epoch=None, catalog_seq=4)
    log.check()
    assert {dropped.name for dropped in log.state().dropped} == {first.ref.name, second.ref.name}
    assert log.state().partition(A0).end_mark == LastBatch(9, 0, 9), (
        "it still tells what the local log should have"
    )


def test_log_start_only_moves_forward(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 3}, epoch=None, catalog_seq=0)
    seq = log.state().seq
    outcome = log.advance_log_start({A0: 2, A1: 0}, epoch=None, catalog_seq=0)
    assert (outcome.seq, outcome.refused, log.state().seq) == (seq, (), seq)


def test_beyond_the_tiered_end_only_the_owner_goes(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    outcome = log.advance_log_start({A0: 6, A1: 1}, epoch=None, catalog_seq=None)
    assert outcome.refused == (Refusal("", A0, ABOVE_TIERED_END), Refusal("", A1, ABOVE_TIERED_END))
    log.advance_log_start({A0: 8, A1: 2}, epoch=epoch, catalog_seq=None)
    log.check()
    partition = log.state().partition(A0)
    assert (partition.log_start_offset, partition.tiered_end_offset, partition.slices) == (8, 8, ())
    harness.added(log, epoch, (A0, 8, 9), (A1, 2, 3))
    log.claim("owner-2", harness.ids.uuid())
    with pytest.raises(FencedError):
        log.advance_log_start({A0: 20}, epoch=epoch, catalog_seq=None)


def test_a_stale_configuration_deletes_nothing(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 1}, epoch=None, catalog_seq=9)
    for destroy in (
        lambda: log.advance_log_start({A0: 2}, epoch=None, catalog_seq=8),
        lambda: log.drop_partitions(TOPIC_A, 8),
    ):
        with pytest.raises(PreconditionFailedError) as caught:
            destroy()
        assert caught.value.fields == {"catalog_seq": 8, "used_catalog_seq": 9}
    assert log.state().partition(A0).log_start_offset == 1
    log.advance_log_start({A0: 2}, epoch=epoch, catalog_seq=None)
    assert log.state().catalog_seq == 9, "what a person asked for needs no configuration"


def test_a_dropped_topic_is_gone_and_stays_so(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    shared = harness.added(log, epoch, (A0, 0, 5), (B0, 0, 5))
    alone = harness.added(log, epoch, (A1, 0, 5))
    seq = log.drop_partitions(TOPIC_A, 3)
    log.check()
    assert set(log.state().partitions) == {B0}
    assert [dropped.name for dropped in log.state().dropped] == [alone.ref.name]
    assert log.state().objects[shared.ref.name].live_slices == 1
    late = harness.put(log, (A0, 5, 6), (B0, 5, 6))
    assert add(log, epoch, late).refused == (Refusal(late.ref.name, A0, TOPIC_DELETED),)
    assert log.advance_log_start({A0: 9}, epoch=epoch, catalog_seq=3).refused == (
        Refusal("", A0, TOPIC_DELETED),
    )
    assert log.drop_partitions(TOPIC_A, 3) > seq, "nothing more to do; the state that says so is returned"
    assert harness.log().state() == log.state()


def test_dropped_topics_are_forgotten_after_thirty_days(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (B0, 0, 5))
    log.drop_partitions(TOPIC_A, 3)
    harness.clock.advance(THIRTY_DAYS_MS + 1)
    log.refresh(dated=True)
    log.drop_partitions(TOPIC_B, 4)
    log.check()
    assert set(log.state().dropped_topics) == {TOPIC_B}


def test_forget_takes_what_is_dropped(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    assert log.forget([made.ref.name]) == (), "live"
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=0)
    (dropped,) = log.state().dropped
    assert (dropped.name, dropped.size_bytes, dropped.brought_seq) == (made.ref.name, made.ref.size_bytes, 2)
    assert dropped.key(log.layout) == log.layout.data_key(made.ref.name)
    assert not log.state().is_deletable(dropped), "the commit that brought it is inline"
    log.fold()
    assert log.state().is_deletable(dropped)
    assert log.forget([made.ref.name, "nobody"]) == (made.ref.name,)
    assert log.state().dropped == ()
    log.check()


def test_snapshots_stay_as_they_were(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    snapshot = log.state()
    harness.added(log, epoch, (A0, 5, 9), (B0, 0, 1))
    log.advance_log_start({A0: 7}, epoch=None, catalog_seq=0)
    snapshot.check()
    assert snapshot.partition(A0).tiered_end_offset == 5
    assert set(snapshot.partitions) == {A0}
    assert slices_of(log, A0)[0].base_offset == 5


def test_a_writer_does_not_read_what_it_wrote(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    assert harness.loaded == []
    follower = harness.log(read_only=True)
    assert harness.loaded == [made.ref.name]
    follower.refresh()
    assert harness.loaded == [made.ref.name], "a directory is read once"


def test_commits_that_cannot_follow_are_corrupt(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    state = replace(log.state(), catalog_seq=5)
    for seq, action in (
        (state.seq + 2, Claim("x", UUID(int=1), 5)),
        (state.seq + 1, Claim("x", UUID(int=1), state.epoch)),
        (state.seq + 1, Forget(("x",))),
        (state.seq + 1, DropPartitions(TOPIC_A, 4)),
        (state.seq + 1, AdvanceLogStart((PartitionOffset(A0, 0),))),
    ):
        commit = Commit.build(seq, UUID(int=9), 0, Writer("owner", "x"), None, [action])
        with pytest.raises(StoreCorruptError):
            apply_commit(state, commit, harness.load_directory)


def test_commits_that_are_wrong_about_last_slices_are_corrupt(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    emptied = harness.added(log, epoch, (A0, 0, 5)).ref.name
    kept = harness.added(log, epoch, (A0, 5, 9), (A1, 0, 1)).ref.name
    state = log.state()
    right = AdvanceLogStart((PartitionOffset(A0, 9),), (emptied,))
    for dropped in ((), (kept,), (emptied, kept)):
        commit = Commit.build(
            state.seq + 1, UUID(int=9), 0, Writer("x", "x"), None, [replace(right, dropped=dropped)]
        )
        with pytest.raises(StoreCorruptError) as caught:
            apply_commit(state, commit, harness.load_directory)
        assert caught.value.fields["writer"] == "x"
    commit = Commit.build(state.seq + 1, UUID(int=9), 0, Writer("x", "x"), None, [right])
    apply_commit(state, commit, harness.load_directory).check()
