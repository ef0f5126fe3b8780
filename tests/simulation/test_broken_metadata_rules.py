"""Takes one rule of the protocol away at a time: the simulation must notice.

Each rule is broken in the real code, by putting something else in its place, or in an actor's manners. What
stands behind another rule is broken together with it, as in the table of the protocol. A rule that few seeds
notice has the first one that did when this was written; where the code has changed since, another one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.remote.metadata.head import fold, head_judge, head_state
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind, Replacement, newest_seq_of
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_log import HeadLog, Judgement
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.pin import Pin
from stratalog.remote.metadata.shard import replace_judge, shard_judge
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import AddGap
from stratalog.remote.metadata.shard.shard_judge import LostRange
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.tier.orphan_sweep import Orphan, OrphanSweep
from stratalog.testing.store_faults import no_faults
from tests.support.simulation import metadata_actors as actors
from tests.support.simulation.metadata_actors import Manners
from tests.support.simulation.metadata_world import MetadataWorld, Seat

TRUE_BASE_OF = head_judge.base_of
TRUE_REPLACEMENT = HeadState.replacement
Break = Callable[[pytest.MonkeyPatch], None]
Cast = dict[str, Callable[[Seat], None]]
_SEEDS = 400
_STEPS = 400

OWNERS: Cast = {"owner0": actors.owner, "owner1": actors.owner, "owner2": actors.owner}
DROPPERS: Cast = {f"owner{number}": partial(actors.owner, uploads=8, drops=0.7) for number in range(3)}
LOSERS: Cast = {f"owner{number}": partial(actors.owner, losses=0.7) for number in range(3)}
COMPACTORS: Cast = {
    "owner": actors.owner,
    "compactor0": actors.compactor,
    "compactor1": actors.compactor,
    "compactor2": actors.compactor,
}
FOLDERS: Cast = {
    "owner": partial(actors.owner, uploads=6),
    "folder0": actors.folder,
    "folder1": actors.folder,
    "folder2": actors.folder,
}
COLLECTORS: Cast = {
    "owner": actors.owner,
    "compactor": actors.compactor,
    "retention": actors.retention,
    "folder": actors.folder,
    "collector": actors.collector,
}


def without_if_match(patch: pytest.MonkeyPatch) -> None:
    def put(self: HeadLog[ShardState], data: bytes, etag: str) -> str:
        return self.store.put(self.layout.head_key, data)

    patch.setattr(HeadLog, "_put", put)


def taking_unknown_for_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeadLog, "_settle", answering(True))


def taking_unknown_for_failure(patch: pytest.MonkeyPatch) -> None:
    """The rules that stand behind this one (an add begins at the tiered end, an object is new) go with it."""

    def is_in(self: HeadLog[ShardState], head: Head, commit: Commit) -> bool:
        return False

    def next_upload(self: MetadataLog, state: ShardState, ref: object, epoch: int) -> None:
        return None

    patch.setattr(HeadLog, "_is_in", is_in)
    patch.setattr(MetadataLog, "_refused_before", next_upload)
    patch.setattr(shard_judge, "object_refusal", answering(None))
    without_tiling(patch)


def without_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_judge, "require_epoch", answering(None))


def without_tiling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_judge, "slice_refusal", answering(None))


def gaps_anywhere(patch: pytest.MonkeyPatch) -> None:
    def judge(
        state: ShardState, lost: Sequence[LostRange], epoch: int, store_date_ms: int | None
    ) -> Judgement[tuple[()]]:
        shard_judge.require_epoch(state, epoch)
        return Judgement(tuple(AddGap(*one[:3], one.reason.value, store_date_ms or 0) for one in lost), ())

    patch.setattr(shard_judge, "judge_add_gaps", judge)


def without_live_inputs(patch: pytest.MonkeyPatch) -> None:
    def all_planned(partition: TieredPartition, planned: SliceRanges) -> SliceRanges:
        return planned

    def all_emptied(state: ShardState, lost: Mapping[str, int]) -> tuple[str, ...]:
        return tuple(sorted(lost))

    patch.setattr(replace_judge, "remaining_inputs", all_planned)
    patch.setattr(replace_judge, "emptied", all_emptied)


def without_fold_base(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "is_built_on_current", answering(True))


def without_cover_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replace_judge, "is_first_live", answering(True))


def without_a_horizon(patch: pytest.MonkeyPatch) -> None:
    """The sweep deletes by the newest commit that is old enough, and tells no writer."""

    def say_only(_: OrphanSweep, seq: int, __: object) -> int:
        return seq

    patch.setattr(OrphanSweep, "_raise_horizon", say_only)


def without_a_fresh_head(patch: pytest.MonkeyPatch) -> None:
    """The sweep deletes every candidate of the head before its horizon."""

    def all_old(_: OrphanSweep, files: Sequence[Orphan], horizon_seq: int, __: object) -> list[Orphan]:
        return [one for one in files if int(one.key.rpartition("/")[2][:20]) < horizon_seq]

    patch.setattr(OrphanSweep, "_still_orphans", all_old)


def without_birth_of_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_judge, "is_born_too_early", answering(False))


def without_birth_of_folds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "is_born_in_time", answering(True))


def without_pinned_history(patch: pytest.MonkeyPatch) -> None:
    def before_newest(state: ShardState) -> int:
        return state.history_start_seq if state.history is None else int(state.history.name[:20])

    patch.setattr(head_judge, "trimmable_before", before_newest)


def without_gaps_that_stay(patch: pytest.MonkeyPatch) -> None:
    """The writer takes a plan that swallows a gap."""
    true_emptied = shard_judge.emptied

    def emptied(state: ShardState, lost: Mapping[str, int]) -> tuple[str, ...]:
        return true_emptied(state, {name: count for name, count in lost.items() if name})

    patch.setattr(replace_judge, "emptied", emptied)
    patch.setattr(replace_judge.ReplacePlan, "check", answering(None))


def without_brought_objects(patch: pytest.MonkeyPatch) -> None:
    """A pin holds what was live at its commit, and not what commits before it have brought and dropped."""

    def is_held_by(pin: Pin, dropped: DroppedObject) -> bool:
        if dropped.kind is not FileKind.DATA:
            return newest_seq_of(dropped.kind, dropped.name) <= pin.seq < dropped.seq
        return dropped.brought_seq <= pin.seq < dropped.seq

    patch.setattr(head_state, "_is_held_by", is_held_by)


def with_earlier_rows(patch: pytest.MonkeyPatch) -> None:
    """The files that stay of a list count as dropped by the commit of the checkpoint before."""

    def replacement(state: HeadState, root_name: str) -> Replacement | None:
        found = TRUE_REPLACEMENT(state, root_name)
        return None if found is None else found._replace(seq=int(found.base[:20] or 1))

    patch.setattr(HeadState, "replacement", replacement)


def taking_pins_of_deleted_states(patch: pytest.MonkeyPatch) -> None:
    """A pin of an earlier commit is taken though files that were dropped after it may be deleted."""

    def base_of(state: ShardState, state_seq: int) -> int:
        return TRUE_BASE_OF(replace(state, deleted_seq=0), state_seq)

    patch.setattr(head_judge, "base_of", base_of)


def answering(answer: object) -> Callable[..., object]:
    """A rule that says the same whatever it is asked."""

    def say(*_: object) -> object:
        return answer

    return say


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The broken manners are enough."""


def with_owners(manners: Manners) -> Cast:
    return {"owner0": partial(actors.owner, manners=manners), "owner1": actors.owner}


def with_compactors(manners: Manners) -> Cast:
    return {
        "owner": partial(actors.owner, uploads=8),
        "compactor0": partial(actors.compactor, manners=manners, jobs=8),
        "compactor1": partial(actors.compactor, manners=manners, jobs=8),
    }


def with_collectors(manners: Manners) -> Cast:
    return COLLECTORS | {
        "compactor": partial(actors.compactor, jobs=8),
        "collector": partial(actors.collector, manners=manners, jobs=8),
    }


SWEEPERS: Cast = {
    "owner": partial(actors.owner, uploads=8),
    "compactor": partial(actors.compactor, jobs=8),
    "sweeper0": partial(actors.sweeper, sweeps=8),
    "sweeper1": partial(actors.sweeper, sweeps=8),
}
FOLDS_AND_SWEEPERS: Cast = {
    "owner": partial(actors.owner, uploads=8),
    "folder0": partial(actors.folder, jobs=8),
    "sweeper0": partial(actors.sweeper, sweeps=12),
}


HISTORIANS: Cast = {
    "owner": partial(actors.owner, uploads=8),
    "folder": partial(actors.folder, jobs=8),
    "historian": partial(actors.historian, trims=8),
    "pinner": actors.pinner,
}


def with_pinners(manners: Manners) -> Cast:
    return {
        "owner": partial(actors.owner, uploads=6),
        "compactor": partial(actors.compactor, jobs=8),
        "folder": partial(actors.folder, jobs=6),
        "pinner": actors.pinner,
        "collector": partial(actors.collector, manners=manners, jobs=10),
        "sweeper": partial(actors.sweeper, sweeps=6),
    }


def with_losers(manners: Manners) -> Cast:
    return {
        "owner": partial(actors.owner, uploads=10, losses=0.5),
        "compactor0": partial(actors.compactor, manners=manners, jobs=8),
        "compactor1": partial(actors.compactor, manners=manners, jobs=8),
    }


LATE_PINNERS: Cast = {
    "owner": partial(actors.owner, uploads=8),
    "compactor": partial(actors.compactor, jobs=10),
    "folder": partial(actors.folder, jobs=6),
    "pinner0": partial(actors.pinner, pins=6),
    "pinner1": partial(actors.pinner, pins=6),
    "collector": partial(actors.collector, jobs=12),
}


def with_travellers(manners: Manners) -> Cast:
    return {
        "owner": partial(actors.owner, uploads=10),
        "compactor": partial(actors.compactor, jobs=20),
        "folder": partial(actors.folder, jobs=30),
        "collector": partial(actors.collector, manners=manners, jobs=60),
        "traveller": partial(actors.traveller, pins=40, back=3),
    }


def with_sweeper(manners: Manners) -> Cast:
    return with_travellers(manners) | {"sweeper": partial(actors.sweeper, sweeps=20)}


def with_newest_lists_first(manners: Manners) -> Cast:
    return {
        "owner": partial(actors.owner, uploads=10),
        "folder": partial(actors.folder, jobs=30),
        "collector": partial(actors.collector, manners=manners, jobs=60, is_newest_first=True),
    }


class Broken(NamedTuple):
    """A rule that is gone, who acts without it, and what the simulation has to say about it."""

    take_away: Break
    cast: Cast
    violation: str
    first_seed: int = 0


AT_TIERED_END = "a slice does not begin at the tiered end"
BROKEN: dict[str, Broken] = {
    "no If-Match on the head": Broken(without_if_match, OWNERS, "was overwritten"),
    "unknown is taken for success": Broken(taking_unknown_for_success, OWNERS, "not committed"),
    "unknown is taken for failure": Broken(taking_unknown_for_failure, OWNERS, AT_TIERED_END),
    "no epoch check on add": Broken(without_epochs, OWNERS, "a former owner"),
    "add begins anywhere": Broken(without_tiling, OWNERS, AT_TIERED_END, first_seed=33),
    "a gap begins anywhere": Broken(
        gaps_anywhere, LOSERS, "a gap does not begin at the tiered end", first_seed=233
    ),
    "no epoch check on a gap": Broken(without_epochs, LOSERS, "a former owner"),
    "no epoch check on a lowered end": Broken(without_epochs, DROPPERS, "lowered an end under"),
    "replace without live inputs": Broken(without_live_inputs, COMPACTORS, "contradicts the state before it"),
    "fold on another base": Broken(without_fold_base, FOLDERS, "checkpoint", first_seed=12),
    "acknowledge before the commit": Broken(
        nothing, with_owners(Manners(acknowledges_after_commit=False)), "acknowledged but not committed"
    ),
    "names are used twice": Broken(nothing, with_owners(Manners(uses_fresh_names=False)), "used twice"),
    "tombstones go without cover": Broken(
        nothing, with_compactors(Manners(keeps_tombstones_unless_covering=False)), "the latest values"
    ),
    "compacted_upto without cover": Broken(
        without_cover_check,
        with_compactors(Manners(claims_cover_only_from_first_slice=False)),
        "a key has two records",
    ),
    "delete before drop": Broken(
        nothing, with_collectors(Manners(deletes_only_what_is_dropped=False)), "is missing"
    ),
    "delete what an inline commit brings": Broken(
        nothing, with_collectors(Manners(deletes_only_what_is_folded=False)), "which is gone"
    ),
    "sweep without a horizon": Broken(without_a_horizon, SWEEPERS, "is missing"),
    "sweep by the head before the horizon": Broken(without_a_fresh_head, SWEEPERS, "is missing"),
    "birth below the horizon is accepted": Broken(without_birth_of_objects, SWEEPERS, "is missing"),
    "a fold below the horizon is accepted": Broken(
        without_birth_of_folds, FOLDS_AND_SWEEPERS, "missing", first_seed=42
    ),
    "history goes under a pin": Broken(without_pinned_history, HISTORIANS, "history of a pinned state"),
    "pins hold nothing": Broken(
        nothing, with_pinners(Manners(spares_what_pins_hold=False)), "lost", first_seed=148
    ),
    "a replace swallows a gap": Broken(
        without_gaps_that_stay, with_losers(Manners(leaves_gaps_alone=False)), "it replaces a gap"
    ),
    "a pin does not hold what its commits brought": Broken(
        without_brought_objects, LATE_PINNERS, "lost", first_seed=100
    ),
    "deletion is not said first": Broken(
        nothing, with_travellers(Manners(says_what_it_deletes=False)), "lost", first_seed=10
    ),
    "deletion by the head before it is said": Broken(
        nothing, with_travellers(Manners(spares_what_pins_came_to_hold=False)), "lost", first_seed=125
    ),
    "a pin of what may be deleted": Broken(
        taking_pins_of_deleted_states, with_travellers(Manners()), "lost", first_seed=82
    ),
    "a root is deleted before its list": Broken(
        nothing,
        with_newest_lists_first(Manners(spares_roots_with_lists=False)),
        "before its list",
        first_seed=14,
    ),
    "a list is forgotten with what must stay": Broken(
        nothing, with_sweeper(Manners(keeps_what_stays_of_lists=False)), "lost", first_seed=52
    ),
    "what stays of a list counts as dropped before its fold": Broken(
        with_earlier_rows, with_travellers(Manners()), "lost"
    ),
    "forget before deletion": Broken(
        nothing, with_pinners(Manners(forgets_only_what_is_deleted=False)), "lost", first_seed=42
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_caught(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BROKEN[rule]
    broken.take_away(monkeypatch)
    for seed in range(broken.first_seed, broken.first_seed + _SEEDS):
        violation = find_violation(broken.cast, seed)
        if violation is not None and broken.violation in str(violation):
            return
    pytest.fail(f"the simulation does not notice: {rule}")


@pytest.mark.parametrize("rule", [rule for rule, broken in BROKEN.items() if broken.take_away is not nothing])
def test_the_same_cast_is_fine_with_the_rule(rule: str) -> None:
    """The runs in which a missing rule is caught show nothing where it holds, even with an actor of bad
    manners.
    """
    cast = BROKEN[rule].cast
    for seed in range(4):
        assert find_violation(cast, seed) is None


def find_violation(cast: Cast, seed: int) -> BaseException | None:
    """The finding of the audit, or of an actor that sees a store contradict itself, in one run."""
    with MetadataWorld(seed, fault_probability=(0.02, 0.1)[seed % 2]) as world:
        world.seat("founder", no_faults, is_interleaved=False).open_log("owner")
        for name, body in cast.items():
            world.spawn(name, body)
        try:
            world.run(_STEPS)
        except (AssertionError, LogStoreError) as violation:
            return violation
    return None
