"""Heads that are none, that are lost, that are of another store, and that are of newer software."""

from __future__ import annotations

import json
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    StoreCorruptError,
    StoreNotUsableError,
)
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, FaultOn, Operation
from tests.support.simulation.mock_objects import MockObject, MockSlice
from tests.support.stored_fields import stored_fields
from tests.support.stored_heads import head_bytes
from tests.support.tiered.metadata_harness import A0, B0, MetadataHarness
from tests.support.tiered.shard_states import require_same_state

HEAD = "shards/0000/head"
JsonDict = dict[str, object]


def sample() -> bytes:
    """A head with all that a head can have."""
    harness = MetadataHarness()
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (B0, 0, 5))
    log.fold()
    made = harness.put(log, (A0, 5, 6), (B0, 9, 10))
    log.add([(made.ref, made.entries())], epoch)
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=3)
    return harness.store.get(HEAD).data


SAMPLE = sample()


def changed(data: bytes, **changes: object) -> bytes:
    return head_bytes(dict(stored_fields(data, "head").values) | changes)


def test_round_trip() -> None:
    head = Head.decode(SAMPLE, "head", SHARD_ACTIONS)
    assert head.encode() == SAMPLE
    assert Head.decode(head.encode(), "head", SHARD_ACTIONS) == head
    assert head.inline_bytes == sum(len(commit.text) for commit in head.commits)


def test_a_first_head(harness: MetadataHarness) -> None:
    harness.log()
    head = harness.head()
    assert (head.seq, head.commits, head.checkpoint, head.folded_seq) == (0, (), None, 0)
    uuid = head.uuid
    harness.log()
    assert harness.head().uuid == uuid, "it is created once"


def children(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return list(cast("dict[str | int, object]", value).items())
    return list(enumerate(cast("list[object]", value))) if isinstance(value, list) else []


def mutations() -> st.SearchStrategy[JsonDict]:
    """The sample with one value, anywhere, replaced by something else."""
    paths: list[tuple[str | int, ...]] = []

    def walk(value: object, path: tuple[str | int, ...]) -> None:
        paths.append(path)
        for step, inner in children(value):
            walk(inner, (*path, step))

    walk(json.loads(SAMPLE), ())
    odd: list[object] = [None, True, -1, 0, 1.5, 1 << 70, "", "x", [], {}, [[]], [None], str(UUID(int=0))]

    def put(path: tuple[str | int, ...], value: object) -> JsonDict:
        document: JsonDict = json.loads(SAMPLE)
        target: Any = document
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
        return document

    return st.builds(put, st.sampled_from([path for path in paths if path]), st.sampled_from(odd))


@given(mutations())
def test_one_value_changed(document: JsonDict) -> None:
    """It is refused with one of two errors, or it is a head that says something else; nothing else
    happens.
    """
    try:
        head = Head.decode(head_bytes(document), "head", SHARD_ACTIONS)
    except (StoreCorruptError, StoreNotUsableError):
        return
    assert head == Head.decode(head.encode(), "head", SHARD_ACTIONS)


def test_a_lost_head_is_not_replaced_by_a_new_one(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    harness.store.delete_many([HEAD])
    for attempt in (
        harness.log,
        lambda: harness.log(read_only=True),
        log.refresh,
        lambda: log.claim("x", harness.ids.uuid()),
    ):
        with pytest.raises(StoreCorruptError) as caught:
            attempt()
        assert caught.value.fields["key"] == HEAD
        assert caught.value.fields["known_by"]
    assert [found.key for found in harness.store.list(HEAD)] == []


def test_scratch_keys_are_no_lost_head(harness: MetadataHarness) -> None:
    """A probe that broke off before the first head must not lock the shard for ever."""
    harness.store.put(f"{harness.layout.prefix}scratch/{harness.ids.uuid()}", b"probe")
    assert harness.log().state().seq == 0


def test_a_reader_takes_an_unused_shard_for_empty(harness: MetadataHarness) -> None:
    reader = harness.log(read_only=True)
    assert reader.state().seq == 0
    assert list(harness.store.list("shards/")) == []
    assert reader.refresh().seq == 0
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    require_same_state(reader.refresh(), log.state())


@pytest.mark.parametrize(
    "fault", [Fault.FAILS, Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED, Fault.LANDS_LATE]
)
def test_creating_a_head_under_faults(harness: MetadataHarness, fault: Fault) -> None:
    store = FaultyObjectStore(harness.store, Random(1), FaultOn(fault, "PUT", HEAD))
    log = harness.log(store=store)
    store.release_all()
    assert log.refresh().seq == 0
    assert log.claim("x", harness.ids.uuid()) == 1


def test_two_that_create_a_head_at_once(harness: MetadataHarness) -> None:
    others: list[int] = []

    def before(operation: Operation) -> None:
        if operation.verb == "PUT" and not others:
            others.append(harness.log().claim("first", harness.ids.uuid()))

    log = harness.log(store=FaultyObjectStore(harness.store, Random(1), before=before))
    assert others == [1]
    assert log.claim("second", harness.ids.uuid()) == 2


@pytest.mark.parametrize("change", [{"store_id": str(UUID(int=5))}, {"shard": 1}, {"shard": None}])
def test_a_head_of_another_store(harness: MetadataHarness, change: JsonDict) -> None:
    harness.owned()
    harness.store.put(HEAD, changed(harness.store.get(HEAD).data, **change))
    with pytest.raises(StoreCorruptError) as caught:
        harness.log()
    assert caught.value.fields["expected_store_id"] == harness.identity.store_id


@pytest.mark.parametrize(
    "change", [{"epoch": 5}, {"horizon": 1}, {"catalog_seq": 7}, {"seq": 7}, {"uuid": str(UUID(int=5))}]
)
def test_a_head_that_contradicts_its_commits(harness: MetadataHarness, change: JsonDict) -> None:
    harness.owned()
    harness.store.put(HEAD, changed(harness.store.get(HEAD).data, **change))
    with pytest.raises(StoreCorruptError):
        harness.log()


def test_a_newer_format_is_not_read(harness: MetadataHarness) -> None:
    log, _ = harness.owned()
    harness.store.put(HEAD, changed(harness.store.get(HEAD).data, read_version=METADATA_VERSION + 1))
    for attempt in (harness.log, log.refresh):
        with pytest.raises(StoreNotUsableError) as caught:
            attempt()
        assert caught.value.fields["read_version"] == METADATA_VERSION + 1


def test_a_format_that_only_newer_software_writes_is_read(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    harness.store.put(HEAD, changed(harness.store.get(HEAD).data, write_version=METADATA_VERSION + 1))
    follower = harness.log(read_only=True)
    require_same_state(follower.state(), log.state())
    before = harness.store.get(HEAD).data
    for attempt in (lambda: follower.claim("x", harness.ids.uuid()), follower.fold):
        with pytest.raises(StoreNotUsableError) as caught:
            attempt()
        assert caught.value.fields["write_version"] == METADATA_VERSION + 1
    assert harness.store.get(HEAD).data == before


def with_unknown_action(harness: MetadataHarness, **fields: object) -> None:
    """Newer software commits something."""
    document = json.loads(harness.store.get(HEAD).data)
    seq = document["seq"] + 1
    uuid = str(harness.ids.uuid())
    action = {"action": "swallow_gap", "why": "policy"}
    writer = {"kind": "owner", "id": "newer", "mood": "good"}
    commit = {"seq": seq, "uuid": uuid, "time_ms": 1, "writer": writer, "actions": [action], "colour": "red"}
    document |= {"seq": seq, "uuid": uuid, "commits": [*document["commits"], commit], **fields}
    harness.store.put(HEAD, head_bytes(document))


def test_an_unknown_action_stops_every_writer(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    with_unknown_action(harness)
    before = harness.store.get(HEAD).data
    assert log.refresh().unknown_action == "swallow_gap"
    assert list(log.state().objects) == [made.ref.name], "what is known can be read"
    for attempt in (
        lambda: log.claim("x", harness.ids.uuid()),
        lambda: log.advance_log_start({A0: 1}, epoch=None, catalog_seq=None),
        log.fold,
        lambda: harness.log().claim("x", harness.ids.uuid()),
    ):
        with pytest.raises(StoreNotUsableError) as caught:
            attempt()
        assert caught.value.fields["action"] == "swallow_gap"
    assert harness.store.get(HEAD).data == before


def test_the_fold_of_an_unknown_action_is_read_from_its_checkpoint(harness: MetadataHarness) -> None:
    """The pages have the effect of the action that a reader has skipped, so its own rows do not fit them."""
    log, epoch = harness.owned()
    for offset in range(4):
        harness.added(log, epoch, (A0, offset, offset + 1))
    log.fold()
    follower = harness.log(read_only=True)
    made = harness.put(log, (A0, 0, 4))
    planned = SliceRanges.of(log.state().partition(A0).slices)
    names = sorted(planned.object_names)
    outputs = [(made.ref, made.entries())]
    log.replace({A0: planned}, names, outputs, covers={A0: False}, catalog_seq=0, drops_records=False)
    known = harness.store.get(HEAD).data
    document = json.loads(known)
    document["commits"][-1]["actions"][0]["action"] = "merge"
    harness.store.put(HEAD, head_bytes(document))
    assert follower.refresh().unknown_action == "merge"
    harness.store.put(HEAD, known)
    log.fold()
    assert follower.refresh().unknown_action is None
    require_same_state(follower.state(), log.state())
    follower.check()


def test_an_unknown_action_that_comes_to_light_while_judging(harness: MetadataHarness) -> None:
    """An old view would refuse, so the head is read; what it holds then forbids to write as well."""
    log, epoch = harness.owned()
    other = harness.log()
    harness.added(other, epoch, (A0, 0, 5))
    with_unknown_action(harness)
    made = harness.put(log, (A0, 5, 6))
    before = harness.store.get(HEAD).data
    with pytest.raises(StoreNotUsableError) as caught:
        log.add([(made.ref, made.entries())], epoch)
    assert caught.value.fields["action"] == "swallow_gap"
    assert harness.store.get(HEAD).data == before


def test_unknown_fields_are_kept(harness: MetadataHarness) -> None:
    """A newer version's fields, in the head and in commits, are still there after we committed on top."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    document = json.loads(harness.store.get(HEAD).data)
    document["colour"] = {"is": "blue"}
    document["commits"][0]["mood"] = "good"
    document["commits"][1]["actions"][0]["object"]["weight"] = 7
    harness.store.put(HEAD, head_bytes(document))
    harness.log().claim("x", harness.ids.uuid())
    after = json.loads(harness.store.get(HEAD).data)
    assert after["colour"] == {"is": "blue"}
    assert after["commits"][:2] == document["commits"]


def test_a_missing_directory_under_an_old_head_is_read_again(harness: MetadataHarness) -> None:
    """Between our read of the head and of a directory the object was replaced, folded and deleted."""
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))

    is_late = False

    def after(operation: Operation) -> None:
        nonlocal is_late
        if operation.key == HEAD and not is_late:
            is_late = True
            log.advance_log_start({A0: 5}, epoch=None, catalog_seq=0)
            log.fold()
            harness.store.delete_many([harness.layout.data_key(made.ref.name)])
            log.forget([made.ref.name])

    reader = harness.log(store=FaultyObjectStore(harness.store, Random(1), after=after), read_only=True)
    require_same_state(reader.state(), log.state())


def test_a_missing_directory_under_a_fresh_head_is_corruption(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    harness.store.delete_many([harness.layout.data_key(made.ref.name)])
    with pytest.raises(StoreCorruptError) as caught:
        harness.log(read_only=True)
    assert caught.value.fields["key"] == harness.layout.data_key(made.ref.name)


@pytest.mark.parametrize(("base_offset", "end_offset"), [(1, 5), (0, 0)])
def test_a_directory_that_contradicts_the_commit(
    harness: MetadataHarness, base_offset: int, end_offset: int
) -> None:
    log, epoch = harness.owned()
    made = harness.added(log, epoch, (A0, 0, 5))
    bad = MockObject.build(made.ref.name, [MockSlice(A0, base_offset, end_offset, ())])
    harness.store.put(harness.layout.data_key(made.ref.name), bad.data)
    with pytest.raises(StoreCorruptError) as caught:
        harness.log(read_only=True)
    assert caught.value.fields["writer"] == "owner-1"
