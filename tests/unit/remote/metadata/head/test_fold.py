"""Folds: what they write, what they share, what they drop, and that the state survives them."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from stratalog.base.errors import (
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.remote.json_document import JsonFields, encode_document, format_json
from stratalog.remote.metadata.head.checkpoint import CheckpointFolder, CheckpointRoot, read_root
from stratalog.remote.metadata.head.checkpoint_page import COLUMNS_FORMAT, ROWS_FORMAT, PageRef
from stratalog.remote.metadata.head.document_ref import DocumentRef, FileKind
from stratalog.remote.metadata.head.fold import PATIENCE, BuiltFold, judge_fold
from stratalog.remote.metadata.head.head_log import CommitSettings
from stratalog.remote.metadata.head.history import find_in_history
from stratalog.remote.metadata.head.page_loader import PageLoader
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.metadata.shard.shard_checkpoint import shard_from_checkpoint
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.store_layout import format_checkpoint_name, format_history_name
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.stored_heads import head_bytes, head_fields
from tests.support.tiered.checkpoint_pages import page_of_rows, put_page, reference, stored_rows
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import A0, A1, B0, TOPIC_B, MetadataHarness
from tests.support.tiered.shard_states import partitions_in, require_same_state

SMALL_PAGES = CommitSettings(fold_by_itself=False, page_rows=3)


def pages_of(harness: MetadataHarness, kind: str) -> list[str]:
    checkpoint = harness.head().checkpoint
    assert checkpoint is not None
    root = read_root(harness.store, harness.layout, checkpoint)
    return [page.name for page in root.pages if page.kind == kind]


def everything(harness: MetadataHarness) -> MetadataLog:
    """A shard in which every kind of action has left its mark."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (A1, 0, 2), (B0, 0, 1))
    harness.added(log, epoch, (A0, 5, 9), (A1, 2, 4))
    made = harness.put(log, (A0, 0, 9))
    inputs = {A0: SliceRanges.of(log.state().partition(A0).slices)}
    names = inputs[A0].object_names
    log.replace(
        inputs, names, [(made.ref, made.entries())], covers={A0: True}, catalog_seq=2, drops_records=True
    )
    log.advance_log_start({A1: 2}, epoch=None, catalog_seq=3)
    log.drop_partitions(TOPIC_B, 4)
    log.claim("owner-2", harness.ids.uuid())
    return log


def test_the_state_survives_a_fold(harness: MetadataHarness) -> None:
    log = everything(harness)
    before = log.state()
    seq = log.fold()
    assert seq == before.seq + 1
    assert harness.head().folded_seq == before.seq
    harness.loaded.clear()
    opened = harness.log(read_only=True)
    opened.check()
    require_same_state(opened.state(), log.state())
    assert harness.loaded == [], "what is folded needs no directories"
    assert partitions_in(opened.state()) == partitions_in(before)
    for name in ("objects", "claims", "dropped_topics", "epoch", "catalog_seq"):
        assert getattr(opened.state(), name) == getattr(before, name)


def test_the_first_commit_of_a_log_is_folded_too(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    assert len(harness.head().commits) == 1
    log.fold_at_once()
    assert harness.head().folded_seq == 1
    assert log.fold() is None


def test_a_fold_alone_is_not_folded_again(harness: MetadataHarness) -> None:
    log = everything(harness)
    assert log.fold() is not None
    assert log.fold() is None
    assert log.fold_if_needed() is None


def test_a_fold_that_writes_many_rows_for_few_waits_for_more(harness: MetadataHarness) -> None:
    """A thousand partitions of one slice are one page, which one more slice would write again."""
    limit = 4
    _, epoch = harness.owned()
    log = harness.log(settings=CommitSettings(fold_by_itself=False, fold_inline_commits=limit))
    tips = [TopicIdPartition(TOPIC_B, number) for number in range(1_000)]
    harness.added(log, epoch, *((tip, 0, 1) for tip in tips))
    log.fold()
    for number in range(PATIENCE * limit):
        assert log.fold_if_needed() is None, number
        harness.added(log, epoch, (A0, number, number + 1))
    assert log.fold_if_needed() is not None, "the head has outgrown its limit by far"
    for number in range(limit):
        assert log.fold_if_needed() is None, number
        start = number * 10 + PATIENCE * limit
        harness.added(
            log, epoch, *((tip, number + 1, number + 2) for tip in tips[:100]), (A0, start, start + 10)
        )
    assert log.fold_if_needed() is not None, "it pays as soon as there is a limit to keep"


def test_an_old_head_whose_checkpoint_was_collected_is_read_again(harness: MetadataHarness) -> None:
    """A writer that has failed to fold asks whether a fold pays, after another one has folded."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 1))
    log.fold()
    replaced = harness.head().checkpoint
    assert replaced is not None

    def fails(operation: Operation) -> Fault:
        is_head = operation.verb == "PUT" and operation.key == harness.layout.head_key
        return Fault.FAILS if is_head else Fault.NONE

    failing = FaultyObjectStore(harness.store, Random(0), fails)
    late = harness.log(store=failing, settings=CommitSettings(fold_by_itself=False, fold_inline_commits=2))
    for number in range(1, 4):
        harness.added(log, epoch, (A0, number, number + 1))
    late.refresh()
    with pytest.raises(StoreUnavailableError):
        late.fold()
    log.fold()
    harness.store.delete_many([harness.layout.checkpoint_key(replaced.name)])
    assert late.fold_if_needed() is None
    assert late.state().seq == log.state().seq


@pytest.mark.parametrize("is_other", [False, True])
def test_a_second_fold_shares_unchanged_pages(harness: MetadataHarness, is_other: bool) -> None:
    """The same writer knows unchanged pages by their items, another one by their digest."""
    _, epoch = harness.owned()
    log = harness.log(settings=SMALL_PAGES)
    for n in range(8):
        harness.added(log, epoch, (A0, n, n + 1))
    log.fold()
    first = pages_of(harness, "slices")
    assert len(first) == 3
    first_root = harness.head().checkpoint
    if is_other:
        log = harness.log("compactor", settings=SMALL_PAGES)
    harness.added(log, epoch, (A0, 8, 9))
    log.fold()
    second = pages_of(harness, "slices")
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    dropped = {dropped.name for dropped in waiting_files(harness.store, log)}
    assert first_root is not None
    assert dropped >= {first_root.name, first[2]}
    assert not dropped & set(second)
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_pages_divide_and_vanish(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    log = harness.log(settings=SMALL_PAGES)
    for n in range(20):
        harness.added(log, epoch, (A0, n, n + 1))
        if n % 4 == 3:
            log.fold()
    assert len(pages_of(harness, "slices")) >= 7
    log.advance_log_start({A0: 19}, epoch=None, catalog_seq=0)
    log.fold()
    assert len(pages_of(harness, "slices")) == 1
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_every_dropped_file_is_there_to_be_deleted(harness: MetadataHarness) -> None:
    log = everything(harness)
    log.fold()
    harness.added(log, log.state().epoch, (A0, 9, 10))
    log.fold()
    keys = {found.key for found in harness.store.list("")}
    dropped = waiting_files(harness.store, log)
    assert {one.kind for one in dropped} >= {FileKind.DATA, FileKind.CHECKPOINT, FileKind.PAGE}
    assert {one.key(log.layout) for one in dropped} <= keys
    assert all(log.state().is_deletable(one) for one in dropped)


def test_history_is_a_chain(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    for _ in range(3):
        log.claim("more", harness.ids.uuid())
        log.claim("more", harness.ids.uuid())
        log.fold()
    history = harness.head().history
    for seq in range(1, harness.head().folded_seq + 1):
        commit = find_in_history(harness.store, harness.layout, history, seq, SHARD_ACTIONS)
        assert commit is not None
        assert commit.seq == seq
    assert find_in_history(harness.store, harness.layout, history, 99, SHARD_ACTIONS) is None
    assert find_in_history(harness.store, harness.layout, None, 1, SHARD_ACTIONS) is None


def test_trimmed_history_is_no_error(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    for _ in range(2):
        log.claim("more", harness.ids.uuid())
        log.fold()
    keys = [found.key for found in harness.store.list("shards/0000/history/")]
    harness.store.delete_many(keys[:1])
    assert find_in_history(harness.store, harness.layout, harness.head().history, 1, SHARD_ACTIONS) is None


def test_a_checkpoint_from_before_the_horizon_is_refused(harness: MetadataHarness) -> None:
    """A sweep may have deleted it."""
    state = everything(harness).state()
    name = format_checkpoint_name(5, harness.ids.uuid())
    root = CheckpointRoot(ref=DocumentRef(name, 1, 1), fields=JsonFields({}, name), pages=(), times=())
    history = DocumentRef(format_history_name(1, 5, harness.ids.uuid()), 1, 1)
    built = BuiltFold(root, None, history, is_listed=True)
    assert judge_fold(replace(state, orphan_horizon_seq=5), built).outcome is True
    judgement = judge_fold(replace(state, orphan_horizon_seq=6), built)
    assert (judgement.actions, judgement.outcome) == ((), False)


@pytest.mark.parametrize("prefix", ["checkpoints/", "pages/"])
def test_a_damaged_checkpoint_is_reported(harness: MetadataHarness, prefix: str) -> None:
    everything(harness).fold()
    for found in list(harness.store.list("shards/0000/" + prefix)):
        data = harness.store.get(found.key).data
        harness.store.put(found.key, data[:-1] + b"?")
        with pytest.raises(StoreCorruptError):
            harness.log(read_only=True).check()
        harness.store.delete_many([found.key])
        with pytest.raises((StoreCorruptError, ObjectNotFoundError)) as caught:
            harness.log(read_only=True).check()
        assert caught.value.fields["key"] == found.key
        harness.store.put(found.key, data)
    harness.log(read_only=True).check()


@pytest.mark.parametrize("page_format", [ROWS_FORMAT, COLUMNS_FORMAT])
def test_columns_and_fields_of_newer_software_survive_a_fold(
    harness: MetadataHarness, page_format: int
) -> None:
    """Pages and root gain what we do not know; a fold that rewrites them keeps it."""
    log = everything(harness)
    log.fold()
    add_unknown_fields(harness, page_format)
    newer = harness.log()
    epoch = newer.claim("owner-3", harness.ids.uuid())
    harness.added(newer, epoch, (A0, 9, 10), (A1, 4, 5))
    newer.fold()
    checkpoint = harness.head().checkpoint
    assert checkpoint is not None
    root = read_root(harness.store, harness.layout, checkpoint)
    assert root.fields.values["colour"] == "blue"
    (page,) = (page for page in root.pages if page.kind == "slices")
    moods = [row["mood"] for row in stored_rows(harness.store, harness.layout, page)]
    assert moods == ["good", None, "good", None], "the new slices have none"
    require_same_state(harness.log(read_only=True).state(), newer.state())


def add_unknown_fields(harness: MetadataHarness, page_format: int) -> None:
    """Rewrite the current checkpoint as newer software might have written it."""
    head = harness.head()
    assert head.checkpoint is not None
    root = read_root(harness.store, harness.layout, head.checkpoint)
    pages: list[PageRef] = []
    for page in root.pages:
        rows = stored_rows(harness.store, harness.layout, page)
        if page.kind == "slices":
            rows = [{**row, "mood": "good"} for row in rows]
        changed = page_of_rows(rows, len(page.first_key))
        pages.append(put_page(harness.store, harness.layout, page, changed, page_format=page_format))
    values = dict(root.fields.values) | {"pages": [page.to_json() for page in pages], "colour": "blue"}
    data = encode_document(values)
    harness.store.put(harness.layout.checkpoint_key(root.ref.name), data)
    # The head, and the fold that is inline in it, name the root by size and checksum.
    old, new = (format_json(ref.to_json()) for ref in (root.ref, DocumentRef.of(root.ref.name, data)))
    text = format_json(head_fields(harness.store.get(harness.layout.head_key).data))
    assert text.count(old) == 2
    harness.store.put(harness.layout.head_key, head_bytes(json.loads(text.replace(old, new))))


def test_opening_loads_no_page_of_slices(harness: MetadataHarness) -> None:
    _, epoch = harness.owned()
    log = harness.log(settings=SMALL_PAGES)
    for n in range(20):
        harness.added(log, epoch, (A0, n, n + 1), (A1, n, n + 1))
    log.fold()
    paths = [harness.layout.page_key(name) for name in pages_of(harness, "slices")]
    kept = [harness.store.get(path).data for path in paths]
    harness.store.delete_many(paths)
    opened = harness.log()
    assert [opened.state().partition(tip).tiered_end_offset for tip in (A0, A1)] == [20, 20]
    assert len(opened.state().partition(A0).slices) == 20
    harness.added(opened, epoch, (A0, 20, 21))
    for path, data in zip(paths, kept, strict=True):
        harness.store.put(path, data)
    opened.check()


def test_a_fold_leaves_pages_without_changes_alone(harness: MetadataHarness) -> None:
    """It does not even read them."""
    _, epoch = harness.owned()
    log = harness.log(settings=SMALL_PAGES)
    for n in range(12):
        harness.added(log, epoch, (A0, n, n + 1))
    log.fold()
    first, *others = pages_of(harness, "slices")
    harness.added(log, epoch, (A0, 12, 13))
    data = harness.store.get(harness.layout.page_key(first)).data
    harness.store.delete_many([harness.layout.page_key(first)])
    assert log.fold() is not None
    assert pages_of(harness, "slices")[:3] == [first, *others[:2]]
    harness.store.put(harness.layout.page_key(first), data)
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_a_checkpoint_of_the_older_layout_is_refused(harness: MetadataHarness) -> None:
    everything(harness).fold()
    checkpoint = harness.head().checkpoint
    assert checkpoint is not None
    root = read_root(harness.store, harness.layout, checkpoint)
    pages = [page._replace(kind="topics") if page.kind == "partitions" else page for page in root.pages]
    with pytest.raises(StoreCorruptError):
        shard_from_checkpoint(folder_of(harness), replace(root, pages=tuple(pages)))
    row = {"topic_id": str(TOPIC_B), "partition": 0, "tiered_end_offset": 5}
    page, name = page_of_rows([row], 2), format_checkpoint_name(3, harness.ids.uuid())
    old = put_page(harness.store, harness.layout, reference("partitions", name, page), page)
    with pytest.raises(StoreNotUsableError):
        shard_from_checkpoint(folder_of(harness), replace(root, pages=(old,)))


def folder_of(harness: MetadataHarness) -> CheckpointFolder:
    return CheckpointFolder(harness.store, harness.layout, PageLoader())
