"""A restore of what is gone in part, over what is there, and one that dies."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import PreconditionFailedError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.restore.restore_note import RESTORE_NOTE_KEY, RestoreNote
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import IS_STORE, StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore, StoreTrace
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.store_faults import Fault, FaultsAt, Operation
from tests.support.tiered.restore_world import RestoreWorld
from tests.support.tiered.tiered_store import TieredStore

NOW = Until()


def filled() -> RestoreWorld:
    world = RestoreWorld(3)
    for name in ("upload", "upload", "compact", "fold", "upload", "upload", "upload"):
        world.step(name)
    return world


def restore_of(world: RestoreWorld, until: Until = NOW, copies: ObjectStore | None = None) -> StoreRestore:
    identity = StoreIdentity.open(world.bucket)
    cut = StoreCutter(world.bucket, identity, copies).cut(until)
    return StoreRestore(world.bucket, identity, cut, world.clock.now_ms(), copies)


def write(world: RestoreWorld, target: ObjectStore, until: Until = NOW, *, accepts_loss: bool = False) -> int:
    """Restore; returns the bytes of the objects."""
    restore = restore_of(world, until, target)
    actor = world.actor(target, restore.identity_for(target))
    return restore.write(actor, lambda _: None, accepts_loss=accepts_loss).done_bytes


def test_a_plan_says_what_is_copied_and_changes_nothing() -> None:
    world = filled()
    before = {info.key: info.modified_ms for info in world.bucket.list("")}
    plan = restore_of(world).plan()
    state = world.tiered.metadata.state()
    assert plan.object_count == len(state.objects)
    assert plan.object_bytes == sum(live.ref.size_bytes for live in state.objects.values())
    assert [(one.topic, one.partition, one.tiered_end_offset) for one in plan.partitions] == [
        (name, tip.partition, world.tiered.partition(tip).tiered_end_offset)
        for name, tip in sorted(zip(("state", "state", "events"), world.tips, strict=True))
        if tip in state.partitions
    ]
    assert write(world, MemoryObjectStore(world.clock)) == plan.object_bytes
    assert {info.key: info.modified_ms for info in world.bucket.list("")} == before


def test_a_lost_object_is_refused_and_its_offsets_become_a_gap_if_that_is_accepted() -> None:
    world = filled()
    tip = world.tips[2]
    lost = world.tiered.partition(tip).slices[1]
    before = world.readable()
    world.lose(world.tiered.layout.data_key(lost.object_name))
    target = MemoryObjectStore(world.clock)
    with pytest.raises(PreconditionFailedError) as refused:
        write(world, target)
    offsets = refused.value.fields["offsets"]
    assert isinstance(offsets, int)
    assert offsets >= lost.end_offset - lost.base_offset
    assert list(target.list("")) == []
    write(world, target, accepts_loss=True)
    tiered = TieredStore(MemoryFileSystem(), target, world.clock, world.ids)
    tiered.metadata.check()
    assert ("events", 0, lost.base_offset, lost.end_offset, False) in restore_of(world).plan().lost
    gap = tiered.partition(tip).slices[1]
    assert gap.gap is not None
    assert [one[0] for one in before[tip]] == sorted(
        [one.offset for one in tiered.records(tip)] + list(range(lost.base_offset, lost.end_offset))
    )


@pytest.mark.parametrize("kept_bytes", [0, None], ids=["empty", "flipped"])
def test_an_object_whose_directory_is_damaged_counts_as_gone(kept_bytes: int | None) -> None:
    """The directories of what came since the last fold are needed for the plan."""
    world = filled()
    lost = world.tiered.partition(world.tips[2]).slices[-1]
    ref = world.tiered.metadata.state().objects[lost.object_name].ref
    key = world.tiered.layout.data_key(lost.object_name)
    before, sound = world.readable(), world.bucket.get(key).data
    damaged = bytearray(sound)
    damaged[ref.directory_position + 4] ^= 1
    world.bucket.put(key, bytes(damaged[:kept_bytes]))
    plan = restore_of(world).plan()
    assert plan.gone == (lost.object_name,)
    [problem] = plan.problems
    assert problem.startswith(f"{key} counts as gone, because its directory is damaged")
    target = MemoryObjectStore(world.clock)
    with pytest.raises(PreconditionFailedError):
        write(world, target)
    write(world, target, accepts_loss=True)
    restored = TieredStore(MemoryFileSystem(), target, world.clock, world.ids)
    assert restored.metadata.state().objects.keys() == world.tiered.metadata.state().objects.keys() - {
        lost.object_name
    }
    world.bucket.put(key, sound)
    assert restore_of(world).plan().problems == ()
    assert world.readable() == before


@pytest.mark.parametrize("is_folded", [True, False])
def test_a_topic_that_was_deleted_and_collected_is_named_with_what_is_gone(is_folded: bool) -> None:
    """If its uploads are in a checkpoint of the time, the plan has their offsets. Otherwise nothing has."""
    world = RestoreWorld(3)
    tiered = world.tiered
    topic = tiered.catalog.create("k", 2)
    tips = [TopicIdPartition(topic.topic_id, number) for number in range(2)]
    batch = encode_batch([Record(0, 0, b"key", b"value")] * 3, base_offset=0, leader_epoch=1)
    lost_name = tiered.upload({tip: [batch] for tip in tips})
    world.upload()
    tiered.catalog.create("untiered", 1, {"remote.storage.enable": "false"})
    if is_folded:
        tiered.metadata.fold()
    moment = Until(time_ms=world.clock.now_ms())
    before = restore_of(world, moment).plan()
    rows = [("k", 0, 0, 3), ("k", 1, 0, 3)]
    assert [one[:4] for one in before.partitions if one.topic == "k"] == rows
    world.clock.advance(1000)
    tiered.catalog.delete(topic.topic_id)
    tiered.metadata.drop_partitions(topic.topic_id, tiered.catalog.confirm_deleted(topic.topic_id))
    world.lose(tiered.layout.data_key(lost_name))
    plan = restore_of(world, moment).plan()
    found = [one[1:] for one in plan.partitions if one.topic == "k"]
    assert [one[:4] for one in plan.partitions if one.topic == "events"] == [
        one[:4] for one in before.partitions if one.topic == "events"
    ]
    assert not [one for one in plan.partitions if one.topic == "untiered"]
    with pytest.raises(PreconditionFailedError) as refused:
        write(world, MemoryObjectStore(world.clock), moment)
    fields = refused.value.fields
    if is_folded:
        assert [one[:2] for one in plan.lost] == [("k", 0), ("k", 1)]
        assert [one[2:4] for one in plan.lost] == [(0, 3)] * 2
        assert found == [(0, 3, 3, 0), (1, 3, 3, 0)], "their offsets are not given again"
        assert (fields["offsets"], fields["partitions_of_unknown_offsets"]) == (6, 0)
    else:
        assert plan.gone == (lost_name,)
        assert found == [(0, None, None, None), (1, None, None, None)]
        unknown = [one for one in plan.partitions if one.tiered_end_offset is None]
        assert fields["partitions_of_unknown_offsets"] == len(unknown) >= 2


def test_a_target_with_other_files_is_refused() -> None:
    world = filled()
    with pytest.raises(PreconditionFailedError):
        write(world, world.bucket)
    target = MemoryObjectStore(world.clock)
    target.put("another/file", b"x")
    with pytest.raises(PreconditionFailedError):
        write(world, target)
    target = MemoryObjectStore(world.clock)
    write(world, target, Until(seq=3, shard=0))
    with pytest.raises(PreconditionFailedError):
        write(world, target)


def test_a_finished_target_that_a_server_has_used_is_refused_as_a_store() -> None:
    """The operator repeats the command with its --until, when the new server is at work already."""
    world = filled()
    target = MemoryObjectStore(world.clock)
    write(world, target)
    target.put(f"{StoreLayout(0).prefix}history/of-its-server", b"x")
    with pytest.raises(PreconditionFailedError) as refused:
        write(world, target)
    assert refused.value.message.startswith(IS_STORE)


def test_a_lost_head_is_rebuilt_first() -> None:
    world = filled()
    world.lose("shards/0000/head")
    with pytest.raises(StoreCorruptError):
        restore_of(world)


def test_a_death_at_any_write_is_repaired_by_the_next_attempt() -> None:
    world = filled()
    before, trace = world.readable(), StoreTrace()
    write(world, FaultyObjectStore(MemoryObjectStore(world.clock), Random(0), trace=trace))
    writes = [entry.operation.number for entry in trace.entries if entry.operation.verb != "LIST"]
    writes = [number for number in writes if trace.entries[number].operation.verb.startswith("PUT")]
    assert len(writes) > 8
    for number in writes:
        for fault in (Fault.STOPS_BEFORE, Fault.STOPS_AFTER):
            target = MemoryObjectStore(world.clock)
            with pytest.raises(ActorStopped):
                write(world, FaultyObjectStore(target, Random(0), FaultsAt({number: fault})))
            write(world, target)
            tiered = TieredStore(MemoryFileSystem(), target, world.clock, world.ids)
            tiered.metadata.check()
            assert world.readable(tiered) == before
            assert RestoreNote.find(target) is None


class _DiesAtWrite:
    """A plan that stops before one write. Not thread-safe: one actor has it."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, operation: Operation) -> Fault:
        if not operation.verb.startswith("PUT"):
            return Fault.NONE
        self._left -= 1
        return Fault.STOPS_BEFORE if self._left == -1 else Fault.NONE


def test_an_interrupted_restore_goes_on_with_its_moment_though_the_source_has_gone_on() -> None:
    death_count = 0
    while True:
        world = filled()
        before, target = world.readable(), MemoryObjectStore(world.clock)
        try:
            write(world, FaultyObjectStore(target, Random(0), _DiesAtWrite(death_count)))
        except ActorStopped:
            death_count += 1
            world.step("upload")
        else:
            break
        note = RestoreNote.find(target)
        if note is None:
            assert list(target.list("")) == []
            continue
        with pytest.raises(PreconditionFailedError) as refused:
            write(world, target)
        assert refused.value.fields["catalog_commit"] == note.seqs[0]
        write(world, target, Until(seqs=note.seqs))
        assert world.readable(TieredStore(MemoryFileSystem(), target, world.clock, world.ids)) == before
        assert RestoreNote.find(target) is None, "it is finished"
        write(world, target, Until(seqs=note.seqs))
    assert death_count > 8


@pytest.mark.parametrize("is_folded", [False, True])
def test_objects_that_an_interrupted_restore_has_copied_may_go_in_the_source(*, is_folded: bool) -> None:
    """A large restore takes longer than the store keeps what was dropped."""
    death_count = 0
    while True:
        world = filled()
        if is_folded:
            world.step("fold")
        before, target = world.readable(), MemoryObjectStore(world.clock)
        try:
            write(world, FaultyObjectStore(target, Random(0), _DiesAtWrite(death_count)))
        except ActorStopped:
            death_count += 1
        else:
            break
        note = RestoreNote.find(target)
        names = restore_of(world).plan().object_count
        for tip in world.tips:
            world.tiered.advance_log_start(tip, world.tiered.partition(tip).tiered_end_offset)
        world.step("collect")
        if note is None:
            continue
        copied = sum(1 for info in target.list("") if "/data/" in info.key)
        until = Until(seqs=note.seqs)
        if copied < names:
            with pytest.raises(PreconditionFailedError) as refused:
                write(world, target, until)
            assert "offsets" in refused.value.fields
            write(world, target, until, accepts_loss=True)
        else:
            write(world, target, until)
        restored = world.readable(TieredStore(MemoryFileSystem(), target, world.clock, world.ids))
        assert restored == before or copied < names
        assert sum(map(len, restored.values())) > 0 or copied == 0
    assert death_count > 8


def test_a_note_that_is_damaged_or_of_other_commits_is_refused() -> None:
    world = filled()
    target = MemoryObjectStore(world.clock)
    note = RestoreNote(StoreIdentity.open(world.bucket).store_id, (1, 10_000))
    note.begin(target)
    assert RestoreNote.find(target) == note
    with pytest.raises(PreconditionFailedError):
        restore_of(world, Until(seqs=note.seqs))
    with pytest.raises(PreconditionFailedError):
        restore_of(world, Until(seqs=(1,)))
    data = bytearray(target.get(RESTORE_NOTE_KEY).data)
    for position in range(len(data)):
        data[position] ^= 1
        target.put(RESTORE_NOTE_KEY, bytes(data))
        with pytest.raises(StoreCorruptError):
            RestoreNote.find(target)
        data[position] ^= 1
    with pytest.raises(StoreCorruptError):
        StoreIdentity.find(target)
