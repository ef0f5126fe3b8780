"""Pins of earlier commits: what they hold, when they are refused, and the deletions that are said before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreCorruptError
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind
from stratalog.remote.metadata.head.head_actions import Action, BeginDeletion, PinCommit
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, ShardMachine
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.tier.replaced_files import ReplacedFiles, free_files
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import A0, A1, MetadataHarness, ranges_of
from tests.support.tiered.shard_states import require_same_state


def held_by_pins(harness: MetadataHarness, log: MetadataLog) -> set[str]:
    """The names of the dropped files that a pin holds."""
    files = waiting_files(harness.store, log)
    return {file.name for file in files if log.state().holding_pin(file) is not None}


def delete_dropped(harness: MetadataHarness, log: MetadataLog) -> list[DroppedObject]:
    """Delete all dropped files that no pin holds, as the collector does without a grace."""
    log.fold()
    state = log.state()
    due = [one for one in state.dropped if state.is_deletable(one) and not state.is_held(one)]
    log.begin_deletion(due)
    harness.store.delete_many([file.key(harness.layout) for file in due])
    log.forget([file.name for file in due])
    for replacement in log.state().replacements:
        files = ReplacedFiles(harness.store, log.layout).read(replacement) or ()
        free, held = free_files(log.state(), files)
        if free:
            log.begin_deletion([replacement])
            harness.store.delete_many([file.key(harness.layout) for file in free])
            due += free
        log.finish_list(replacement, held)
    return due


def require_followed(harness: MetadataHarness, log: MetadataLog) -> None:
    """A reader finds the same state, from the commits and from a checkpoint."""
    log.check()
    require_same_state(harness.log(read_only=True).state(), log.state())
    log.claim("owner-1", harness.ids.uuid())
    log.fold()
    opened = harness.log(read_only=True).state()
    assert opened.pins == log.state().pins
    assert (opened.deleted_seq, opened.deleted_brought_seq) == (
        log.state().deleted_seq,
        log.state().deleted_brought_seq,
    )


def test_a_pin_of_an_earlier_commit_holds_its_state_and_nothing_else(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    before = harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    log.fold()
    checkpoint = log.state().checkpoint
    assert checkpoint is not None
    live = harness.added(log, epoch, (A0, 5, 9))
    short = harness.added(log, epoch, (A1, 0, 5))
    log.advance_log_start({A1: 5}, epoch=None, catalog_seq=None)
    seq, ranges = log.state().seq, ranges_of(log, A0)
    after = harness.added(log, epoch, (A0, 9, 12))
    log.advance_log_start({A0: 12}, epoch=None, catalog_seq=None)
    log.fold()
    pin = log.pin_commit("job", 5, seq)
    assert [(one.seq, one.state_seq, one.folded_seq) for one in log.state().pins] == [
        (pin, seq, checkpoint.seq)
    ]
    held = held_by_pins(harness, log)
    assert {live.ref.name, short.ref.name, checkpoint.name} <= held
    assert {file.name for file in log.state().dropped if file.kind is FileKind.DATA} - held == {
        before.ref.name,
        after.ref.name,
    }
    deleted = {file.name for file in delete_dropped(harness, log)}
    assert {before.ref.name, after.ref.name} <= deleted
    stored = StoredLog(harness.store, harness.layout, ShardMachine(harness.load_directory))
    then = stored.state_at(harness.head(), seq)
    assert [(one.object_name, one.base_offset, one.end_offset) for one in then.partition(A0).slices] == ranges
    require_followed(harness, log)
    log.unpin(pin)
    assert {live.ref.name, short.ref.name, checkpoint.name} <= {
        file.name for file in delete_dropped(harness, log)
    }


def test_what_may_be_deleted_cannot_be_pinned_any_more(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    for start in (0, 5, 10):
        harness.added(log, epoch, (A0, start, start + 5))
        log.advance_log_start({A0: start + 5}, epoch=None, catalog_seq=None)
    log.fold()
    first, second, _ = [file for file in log.state().dropped if file.kind is FileKind.DATA]
    log.begin_deletion([first, second])
    assert (log.state().deleted_seq, log.state().deleted_brought_seq) == (second.seq, second.brought_seq)
    newest_seq = log.state().seq
    for seq in range(1, newest_seq + 2):
        if log.state().folded_seq <= seq <= newest_seq:
            continue
        with pytest.raises(PreconditionFailedError) as caught:
            log.pin_commit("job", 5, seq)
        fields = caught.value.fields
        assert (fields["log"], fields["commit"]) == ("shards/0000/", seq)
        if seq <= newest_seq:
            # Without a checkpoint before them, their states are built from objects that may be gone.
            assert fields["first_commit"] == log.state().folded_seq
    assert log.state().seq == newest_seq, "nothing was committed"
    for seq in range(log.state().folded_seq, newest_seq + 1):
        log.pin_commit(f"job-{seq}", 5, seq)
    require_followed(harness, log)


def test_a_state_is_kept_from_the_last_deletion_on(harness: MetadataHarness) -> None:
    """A checkpoint before it has all that was brought, so the first commit is that of the last drop."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.fold()
    log.claim("owner-1", harness.ids.uuid())
    epoch = log.claim("owner-1", harness.ids.uuid())
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    dropped_seq = log.state().seq
    [file] = [one for one in log.state().dropped if one.kind is FileKind.DATA]
    log.begin_deletion([file])
    with pytest.raises(PreconditionFailedError) as caught:
        log.pin_commit("job", 5, dropped_seq - 1)
    assert caught.value.fields["first_commit"] == dropped_seq
    log.pin_commit("job", 5, dropped_seq)


def test_history_that_is_trimmed_cannot_be_pinned(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    folded: list[int] = []
    for _ in range(3):
        log.claim("owner-1", harness.ids.uuid())
        log.claim("owner-1", harness.ids.uuid())
        log.fold()
        folded.append(log.state().folded_seq)
    log.trim_history(folded[1] + 1, [])
    with pytest.raises(PreconditionFailedError) as caught:
        log.pin_commit("job", 5, folded[1] - 1)
    assert caught.value.fields["first_commit"] == folded[1]
    log.pin_commit("job", 5, folded[1])
    log.trim_history(99, [])
    assert log.state().history_start_seq == folded[1] + 1, "the pinned state needs what follows"


def test_a_state_that_a_pin_holds_can_be_pinned_again(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    live = harness.added(log, epoch, (A0, 0, 5))
    seq = log.state().seq
    first = log.pin_commit("one", 50, seq)
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    harness.added(log, epoch, (A0, 5, 9))
    log.advance_log_start({A0: 9}, epoch=None, catalog_seq=None)
    delete_dropped(harness, log)
    assert log.state().deleted_seq > seq
    with pytest.raises(PreconditionFailedError):
        log.pin_commit("two", 60, seq - 1)
    second = log.pin_commit("two", 60, seq)
    assert second != first
    log.unpin(first)
    assert live.ref.name in held_by_pins(harness, log)
    assert not [file for file in delete_dropped(harness, log) if file.kind is FileKind.DATA]
    log.unpin(second)
    with pytest.raises(PreconditionFailedError):
        log.pin_commit("three", 70, seq)


def test_the_state_of_a_pin_of_now_can_be_pinned_by_its_commit(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    live = harness.added(log, epoch, (A0, 0, 5))
    now = log.pin("now", 50)
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    delete_dropped(harness, log)
    log.pin_commit("later", 60, now)
    log.unpin(now)
    assert live.ref.name in held_by_pins(harness, log)


def test_a_holder_has_one_pin_of_a_state_whose_end_moves_forward(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    pin = log.pin_commit("job", 50, 1)
    assert log.pin_commit("job", 50, 1) == pin
    assert log.pin_commit("job", 70, 1) == pin
    assert log.pin_commit("job", 60, 1) == pin
    assert [(one.seq, one.until_ms) for one in log.state().pins] == [(pin, 70)]
    other = log.pin_commit("job", 60, 2)
    assert other != pin
    require_followed(harness, log)


def test_the_newest_state_can_always_be_pinned(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    for start in range(4):
        harness.added(log, epoch, (A0, start, start + 1))
        log.advance_log_start({A0: start + 1}, epoch=None, catalog_seq=None)
        delete_dropped(harness, log)
        log.pin_commit(f"job-{start}", 5, log.state().seq)


def test_the_catalog_pins_earlier_commits_too(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    catalog.create("flights", 1)
    seq = catalog.state().seq
    catalog.create("orders", 1)
    catalog.fold()
    catalog.pin_commit("job", 5, seq)
    catalog.check()
    catalog.create("others", 1)
    catalog.fold()
    [replacement] = catalog.state().replacements
    catalog.begin_deletion([replacement])
    with pytest.raises(PreconditionFailedError) as caught:
        catalog.pin_commit("job", 5, seq + 1)
    assert caught.value.fields["log"] == "catalog/"


@pytest.mark.parametrize(
    "action",
    [
        BeginDeletion(4, 2),
        BeginDeletion(1, 1),
        BeginDeletion(2, 0),
        PinCommit(4, "job", 5, 0),
        PinCommit(2, "job", 5, 3),
    ],
)
def test_a_commit_that_cannot_follow_is_a_contradiction(harness: MetadataHarness, action: Action) -> None:
    log, _ = harness.owned()
    state = replace(log.state(), seq=3, deleted_seq=2, deleted_brought_seq=1)
    commit = Commit.build(4, harness.ids.uuid(), 0, Writer("collector", "c"), None, [action])
    with pytest.raises(StoreCorruptError):
        apply_commit(state, commit, harness.load_directory)
