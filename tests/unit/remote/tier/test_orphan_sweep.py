"""Files that no commit refers to go after the grace; those that a slow writer may still commit never go
unnoticed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from stratalog.base.errors import (
    StoppingError,
    StoreAccessDeniedError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.head.head_actions import UnknownAction
from stratalog.remote.metadata.shard.shard_judge import BORN_BEFORE_HORIZON
from stratalog.remote.store_layout import format_checkpoint_name, format_history_name
from stratalog.remote.tier.orphan_sweep import OrphanKind, OrphanSweep, SweepReport, SweepSettings
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, FaultOn, Operation
from tests.support.tiered.current_keys import left_over_keys, waiting_files
from tests.support.tiered.metadata_harness import A0, A1, MetadataHarness
from tests.support.tiered.stores.listed_names import ListedNames
from tests.support.tiered.stores.unfinished_uploads import UnfinishedUploads

DAY_MS = 24 * 3_600_000


class World:
    """A shard with an owner and a sweep of a day's grace. Not thread-safe: one test uses it."""

    def __init__(self, **settings: int) -> None:
        self.harness = MetadataHarness(bucket=UnfinishedUploads)
        self.bucket = self.harness.store
        self.clock = self.harness.clock
        self.log, self.epoch = self.harness.owned()
        self.settings = SweepSettings(grace_ms=DAY_MS, **settings)
        self.sweep = OrphanSweep(self.bucket, self.log, self.settings)

    def run(self, *, is_dry_run: bool = False, is_whole: bool = False) -> SweepReport:
        return self.sweep.run(self.clock.now_ms(), StopSignal(), is_dry_run=is_dry_run, is_whole=is_whole)

    def commit(self) -> None:
        """A commit of no interest."""
        self.log.claim("owner-1", self.harness.ids.uuid())
        self.epoch = self.log.state().epoch

    def orphan(self) -> str:
        """An object that was put and not committed; returns its key."""
        return self.log.layout.data_key(self.harness.put(self.log, (A1, 0, 5)).ref.name)

    def put_metadata_orphans(self) -> dict[str, OrphanKind]:
        """A page, a root and a history file of a fold that died, born at the newest commit."""
        layout, ids, seq = self.log.layout, self.harness.ids, self.log.state().seq
        kinds = {
            layout.page_key(format_checkpoint_name(seq, ids.uuid())): OrphanKind.PAGE,
            layout.checkpoint_key(format_checkpoint_name(seq, ids.uuid())): OrphanKind.CHECKPOINT,
            layout.history_key(format_history_name(1, seq, ids.uuid())): OrphanKind.HISTORY,
        }
        for key in kinds:
            self.bucket.put(key, b"orphan")
        return kinds


def keys_of(report: SweepReport) -> set[str]:
    return {one.key for one in report.deleted}


def test_every_kind_of_orphan_goes_after_the_grace() -> None:
    world = World()
    live = world.harness.added(world.log, world.epoch, (A0, 0, 5))
    kinds = {world.orphan(): OrphanKind.DATA} | world.put_metadata_orphans()
    probe = world.log.layout.scratch_prefixes[0] + "probe"
    world.bucket.put(probe, b"probe")
    foreign = "shards/0000/data/not-ours"
    world.bucket.put(foreign, b"foreign")
    world.commit()
    assert world.run(is_whole=True) == SweepReport()
    world.clock.advance(DAY_MS - 1)
    assert world.run(is_whole=True) == SweepReport()
    world.clock.advance(1)
    report = world.run(is_whole=True)
    assert {one.key: one.kind for one in report.deleted} == kinds | {probe: OrphanKind.SCRATCH}
    assert {one.modified_ms for one in report.deleted} == {world.clock.now_ms() - DAY_MS}
    assert left_over_keys(world.bucket, world.log) == {foreign}
    assert world.bucket.get(world.log.layout.data_key(live.ref.name))
    assert world.log.state().orphan_horizon_seq > 0


def test_a_dry_run_lists_and_deletes_nothing() -> None:
    world = World()
    orphans = {world.orphan()} | set(world.put_metadata_orphans())
    world.commit()
    young = world.orphan()
    world.clock.advance(DAY_MS)
    keys = [info.key for info in world.bucket.list("")]
    head = world.bucket.get(world.log.layout.head_key)
    report = world.run(is_dry_run=True)
    assert (keys_of(report), {one.key for one in report.waiting}) == (orphans, {young})
    assert [info.key for info in world.bucket.list("")] == keys
    assert world.bucket.get(world.log.layout.head_key).etag == head.etag, "no commit either"
    assert keys_of(world.run()) == orphans


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_dry_run_lists_what_waits_with_the_time_before_which_no_sweep_deletes_it(
    *, is_folded: bool
) -> None:
    world = World()
    world.harness.added(world.log, world.epoch, (A0, 0, 5))
    metadata = world.put_metadata_orphans()
    first = {world.orphan(), *metadata}
    probe = world.log.layout.scratch_prefixes[0] + "probe"
    world.bucket.put(probe, b"probe")
    begun_ms = world.clock.now_ms()
    world.clock.advance(1_000)
    world.commit()
    world.clock.advance(1_000)
    second = world.orphan()

    def waiting() -> dict[str, int]:
        report = world.run(is_dry_run=True)
        assert report.deleted == ()
        return {one.key: one.due_ms for one in report.waiting}

    behind_ms = begun_ms + 1_000 + DAY_MS
    found = {probe: begun_ms + DAY_MS} | dict.fromkeys(first, behind_ms)
    assert waiting() == found | {second: world.clock.now_ms() + DAY_MS}, "no commit is behind it yet"
    world.clock.advance(5_000)
    assert waiting() == found | {second: world.clock.now_ms() + DAY_MS}
    world.commit()
    second_ms = world.clock.now_ms() + DAY_MS
    assert waiting() == found | {second: second_ms}
    if is_folded:
        # A checkpoint has the time of its last commit only.
        world.log.fold()
        found |= dict.fromkeys(first, second_ms)
        assert waiting() == found | {second: second_ms}
    for due_ms in sorted({*found.values(), second_ms}):
        world.clock.advance(due_ms - 1 - world.clock.now_ms())
        assert keys_of(world.run(is_whole=True)) == set()
        world.clock.advance(1)
        due = {key for key, at_ms in (found | {second: second_ms}).items() if at_ms == due_ms}
        assert keys_of(world.run(is_dry_run=True)) == due
        assert keys_of(world.run(is_whole=True)) == due


def test_an_object_that_is_committed_while_a_dry_run_lists_is_not_among_its_files() -> None:
    world = World()
    made = world.harness.put(world.log, (A1, 0, 5))
    young = world.orphan()

    def commit_first(operation: Operation) -> None:
        if operation.verb == "LIST" and made.ref.name not in world.log.state().objects:
            assert world.log.add([(made.ref, made.entries())], world.epoch).refused == ()

    log = world.harness.log("looker", store=FaultyObjectStore(world.bucket, Random(0), before=commit_first))
    store = FaultyObjectStore(world.bucket, Random(0), before=commit_first)
    report = OrphanSweep(store, log, world.settings).run(world.clock.now_ms(), StopSignal(), is_dry_run=True)
    assert made.ref.name in log.state().objects
    assert [one.key for one in report.waiting] == [young]


def test_without_candidates_nothing_is_committed() -> None:
    world = World()
    world.harness.added(world.log, world.epoch, (A0, 0, 5))
    world.log.fold()
    seq = world.log.state().seq
    for _ in range(3):
        world.clock.advance(DAY_MS)
        assert world.run(is_whole=True) == SweepReport()
    assert world.log.state().seq == seq


def test_a_quiet_log_is_swept_too() -> None:
    """Its newest commit gets an older one behind it only by the commit of the horizon."""
    world = World()
    orphan = world.orphan()
    world.clock.advance(DAY_MS)
    assert [one.key for one in world.run().waiting] == [orphan]
    seq = world.log.state().seq
    world.clock.advance(DAY_MS - 1)
    assert world.run().deleted == ()
    world.clock.advance(1)
    assert keys_of(world.run()) == {orphan}
    world.clock.advance(DAY_MS)
    assert world.run(is_whole=True) == SweepReport()
    assert world.log.state().seq == seq + 1, "the second horizon, and no more commits than that"


def test_a_slow_writer_is_refused_and_nothing_live_is_lost() -> None:
    world = World()
    slow = world.harness.log("slow")
    made = world.harness.put(slow, (A1, 0, 5))
    live = world.harness.added(world.log, world.epoch, (A0, 0, 5))
    world.clock.advance(DAY_MS)
    assert keys_of(world.run()) == {world.log.layout.data_key(made.ref.name)}
    outcome = slow.add([(made.ref, made.entries())], world.epoch)
    assert [refusal.reason for refusal in outcome.refused] == [BORN_BEFORE_HORIZON]
    assert set(slow.state().objects) == {live.ref.name}
    assert left_over_keys(world.bucket, world.log) == set()


def test_a_commit_just_before_the_horizon_keeps_its_object() -> None:
    """The sweep has listed it as a candidate; the head behind the horizon's commit knows better."""
    world = World()
    slow = world.harness.log("slow")
    made = world.harness.put(slow, (A1, 0, 5))
    orphan = world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    before: list[str] = []

    def commit_first(operation: Operation) -> None:
        if operation.verb == "PUT" and not before:
            before.append(operation.key)
            assert slow.add([(made.ref, made.entries())], world.epoch).refused == ()

    log = world.harness.log(
        "collector", store=FaultyObjectStore(world.bucket, Random(0), before=commit_first)
    )
    sweep = OrphanSweep(world.bucket, log, world.settings)
    report = sweep.run(world.clock.now_ms(), StopSignal())
    assert before == [world.log.layout.head_key], "the horizon was the first write"
    assert keys_of(report) == {orphan}
    assert left_over_keys(world.bucket, world.log) == set()


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.IS_CUT_OFF])
@pytest.mark.parametrize("verb", ["LIST", "DELETE"])
def test_an_interrupted_sweep_is_repeated_by_the_next_one(verb: str, fault: Fault) -> None:
    if verb == "LIST" and fault is Fault.LANDS_UNKNOWN:
        fault = Fault.FAILS
    world = World()
    for _ in range(3):
        world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    plan = FaultOn(fault, verb)
    world.sweep = OrphanSweep(FaultyObjectStore(world.bucket, Random(0), plan), world.log, world.settings)
    with pytest.raises(StoreUnavailableError):
        world.run()
    world.run()
    assert left_over_keys(world.bucket, world.log) == set()


def test_a_sweep_is_bounded_and_the_next_one_goes_on() -> None:
    world = World(max_file_count=2, batch_count=1)
    orphans = {world.orphan() for _ in range(5)} | set(world.put_metadata_orphans())
    world.commit()
    world.clock.advance(DAY_MS)
    found: set[str] = set()
    counts: list[int] = []
    for _ in range(5):
        report = world.run()
        counts.append(len(report.deleted))
        found |= keys_of(report)
    assert counts[:3] == [2, 2, 2]
    assert found == orphans
    assert left_over_keys(world.bucket, world.log) == set()


def test_a_listing_is_bounded_and_the_next_sweep_goes_on_behind_it() -> None:
    world = World(max_listed_count=4)
    for number in range(10):
        world.harness.added(world.log, world.epoch, (A0, number, number + 1))
    orphan = world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    listed = ListedNames(world.bucket)
    world.sweep = OrphanSweep(listed, world.log, world.settings)
    sweeps = 1
    while orphan not in keys_of(world.run()):
        assert len(listed.names) <= 5 * sweeps, "a name more shows that the bound is reached"
        sweeps += 1
    assert 2 <= sweeps <= 4
    assert left_over_keys(world.bucket, world.log) == set()


def test_only_the_young_end_is_listed_each_time_and_all_of_it_once_a_day() -> None:
    world = World()
    for number in range(10):
        world.harness.added(world.log, world.epoch, (A0, number, number + 1))
    world.log.fold()
    world.clock.advance(DAY_MS)
    listed = ListedNames(world.bucket)
    world.sweep = OrphanSweep(listed, world.log, world.settings)
    world.run()
    assert len(listed.names) > 10
    late = world.log.layout.data_key(f"{3:020}-{world.harness.ids.uuid()}")
    world.bucket.put(late, b"landed late")
    listed.names.clear()
    assert world.run().deleted == ()
    assert not any("/data/" in name and name < late for name in listed.names)
    world.clock.advance(DAY_MS - 1)
    assert world.run().deleted == ()
    world.clock.advance(1)
    assert keys_of(world.run()) == {late}


def test_history_and_its_orphans_differ_by_the_files_behind_them() -> None:
    """Two folds write the same commits; one of them loses."""
    world = World()
    orphans: set[str] = set()
    for _ in range(4):
        world.commit()
        seq = world.log.state().seq
        key = world.log.layout.history_key(
            format_history_name(world.log.state().folded_seq + 1, seq, world.harness.ids.uuid())
        )
        world.bucket.put(key, b"lost the race")
        orphans.add(key)
        world.log.fold()
    world.clock.advance(DAY_MS)
    assert keys_of(world.run()) == orphans
    assert (
        left_over_keys(world.bucket, world.log)
        - {file.key(world.log.layout) for file in waiting_files(world.bucket, world.log)}
        == set()
    )


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_a_history_file_that_is_collected_since_the_listing_leaves_all_others(
    monkeypatch: pytest.MonkeyPatch, *, is_dry_run: bool
) -> None:
    """Which of two files is live is not certain any more; the next sweep has a listing of its own."""
    world = World()
    orphans: list[str] = []
    for _ in range(3):
        world.commit()
        folded_seq, seq = world.log.state().folded_seq, world.log.state().seq
        name = format_history_name(folded_seq + 1, seq, world.harness.ids.uuid())
        orphans.append(world.log.layout.history_key(name))
        world.bucket.put(orphans[-1], b"lost the race")
        world.log.fold()
    data = world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    history_before = world.log.history_before

    def collected(name: str) -> str | None:
        world.bucket.delete_many([world.log.layout.history_key(name)])
        return history_before(name)

    monkeypatch.setattr(world.log, "history_before", collected)
    report = world.run(is_dry_run=is_dry_run)
    assert [(one.kind, one.key) for one in report.deleted] == [(OrphanKind.DATA, data)]
    assert all(world.bucket.get(key) for key in orphans)


def test_an_unfinished_upload_is_aborted_after_the_grace() -> None:
    world = World()
    store = world.bucket
    assert isinstance(store, UnfinishedUploads)
    old = store.begin_upload("shards/0000/data/a")
    other = store.begin_upload("elsewhere/a")
    world.clock.advance(1)
    young = store.begin_upload("shards/0000/data/b")
    world.clock.advance(DAY_MS - 1)
    listed = world.run(is_dry_run=True)
    assert [(one.kind, one.key) for one in listed.deleted] == [(OrphanKind.UPLOAD, old.key)]
    assert store.uploads == [old, other, young]
    assert keys_of(world.run()) == {old.key}
    assert store.uploads == [other, young]


@pytest.mark.parametrize("error", [StoreAccessDeniedError("no"), StoreNotUsableError("no")])
def test_a_store_that_does_not_list_uploads_says_so_and_is_swept(error: Exception) -> None:
    world = World()
    orphan = world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    assert isinstance(world.bucket, UnfinishedUploads)
    world.bucket.refusal = error
    report = world.run()
    assert keys_of(report) == {orphan}
    assert len(report.failures) == 1


def test_newer_software_may_refer_to_files_that_this_version_does_not_see() -> None:
    world = World()
    orphan = world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    head = world.harness.head()
    action = UnknownAction("adopt", {"action": "adopt", "object": orphan})
    writer = Writer("collector", "newer")
    commit = Commit.build(head.seq + 1, world.harness.ids.uuid(), 0, writer, None, [action])
    world.harness.put_head(replace(head, seq=commit.seq, uuid=commit.uuid, commits=(*head.commits, commit)))
    for is_dry_run in (True, False):
        with pytest.raises(StoreNotUsableError):
            world.run(is_dry_run=is_dry_run)
    assert world.bucket.get(orphan)


def test_a_stop_ends_a_sweep_between_two_batches() -> None:
    world = World(batch_count=1)
    for _ in range(3):
        world.orphan()
    world.commit()
    world.clock.advance(DAY_MS)
    stop = StopSignal()

    def stop_then(operation: Operation) -> None:
        if operation.verb == "DELETE":
            stop.set()

    store = FaultyObjectStore(world.bucket, Random(0), after=stop_then)
    world.sweep = OrphanSweep(store, world.log, world.settings)
    with pytest.raises(StoppingError):
        world.sweep.run(world.clock.now_ms(), stop)
    assert len(left_over_keys(world.bucket, world.log)) == 2
    world.run()
    assert left_over_keys(world.bucket, world.log) == set()


def test_a_catalog_without_topics_is_swept() -> None:
    harness = MetadataHarness()
    catalog = harness.catalog()
    topic = catalog.create("t", 1)
    catalog.delete(topic.topic_id)
    key = catalog.layout.page_key(format_checkpoint_name(1, harness.ids.uuid()))
    probes = [prefix + "probe" for prefix in catalog.layout.scratch_prefixes]
    for one in (key, *probes):
        harness.store.put(one, b"orphan")
    harness.clock.advance(DAY_MS)
    sweep = OrphanSweep(harness.store, catalog, SweepSettings(grace_ms=DAY_MS))
    assert keys_of(sweep.run(harness.clock.now_ms(), StopSignal())) == {key, *probes}
    assert left_over_keys(harness.store, catalog) == set()
