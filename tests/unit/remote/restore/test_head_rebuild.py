"""Losses of each document of the metadata, and deaths of the rebuild."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import pytest

from stratalog.base.errors import PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.retention.retention_outlook import utc_text
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.json_document import stored_text
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine
from stratalog.remote.metadata.head.checkpoint import read_root
from stratalog.remote.metadata.head.checkpoint_page import ROWS_FORMAT
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import AddOutcome
from stratalog.remote.metadata.shard.partition_row import StoredSlices
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.restore.catalog_rebuild import UNKNOWN_CONFIG, rebuild_catalog
from stratalog.remote.restore.head_rebuild import HeadRebuild
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.retention.remote_retention import RemoteRetention
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.store_faults import Fault, FaultsAt
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.restore_world import RestoreWorld
from tests.support.tiered.tiered_site import TieredSite

SHARD, CATALOG = "shards/0000/head", "catalog/head"
HISTORY = ("upload", "upload", "compact", "fold", "upload", "upload", "compact", "fold", "upload")


def filled(seed: int = 1) -> RestoreWorld:
    world = RestoreWorld(seed)
    for name in HISTORY:
        world.step(name)
    return world


def actor_of(site: TieredSite) -> StoreActor:
    """An operator's command on the site's store."""
    return StoreActor(
        store=site.bucket,
        clock=site.clock,
        random_source=Random(0),
        ids=site.ids,
        identity=StoreIdentity.open(site.bucket),
        writer=Writer("rebuild", "test"),
    )


def keys(world: RestoreWorld, prefix: str) -> list[str]:
    return [info.key for info in world.bucket.list(prefix)]


@pytest.mark.parametrize("folder", ["checkpoints", "pages", "history"])
@pytest.mark.parametrize("log", ["shards/0000", "catalog"])
def test_a_head_is_rebuilt_without_any_document_of_a_kind(log: str, folder: str) -> None:
    world = filled()
    before = world.readable()
    world.lose(f"{log}/head", *keys(world, f"{log}/{folder}/"))
    world.rebuild()
    assert world.readable() == before


@pytest.mark.parametrize("folder", ["checkpoints", "pages", "history"])
def test_a_head_is_rebuilt_without_any_one_document(folder: str) -> None:
    for number in range(len(keys(filled(), f"shards/0000/{folder}/"))):
        world = filled()
        before = world.readable()
        world.lose(SHARD, keys(world, f"shards/0000/{folder}/")[number])
        world.rebuild()
        assert world.readable() == before


def test_a_damaged_checkpoint_is_said_and_passed_over() -> None:
    world = filled()
    before = world.readable()
    newest = keys(world, "shards/0000/checkpoints/")[-1]
    world.bucket.put(newest, world.bucket.get(newest).data[:-3])
    world.lose(SHARD)
    [report] = world.rebuild().reports
    assert any(newest.rpartition("/")[2] in warning for warning in report.warnings)
    assert world.readable() == before


@pytest.mark.parametrize("damaged_count", [0, 1, 2])
def test_the_collector_leaves_what_a_rebuilt_head_needs(damaged_count: int) -> None:
    """Where the two newest checkpoints are damaged, the fold of one has dropped the files of the one that is
    used instead."""
    world = filled()
    for name in ("upload", "fold", "upload", "fold"):
        world.step(name)
    before = world.readable()
    roots = [key.rpartition("/")[2][:20] for key in keys(world, "shards/0000/checkpoints/")]
    newest_sound = roots[-1 - damaged_count]
    pages = [key for key in keys(world, "shards/0000/pages/") if key.rpartition("/")[2][:20] > newest_sound]
    world.lose(SHARD, *pages)
    world.rebuild()
    for _ in range(3):
        world.step("collect")
        world.step("fold")
    world.reopen()
    assert world.readable() == before


@pytest.mark.parametrize("log", ["shards/0000", "catalog"])
def test_a_rebuilt_head_has_no_pin_that_a_lost_commit_may_have_ended(log: str) -> None:
    """The collector may have deleted what it held, so no later query may share it."""
    world = filled()

    def opened() -> CommittedLog[Any]:
        return world.tiered.catalog if log == "catalog" else world.tiered.metadata

    pinned = opened()
    seq = pinned.state().seq
    until_ms = world.clock.now_ms() + 1_000_000_000
    pin = pinned.pin_commit("a query", until_ms, seq)
    world.step("upload")
    pinned.fold()
    pinned.unpin(pin)
    world.lose(f"{log}/head")
    world.rebuild()
    rebuilt = opened()
    assert rebuilt.state().pins == ()
    with pytest.raises(PreconditionFailedError):
        rebuilt.pin_commit("another query", until_ms, seq)
    rebuilt.fold()
    world.reopen()


def test_slices_that_a_checkpoint_has_stay_in_its_pages() -> None:
    world = RestoreWorld(1)
    while not all(world.tiered.partition(tip).slices for tip in world.tips):
        world.step("upload")
    world.step("fold")
    names = set(world.tiered.metadata.state().objects)
    while set(world.tips) == (tips := _tips_of_next_upload(world)):
        world.step("fold")
        names = set(world.tiered.metadata.state().objects)
    world.lose(SHARD)
    [rebuilt] = HeadRebuild(world.actor()).plan().shards
    for tip in world.tips:
        pieces = rebuilt.state.partitions[tip].pieces
        assert isinstance(pieces[0], StoredSlices)
        assert [isinstance(piece, LiveSlice) for piece in pieces[1:]] == [True] * (tip in tips)
    assert rebuilt.report.added_object_count == len(set(rebuilt.state.objects) - names) == 1


def _tips_of_next_upload(world: RestoreWorld) -> set[TopicIdPartition]:
    before = {tip: world.tiered.partition(tip).tiered_end_offset for tip in world.tips}
    world.step("upload")
    return {tip for tip in world.tips if world.tiered.partition(tip).tiered_end_offset > before[tip]}


def test_an_object_costs_one_request_if_it_is_small_and_three_if_it_is_large() -> None:
    world = RestoreWorld(1)
    small = [world.upload() for _ in range(5)]
    tip = world.tips[2]
    record = Record(0, world.clock.now_ms(), b"k", world.random.randbytes(100_000))
    base_offset = world.tiered.partition(tip).tiered_end_offset
    large = world.tiered.upload({tip: [encode_batch([record], base_offset=base_offset, leader_epoch=1)]})
    world.lose(SHARD)
    counting = CountingObjectStore(world.bucket)
    HeadRebuild(world.actor(counting)).plan()
    data_key = world.tiered.layout.data_key
    assert [counting.total("GET", data_key(name)).requests for name in (*small, large)] == [1] * 5 + [3]
    assert counting.total("GET", data_key(large)).size_bytes < 70_000


def test_a_lost_object_is_named_and_its_offsets_are_not_given_again() -> None:
    world = filled()
    tip = world.tips[2]
    partition = world.tiered.partition(tip)
    lost = partition.slices[0]
    before = world.readable()
    world.lose(SHARD, world.tiered.layout.data_key(lost.object_name))
    [report] = world.rebuild().reports
    assert (tip, lost.base_offset, lost.end_offset) in [one[:3] for one in report.lost]
    assert world.tiered.partition(tip).tiered_end_offset == partition.tiered_end_offset
    kept = [one for one in before[tip] if one[0] >= lost.end_offset]
    assert world.readable()[tip] == kept


def test_a_lost_object_in_the_middle_becomes_a_gap() -> None:
    world = RestoreWorld(3)
    while len(world.tiered.partition(world.tips[2]).slices) < 3:
        world.step("upload")
    tip = world.tips[2]
    middle = world.tiered.partition(tip).slices[1]
    world.lose(SHARD, world.tiered.layout.data_key(middle.object_name))
    [report] = world.rebuild().reports
    assert (tip, middle.base_offset, middle.end_offset, False) in report.lost
    gap = world.tiered.partition(tip).slices[1]
    assert gap.gap is not None
    assert gap.gap.reason == "object_lost"
    assert (gap.base_offset, gap.end_offset) == (middle.base_offset, middle.end_offset)


def test_an_upload_of_an_owner_before_the_known_one_was_never_committed() -> None:
    """Its successor has claimed the shard, and has uploaded nothing yet."""
    world = RestoreWorld(3)
    world.upload()
    before = world.readable()
    metadata = world.tiered.metadata
    metadata.add = lambda *_: AddOutcome(0, ())  # type: ignore[method-assign]  # it dies here
    orphan = world.upload()
    world.reopen()
    assert world.tiered.metadata.state().epoch > metadata.state().epoch
    world.step("fold")
    world.lose(SHARD)
    world.rebuild()
    assert orphan in [key.rpartition("/")[2] for key in keys(world, "shards/0000/data/")]
    assert world.readable() == before


def test_the_newest_known_owner_may_go_on_unless_a_later_claim_is_lost() -> None:
    world = RestoreWorld(3)
    world.upload()
    world.step("fold")
    known = world.tiered.metadata.state().claims[-1]
    world.upload()
    head = world.bucket.get(SHARD).data
    world.lose(SHARD)
    [rebuilt] = HeadRebuild(world.actor()).plan().shards
    assert rebuilt.claim_uuid == known.uuid
    assert rebuilt.epoch > known.epoch
    world.bucket.put(SHARD, head)
    world.reopen()
    lost = world.tiered.metadata.state().claims[-1]
    world.upload()
    world.lose(SHARD)
    [rebuilt] = HeadRebuild(world.actor()).plan().shards
    assert rebuilt.claim_uuid not in (known.uuid, lost.uuid)


def test_a_damaged_object_is_passed_over() -> None:
    world = RestoreWorld(3)
    name = world.upload()
    key = world.tiered.layout.data_key(name)
    world.bucket.put(key, world.bucket.get(key).data[:-3])
    world.lose(SHARD)
    [report] = HeadRebuild(world.actor()).plan().reports
    assert report.live_object_count == 0
    assert any(name in warning for warning in report.warnings)


@pytest.mark.parametrize("known", ["all", "some", "none"])
def test_deletions_that_a_rebuild_undoes_are_said(known: str) -> None:
    """An operator has to repeat those by hand, and can know which only by their time."""
    world = filled()
    tip = max(world.tips, key=lambda one: len(world.tiered.records(one)))
    deleted_until = world.tiered.partition(tip).log_start_offset + 1
    folded = world.tiered.metadata.state()
    for name in ("fold",) * (known != "none"):
        world.step(name)
    before = world.readable()
    world.tiered.advance_log_start(tip, deleted_until)
    after = world.readable()
    assert after != before
    if known == "all":
        folded = world.tiered.metadata.state()
        world.step("fold")
    lost = keys(world, "shards/0000/checkpoints/") + keys(world, "shards/0000/history/")
    world.lose(SHARD, *(lost if known == "none" else ()))
    [report] = world.rebuild().reports
    assert world.readable() == (after if known == "all" else before)
    [warning] = [one for one in report.warnings if one.startswith("deletions")]
    assert "stratalog records delete" in warning
    assert (f"after commit {folded.seq} ({utc_text(folded.time_ms)})" in warning) == (known != "none")
    world.tiered.advance_log_start(tip, deleted_until)
    assert world.readable() == after, "they can be deleted again"


def test_a_catalog_without_checkpoint_gets_the_names_of_the_objects() -> None:
    world = RestoreWorld(1)
    while not all(world.tiered.partition(tip).slices for tip in world.tips):
        world.step("upload")
    before = world.readable()
    seen_seq = world.tiered.metadata.state().catalog_seq
    world.lose(CATALOG, *keys(world, "catalog/"))
    [report] = world.rebuild().reports
    topics = world.tiered.catalog.topics()
    assert {name: topic.partition_count for name, topic in topics.items()} == {"events": 1, "state": 2}
    assert all(topic.config == UNKNOWN_CONFIG for topic in topics.values()), (
        "the configuration cannot be known"
    )
    for name in topics:
        [warning] = [one for one in report.warnings if f"topic {name} " in one]
        assert "retention.ms=-1" in warning
        assert f"stratalog topic alter {name} " in warning
    assert world.tiered.catalog.seq > seen_seq
    assert world.tiered.catalog.state().next_producer_id > 1_000_000
    assert world.readable() == before


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("override", ["retention.ms=-1", "cleanup.policy=compact"])
def test_a_server_deletes_no_record_by_a_catalog_that_was_rebuilt(override: str, is_folded: bool) -> None:
    """The topic was to keep its records, and is known by its objects alone."""
    site = TieredSite()
    logs = site.start()
    key, _, value = override.partition("=")
    topic = logs.create_topic("t", 1, {key: value})
    if is_folded:
        assert logs.catalog.fold_if_needed() is not None
    [log] = logs.logs.values()
    for number in range(4):
        logs.append(log, [Record(0, site.clock.now_ms(), b"k", b"v%d" % number)])
        log.roll()
        log.flusher.flush()
        logs.upload()
    before = logs.tiered_records(log)
    assert len(before) == 4
    logs.close()
    site.bucket.delete_many([CATALOG])
    rebuild = HeadRebuild(actor_of(site))
    rebuild.write(rebuild.plan())
    site.clock.advance(400 * 24 * 3_600_000)
    again = site.start()
    assert again.catalog.topics()["t"].config == ({key: value} if is_folded else UNKNOWN_CONFIG)
    [log] = again.logs.values()
    if not is_folded:
        # Nor by the defaults of the server.
        defaults = LogConfig(
            cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1, retention_bytes=0
        )
        log.reconfigure(LogConfig.in_force(again.catalog.topics()["t"].config, defaults))
        assert not log.local_log.config.is_compacted
    for _ in range(2):
        retention = RemoteRetention(again.metadata)
        retention.run([log], epoch=again.claimed.epoch, catalog_seq=again.catalog.seq)
        log.retention.delete_local_segments()
        site.clock.advance(24 * 3_600_000)
    assert again.metadata.state().partition(TopicIdPartition(topic.topic_id, 0)).log_start_offset == 0
    assert again.tiered_records(log) == before


def test_a_partition_that_retention_has_emptied_is_one_of_a_rebuilt_topic() -> None:
    world = RestoreWorld(1)
    while not all(world.tiered.partition(tip).slices for tip in world.tips):
        world.step("upload")
    last = world.tips[1]
    world.tiered.advance_log_start(last, world.tiered.partition(last).tiered_end_offset)
    world.lose(CATALOG, *keys(world, "catalog/"))
    world.rebuild()
    assert world.tiered.catalog.topics()["state"].partition_count == 2


def test_a_rebuilt_catalog_is_newer_than_any_that_a_shard_has_seen() -> None:
    world = filled()
    log = StoredLog(world.bucket, StoreLayout(None), CatalogMachine())
    rebuilt = rebuild_catalog(world.actor(), log, [ShardState(catalog_seq=50_000)], 0)
    assert rebuilt.state.seq > 50_000, "a shard refuses what an older catalog decides"


def test_a_topic_that_is_deleted_stays_deleted() -> None:
    world = filled()
    deleted = world.tips[2].topic_id
    world.tiered.catalog.delete(deleted)
    world.lose(SHARD)
    world.rebuild()
    assert world.tips[2] not in world.tiered.metadata.state().partitions
    assert world.tips[0] in world.tiered.metadata.state().partitions


def test_a_head_that_is_there_is_never_replaced() -> None:
    world = filled()
    with pytest.raises(PreconditionFailedError):
        HeadRebuild(world.actor()).plan()
    data = world.bucket.get(SHARD).data
    world.lose(SHARD)
    rebuild = HeadRebuild(world.actor())
    plan = rebuild.plan()
    world.bucket.put(SHARD, data)
    with pytest.raises(PreconditionFailedError):
        rebuild.write(plan)
    assert world.bucket.get(SHARD).data == data


def test_a_plan_writes_nothing() -> None:
    world = filled()
    world.lose(SHARD, CATALOG)
    before = [(info.key, info.modified_ms) for info in world.bucket.list("")]
    HeadRebuild(world.actor()).plan()
    assert [(info.key, info.modified_ms) for info in world.bucket.list("")] == before


def write_all(rebuild: HeadRebuild) -> None:
    rebuild.write(rebuild.plan())


def test_a_death_at_any_write_is_repaired_by_the_next_run() -> None:
    def lost() -> RestoreWorld:
        world = filled()
        world.lose(SHARD, CATALOG)
        return world

    world, trace = lost(), StoreTrace()
    before = filled().readable()
    rebuild = HeadRebuild(world.actor(FaultyObjectStore(world.bucket, Random(0), trace=trace)))
    rebuild.write(rebuild.plan())
    writes = [entry.operation.number for entry in trace.entries if entry.operation.verb in ("PUT", "DELETE")]
    assert len(writes) > 10
    for number in writes:  # what dies at a read has written the same
        for fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER):
            world = lost()
            store = FaultyObjectStore(world.bucket, Random(0), FaultsAt({number: fault}))
            with pytest.raises(ActorStopped):
                write_all(HeadRebuild(world.actor(store)))
            if {SHARD, CATALOG} <= {*keys(world, "")}:
                world.reopen()
            else:
                world.rebuild()
            assert world.readable() == before


def test_objects_that_are_found_are_as_old_as_the_rebuild() -> None:
    """Slices without timestamps are as old as their upload: retention must not take them at once."""
    world = filled()
    name = world.upload()
    world.lose(SHARD)
    world.rebuild()
    found = world.tiered.metadata.state().objects[name]
    assert found.uploaded_ms == world.clock.now_ms()


def test_the_checkpoint_that_a_rebuilt_head_replaces_is_dropped() -> None:
    world = filled()
    newest = keys(world, "shards/0000/checkpoints/")[-1].rpartition("/")[2]
    world.lose(SHARD)
    world.rebuild()
    assert newest in {file.name for file in waiting_files(world.bucket, world.tiered.metadata)}


def test_a_server_that_has_claimed_may_go_on_though_the_head_is_lost_right_behind_its_claim() -> None:
    """The claim is folded at once, so nothing is set aside that only its disk has."""
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    for number in range(2):
        if number:
            logs = site.start()
        [log] = logs.logs.values()
        logs.append(log, [Record(0, 1, b"k", b"v")])
        logs.seal()
        logs.upload()
        logs.close()
    [claim] = logs.metadata.state().claims[-1:]
    site.bucket.delete_many([SHARD])
    rebuild = HeadRebuild(actor_of(site))
    plan = rebuild.plan()
    assert [one.claim_uuid for one in plan.shards] == [claim.uuid]
    rebuild.write(plan)
    again = site.start(opens=False)
    assert [one.set_aside_path for one in again.open_topic(again.catalog.topics()["t"]).values()] == [None]


def head_of(world: RestoreWorld) -> Head:
    return Head.decode(world.bucket.get(SHARD).data, SHARD, SHARD_ACTIONS)


def page_formats(world: RestoreWorld) -> set[int]:
    """The format versions of the pages of the newest checkpoint."""
    checkpoint = head_of(world).checkpoint
    assert checkpoint is not None
    layout = StoreLayout(0)
    root = read_root(world.bucket, layout, checkpoint)
    texts = [stored_text(world.bucket.get(layout.page_key(page.name)).data, page.name) for page in root.pages]
    return {int(text.split('"read_version":')[1][0]) for text in texts}


def older_world() -> RestoreWorld:
    """A store in which older software may still write."""
    world = RestoreWorld(1)
    older = dataclasses.replace(head_of(world), read_version=2, write_version=2)
    world.bucket.put(SHARD, older.encode())
    world.reopen()
    for name in ("upload", "fold", "upload", "fold"):
        world.step(name)
    assert head_of(world).write_version == 2
    return world


@pytest.mark.parametrize("has_pages", [True, False])
def test_a_rebuild_finalizes_nothing(has_pages: bool) -> None:
    world = older_world()
    if not has_pages:
        # The root of the newest checkpoint alone is damaged, and an older one is taken.
        world.lose(keys(world, "shards/0000/checkpoints/")[-1])
    world.lose(SHARD)
    world.rebuild()
    head = head_of(world)
    assert (head.read_version, head.write_version) == (2, 2)
    world.step("upload")
    world.step("fold")
    assert head_of(world).write_version == 2
    assert page_formats(world) == {ROWS_FORMAT}


def test_what_was_finalized_after_the_checkpoint_stays_finalized() -> None:
    world = older_world()
    world.tiered.metadata.finalize()
    world.step("fold")
    roots = keys(world, "shards/0000/checkpoints/")
    world.lose(SHARD, roots[-1])
    world.rebuild()
    assert head_of(world).write_version == METADATA_VERSION


def test_commits_before_a_rebuilt_head_cannot_be_pinned() -> None:
    """The lost commits may have said that files of them are deleted."""
    world = RestoreWorld(1)
    for name in ("upload", "fold", "upload", "fold"):
        world.step(name)
    seq = world.tiered.metadata.state().seq
    world.lose("shards/0000/head")
    world.rebuild()
    metadata = world.tiered.metadata
    with pytest.raises(PreconditionFailedError) as refused:
        metadata.pin_commit("job", 5, seq - 1)
    first_seq = refused.value.fields["first_commit"]
    assert isinstance(first_seq, int)
    metadata.pin_commit("job", 5, first_seq)
    metadata.check()
