"""Traces that end in a violation, one for each rule that is gone: the shortest that the search has found."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.protocol_model.rules import Rule


class Trace(NamedTuple):
    """Steps of a scenario without some rules, and the invariant that breaks at the end."""

    without: tuple[Rule, ...]
    scenario: str
    violation: str
    steps: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(rule.name for rule in self.without)


BACKED_RULES = (
    Rule.READ_TO_SETTLE,
    Rule.UNKNOWN_IS_NO_FAILURE,
    Rule.REFUSAL_IS_UNKNOWN,
    Rule.ADD_AT_TIERED_END,
    Rule.GAP_AT_TIERED_END,
)
"""Rules that stand in front of one another: nothing is lost while only one of them is gone."""

TRACES = (
    Trace(
        (Rule.IF_MATCH,),
        "owner and sweep",
        "commit 1 was overwritten",
        (
            "owner0 claims epoch 2: unknown",
            "owner0 sends the same commit again: landed",
            "net lands commit 100 late",
        ),
    ),
    Trace(
        (Rule.UNKNOWN_IS_NO_SUCCESS,),
        "owner and sweep",
        "acknowledged but not committed: [(0, 0)]",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: ok",
        ),
    ),
    Trace(
        (Rule.ADD_UNDER_OWN_EPOCH,),
        "two owners",
        "a former owner (epoch 2) added under epoch 3",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "owner1 claims epoch 3: ok",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: ok",
        ),
    ),
    Trace(
        (Rule.REPLACE_LIVE_INPUTS,),
        "racing compactors",
        "slices (0, 1, 100) and (0, 2, 101) do not tile",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "compactor1 compacts [1, 2] into 101 keeping [0, 1]",
            "compactor1 reads the head",
            "compactor1 replaces [1, 2] by 101: ok",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 100: ok",
        ),
    ),
    Trace(
        (Rule.ACKNOWLEDGE_COMMITS,),
        "owner and sweep",
        "acknowledged but not committed: [(0, 0)]",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
        ),
    ),
    Trace(
        (Rule.BIRTH_OF_OBJECTS,),
        "owner and sweep",
        "live object 101 is missing",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "collector1 reads the head to raise the horizon to 1",
            "collector1 raises the horizon: ok",
            "collector1 reads the head",
            "collector1 finds orphans []",
            "collector1 reads the head to raise the horizon to 2",
            "collector1 raises the horizon: ok",
            "owner0 reads the head",
            "collector1 reads the head",
            "owner0 commits [0,1) in object 101: ok",
            "collector1 finds orphans [101]",
            "collector1 deletes object 101",
        ),
    ),
    Trace(
        (Rule.BIRTH_OF_FOLDS,),
        "fold, owner, sweep",
        "object 101 of the current checkpoint is missing",
        (
            "owner1 claims epoch 2: ok",
            "folder0 puts checkpoint 101 of commit 2 with pages (102, 92)",
            "owner1 appends b at 1",
            "owner1 puts object 103",
            "owner1 reads the head",
            "owner1 commits [1,2) in object 103: ok",
            "collector2 reads the head to raise the horizon to 3",
            "collector2 raises the horizon: ok",
            "folder0 reads the head",
            "collector2 reads the head",
            "folder0 folds up to 2: ok",
            "collector2 finds orphans [101, 102]",
            "collector2 deletes object 101",
        ),
    ),
    Trace(
        (Rule.FOLD_ON_BASE,),
        "folds, owners, collector",
        "object 91 of the current checkpoint is missing",
        (
            "owner2 claims epoch 2: ok",
            "folder0 puts checkpoint 101 of commit 2 with pages (102, 92)",
            "owner3 claims epoch 3: ok",
            "folder1 puts checkpoint 104 of commit 3 with pages (91, 105)",
            "folder0 reads the head",
            "folder0 folds up to 2: ok",
            "folder1 reads the head",
            "folder1 folds up to 3: ok",
            "collector4 will delete [90, 91, 92, 101, 102]",
            "collector4 deletes object 90",
            "collector4 deletes object 91",
        ),
    ),
    Trace(
        (Rule.HORIZON_FIRST,),
        "compactor, retention, collector",
        "live object 100 is missing",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "compactor0 reads the head",
            "collector2 looks for orphans",
            "compactor0 replaces [1] by 100: ok",
            "collector2 finds orphans [100]",
            "collector2 deletes object 100",
        ),
    ),
    Trace(
        (Rule.FRESH_SWEEP,),
        "folds and sweep",
        "object 101 of the current checkpoint is missing",
        (
            "collector2 reads the head to raise the horizon to 2",
            "collector2 raises the horizon: ok",
            "folder0 puts checkpoint 101 of commit 3 with pages (102, 92)",
            "folder0 reads the head",
            "folder0 folds up to 3: ok",
            "collector2 reads the head",
            "collector2 finds orphans [101, 102]",
            "collector2 deletes object 101",
        ),
    ),
    Trace(
        (Rule.DROP_FIRST,),
        "compactor, retention, collector",
        "live object 1 is missing",
        (
            "collector2 will delete [1]",
            "collector2 deletes object 1",
        ),
    ),
    Trace(
        (Rule.DELETE_FOLDED,),
        "compactor, retention, collector",
        "commit 5 is inline, and object 100 that it brings is missing",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 100: ok",
            "retention1 reads the head to advance log start to 1",
            "retention1 advances log start to 1: ok",
            "collector2 will delete [1, 100]",
            "collector2 deletes object 1",
            "collector2 deletes object 100",
        ),
    ),
    Trace(
        (Rule.KEEP_DROPPED,),
        "compactor, pin, collector",
        "pin 4 lost objects [1]",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "pinner1 reads the head to pin it",
            "pinner1 pins 4: ok",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 100: ok",
            "collector2 reads the head to raise the horizon to 5",
            "collector2 raises the horizon: ok",
            "collector2 reads the head",
            "collector2 finds orphans [1]",
            "collector2 deletes object 1",
        ),
    ),
    Trace(
        (Rule.PIN,),
        "compactor, pin, collector",
        "pin 4 lost objects [1]",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "pinner1 reads the head to pin it",
            "pinner1 pins 4: ok",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 100: ok",
            "collector2 will delete [1]",
            "collector2 deletes object 1",
        ),
    ),
    Trace(
        (Rule.PIN_BROUGHT,),
        "compactor, pin, fold, collector",
        "pin 5 lost objects [100]",
        (
            "compactor0 compacts [1] into 100 keeping [0]",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 100: ok",
            "compactor0 compacts [100, 2] into 102 keeping [0, 1]",
            "compactor0 reads the head",
            "compactor0 replaces [100, 2] by 102: ok",
            "pinner1 reads the head to pin it",
            "pinner1 pins 5: ok",
            "folder2 puts checkpoint 105 of commit 5 with pages (106, 92)",
            "folder2 reads the head",
            "folder2 folds up to 5: ok",
            "collector3 will delete [1, 2, 100]",
            "collector3 deletes object 1",
            "collector3 deletes object 2",
            "collector3 deletes object 100",
        ),
    ),
    Trace(
        (Rule.GAP_UNDER_OWN_EPOCH,),
        "a gap and two owners",
        "a former owner (epoch 2) added under epoch 3",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 loses [0,1)",
            "owner1 claims epoch 3: ok",
            "owner0 reads the head",
            "owner0 commits the gap [0,1): ok",
        ),
    ),
    Trace(
        (Rule.GAP_STAYS,),
        "a gap, compactor, retention",
        "the gap [2,3) is not on record any more",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 2",
            "owner0 loses [2,3)",
            "owner0 reads the head",
            "owner0 commits the gap [2,3): ok",
            "compactor1 compacts [1, 2, 0] into 102 keeping [0, 1]",
            "compactor1 reads the head",
            "compactor1 replaces [1, 2, 0] by 102: ok",
        ),
    ),
    Trace(
        (Rule.TOMBSTONE_COVER,),
        "racing compactors",
        "the latest values are {'a': 0, 'b': 1}, they should be {'b': 1}",
        (
            "compactor0 compacts [2, 3] into 100 keeping [1]",
            "compactor0 reads the head",
            "compactor0 replaces [2, 3] by 100: ok",
        ),
    ),
    Trace(
        (Rule.COMPACTED_UPTO_COVER,),
        "racing compactors",
        "two records of a key below compacted_upto",
        (
            "compactor0 compacts [2, 3] into 100 keeping [1, 2]",
            "compactor0 reads the head",
            "compactor0 replaces [2, 3] by 100: ok",
        ),
    ),
    Trace(
        (Rule.FRESH_NAMES,),
        "racing compactors",
        "live object 900 is missing",
        (
            "compactor0 compacts [1] into 900 keeping [0]",
            "compactor0 reads the head",
            "compactor0 replaces [1] by 900: ok",
        ),
    ),
    Trace(
        (Rule.ADD_AT_TIERED_END, Rule.UNKNOWN_IS_NO_FAILURE),
        "owner and sweep",
        "slices (0, 1, 101) and (0, 1, 101) do not tile",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: refused",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: ok",
        ),
    ),
    Trace(
        (Rule.ADD_AT_TIERED_END, Rule.READ_TO_SETTLE),
        "owner and sweep",
        "slices (0, 1, 101) and (0, 1, 101) do not tile",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: unknown",
            "owner0 gives up",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: ok",
        ),
    ),
    Trace(
        (Rule.ADD_AT_TIERED_END, Rule.REFUSAL_IS_UNKNOWN),
        "owner and sweep",
        "slices (0, 1, 101) and (0, 1, 101) do not tile",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 puts object 101",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: refused",
            "owner0 reads the head",
            "owner0 commits [0,1) in object 101: ok",
        ),
    ),
    Trace(
        (Rule.GAP_AT_TIERED_END, Rule.UNKNOWN_IS_NO_FAILURE),
        "a gap and two owners",
        "slices (0, 1, 0) and (0, 1, 0) do not tile",
        (
            "owner0 claims epoch 2: ok",
            "owner0 appends a at 0",
            "owner0 loses [0,1)",
            "owner0 reads the head",
            "owner0 commits the gap [0,1): refused",
            "owner0 reads the head",
            "owner0 commits the gap [0,1): ok",
        ),
    ),
)
