"""The metadata version of a head: older software may come back until an operator finalizes the newest one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreNotUsableError
from stratalog.remote.metadata.catalog.catalog_actions import CATALOG_ACTIONS
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.metadata_version import FIRST_VERSION, METADATA_VERSION
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_judge import NOT_FINALIZED, LostRange
from stratalog.remote.tier.collector import Collector
from tests.support.tiered.current_keys import left_over_keys
from tests.support.tiered.metadata_harness import A0, MetadataHarness
from tests.support.tiered.shard_states import require_same_state

DAY_MS = 24 * 3600 * 1000
LOST = LostRange(A0, 0, 5, GapReason.DROPPED_BY_POLICY)


def of_first_version(harness: MetadataHarness) -> tuple[MetadataLog, int]:
    """A shard that software of the first version has made, opened by this software."""
    harness.log()
    harness.put_head(dataclasses.replace(harness.head(), read_version=1, write_version=1))
    log = harness.log()
    return log, log.claim("owner-1", harness.ids.uuid())


def as_first_software(patch: pytest.MonkeyPatch) -> None:
    """From now on this software knows the first version only."""
    for module in ("head", "head_log"):
        patch.setattr(f"stratalog.remote.metadata.head.{module}.METADATA_VERSION", FIRST_VERSION)


def test_a_new_store_begins_with_the_newest_version(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    head = harness.head()
    assert (head.read_version, head.write_version) == (METADATA_VERSION, METADATA_VERSION)
    assert log.finalized_version == METADATA_VERSION
    assert log.finalize() == METADATA_VERSION
    assert harness.head() == head, "there is nothing to commit"


def test_each_action_of_a_later_version_is_refused_before(harness: MetadataHarness) -> None:
    log, _ = of_first_version(harness)
    before = harness.head()
    commits: list[Callable[[], int]] = [lambda: log.pin("scan", DAY_MS), lambda: log.raise_horizon(1)]
    for commit in commits:
        with pytest.raises(StoreNotUsableError) as caught:
            commit()
        assert caught.value.fields["finalized_version"] == 1
        assert caught.value.fields["needed_version"] == 2
    assert harness.head() == before


def test_a_gap_waits_and_the_log_says_so_once(
    harness: MetadataHarness, caplog: pytest.LogCaptureFixture
) -> None:
    log, epoch = of_first_version(harness)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            [refused] = log.add_gaps([LOST], epoch).refused
            assert (refused.partition, refused.reason) == (A0, NOT_FINALIZED)
    assert len([one for one in caplog.messages if "stratalog tier finalize" in one]) == 1
    assert log.state().partition(A0).tiered_end_offset == 0
    log.finalize()
    assert not log.add_gaps([LOST], epoch).refused
    assert log.state().partition(A0).tiered_end_offset == 5


def test_files_that_folds_replace_are_listed_from_the_finalization_on(harness: MetadataHarness) -> None:
    """A fold under the former version keeps a row for each; both kinds are collected side by side."""
    harness.log()
    harness.put_head(dataclasses.replace(harness.head(), read_version=4, write_version=4))
    log, epoch = harness.owned()
    for start in range(3):
        harness.added(log, epoch, (A0, start, start + 1))
        log.fold()
    rows = log.state().dropped_objects
    assert rows
    assert log.state().replacements == ()
    assert log.finalize() == METADATA_VERSION
    for start in range(3, 6):
        harness.added(log, epoch, (A0, start, start + 1))
        log.fold()
    assert log.state().dropped_objects == rows, "no row more"
    assert len(log.state().replacements) == 3
    log.check()
    require_same_state(harness.log(read_only=True).state(), log.state())
    harness.clock.advance(DAY_MS)
    assert Collector(harness.store, log).run().waiting_count == 0
    assert left_over_keys(harness.store, log) == set()
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_orphans_wait_and_dropped_files_go(harness: MetadataHarness) -> None:
    log, epoch = of_first_version(harness)
    orphan = harness.put(log, (A0, 0, 5))
    gone = harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 5}, epoch=epoch, catalog_seq=None)
    collector = Collector(harness.store, log)
    for _ in range(3):
        harness.clock.advance(DAY_MS)
        report = collector.run(is_whole=True)
        assert report.unfinalized_count == 1
        assert not report.orphan_counts
    keys = [found.key for found in harness.store.list(harness.layout.data_key(""))]
    assert keys == [harness.layout.data_key(orphan.ref.name)], gone
    assert collector.run(is_dry_run=True).unfinalized_count == 1
    log.finalize()
    for _ in range(2):
        harness.clock.advance(DAY_MS)
        assert collector.run(is_whole=True).unfinalized_count == 0
    assert not list(harness.store.list(harness.layout.data_key("")))


def test_earlier_commits_are_pinned_from_the_finalization_on(harness: MetadataHarness) -> None:
    """Collectors of before have not said what they delete, and may still be about to."""
    harness.log()
    harness.put_head(dataclasses.replace(harness.head(), read_version=3, write_version=3))
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.advance_log_start({A0: 5}, epoch=epoch, catalog_seq=None)
    log.fold()
    with pytest.raises(StoreNotUsableError) as unfinalized:
        log.pin_commit("job", DAY_MS, 1)
    assert unfinalized.value.fields["needed_version"] == 4
    harness.clock.advance(DAY_MS)
    assert Collector(harness.store, log).run().deleted_count == 1
    assert log.state().deleted_seq == 0
    newest_seq = log.state().seq
    log.finalize()
    assert (log.state().deleted_seq, log.state().deleted_brought_seq) == (newest_seq, log.state().folded_seq)
    with pytest.raises(PreconditionFailedError) as refused:
        log.pin_commit("job", DAY_MS, newest_seq - 1)
    assert refused.value.fields["first_commit"] == newest_seq
    log.pin_commit("job", DAY_MS, newest_seq)
    log.check()
    assert log.finalize() == METADATA_VERSION
    assert log.state().deleted_seq == newest_seq, "a version is finalized once"


def test_the_former_software_writes_until_the_version_is_finalized(harness: MetadataHarness) -> None:
    log, epoch = of_first_version(harness)
    harness.added(log, epoch, (A0, 0, 5))
    log.fold()
    harness.added(log, epoch, (A0, 5, 9))
    with pytest.MonkeyPatch.context() as patch:
        as_first_software(patch)
        former, epoch = harness.owned()
        harness.added(former, epoch, (A0, 9, 12))
        assert former.fold() is not None
        former.check()
    log.refresh()
    log.finalize()
    before = harness.head()
    assert (before.read_version, before.write_version) == (METADATA_VERSION, METADATA_VERSION)
    with pytest.MonkeyPatch.context() as patch:
        as_first_software(patch)
        for attempt in (harness.log, lambda: former.claim("x", harness.ids.uuid()), former.refresh):
            with pytest.raises(StoreNotUsableError):
                attempt()
    assert harness.head() == before
    follower = harness.log(read_only=True)
    assert follower.state() == log.state()
    assert follower.state().partition(A0).tiered_end_offset == 12


def test_the_version_outlasts_a_fold_and_another_writer(harness: MetadataHarness) -> None:
    log, epoch = of_first_version(harness)
    other = harness.log("compactor")
    log.finalize()
    harness.added(log, epoch, (A0, 0, 5))
    log.fold()
    assert other.pin("scan", DAY_MS) > 0, "an old view does not refuse what the head allows by now"
    assert harness.head().write_version == METADATA_VERSION


def test_the_catalog_has_a_version_of_its_own(harness: MetadataHarness) -> None:
    catalog = harness.catalog()
    key = catalog.layout.head_key
    head = Head.decode(harness.store.get(key).data, key, CATALOG_ACTIONS)
    harness.store.put(key, dataclasses.replace(head, read_version=1, write_version=1).encode())
    catalog = harness.catalog()
    catalog.create("orders", 1)
    with pytest.raises(StoreNotUsableError):
        catalog.raise_horizon(1)
    assert catalog.finalize() == METADATA_VERSION
    assert catalog.raise_horizon(1) == 1
