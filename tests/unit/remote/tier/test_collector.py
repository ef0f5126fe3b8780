"""Dropped files go once their grace is over, unless a pin holds them; history goes after its time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreNotUsableError, StoreUnavailableError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.record import Record
from stratalog.remote.metadata.head import head_judge
from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.commit import MAX_COMMIT_BYTES, Writer
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind, Replacement, TrackedFile
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout, format_checkpoint_name
from stratalog.remote.tier.collector import Collector, CollectorSettings, CollectReport
from stratalog.remote.tier.replaced_files import ReplacedFiles
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.store_faults import Fault, FaultOn, Operation
from tests.support.tiered.current_keys import left_over_keys
from tests.support.tiered.shard_states import stored_state
from tests.support.tiered.stores.locking_store import LockingStore
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)
DAY_MS = 24 * 3_600_000


class World(TieredSite):
    """A shard with one partition of three objects."""

    def __init__(self, skew_ms: int = 0) -> None:
        super().__init__(skew_ms=skew_ms, commit_settings=CommitSettings(fold_by_itself=False))
        self.logs = self.start()
        self.claimed = self.logs.metadata.state()
        """The claim is folded, and all behind it is in the head."""
        topic = self.logs.create_topic("t", 1, {})
        self.tip = TopicIdPartition(topic.topic_id, 0)
        for _ in range(3):
            self.logs.append(self.logs.logs[T0], [Record(0, 5, b"k", b"v")])
            self.logs.seal()
            self.logs.upload()

    def drop(self, offset: int) -> None:
        self.logs.metadata.advance_log_start({self.tip: offset}, epoch=None, catalog_seq=None)

    def collect(
        self, store: ObjectStore | None = None, *, is_dry_run: bool = False, **settings: int
    ) -> CollectReport:
        collector = Collector(
            store or self.store,
            self.logs.metadata,
            self.logs.catalog,
            CollectorSettings(**settings),
        )
        return collector.run(is_dry_run=is_dry_run)

    def object_count(self) -> int:
        return len(list(self.store.list("shards/0000/data/")))

    def check_can_be_opened(self) -> None:
        """Everything is there that the next owner needs, and everything live can be read."""
        self.logs.close()
        self.logs = self.start()
        self.logs.metadata.check()
        start = self.logs.metadata.state().partition(self.tip).log_start_offset
        found = self.logs.tiered_records(self.logs.logs[T0])
        assert [record.offset for record in found] == list(range(start, 3))


def test_dropped_objects_go_after_the_grace() -> None:
    world = World()
    world.drop(2)
    first = world.collect()
    assert (first.deleted_count, first.waiting_count, first.refusal) == (0, 2, "")
    world.clock.advance(DAY_MS - 1)
    assert world.collect().deleted_count == 0
    assert world.object_count() == 3
    world.clock.advance(1)
    objects = [file for file in world.logs.metadata.state().dropped if file.kind is FileKind.DATA]
    report = world.collect()
    assert (report.deleted_count, report.deleted_bytes) == (2, sum(file.size_bytes for file in objects))
    assert world.object_count() == 1
    world.check_can_be_opened()


def test_a_quiet_shard_keeps_nothing_but_what_is_live() -> None:
    world = World()
    world.drop(3)
    for number in range(4):
        world.clock.advance(DAY_MS)
        world.collect()
        if number < 2:
            world.logs.catalog.create(f"t{number}", 1, {})
            world.logs.catalog.fold()
            world.logs.metadata.fold()
    state, topics = world.logs.metadata.state(), world.logs.catalog.state()
    assert (state.dropped, topics.dropped) == ((), ())
    assert world.object_count() == 0
    checkpoints = [info.key for info in world.store.list("shards/0000/checkpoints/")]
    assert state.checkpoint is not None
    assert checkpoints == [world.logs.metadata.layout.checkpoint_key(state.checkpoint.name)]
    assert len(list(world.store.list("catalog/checkpoints/"))) == 1
    world.check_can_be_opened()


@pytest.mark.parametrize("skew_ms", [-6 * 60_000, 6 * 60_000])
def test_a_clock_that_is_wrong_deletes_nothing(skew_ms: int) -> None:
    world = World(skew_ms)
    world.drop(3)
    report = world.collect(grace_ms=0)
    assert (report.is_refused, report.deleted_count, report.clock_skew_ms) == (True, 0, skew_ms)
    assert world.object_count() == 3


def test_the_grace_is_counted_by_the_stores_clock() -> None:
    world = World(skew_ms=2 * 60_000)
    world.drop(3)
    report = world.collect(grace_ms=60_000)
    assert (report.is_refused, report.deleted_count) == (False, 0)


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.IS_CUT_OFF])
def test_a_failure_in_between_is_made_good_by_the_next_pass(fault: Fault) -> None:
    world = World()
    world.drop(3)
    world.clock.advance(DAY_MS)
    world.logs.metadata.fold()
    faulty = FaultyObjectStore(world.store, random.Random(0), FaultOn(fault, "DELETE"))
    with pytest.raises(StoreUnavailableError):
        world.collect(faulty)
    assert world.collect().deleted_count == 3
    assert world.object_count() == 0
    world.check_can_be_opened()


def test_a_run_is_bounded_and_works_in_batches() -> None:
    world = World()
    world.drop(3)
    world.clock.advance(DAY_MS)
    world.logs.metadata.fold()
    seq = world.logs.metadata.state().seq
    assert world.collect(max_file_count=2, batch_count=1, max_pass_ms=0).deleted_count == 2
    assert world.logs.metadata.state().seq == seq + 3, "a commit before, and one for each batch"
    assert world.collect(max_file_count=2, batch_count=1).deleted_count == 1
    assert world.object_count() == 0


def test_a_pass_goes_on_while_files_are_due() -> None:
    """Folds and compactions may drop more between two passes than one turn deletes."""
    world = World()
    world.drop(3)
    world.clock.advance(DAY_MS)
    world.logs.metadata.fold()
    report = world.collect(max_file_count=1)
    # Three objects, and the checkpoint of the claim, which is dropped by a fold of today.
    assert (report.deleted_count, report.waiting_count) == (3, 1)
    assert world.object_count() == 0


def test_a_pass_begins_no_turn_once_its_time_is_over() -> None:
    world = World()
    world.drop(3)
    world.clock.advance(DAY_MS)
    world.logs.metadata.fold()

    def take_time(operation: Operation) -> None:
        if operation.verb == "DELETE":
            world.clock.advance(30_000)

    slow = FaultyObjectStore(world.store, random.Random(0), before=take_time)
    assert world.collect(slow, max_file_count=1, max_pass_ms=60_000).deleted_count == 2
    assert world.collect(slow, max_file_count=1, max_pass_ms=60_000).deleted_count == 1


def test_a_pin_keeps_what_was_live_at_its_commit_and_lets_the_rest_go() -> None:
    world = World()
    metadata = world.logs.metadata
    metadata.fold()
    world.drop(1)
    pin = metadata.pin("scan", world.clock.now_ms() + 3 * DAY_MS)
    world.drop(2)
    world.clock.advance(DAY_MS)
    listed = world.collect(is_dry_run=True)
    report = world.collect()
    for one in (listed, report):
        # The object, and the checkpoint of the claim.
        assert (one.deleted_count, one.pinned_count, one.is_refused) == (2, 1, False)
    assert [one.is_pinned for one in report.waiting if one.file.kind is FileKind.DATA] == [True]
    assert world.object_count() == 2
    metadata.renew_pin(pin, world.clock.now_ms() + 3 * DAY_MS)
    world.clock.advance(3 * DAY_MS - 1)
    assert world.collect().expired_pin_count == 0
    assert world.object_count() == 2
    world.clock.advance(1)
    listed = world.collect(is_dry_run=True)
    assert (listed.expired_pin_count, metadata.state().pins != ()) == (1, True)
    report = world.collect()
    assert (report.expired_pin_count, report.pinned_count, metadata.state().pins) == (1, 0, ())
    assert report.deleted_count >= 1
    assert world.object_count() == 1
    world.check_can_be_opened()


def test_the_state_at_a_pin_can_be_built_from_its_checkpoint_and_the_commits_behind_it() -> None:
    """Also if one of those commits brought an object that another one of them dropped."""
    world = World()
    metadata = world.logs.metadata
    state = world.claimed
    world.drop(1)
    key = metadata.layout.head_key
    commits = Head.decode(world.store.get(key).data, key, SHARD_ACTIONS).commits
    pin = metadata.pin("scan", world.clock.now_ms() + 3 * DAY_MS)
    wanted = metadata.state().partitions
    metadata.fold()
    world.clock.advance(DAY_MS)
    world.collect()
    for commit in commits[state.seq - commits[0].seq + 1 :]:
        state = apply_commit(state, commit, partial(read_directory, world.store, metadata.layout))
    assert (state.seq + 1, state.partitions) == (pin, wanted)
    metadata.unpin(pin)
    assert world.collect().deleted_count == 2, "the object, and the checkpoint of the claim"
    assert world.object_count() == 2


def test_the_commit_that_ends_a_pin_comes_before_any_deletion() -> None:
    world = World()
    world.logs.metadata.pin("scan", world.clock.now_ms() + DAY_MS)
    world.drop(3)
    world.logs.metadata.fold()
    world.clock.advance(DAY_MS)
    faulty = FaultyObjectStore(world.store, random.Random(0), FaultOn(Fault.STOPS_BEFORE, "DELETE"))
    with pytest.raises(ActorStopped):
        world.collect(faulty)
    assert world.logs.metadata.state().pins == ()
    assert world.object_count() == 3


def test_a_pin_of_an_earlier_commit_is_spared_or_refused() -> None:
    """It lands before the collector has said what it deletes, after that, or amid the deletions."""
    world = World()
    metadata = world.logs.metadata
    seq = metadata.state().seq
    until_ms = world.clock.now_ms() + 9 * DAY_MS
    world.drop(3)
    metadata.fold()
    world.clock.advance(DAY_MS)
    begin_deletion = metadata.begin_deletion

    def pinned_before(files: Sequence[DroppedObject | Replacement]) -> ShardState:
        metadata.pin_commit("early", until_ms, seq)
        return begin_deletion(files)

    metadata.begin_deletion = pinned_before  # type: ignore[method-assign]  # a job that comes just before
    report = world.collect()
    del metadata.begin_deletion
    assert (report.deleted_count, report.pinned_count, world.object_count()) == (0, 4, 3)
    metadata.unpin(metadata.state().pins[0].seq)
    refused: list[PreconditionFailedError] = []

    def pin_amid(operation: Operation) -> None:
        if operation.verb == "DELETE":
            with pytest.raises(PreconditionFailedError) as caught:
                metadata.pin_commit("late", until_ms, seq)
            refused.append(caught.value)

    amid = FaultyObjectStore(world.store, random.Random(0), before=pin_amid)
    assert world.collect(amid, batch_count=1).deleted_count == 4
    assert [error.fields["commit"] for error in refused] == [seq] * 4
    assert world.object_count() == 0
    world.check_can_be_opened()


def test_a_commit_behind_a_drop_can_be_pinned_until_most_of_the_grace_is_over() -> None:
    """Also where nothing but the collector folds: its fold for a deletion does not take the checkpoint that
    the commits before the fold are built from without the deleted file."""
    world = World()
    metadata = world.logs.metadata
    folded_seq = metadata.state().folded_seq
    world.drop(2)
    seqs: list[int] = []
    for hour in range(24):
        if hour >= 4:
            world.logs.append(world.logs.logs[T0], [Record(0, 5, b"k", b"v")])
            world.logs.seal()
            world.logs.upload()
            seqs.append(metadata.state().seq)
        world.clock.advance(DAY_MS // 24)
        world.collect()
    assert world.object_count() == 21, "two are deleted"
    assert folded_seq < metadata.state().folded_seq < seqs[0]
    assert metadata.state().deleted_seq < seqs[0]
    for seq in seqs:
        metadata.pin_commit("job", world.clock.now_ms() + DAY_MS, seq)


def test_an_orphan_sweep_does_not_take_what_a_pin_holds() -> None:
    world = World()
    world.logs.metadata.pin("scan", world.clock.now_ms() + 9 * DAY_MS)
    world.drop(3)
    for _ in range(4):
        world.logs.metadata.claim("owner", world.ids.uuid())
        world.logs.metadata.fold()
        world.clock.advance(DAY_MS)
        world.collect()
    assert world.object_count() == 3
    world.check_can_be_opened()


def test_history_is_trimmed_after_its_time_and_collected_after_the_grace() -> None:
    world = World()
    metadata, prefix = world.logs.metadata, "shards/0000/history/"
    for _ in range(4):
        metadata.claim("owner", world.ids.uuid())
        metadata.fold()
        world.clock.advance(DAY_MS)
    names = [info.key for info in world.store.list(prefix)]
    listed = world.collect(history_ms=3 * DAY_MS, is_dry_run=True)
    # The history of the claim at the start is as old as the first of these.
    assert (listed.trimmed_count, metadata.state().history_start_seq) == (3, 1)
    assert world.collect(history_ms=3 * DAY_MS).trimmed_count == 3
    first_kept = metadata.state().history_start_seq
    assert names[3].rpartition("/")[2].startswith(f"{first_kept:020}")
    assert [info.key for info in world.store.list(prefix)] == names, "dropped, and not yet deleted"
    world.clock.advance(DAY_MS)
    world.collect(history_ms=3 * DAY_MS)
    assert not set(names[:3]) & {info.key for info in world.store.list(prefix)}
    for _ in range(4):
        world.clock.advance(DAY_MS)
        world.collect(history_ms=3 * DAY_MS)
    assert metadata.state().history is not None, "the newest one stays"
    assert left_over_keys(world.store, metadata) == set()
    world.check_can_be_opened()


def test_a_wrong_clock_sweeps_trims_and_unpins_nothing() -> None:
    world = World(skew_ms=6 * 60_000)
    metadata = world.logs.metadata
    metadata.pin("scan", 1)
    world.store.put(metadata.layout.scratch_prefixes[0] + "probe", b"probe")
    for _ in range(2):
        metadata.claim("owner", world.ids.uuid())
        metadata.fold()
    before = [info.key for info in world.store.list("")]
    report = world.collect(grace_ms=0, history_ms=0)
    assert (report.is_refused, report.all_deleted_count) == (True, 0)
    assert [info.key for info in world.store.list("")] == before
    assert len(metadata.state().pins) == 1


@pytest.mark.parametrize("batch_count", [1, 1000])
def test_a_locked_object_stays_dropped_is_named_and_is_tried_again_after_a_day(batch_count: int) -> None:
    world = World()
    world.drop(3)
    world.logs.metadata.fold()
    store = LockingStore(world.store)
    data = [info.key for info in world.store.list("shards/0000/data/")]
    store.locked = {data[1]}
    collector = Collector(
        store, world.logs.metadata, world.logs.catalog, CollectorSettings(batch_count=batch_count)
    )
    world.clock.advance(DAY_MS)
    report = collector.run()
    # Two objects, and the checkpoint of the claim.
    assert (report.deleted_count, report.kept_count) == (3, 1)
    assert any("locked by the test" in failure for failure in report.failures)
    assert world.object_count() == 1
    assert data[1].endswith(next(iter(world.logs.metadata.state().dropped_objects))), "it stays on record"
    attempt_count = len(store.attempts)
    world.clock.advance(DAY_MS - 1)
    report = collector.run()
    assert (report.kept_count, report.failures) == (1, ())
    assert data[1] not in store.attempts[attempt_count:], "not in every pass"
    looked = collector.run(is_dry_run=True)
    assert (looked.deleted_count, looked.kept_count) == (0, 1), "no dry run promises what the store refuses"
    [waiting] = looked.waiting
    assert data[1].endswith(waiting.file.name)
    assert (waiting.due_ms, len(looked.failures)) == (world.clock.now_ms() + 1, 1)
    world.clock.advance(1)
    store.locked.clear()
    report = collector.run()
    assert data[1] in store.attempts[attempt_count:]
    assert (report.kept_count, world.object_count()) == (0, 0)
    world.check_can_be_opened()


def test_locked_objects_leave_room_for_the_others_of_a_bounded_pass() -> None:
    world = World()
    world.drop(3)
    world.logs.metadata.fold()
    store = LockingStore(world.store)
    data = [info.key for info in world.store.list("shards/0000/data/")]
    store.locked = set(data[:2])
    collector = Collector(
        store, world.logs.metadata, None, CollectorSettings(max_file_count=2, max_pass_ms=0)
    )
    world.clock.advance(DAY_MS)
    first, second = collector.run(), collector.run()
    # The claim's checkpoint is of a list of its own.
    assert (first.deleted_count, first.kept_count) == (1, 2)
    assert second.deleted_count >= 1
    assert [info.key for info in world.store.list("shards/0000/data/")] == data[:2]


def test_a_locked_orphan_is_no_deleted_one() -> None:
    world = World()
    scratch = world.logs.metadata.layout.scratch_prefixes[0]
    for name in ("free", "locked"):
        world.store.put(scratch + name, b"probe")
    store = LockingStore(world.store)
    store.locked = {scratch + "locked"}
    world.clock.advance(DAY_MS)
    report = (collector := Collector(store, world.logs.metadata)).run()
    assert [one.key for one in report.orphans] == [scratch + "free"]
    assert [one.key for one in report.waiting_orphans] == [scratch + "locked"]
    assert report.kept_count == 1
    assert report.failures
    looked = collector.run(is_dry_run=True)
    assert (looked.orphans, looked.kept_count) == ((), 1)
    [waiting] = looked.waiting_orphans
    assert (waiting.key, waiting.due_ms) == (scratch + "locked", world.clock.now_ms() + DAY_MS)
    store.locked.clear()
    world.clock.advance(DAY_MS)
    assert [one.key for one in collector.run(is_dry_run=True).orphans] == [scratch + "locked"]


def open_log(world: World, store: ObjectStore, *, read_only: bool = False) -> MetadataLog:
    """Open the shard as another process does."""
    actor = StoreActor(
        store=store,
        clock=world.clock,
        random_source=random.Random(0),
        ids=world.ids,
        identity=StoreIdentity.open(world.store),
        writer=Writer("collector", "other"),
    )
    settings = CommitSettings(fold_by_itself=False)
    load = partial(read_directory, store, StoreLayout(0))
    return MetadataLog.open(actor, 0, load, read_only=read_only, settings=settings)


def replaced_keys(world: World) -> list[set[str]]:
    """The keys of the files of each replacement of the shard."""
    metadata = world.logs.metadata
    lists = ReplacedFiles(world.store, metadata.layout)
    return [
        {file.key(metadata.layout) for file in lists.read(replacement) or ()}
        for replacement in metadata.state().replacements
    ]


def fold_often(world: World, count: int) -> list[set[str]]:
    """Fold so often, with a change each; returns the keys that each fold replaced."""
    for _ in range(count):
        world.logs.metadata.claim("owner", world.ids.uuid())
        world.logs.metadata.fold()
    return replaced_keys(world)


def replace_pages(world: World) -> set[str]:
    """Fold with changes in all pages of the shard; returns the keys that this replaced."""
    world.logs.append(world.logs.logs[T0], [Record(0, 5, b"k", b"v")])
    world.logs.seal()
    world.logs.upload()
    world.logs.metadata.fold()
    return replaced_keys(world)[-1]


def forget_lists(world: World) -> None:
    """Fold until there are pages, and collect what that has replaced."""
    world.logs.metadata.fold()
    world.clock.advance(DAY_MS)
    world.collect()
    assert world.logs.metadata.state().replacements == ()


def all_of(lists: Sequence[set[str]]) -> set[str]:
    return {key for keys in lists for key in keys}


def keys_in(world: World) -> set[str]:
    return {info.key for info in world.store.list("shards/0000/")}


def test_what_a_fold_replaced_is_one_row_and_goes_after_the_grace() -> None:
    world = World()
    metadata = world.logs.metadata
    lists = fold_often(world, 3)
    state = metadata.state()
    assert not state.dropped_objects
    assert [one.file_count for one in state.replacements] == [len(keys) for keys in lists]
    assert state.waiting_files.file_count == sum(map(len, lists))
    assert state.checkpoint is not None
    stored = stored_state(world.store, metadata.layout, state.checkpoint)
    assert stored.replacements == state.replacements[:-1], "the last fold is in the head"
    world.clock.advance(DAY_MS - 1)
    assert world.collect().deleted_count == 0
    assert all_of(lists) <= keys_in(world)
    world.clock.advance(1)
    listed, report = world.collect(is_dry_run=True), world.collect()
    for one in (listed, report):
        assert (one.deleted_count, one.waiting_count) == (sum(map(len, lists)), 0)
    assert (metadata.state().replacements, all_of(lists) & keys_in(world)) == ((), set())
    assert left_over_keys(world.store, metadata) == set()
    world.check_can_be_opened()


HOUR_MS = 3_600_000
GRACE_HOURS = 8


def test_a_pin_holds_up_no_list_and_no_more_files_than_it_needs() -> None:
    """Three graces of hourly folds under a pin: the lists go after their grace all the same, and what the
    state of the pin needs stays in rows of its own."""
    world = World()
    metadata = world.logs.metadata
    metadata.fold()
    checkpoint = metadata.state().checkpoint
    assert checkpoint is not None
    needed = {file.name for file in read_root(world.store, metadata.layout, checkpoint).files}
    pin = metadata.pin("job", world.clock.now_ms() + 9 * DAY_MS)
    waiting_count = 0
    for hour in range(3 * GRACE_HOURS):
        replace_pages(world)
        world.clock.advance(HOUR_MS)
        listed = world.collect(is_dry_run=True, grace_ms=GRACE_HOURS * HOUR_MS)
        report = world.collect(grace_ms=GRACE_HOURS * HOUR_MS)
        assert (listed.deleted_count, listed.waiting_count) == (report.deleted_count, report.waiting_count)
        assert listed.pinned_count == report.pinned_count
        state = metadata.state()
        state.check()
        assert len(state.replacements) <= GRACE_HOURS + 1
        assert state.dropped_objects.keys() <= needed
        assert {file.seq for file in state.dropped} <= set(range(pin, state.seq)), "that of its own fold"
        if hour >= GRACE_HOURS:
            assert state.dropped_objects.keys() == needed, "each page was replaced"
            assert report.pinned_count == len(needed)
            assert waiting_count in (0, report.waiting_count)
            waiting_count = report.waiting_count
        names = {key.rpartition("/")[2] for key in keys_in(world)}
        assert needed <= names
    metadata.unpin(pin)
    assert world.collect(grace_ms=GRACE_HOURS * HOUR_MS).deleted_count >= len(needed)
    assert metadata.state().dropped == ()
    world.clock.advance(DAY_MS)
    world.collect()
    assert left_over_keys(world.store, metadata) == set()


def test_a_row_of_the_state_is_enough_for_a_server_that_starts() -> None:
    """The files of a list that a pin holds are in a later checkpoint, once, and go when the pin has ended."""
    world = World()
    metadata = world.logs.metadata
    pin = metadata.pin_commit("job", world.clock.now_ms() + 9 * DAY_MS, metadata.state().seq)
    [first] = fold_often(world, 1)
    world.clock.advance(DAY_MS)
    assert world.collect().deleted_count == 0
    rows = set(metadata.state().dropped_objects)
    assert {key.rpartition("/")[2] for key in first} == rows
    fold_often(world, 1)
    for is_read_only in (False, True):
        opened = open_log(world, world.store, read_only=is_read_only)
        assert set(opened.state().dropped_objects) == rows
    metadata.unpin(pin)
    assert world.collect().deleted_count == len(first)
    assert first & keys_in(world) == set()


def test_a_root_stays_until_what_it_lists_is_gone() -> None:
    """The store lets no file of the first list go. So the root that lists them stays, though its own fold's
    list is collected but for it. Each pass counts them, and one a day tries them."""
    world = World()
    metadata = world.logs.metadata
    first, second, *_ = lists = fold_often(world, 3)
    root = metadata.layout.checkpoint_key(metadata.state().replacements[0].name)
    assert root in second
    store = LockingStore(world.store)
    store.locked = set(first)
    collector = Collector(store, metadata, None)
    world.clock.advance(DAY_MS)
    for passed_ms, failure_count in ((0, 1), (0, 0), (DAY_MS - 1, 0)):
        world.clock.advance(passed_ms)
        attempt_count = len(store.attempts)
        report = collector.run()
        assert (report.kept_count, len(report.failures)) == (len(first), failure_count)
        looked = collector.run(is_dry_run=True)
        assert (looked.kept_count, looked.deleted_count) == (len(first), 0)
        assert bool(first & set(store.attempts[attempt_count:])) == bool(failure_count), "not in every pass"
        assert {root, *first} == all_of(lists) & keys_in(world)
        assert [file.key(metadata.layout) for file in metadata.state().dropped] == [root]
        assert len(metadata.state().replacements) == 1
    attempt_count = len(store.attempts)
    store.locked.clear()
    world.clock.advance(1)
    collector.run()
    assert set(store.attempts[attempt_count:]) >= first
    collector.run()
    assert (metadata.state().replacements, all_of(lists) & keys_in(world)) == ((), set())
    world.check_can_be_opened()


@pytest.mark.parametrize("is_stopped_after", [False, True])
def test_what_stays_of_a_list_becomes_rows_in_several_commits(
    is_stopped_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that stops between two of them is finished by the next one."""
    monkeypatch.setattr(head_judge, "ROWS_OF_A_COMMIT", 1)
    world = World()
    metadata = world.logs.metadata
    forget_lists(world)
    pin = metadata.pin("job", world.clock.now_ms() + 9 * DAY_MS)
    first = replace_pages(world)
    assert len(first) > 2
    world.clock.advance(DAY_MS)
    head_key = metadata.layout.head_key
    for occurrence in range(1, len(first)):
        fault = Fault.STOPS_AFTER if is_stopped_after else Fault.STOPS_BEFORE
        stopping = FaultyObjectStore(world.store, random.Random(0), FaultOn(fault, "PUT", head_key))
        with pytest.raises(ActorStopped):
            Collector(stopping, open_log(world, stopping), None).run()
        metadata.refresh()
        assert len(metadata.state().dropped_objects) == (occurrence if is_stopped_after else 0)
        assert len(metadata.state().replacements) == 1, "until all are rows"
        assert first <= keys_in(world)
    world.collect()
    assert {file.key(metadata.layout) for file in metadata.state().dropped} == first
    assert metadata.state().replacements == ()
    metadata.unpin(pin)
    assert world.collect().deleted_count == len(first)


def test_what_stays_of_a_large_list_fits_into_small_commits() -> None:
    world = World()
    metadata = world.logs.metadata
    fold_often(world, 1)
    [replacement] = metadata.state().replacements
    names = [format_checkpoint_name(metadata.state().seq, world.ids.uuid()) for _ in range(1_200)]
    kept = [replacement.dropped(TrackedFile(FileKind.CHECKPOINT, name, 1 << 30)) for name in names]
    seq = metadata.state().seq
    metadata.finish_list(replacement, kept)
    state = metadata.state()
    assert (state.dropped, state.replacements) == (tuple(sorted(kept, key=lambda one: one.name)), ())
    head = Head.decode(
        world.store.get(metadata.layout.head_key).data, metadata.layout.head_key, SHARD_ACTIONS
    )
    texts = [commit.text for commit in head.commits if commit.seq > seq]
    assert len(texts) == 3
    assert max(map(len, texts)) <= MAX_COMMIT_BYTES
    metadata.finish_list(replacement, kept)
    assert metadata.state() is state, "another collector has finished it"


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.IS_CUT_OFF])
def test_a_list_that_was_deleted_in_part_is_finished_by_the_next_pass(fault: Fault) -> None:
    world = World()
    lists = fold_often(world, 2)
    world.clock.advance(DAY_MS)
    faulty = FaultyObjectStore(world.store, random.Random(0), FaultOn(fault, "DELETE"))
    with pytest.raises(StoreUnavailableError):
        world.collect(faulty, batch_count=1)
    world.collect(batch_count=1)
    assert (world.logs.metadata.state().replacements, all_of(lists) & keys_in(world)) == ((), set())


@pytest.mark.parametrize("is_damaged", [True, False])
def test_the_files_of_a_list_that_cannot_be_read_become_orphans(is_damaged: bool) -> None:
    world = World()
    metadata = world.logs.metadata
    lists = fold_often(world, 3)
    name = metadata.state().replacements[1].name
    key = metadata.layout.checkpoint_key(name)
    world.store.delete_many([key])
    if is_damaged:
        world.store.put(key, b"damaged")
    pin = metadata.pin_commit("job", world.clock.now_ms() + 9 * DAY_MS, metadata.state().seq - 3)
    world.clock.advance(DAY_MS)
    world.collect()
    assert lists[1] <= keys_in(world) | {key}, "a pin may hold them, and the sweep leaves them alone"
    metadata.unpin(pin)
    report = world.collect()
    assert any(name in failure for failure in report.failures)
    for _ in range(2):
        metadata.claim("owner", world.ids.uuid())
        world.clock.advance(DAY_MS)
        world.collect()
    assert all_of(lists) & keys_in(world) == set()
    assert left_over_keys(world.store, metadata) == set()


def test_a_list_is_read_again_after_a_damaged_answer() -> None:
    world = World()
    metadata = world.logs.metadata
    lists = fold_often(world, 2)
    world.clock.advance(DAY_MS)
    root = metadata.layout.checkpoint_key(metadata.state().replacements[0].name)
    faulty = FaultyObjectStore(world.store, random.Random(0), FaultOn(Fault.IS_FLIPPED, "GET", root))
    report = Collector(faulty, metadata, None).run()
    assert (report.failures, report.deleted_count) == ((), sum(map(len, lists)))
    assert all_of(lists) & keys_in(world) == set()


def test_a_store_that_cannot_be_used_is_no_damaged_list() -> None:
    world = World()
    lists = fold_often(world, 2)
    world.clock.advance(DAY_MS)
    before = world.logs.metadata.state().replacements

    def refuse(operation: Operation) -> None:
        if "/checkpoints/" in operation.key and operation.verb == "GET":
            raise StoreNotUsableError("the key of the bucket is disabled", key=operation.key)

    unusable = FaultyObjectStore(world.store, random.Random(0), before=refuse)
    with pytest.raises(StoreNotUsableError):
        Collector(unusable, world.logs.metadata, None).run()
    assert world.logs.metadata.refresh().replacements == before
    assert all_of(lists) <= keys_in(world)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_list_that_cannot_be_read_is_given_up_only_before_no_pin_can_need_it(is_late: bool) -> None:
    """A pin of an earlier commit lands before the list is given up, and holds it, or comes after, and is
    refused."""
    world = World()
    metadata = world.logs.metadata
    seq, until_ms = metadata.state().seq, world.clock.now_ms() + 9 * DAY_MS
    [first] = fold_often(world, 1)
    world.store.delete_many([metadata.layout.checkpoint_key(metadata.state().replacements[0].name)])
    world.clock.advance(DAY_MS)
    begin_deletion, finish_list = metadata.begin_deletion, metadata.finish_list

    def pinned_before(files: Sequence[DroppedObject | Replacement]) -> ShardState:
        metadata.pin_commit("early", until_ms, seq)
        return begin_deletion(files)

    def pinned_amid(replacement: Replacement, kept: Sequence[DroppedObject]) -> None:
        with pytest.raises(PreconditionFailedError):
            metadata.pin_commit("late", until_ms, seq)
        finish_list(replacement, kept)

    if is_late:
        metadata.finish_list = pinned_amid  # type: ignore[method-assign]  # a job that comes just before
    else:
        metadata.begin_deletion = pinned_before  # type: ignore[method-assign]  # likewise
    world.collect()
    assert len(metadata.state().replacements) == (0 if is_late else 1)
    assert is_late or first <= keys_in(world)


def test_a_locked_file_of_a_list_becomes_a_row_and_is_tried_again_after_a_day() -> None:
    world = World()
    metadata = world.logs.metadata
    forget_lists(world)
    first = replace_pages(world)
    store = LockingStore(world.store)
    store.locked = {min(first)}
    collector = Collector(store, metadata, None)
    world.clock.advance(DAY_MS)
    report = collector.run()
    assert (report.deleted_count, report.kept_count, report.waiting_count) == (len(first) - 1, 1, 1)
    assert metadata.state().replacements == ()
    assert [file.key(metadata.layout) for file in metadata.state().dropped] == [min(first)]
    attempt_count = len(store.attempts)
    world.clock.advance(DAY_MS - 1)
    assert collector.run().kept_count == 1
    assert min(first) not in store.attempts[attempt_count:]
    store.locked.clear()
    world.clock.advance(1)
    report = collector.run()
    assert (report.kept_count, metadata.state().dropped) == (0, ())


def test_a_collection_that_is_not_said_to_have_begun_deletes_no_list() -> None:
    """A pin of an earlier commit lands before the deletion is said, and its checkpoint stays."""
    world = World()
    metadata = world.logs.metadata
    seq, until_ms = metadata.state().seq, world.clock.now_ms() + 9 * DAY_MS
    [first] = fold_often(world, 1)
    world.clock.advance(DAY_MS)
    begin_deletion = metadata.begin_deletion

    def pinned_before(files: Sequence[DroppedObject | Replacement]) -> ShardState:
        metadata.pin_commit("early", until_ms, seq)
        return begin_deletion(files)

    metadata.begin_deletion = pinned_before  # type: ignore[method-assign]  # a job that comes just before
    assert world.collect().deleted_count == 0
    assert first <= keys_in(world)
