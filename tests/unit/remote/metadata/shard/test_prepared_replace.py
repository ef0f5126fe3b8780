"""Replacements that are judged ahead of their commit: once, unless state, catalog or time are others then."""

from __future__ import annotations

import pytest

from stratalog.base.errors import PreconditionFailedError
from stratalog.remote.metadata.head.head_log import PREPARED_FOR_MS
from stratalog.remote.metadata.shard import replace_judge
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, PreparedReplace
from stratalog.remote.metadata.shard.shard_actions import Replace
from stratalog.remote.metadata.shard.shard_judge import INPUTS_CHANGED
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import A0, B0, MetadataHarness, ranges_of, slices_of

CATALOG_SEQ = 7


class Case:
    """A replacement of all slices of two partitions, judged ahead."""

    def __init__(self, harness: MetadataHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness = harness
        self.log, epoch = harness.owned()
        harness.added(self.log, epoch, (A0, 0, 5), (B0, 0, 4))
        harness.added(self.log, epoch, (A0, 5, 9), (B0, 4, 6))
        self.made: MockObject = harness.put(self.log, (A0, 0, 9), (B0, 0, 6))
        self.judged: list[int | None] = []
        """The catalog of each judgement."""
        judge = replace_judge.judge_replace

        def noted(state: ShardState, plan: replace_judge.ReplacePlan) -> object:
            self.judged.append(plan.catalog_seq)
            return judge(state, plan)

        monkeypatch.setattr(replace_judge, "judge_replace", noted)
        self.prepared = self.prepare()

    def prepare(self) -> PreparedReplace:
        inputs = {tip: slices_of(self.log, tip) for tip in (A0, B0)}
        return self.log.prepare_replace(
            {tip: SliceRanges.of(slices) for tip, slices in inputs.items()},
            sorted({live.object_name for slices in inputs.values() for live in slices}),
            [(self.made.ref, self.made.entries())],
            covers={A0: True, B0: True},
            drops_records=True,
            expected_catalog_seq=CATALOG_SEQ,
        )

    def require_replaced(self, *, catalog_seq: int = CATALOG_SEQ) -> Replace:
        """Both partitions have the output; returns the action of the commit."""
        name = self.made.ref.name
        assert (ranges_of(self.log, A0), ranges_of(self.log, B0)) == ([(name, 0, 9)], [(name, 0, 6)])
        self.log.check()
        follower: MetadataLog = self.harness.log(read_only=True)
        assert ranges_of(follower, A0) == [(name, 0, 9)]
        (action,) = self.harness.head().commits[-1].actions
        assert isinstance(action, Replace)
        assert action.catalog_seq == catalog_seq
        return action


@pytest.fixture
def case(harness: MetadataHarness, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(harness, monkeypatch)


def test_nothing_is_judged_again_where_nothing_has_changed(case: Case) -> None:
    assert len(ranges_of(case.harness.log(read_only=True), A0)) == 2, "nothing is committed ahead"
    case.harness.clock.advance(PREPARED_FOR_MS)
    outcome = case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ)
    assert (outcome.has_committed, outcome.refused) == (True, ())
    assert case.judged == [CATALOG_SEQ]
    case.require_replaced()


def test_an_old_judgement_is_made_again_so_that_what_goes_is_kept_long_enough(case: Case) -> None:
    case.harness.clock.advance(PREPARED_FOR_MS + 1)
    now_ms = case.harness.clock.now_ms()
    case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ)
    assert case.judged == [CATALOG_SEQ] * 2
    case.require_replaced()
    dropped = case.log.state().dropped_objects
    assert [one.time_ms for one in dropped.values()] == [now_ms] * 2


def test_another_catalog_is_judged_by_its_own_number(case: Case) -> None:
    case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ + 1)
    assert case.judged == [CATALOG_SEQ, CATALOG_SEQ + 1]
    case.require_replaced(catalog_seq=CATALOG_SEQ + 1)


def test_a_partition_that_is_withdrawn_keeps_its_inputs(case: Case) -> None:
    outcome = case.log.commit_replace(
        case.prepared, catalog_seq=CATALOG_SEQ, withdrawn={B0: "configuration_changed"}
    )
    assert [(one.partition, one.reason) for one in outcome.refused] == [(B0, "configuration_changed")]
    assert (len(ranges_of(case.log, A0)), len(ranges_of(case.log, B0))) == (1, 2)
    case.log.check()


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_commit_in_between_counts(case: Case, is_seen: bool) -> None:
    """By another process, whether this one has read it or not."""
    other = case.harness.log("other")
    other.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    if is_seen:
        case.log.refresh()
    outcome = case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ)
    assert [one.offset for one in outcome.clipped] == [5]
    assert ranges_of(case.log, A0) == [(case.made.ref.name, 5, 9)]
    case.log.check()


def test_inputs_that_were_replaced_in_between_refuse_it(case: Case) -> None:
    other = case.harness.log("other")
    inputs = {tip: slices_of(other, tip) for tip in (A0, B0)}
    made = case.harness.put(other, (A0, 0, 9), (B0, 0, 6))
    other.replace(
        {tip: SliceRanges.of(slices) for tip, slices in inputs.items()},
        sorted({live.object_name for slices in inputs.values() for live in slices}),
        [(made.ref, made.entries())],
        covers={},
        catalog_seq=CATALOG_SEQ,
        drops_records=True,
    )
    outcome = case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ)
    assert not outcome.has_committed
    assert {one.reason for one in outcome.refused} == {INPUTS_CHANGED}
    assert ranges_of(case.log, A0) == [(made.ref.name, 0, 9)]


def test_a_state_that_refuses_it_is_read_anew_before_that_counts(case: Case) -> None:
    """A state at hand may be old, so a refusal that follows from it tells nothing yet."""
    newer = case.harness.log("newer")
    newer.advance_log_start({A0: 1}, epoch=None, catalog_seq=CATALOG_SEQ + 1)
    case.log.refresh()
    case.prepared = case.prepare()
    assert case.prepared.judged is None, "a newer catalog was used"
    with pytest.raises(PreconditionFailedError):
        case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ)
    case.log.commit_replace(case.prepared, catalog_seq=CATALOG_SEQ + 1)
    case.require_replaced(catalog_seq=CATALOG_SEQ + 1)
