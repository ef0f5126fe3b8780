"""The horizon, the trimming of history, and pins: their rules, in followers and checkpoints, too."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreCorruptError
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile
from stratalog.remote.metadata.head.head_actions import (
    Action,
    RaiseHorizon,
    RenewPin,
    TrimHistory,
    Unpin,
)
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_judge import BORN_BEFORE_HORIZON
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Operation
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import A0, A1, BY_HAND, MetadataHarness, ranges_of, slices_of
from tests.support.tiered.shard_states import require_same_state


def history_files(harness: MetadataHarness) -> list[TrackedFile]:
    """The stored history files, oldest first."""
    return [
        TrackedFile(FileKind.HISTORY, info.key.rpartition("/")[2], info.size)
        for info in harness.store.list("shards/0000/history/")
    ]


def folded(harness: MetadataHarness, log: MetadataLog, count: int) -> None:
    """Fold `count` times, each with something to fold."""
    for _ in range(count):
        log.claim("owner-1", harness.ids.uuid())
        log.fold()


def require_followed(harness: MetadataHarness, log: MetadataLog) -> None:
    """A reader finds the same state, from the commits and from a checkpoint."""
    log.refresh()
    log.check()
    require_same_state(harness.log(read_only=True).state(), log.state())
    follower = harness.log()
    assert follower.fold() is not None
    follower.check()
    log.refresh()
    log.check()
    opened = harness.log(read_only=True).state()
    assert (opened.pins, opened.history_start_seq, opened.orphan_horizon_seq) == (
        log.state().pins,
        log.state().history_start_seq,
        log.state().orphan_horizon_seq,
    )


def test_the_horizon_goes_forward_and_never_beyond_the_newest_commit(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    log.claim("owner-1", harness.ids.uuid())
    assert log.raise_horizon(2) == 2
    seq = log.state().seq
    assert log.raise_horizon(1) == 2
    assert log.raise_horizon(2) == 2
    assert log.state().seq == seq, "nothing to commit"
    with pytest.raises(PreconditionFailedError):
        log.raise_horizon(seq + 1)
    assert harness.head().orphan_horizon_seq == 2
    require_followed(harness, log)


def test_what_was_born_before_the_horizon_is_refused(harness: MetadataHarness) -> None:
    """An upload and a compaction that were too slow: their objects may be deleted already."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    harness.added(log, epoch, (A0, 5, 9))
    slow = harness.log("slow")
    upload, output = harness.put(slow, (A1, 0, 5)), harness.put(slow, (A0, 0, 9))
    inputs = slices_of(slow, A0)
    before = ranges_of(log, A0)
    log.raise_horizon(log.state().seq)
    log.raise_horizon(log.state().seq)
    added = slow.add([(upload.ref, upload.entries())], epoch)
    assert [refusal.reason for refusal in added.refused] == [BORN_BEFORE_HORIZON]
    replaced = slow.replace(
        {A0: SliceRanges.of(inputs)},
        sorted(live.object_name for live in inputs),
        [(output.ref, output.entries())],
        covers={},
        catalog_seq=0,
        drops_records=False,
    )
    assert (replaced.has_committed, [refusal.reason for refusal in replaced.refused]) == (
        False,
        [BORN_BEFORE_HORIZON],
    )
    assert ranges_of(log, A0) == before
    # Sent again under a young name, it is accepted.
    again = harness.put(slow, (A1, 0, 5))
    assert slow.add([(again.ref, again.entries())], epoch).refused == ()
    require_followed(harness, log)


def test_a_fold_that_was_too_slow_is_given_up(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    folded(harness, log, 1)

    def pass_by(operation: Operation) -> None:
        if operation.verb == "PUT" and "/checkpoints/" in operation.key:
            log.claim("owner-1", harness.ids.uuid())
            log.raise_horizon(log.state().seq)

    slow = harness.log("slow", store=FaultyObjectStore(harness.store, Random(0), before=pass_by))
    slow.claim("owner-2", harness.ids.uuid())
    assert slow.fold() is None
    assert harness.head().checkpoint == log.state().checkpoint
    require_followed(harness, log)


def test_history_goes_up_to_the_newest_file_and_no_further(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    folded(harness, log, 3)
    files = history_files(harness)
    assert len(files) == 3
    assert log.trim_history(99, files) == tuple(files[:2])
    state = log.state()
    assert state.history_start_seq == int(files[2].name[:20])
    assert {name for name in state.dropped_objects if name in {file.name for file in files}} == {
        file.name for file in files[:2]
    }
    seq = state.seq
    assert log.trim_history(99, files) == ()
    assert log.state().seq == seq, "nothing to commit"
    require_followed(harness, log)


def test_a_trim_drops_only_files_of_older_commits(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    folded(harness, log, 3)
    files = history_files(harness)
    second = int(files[1].name[:20])
    assert log.trim_history(second, files) == (files[0],)
    assert log.state().history_start_seq == second


def test_a_pin_keeps_the_history_that_its_state_needs(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    folded(harness, log, 2)
    pin = log.pin("job", 5)
    folded(harness, log, 3)
    files = history_files(harness)
    kept = [file for file in files if int(file.name[21:41]) > log.state().pins[0].folded_seq]
    assert log.trim_history(99, files) == tuple(files[: len(files) - len(kept)])
    assert len(kept) == 3
    log.unpin(pin)
    assert log.trim_history(99, files) == tuple(kept[:2])
    require_followed(harness, log)


def test_a_pin_is_taken_renewed_and_ended(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    pin = log.pin("job-1", 50)
    assert pin == log.state().seq
    assert log.pin("job-1", 50) == pin, "the same call again"
    other = log.pin("job-2", 60)
    log.renew_pin(pin, 70)
    log.renew_pin(pin, 70)
    assert [(one.seq, one.holder, one.until_ms) for one in log.state().pins] == [
        (pin, "job-1", 70),
        (other, "job-2", 60),
    ]
    require_followed(harness, log)
    assert log.unpin_expired(60) == (other,)
    assert log.unpin_expired(60) == ()
    log.unpin(pin)
    log.unpin(pin)
    assert log.state().pins == ()
    with pytest.raises(PreconditionFailedError):
        log.renew_pin(pin, 80)
    assert harness.head().pins == ()


def test_a_pin_holds_what_was_live_at_its_commit_and_nothing_else(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    before = harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=None)
    live = harness.added(log, epoch, (A0, 5, 9))
    log.fold()
    pin = log.pin("job", 5)
    after = harness.added(log, epoch, (A0, 9, 12))
    log.advance_log_start({A0: 12}, epoch=None, catalog_seq=None)
    log.fold()
    state = log.state()
    files = waiting_files(harness.store, log)
    held = {file.name for file in files if state.holding_pin(file) is not None}
    pages = {file.name for file in files if file.kind is not FileKind.DATA}
    assert {before.ref.name, live.ref.name, after.ref.name} <= {file.name for file in files}
    assert held == {live.ref.name} | pages, "with the checkpoint of its state"
    log.unpin(pin)
    state = log.state()
    assert not any(state.holding_pin(file) for file in files)


@pytest.mark.parametrize(
    "action",
    [
        RaiseHorizon(2),
        RaiseHorizon(4),
        RaiseHorizon(9),
        TrimHistory(1),
        TrimHistory(9),
        TrimHistory(2, (TrackedFile(FileKind.HISTORY, "dropped", 1),) * 2),
        RenewPin(1, 5),
        Unpin((1,)),
    ],
)
def test_a_commit_that_cannot_follow_is_a_contradiction(harness: MetadataHarness, action: Action) -> None:
    log, _ = harness.owned()
    state = replace(log.state(), seq=3, orphan_horizon_seq=2)
    commit = Commit.build(4, harness.ids.uuid(), 0, Writer("collector", "c"), None, [action])
    with pytest.raises(StoreCorruptError):
        apply_commit(state, commit, harness.load_directory)


def test_an_old_checkpoint_has_all_history(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    assert harness.log(settings=BY_HAND).state().history_start_seq == 1
    assert log.seq_at(harness.clock.now_ms()) == 1
    assert log.seq_at(harness.clock.now_ms() - 1) == 0


def test_commits_are_found_by_time_in_the_head_and_in_its_checkpoint(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    start_ms = harness.clock.now_ms()
    for _ in range(3):
        harness.clock.advance(1000)
        log.claim("owner-1", harness.ids.uuid())
    log.fold()
    harness.clock.advance(1000)
    log.claim("owner-1", harness.ids.uuid())
    newest = log.state().seq
    assert log.seq_at(start_ms + 9_000) == newest
    assert log.seq_at(start_ms + 3_500) == newest - 1, "the fold"
    assert log.seq_at(start_ms + 2_999) == 0, "as far as the checkpoint tells"
