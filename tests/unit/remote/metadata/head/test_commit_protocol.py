"""Commits whose outcome the writer has to find out, and races: one fault at a time, at the PUT of the
head.
"""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import (
    NotOwnerError,
    StoreAccessDeniedError,
    StoreCorruptError,
    StoreUnavailableError,
)
from stratalog.remote.metadata.head.fold import OVERDUE_FACTOR
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, FaultOn, FaultPlan, Operation, no_faults
from tests.support.tiered.metadata_harness import A0, A1, MetadataHarness, ranges_of
from tests.support.tiered.shard_states import require_same_state

HEAD = "shards/0000/head"


def faulty(harness: MetadataHarness, plan: FaultPlan) -> FaultyObjectStore:
    return FaultyObjectStore(harness.store, Random(1), plan)


def on_head(fault: Fault) -> FaultOn:
    return FaultOn(fault, "PUT", HEAD)


@pytest.mark.parametrize(
    "fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED, Fault.LANDS_LATE]
)
def test_one_commit_whatever_happens_to_its_put(harness: MetadataHarness, fault: Fault) -> None:
    harness.owned()
    store = faulty(harness, on_head(fault))
    log = harness.log(store=store)
    made = harness.put(log, (A0, 0, 5))
    outcome = log.add([(made.ref, made.entries())], 1)
    store.release_all()
    assert outcome.refused == ()
    assert [commit.seq for commit in harness.head().commits] == [1, 2]
    assert harness.head().seq == outcome.seq == 2, "once, and in no other place"
    assert ranges_of(harness.log(), A0) == [(made.ref.name, 0, 5)]


def test_a_refusal_is_not_believed_on_an_old_view(harness: MetadataHarness) -> None:
    """The view at hand would refuse; the head of now does not."""
    log, epoch = harness.owned()
    other = harness.log()
    harness.added(other, epoch, (A0, 0, 5))
    made = harness.put(log, (A0, 5, 6))
    assert log.state().partition(A0).tiered_end_offset == 0, "it has not heard of it yet"
    assert log.add([(made.ref, made.entries())], epoch).refused == ()
    third = harness.log()
    epoch = other.claim("owner-2", harness.ids.uuid())
    made = harness.put(third, (A0, 6, 7))
    assert third.add([(made.ref, made.entries())], epoch).refused == (), "an epoch that it has not heard of"


def test_a_refusal_behind_a_lost_race_needs_no_other_read_of_the_head(harness: MetadataHarness) -> None:
    """The loser has just read the head that refuses it."""
    _, epoch = harness.owned()
    other = harness.log()
    on_the_head: list[str] = []

    def before(operation: Operation) -> None:
        if operation.key != HEAD:
            return
        on_the_head.append(operation.verb)
        if on_the_head == ["PUT"]:
            other.claim("owner-2", harness.ids.uuid())

    store = FaultyObjectStore(harness.store, Random(1), no_faults, before=before)
    log = harness.log(store=store)
    made = harness.put(log, (A0, 0, 5))
    on_the_head.clear()
    with pytest.raises(NotOwnerError):
        log.add([(made.ref, made.entries())], epoch)
    assert on_the_head == ["PUT", "GET"]


def test_a_commit_that_landed_is_found_under_later_ones(harness: MetadataHarness) -> None:
    """It landed, its answer was lost, and others committed and folded before its writer looked."""
    _, epoch = harness.owned()
    folder = harness.log()
    landed: list[int] = []

    def before(operation: Operation) -> None:
        if (operation.verb, operation.key) == ("GET", HEAD) and harness.head().seq == 2:
            landed.append(harness.head().seq)
            folder.refresh()
            folder.claim("owner-2", harness.ids.uuid())
            folder.fold()
            folder.claim("owner-3", harness.ids.uuid())
            folder.fold()

    store = FaultyObjectStore(harness.store, Random(1), on_head(Fault.LANDS_UNKNOWN), before=before)
    log = harness.log(store=store)
    made = harness.put(log, (A0, 0, 5))
    outcome = log.add([(made.ref, made.entries())], epoch)
    assert [outcome.seq] == landed == [2]
    assert outcome.refused == ()
    assert log.state().epoch == 3
    assert ranges_of(log, A0) == [(made.ref.name, 0, 5)]


@pytest.mark.parametrize("fault", [Fault.LANDS_UNKNOWN, Fault.LANDS_LATE])
def test_a_store_that_stays_silent_leaves_it_open(harness: MetadataHarness, fault: Fault) -> None:
    _, epoch = harness.owned()
    is_silent = False

    def plan(operation: Operation) -> Fault:
        if not is_silent:
            return Fault.NONE
        return fault if operation.verb == "PUT" else Fault.FAILS

    store = faulty(harness, plan)
    log = harness.log(store=store)
    made = harness.put(log, (A0, 0, 5))
    is_silent = True
    with pytest.raises(StoreUnavailableError):
        log.add([(made.ref, made.entries())], epoch)
    is_silent = False
    store.release_all()
    assert harness.head().seq == 2, "it did land"
    outcome = log.add([(made.ref, made.entries())], epoch)
    assert (outcome.seq, outcome.refused) == (2, ())
    assert harness.head().seq == 2, "asking again finds it"


def test_credentials_that_expire_are_reported_at_once(harness: MetadataHarness) -> None:
    harness.owned()

    def refuse(operation: Operation) -> None:
        if operation.verb == "PUT":
            raise StoreAccessDeniedError("no", key=operation.key)

    log = harness.log(store=FaultyObjectStore(harness.store, Random(1), before=refuse))
    before = harness.clock.elapsed_ms
    with pytest.raises(StoreAccessDeniedError):
        log.claim("owner-2", harness.ids.uuid())
    assert harness.clock.elapsed_ms == before, "without waiting"


def test_others_that_always_come_first(harness: MetadataHarness) -> None:
    other, _ = harness.owned()

    def before(operation: Operation) -> None:
        if operation.verb == "PUT":
            other.claim("winner", harness.ids.uuid())

    store = FaultyObjectStore(harness.store, Random(1), before=before)
    log = harness.log(store=store, settings=CommitSettings(max_lost_races=3, fold_by_itself=False))
    with pytest.raises(StoreUnavailableError):
        log.claim("loser", harness.ids.uuid())
    assert other.state().epoch == 4


def test_refresh_asks_only_for_what_changed(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    store = faulty(harness, no_faults)
    follower = harness.log(store=store, read_only=True)
    first = follower.state()
    assert follower.refresh() is first, "the very same state"
    harness.added(log, epoch, (A0, 0, 5))
    require_same_state(follower.refresh(), log.state())
    assert {entry.operation.verb for entry in store.trace.entries} == {"GET"}
    harness.clock.advance(5000)
    assert follower.store_date_ms == harness.clock.now_ms() - 5000
    follower.refresh(dated=True)
    assert follower.store_date_ms == harness.clock.now_ms()


def test_a_slow_refresh_does_not_take_a_newer_state_back(harness: MetadataHarness) -> None:
    """A commit of this process lands between the refresh's read of the head and its end."""
    _, epoch = harness.owned()
    made = harness.put_born(1, (A0, 0, 5))

    is_slow = False

    def after(operation: Operation) -> None:
        nonlocal is_slow
        if is_slow and operation.verb == "GET":
            is_slow = False
            log.claim("owner-2", harness.ids.uuid())

    log = harness.log(store=FaultyObjectStore(harness.store, Random(1), after=after))
    harness.log().add([(made.ref, made.entries())], epoch)
    is_slow = True
    log.refresh()
    assert (log.state().seq, log.state().epoch) == (3, 2)


def test_a_head_that_went_back_is_noticed(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    old = harness.head()
    harness.added(log, epoch, (A0, 0, 5))
    harness.put_head(old)
    for attempt in (log.refresh, lambda: log.claim("owner-2", harness.ids.uuid())):
        with pytest.raises(StoreCorruptError) as caught:
            attempt()
        assert (caught.value.fields["seq"], caught.value.fields["seen_seq"]) == (1, 2)


def test_a_commit_that_was_overwritten_is_noticed(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    stranger = MetadataHarness(2)
    stranger.identity = harness.identity
    stranger.owned()
    stranger.log().claim("more", stranger.ids.uuid())
    harness.put_head(stranger.head())
    with pytest.raises(StoreCorruptError) as caught:
        log.refresh()
    assert caught.value.fields == {"seq": 1}


def test_a_commit_folds_first_where_the_head_is_far_beyond_its_limits(
    harness: MetadataHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.owned()
    log = harness.log(settings=CommitSettings(fold_inline_commits=2))
    count = 2 * OVERDUE_FACTOR
    for _ in range(count):
        log.claim("again", harness.ids.uuid())
    head = harness.head()
    assert (head.folded_seq, len(head.commits)) == (0, count + 1), "no commit has waited for a fold"
    assert not caplog.records
    log.claim("again", harness.ids.uuid())
    head = harness.head()
    assert (head.folded_seq, len(head.commits)) == (count + 1, 2)
    assert ["a commit waits for a fold" in record.getMessage() for record in caplog.records] == [True]


def test_the_upkeep_folds_a_head_beyond_its_limits(harness: MetadataHarness) -> None:
    _, epoch = harness.owned()
    log = harness.log(settings=CommitSettings(fold_unfolded_rows=14))
    for n in range(3):
        assert log.fold_if_needed() is None
        # A row of the partition, one of the object, and a slice.
        harness.added(log, epoch, (A0, n, n + 1), (A1, n, n + 1))
    assert log.state().unfolded_rows == 6 + 3 + 6
    assert log.fold_if_needed() is not None
    assert log.state().unfolded_rows == 0


def test_a_fold_that_fails_does_not_fail_the_commit(
    harness: MetadataHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.owned()
    plan = FaultOn(Fault.FAILS, "PUT", "shards/0000/history/")
    log = harness.log(store=faulty(harness, plan), settings=CommitSettings(fold_inline_commits=1))
    last = 1 + OVERDUE_FACTOR
    for epoch in range(2, last + 1):
        assert log.claim("again", harness.ids.uuid()) == epoch
    assert not caplog.records
    assert log.claim("again", harness.ids.uuid()) == last + 1
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "could not be folded" in caplog.text
    assert log.claim("again", harness.ids.uuid()) == last + 2
    assert harness.head().folded_seq == last + 1


def test_a_writer_whose_clock_is_late_does_not_date_its_commits_before_the_store(
    harness: MetadataHarness,
) -> None:
    """Objects that a commit drops are kept for a grace from the commit's time on, by the store's clock."""
    harness.owned()
    store_now_ms = harness.clock.now_ms()
    harness.clock = ManualClock(store_now_ms - 2 * 86_400_000)
    harness.log().claim("late", harness.ids.uuid())
    assert harness.head().commits[-1].time_ms == store_now_ms
