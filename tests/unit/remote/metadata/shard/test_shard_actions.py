"""Each action of a shard: what makes it valid, what is refused in part, and what it leaves behind."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.base.errors import (
    InvalidRequestError,
    NotOwnerError,
    PreconditionFailedError,
    StoreCorruptError,
)
from stratalog.remote.json_document import JsonFields
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder
from stratalog.remote.metadata.head.checkpoint_page import ROWS_FORMAT
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.head_actions import Forget
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.shard.metadata_log import AddOutcome, MetadataLog
from stratalog.remote.metadata.shard.shard_actions import (
    AdvanceLogStart,
    Claim,
    DropPartitions,
    PartitionOffset,
)
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_checkpoint import shard_from_checkpoint
from stratalog.remote.metadata.shard.shard_judge import (
    BORN_BEFORE_HORIZON,
    Refusal,
    judge_add,
)
from stratalog.remote.objects.slice_entry import LastBatch
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.checkpoint_pages import page_of_rows, put_page, stored_rows
from tests.support.tiered.metadata_harness import (
    A0,
    A1,
    B0,
    TOPIC_A,
    TOPIC_B,
    MetadataHarness,
    ranges_of,
)

THIRTY_DAYS_MS = 30 * 24 * 3600 * 1000


def add(log: MetadataLog, epoch: int, *made: MockObject) -> AddOutcome:
    outcome = log.add([(one.ref, one.entries()) for one in made], epoch)
    log.check()
    return outcome


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
    log.advance_log_start({A0: 6}, epoch=None, catalog_seq=4)
    assert log.state().partition(A0).end_mark == LastBatch(5, 0, 5), "it outlives its slice"
    log.check()


def test_refusals_name_both_sides(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    log.advance_log_start({A0: 1}, epoch=epoch, catalog_seq=9)
    with pytest.raises(PreconditionFailedError) as stale:
        log.drop_partitions(TOPIC_A, 8)
    assert stale.value.fields == {"catalog_seq": 8, "used_catalog_seq": 9}
    other, first = harness.log(), harness.ids.uuid()
    assert other.claim("owner-2", first, endpoint="here:1") == 2
    assert [(claim.owner, claim.epoch) for claim in other.state().claims] == [("owner-1", 1), ("owner-2", 2)]
    assert other.state().claims[-1].uuid == first
    with pytest.raises(NotOwnerError) as fenced:
        add(log, epoch, harness.put(log, (A0, 1, 5)))
    assert fenced.value.fields == {"owner": "owner-2", "endpoint": "here:1", "epoch": 2}


def test_the_endpoint_of_a_claim_is_read_from_head_history_and_checkpoint(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    log.claim("owner-2", harness.ids.uuid(), endpoint="there:2")
    endpoints = ["", "there:2"]
    assert [claim.endpoint for claim in log.state().claims] == endpoints
    assert [claim.endpoint for claim in harness.log(read_only=True).state().claims] == endpoints
    assert log.fold() is not None
    assert [claim.endpoint for claim in harness.log(read_only=True).state().claims] == endpoints
    bare, served = Claim("x", UUID(int=1), 5), Claim("x", UUID(int=1), 5, endpoint="there:2")
    assert "endpoint" not in bare.to_json()
    for claim in (bare, served):
        assert Claim.from_json(JsonFields.of(dict(claim.to_json()), "a claim")) == claim


@pytest.mark.parametrize("endpoint", [7, None, ["there:2"]])
def test_an_endpoint_that_is_no_text_is_damage(harness: MetadataHarness, endpoint: object) -> None:
    fields = dict(Claim("x", UUID(int=1), 5).to_json()) | {"endpoint": endpoint}
    with pytest.raises(StoreCorruptError):
        Claim.from_json(JsonFields.of(fields, "a claim"))
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.fold()
    checkpoint = harness.head().checkpoint
    assert checkpoint is not None
    folder = CheckpointFolder(harness.store, harness.layout, PageLoader())
    parts = folder.root(checkpoint)
    assert shard_from_checkpoint(folder, parts).claims == log.state().claims
    [claim] = log.state().claims
    row = [claim.epoch, claim.owner, endpoint, str(claim.uuid), claim.seq, claim.time_ms]
    root = dict(parts.fields.values) | {"claims": [row]}
    with pytest.raises(StoreCorruptError) as damage:
        shard_from_checkpoint(folder, replace(parts, fields=JsonFields.of(root, "a root")))
    assert "claims" in str(damage.value.fields["what"])


def test_a_checkpoint_of_earlier_software_dates_uploads_by_itself(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    [uploaded_ms] = [live.uploaded_ms for live in log.state().objects.values()]
    harness.clock.advance(1_000)
    log.advance_log_start({A0: 1}, epoch=epoch, catalog_seq=None)
    log.fold()
    checkpoint = harness.head().checkpoint
    assert checkpoint is not None
    folder = CheckpointFolder(harness.store, harness.layout, PageLoader())
    root = folder.root(checkpoint)
    objects = shard_from_checkpoint(folder, root).objects
    assert [live.uploaded_ms for live in objects.values()] == [uploaded_ms]
    [page] = root.pages_of("objects")
    rows = stored_rows(harness.store, harness.layout, page)
    assert [row.pop("uploaded_ms") for row in rows] == [uploaded_ms]
    changed = put_page(harness.store, harness.layout, page, page_of_rows(rows), page_format=ROWS_FORMAT)
    pages = tuple(changed if one == page else one for one in root.pages)
    [live] = shard_from_checkpoint(folder, replace(root, pages=pages)).objects.values()
    assert live.uploaded_ms == uploaded_ms + 1_000, "it is no older than it may be"


def test_objects_of_one_commit_follow_one_another(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    first, second = harness.put(log, (A0, 0, 5)), harness.put(log, (A0, 5, 7))
    bad = harness.put(log, (A0, 5, 8))
    outcome = add(log, epoch, first, second, bad)
    assert [refusal.object_name for refusal in outcome.refused] == [bad.ref.name]
    assert ranges_of(log, A0) == [(first.ref.name, 0, 5), (second.ref.name, 5, 7)]


def test_objects_from_before_the_horizon_are_refused(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    state = replace(log.state(), orphan_horizon_seq=1)
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
    assert log.forget([made.ref.name, "missing"]) == (made.ref.name,)
    assert log.state().dropped == ()
    log.check()


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
