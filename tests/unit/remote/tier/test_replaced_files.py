"""The names of replaced files take 16 bytes each, and are found in any order."""

from __future__ import annotations

import random

import pytest

from stratalog.remote.metadata.head.document_ref import FileKind, Replacement, TrackedFile
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.store_layout import format_checkpoint_name, format_history_name
from stratalog.remote.tier.replaced_files import ReplacedFiles, ReplacedNames, free_files
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.metadata_harness import A0, MetadataHarness


@pytest.fixture
def harness() -> MetadataHarness:
    return MetadataHarness(15)


def folded(harness: MetadataHarness, count: int) -> MetadataLog:
    log, epoch = harness.owned()
    for number in range(count):
        harness.added(log, epoch, (A0, number, number + 1))
        log.fold()
    return log


def test_each_waiting_name_is_found_and_no_other_one(harness: MetadataHarness) -> None:
    log = folded(harness, 5)
    names = [file.name for file in waiting_files(harness.store, log)]
    others = [format_checkpoint_name(int(name[:20]), harness.ids.uuid()) for name in names]
    others += [format_history_name(1, 2, harness.ids.uuid()), "probe"]
    assert len(names) > len(log.state().replacements) > 2
    replaced = ReplacedFiles(harness.store, log.layout).names(log.state().replacements)
    asked = [*names, *others] * 2
    random.Random(1).shuffle(asked)
    for name in asked:
        assert (name in replaced) == (name in names)


def test_roots_are_read_once_and_names_go_with_their_replacement(harness: MetadataHarness) -> None:
    log = folded(harness, 4)
    first, *later = log.state().replacements
    lists = ReplacedFiles(harness.store, log.layout)
    base = first.base
    assert base in lists.names(log.state().replacements)
    for one in log.state().replacements:
        harness.store.delete_many([log.layout.checkpoint_key(one.name)])
    assert base in lists.names(log.state().replacements), "what was read is at hand"
    names = lists.names(later)
    assert base not in names
    assert later[0].base in names


@pytest.mark.parametrize("is_damaged", [True, False])
def test_whatever_a_root_that_cannot_be_read_may_list_counts_as_listed(
    harness: MetadataHarness, is_damaged: bool
) -> None:
    log = folded(harness, 4)
    _, second, *_ = log.state().replacements
    key = log.layout.checkpoint_key(second.name)
    harness.store.delete_many([key])
    if is_damaged:
        harness.store.put(key, b"damaged")
    lists = ReplacedFiles(harness.store, log.layout)
    assert lists.read(second) is None
    names = lists.names(log.state().replacements)
    for seq in range(second.root.seq + 3):
        name = format_checkpoint_name(seq, harness.ids.uuid())
        assert (name in names) == (seq < second.root.seq)


def test_no_name_waits_without_a_replacement(harness: MetadataHarness) -> None:
    assert format_checkpoint_name(1, harness.ids.uuid()) not in ReplacedNames((), 0)


def test_a_root_is_held_by_its_own_list_and_other_files_by_pins(harness: MetadataHarness) -> None:
    log = folded(harness, 3)
    lists = ReplacedFiles(harness.store, log.layout)
    first, second, *_ = log.state().replacements
    files = lists.read(second)
    assert files is not None
    free, held = free_files(log.state(), files)
    assert [file.name for file in held] == [first.name]
    assert len(free) == second.file_count - 1
    log.finish_list(first, [])
    assert free_files(log.state(), files) == ([*files], [])


def test_a_replacement_comes_back_from_json(harness: MetadataHarness) -> None:
    for replacement in folded(harness, 3).state().replacements:
        again = Replacement.from_json(replacement.to_json(), "test")
        assert again == replacement
        page = TrackedFile(FileKind.PAGE, format_checkpoint_name(1, harness.ids.uuid()), 7)
        dropped = again.dropped(page)
        assert (dropped.name, dropped.seq, dropped.kind) == (page.name, again.seq, FileKind.PAGE)
