"""A verification names each loss and each damage, and nothing else."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction import tier_verification
from stratalog.compaction.tier_verification import VERIFIED_AT_ONCE, TierVerification, VerificationReport
from stratalog.objectstore.protocol import ObjectInfo
from stratalog.record.record import Record
from stratalog.remote.json_document import plain_bytes
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects import object_parts
from stratalog.remote.restore.metadata_scrub import FindingKind, Unreferenced, partition_findings
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY
from stratalog.server.worker_pools import running_together
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.counting_object_store import CountingObjectStore
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.restore_world import RestoreWorld
from tests.support.tiered.tiered_site import TieredSite

HISTORY = ("upload", "upload", "upload", "compact", "fold", "upload", "compact", "fold", "upload", "upload")


def filled() -> RestoreWorld:
    world = RestoreWorld(3)
    for name in HISTORY:
        world.step(name)
    return world


def verified(world: RestoreWorld, *, reads_data: bool = True) -> VerificationReport:
    tiered = world.tiered
    verification = TierVerification(world.bucket, tiered.metadata, tiered.catalog)
    return verification.run(None, StopSignal(), lambda _: None, reads_data=reads_data)


@pytest.mark.parametrize("reads_data", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_sound_store_has_no_findings(seed: int, reads_data: bool) -> None:
    world = RestoreWorld(seed)
    for _ in range(20):
        world.step()
    report = verified(world, reads_data=reads_data)
    assert report.findings == ()
    assert bool(report.record_count) == (reads_data and bool(report.total_bytes))


def test_a_slice_may_begin_inside_of_a_batch() -> None:
    """The log start was moved there while nothing of the batch was uploaded."""
    site = TieredSite()
    logs = site.start()
    topic = logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    for _ in range(2):
        logs.append(log, [Record(0, 5, b"k", b"v")] * 4)
    logs.seal()
    tip = TopicIdPartition(topic.topic_id, 0)
    logs.metadata.advance_log_start({tip: 2}, epoch=logs.claimed.epoch, catalog_seq=None)
    log.update_tiered_end_offset(2)
    log.increment_log_start_offset(2)
    logs.upload()
    assert [live.base_offset for live in logs.metadata.state().partition(tip).slices] == [2]
    report = TierVerification(site.bucket, logs.metadata, logs.catalog).run(
        None, StopSignal(), lambda _: None
    )
    assert report.findings == ()
    assert report.record_count == 8


@pytest.mark.parametrize("log", ["shards/0000", "catalog"])
def test_each_document_that_is_damaged_or_missing_is_named(log: str) -> None:
    world = filled()
    keys = [
        f"{log}/head",
        *(info.key for folder in ("checkpoints", "pages", "history") for info in current(world, log, folder)),
    ]
    assert len(keys) >= 4
    for key in keys:
        intact = world.bucket.get(key).data
        world.bucket.put(key, intact[:-2])
        damaged = verified(world, reads_data=False)
        assert [(one.kind, one.object_name) for one in damaged.findings] == [(FindingKind.DAMAGED, key)]
        world.lose(key)
        missing = verified(world, reads_data=False)
        assert [(one.kind, one.object_name) for one in missing.findings] == [(FindingKind.MISSING, key)]
        world.bucket.put(key, intact)
    assert verified(world).findings == ()


@pytest.mark.parametrize("reads_data", [True, False])
def test_the_identity_of_the_store_is_looked_at(reads_data: bool) -> None:
    """The servers that run do not need it. The next start does."""
    world = filled()
    intact = world.bucket.get(IDENTITY_KEY).data
    flipped = bytearray(intact)
    flipped[intact.index(b"shard_count") + 13] ^= 1
    other = StoreIdentity(UUID(int=7), 1).encode()
    for content, kind in (
        (bytes(flipped), FindingKind.DAMAGED),
        (b"", FindingKind.DAMAGED),
        (other, FindingKind.DAMAGED),
        (None, FindingKind.MISSING),
    ):
        if content is None:
            world.lose(IDENTITY_KEY)
        else:
            world.bucket.put(IDENTITY_KEY, content)
        report = verified(world, reads_data=reads_data)
        assert [(one.kind, one.object_name) for one in report.findings] == [(kind, IDENTITY_KEY)]
        assert report.counts == {kind: 1}
        assert "identity" in report.findings[0].reason
    world.bucket.put(IDENTITY_KEY, intact)
    assert verified(world, reads_data=reads_data).findings == ()


@pytest.mark.parametrize("field", [b'"cleanup.policy":"', b'"kind":"', b'"uuid":"'])
def test_one_bit_of_a_head_is_a_finding(field: bytes) -> None:
    world = filled()
    key = "catalog/head"
    world.tiered.catalog.create("flipped", 1, {"cleanup.policy": "compact"})
    intact = plain_bytes(world.bucket.get(key).data, key)
    changed = bytearray(intact)
    changed[intact.rindex(field) + len(field)] ^= 1
    world.bucket.put(key, bytes(changed))
    damaged = verified(world, reads_data=False)
    assert [(one.kind, one.object_name) for one in damaged.findings] == [(FindingKind.DAMAGED, key)]
    world.bucket.put(key, intact)
    assert verified(world, reads_data=False).findings == ()


def current(world: RestoreWorld, log: str, folder: str) -> list[ObjectInfo]:
    """The files of a folder that the head refers to; dropped ones are not checked."""
    one = world.tiered.metadata if log != "catalog" else world.tiered.catalog
    dropped = {file.name for file in waiting_files(world.bucket, one)}
    return [
        info for info in world.bucket.list(f"{log}/{folder}/") if info.key.rpartition("/")[2] not in dropped
    ]


@pytest.mark.parametrize("reads_data", [True, False])
def test_a_missing_object_is_a_finding_for_each_of_its_slices(reads_data: bool) -> None:
    world = filled()
    state = world.tiered.metadata.state()
    name, live = next(iter(state.objects.items()))
    key = world.tiered.layout.data_key(name)
    data = world.bucket.get(key).data
    world.lose(key)
    report = verified(world, reads_data=reads_data)
    assert report.finding_count == live.live_slices
    assert {(one.kind, one.object_name) for one in report.findings} == {(FindingKind.MISSING, name)}
    assert report.counts == {FindingKind.MISSING: live.live_slices}
    world.bucket.put(key, data[:-1])
    assert {one.kind for one in verified(world, reads_data=False).findings} == {FindingKind.DAMAGED}


def test_files_that_no_commit_refers_to_are_counted() -> None:
    world = filled()
    assert verified(world).unreferenced == Unreferenced()
    name = world.orphan_upload()
    size_bytes = len(world.bucket.get(world.tiered.layout.data_key(name)).data)
    waiting = Unreferenced(1, size_bytes, 1, size_bytes, world.clock.now_ms() + 24 * 3_600_000)
    assert verified(world).unreferenced == waiting, "an upload under way looks the same"
    assert verified(world).findings == ()
    world.step("upload")
    world.clock.advance(25 * 3_600_000)
    report = verified(world)
    assert report.unreferenced == Unreferenced(1, size_bytes)
    assert report.findings == ()
    assert world.bucket.get(world.tiered.layout.data_key(name)), "nothing is deleted"


def test_holes_overlaps_and_strangers_are_found_without_the_checks_of_the_state() -> None:
    world = filled()
    tip = world.tips[2]
    state = world.tiered.metadata.state()
    partition = state.partition(tip)
    first, second = partition.slices[:2]

    def found(slices: Sequence[LiveSlice], log_start_offset: int = 0) -> list[tuple[FindingKind, int, int]]:
        changed = partition.row._replace(
            pieces=tuple(slices), slice_count=len(slices), log_start_offset=log_start_offset
        )
        others = PersistentMap([(tip, changed)])
        one = dataclasses.replace(state, partitions=others)
        catalog = world.tiered.catalog.state()
        return [(one.kind, one.base_offset, one.end_offset) for one in partition_findings(one, catalog, None)]

    rest = partition.slices[2:]
    end = partition.tiered_end_offset
    assert found(partition.slices) == []
    assert found((first, *rest)) == [(FindingKind.HOLE, first.end_offset, second.end_offset)]
    assert found((second, *rest)) == [(FindingKind.HOLE, 0, second.base_offset)]
    assert found((first, second)) == [(FindingKind.HOLE, second.end_offset, end)]
    assert found(()) == [(FindingKind.HOLE, 0, end)]
    wider = second._replace(base_offset=first.base_offset)
    assert found((first, wider, *rest)) == [(FindingKind.OVERLAP, first.base_offset, first.end_offset)]
    empty = dataclasses.replace(world.tiered.catalog.state(), entries=PersistentMap())
    strangers = [one.kind for one in partition_findings(state, empty, None)]
    assert strangers == [FindingKind.CATALOG] * len(state.partitions)
    assert list(partition_findings(state, empty, {*()})) == []


def test_a_topic_without_records_may_be_unknown_to_the_catalog() -> None:
    """A catalog that is rebuilt knows the topics that objects name."""
    world = filled()
    tip = world.tips[2]
    world.tiered.advance_log_start(tip, world.tiered.partition(tip).tiered_end_offset)
    state = world.tiered.metadata.state()
    assert tip in state.partitions
    empty = dataclasses.replace(world.tiered.catalog.state(), entries=PersistentMap())
    strangers = {one.topic for one in partition_findings(state, empty, {tip.topic_id})}
    assert strangers == set()
    row = state.partitions[tip]
    behind = dataclasses.replace(
        state, partitions=PersistentMap([(tip, row._replace(log_start_offset=row.log_start_offset - 1))])
    )
    kinds = [one.kind for one in partition_findings(behind, empty, None)]
    assert kinds == [FindingKind.HOLE, FindingKind.CATALOG], "a record that is missing stays a finding"


@pytest.mark.parametrize("slice_count", [1, 4])
def test_slices_are_collected_for_some_objects_at_a_time(
    slice_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = filled()
    state = world.tiered.metadata.state()
    damaged = sorted(state.objects)[1]
    key = world.tiered.layout.data_key(damaged)
    data = bytearray(world.bucket.get(key).data)
    data[state.objects[damaged].ref.directory_position] ^= 1
    world.bucket.put(key, data)
    at_once = verified(world)
    assert {one.object_name for one in at_once.findings} == {damaged}
    assert at_once.object_count == len(state.objects) > 2
    monkeypatch.setattr(tier_verification, "MAX_SLICE_COUNT", slice_count)
    assert verified(world) == at_once
    assert at_once.slice_count == at_once.total_slice_count


def test_a_damaged_footer_is_one_finding_and_every_slice_is_read() -> None:
    world = filled()
    sound = verified(world)
    name, live = max(world.tiered.metadata.state().objects.items(), key=lambda item: item[1].live_slices)
    assert live.live_slices > 1
    key = world.tiered.layout.data_key(name)
    data = world.bucket.get(key).data
    world.bucket.put(key, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    report = verified(world)
    [finding] = report.findings
    assert (finding.kind, finding.topic, finding.partition) == (FindingKind.DAMAGED, "", -1)
    assert finding.object_name == name
    assert report.record_count == sound.record_count
    world.bucket.put(key, world.bucket.get(world.tiered.layout.data_key(other_object(world, name))).data)
    assert {one.object_name for one in verified(world).findings} == {name}


def other_object(world: RestoreWorld, name: str) -> str:
    return next(other for other in world.tiered.metadata.state().objects if other != name)


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_garbles_the_first_answer_for_each_object_is_no_finding(seed: int) -> None:
    world = filled()
    garbled = set[str]()

    def flip_first(operation: Operation) -> Fault:
        if operation.verb != "GET" or "/data/" not in operation.key or operation.key in garbled:
            return Fault.NONE
        garbled.add(operation.key)
        return Fault.IS_FLIPPED

    store = FaultyObjectStore(world.bucket, Random(seed), flip_first)
    verification = TierVerification(store, world.tiered.metadata, world.tiered.catalog)
    assert verification.run(None, StopSignal(), lambda _: None).findings == ()
    assert len(garbled) == len(world.tiered.metadata.state().objects)


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20, None])
def test_the_parts_beside_the_data_are_read_along(
    tail_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: even the data are, because the object is small."""
    if tail_bytes is not None:
        monkeypatch.setattr(object_parts, "WHOLE_BYTES", 0)
        monkeypatch.setattr(object_parts, "TAIL_BYTES", tail_bytes)
    world = filled()
    objects = world.tiered.metadata.state().objects
    counting = CountingObjectStore(world.bucket)
    verification = TierVerification(counting, world.tiered.metadata, world.tiered.catalog)
    report = verification.run(None, StopSignal(), lambda _: None)
    data_prefix = world.tiered.layout.data_prefix
    requests = counting.total("GET", data_prefix).requests
    state = world.tiered.metadata.state()
    with_data = sum(
        live.gap is None and live.entry.data_bytes > 0
        for tip in state.partitions
        for live in state.partition(tip).slices
    )
    assert with_data
    if tail_bytes is None:
        assert requests == len(objects)
    elif tail_bytes:
        # The header, what lies behind the data, and the batches of each slice.
        assert requests == 2 * len(objects) + with_data
    else:
        # The header, the footer and the directory; and for each slice its batches, its index, and the key
        # stream of some.
        assert requests <= 3 * len(objects) + with_data + 2 * report.slice_count
        assert requests >= 3 * len(objects) + with_data + report.slice_count


def test_objects_are_read_side_by_side_and_reports_come_one_by_one() -> None:
    world = filled()
    threads, lock, are_two = set[int](), threading.Lock(), threading.Event()

    def wait_for_another(operation: Operation) -> None:
        if operation.verb == "GET" and "/data/" in operation.key:
            with lock:
                threads.add(threading.get_ident())
                if len(threads) > 1:
                    are_two.set()
            assert are_two.wait(20), "no other object is read meanwhile"

    store = FaultyObjectStore(world.bucket, Random(0), before=wait_for_another)
    counts: list[int] = []
    with running_together(VERIFIED_AT_ONCE) as run_all:
        verification = TierVerification(store, world.tiered.metadata, world.tiered.catalog, run_all)
        report = verification.run(None, StopSignal(), lambda one: counts.append(one.object_count))
    assert counts == list(range(1, report.object_count + 1))
    assert report == verified(world)
    assert report.findings == ()
