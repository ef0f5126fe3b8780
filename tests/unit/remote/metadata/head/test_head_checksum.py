"""A head has a checksum of its own from metadata version 5 on: what is flipped is noticed, and one flipped
answer is survived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import crc32c
import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.json_document import plain_bytes
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.metadata_version import METADATA_VERSION
from stratalog.remote.metadata.shard.metadata_log import ShardMachine
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.restore.new_head import Beginning, put_new_head
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, FaultPlan, Operation
from tests.support.logs.sampling import Sampling
from tests.support.stored_heads import head_bytes, head_fields
from tests.support.tiered.metadata_example import example_store
from tests.support.tiered.metadata_harness import A0, MetadataHarness
from tests.support.tiered.shard_states import require_same_state

HEAD = "shards/0000/head"
WITHOUT = 4
"""The newest metadata version whose heads have no checksum."""
LONG = example_store().store.get(HEAD).data


def short() -> bytes:
    """A head that is not compressed."""
    harness = MetadataHarness()
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    return harness.store.get(HEAD).data


@pytest.mark.parametrize("data", [short(), LONG])
def test_the_checksum_is_that_of_all_bytes_before_it(data: bytes) -> None:
    text = plain_bytes(data, HEAD)
    end = text.rindex(b',"crc":')
    assert text[end:] == b',"crc":%d}' % crc32c.crc32c(text[:end])
    assert head_bytes(head_fields(data)) == data


@pytest.mark.parametrize("data", [short(), LONG])
def test_every_flipped_bit_is_noticed_or_makes_no_difference(data: bytes) -> None:
    head = Head.decode(data, HEAD, SHARD_ACTIONS)
    refused: list[tuple[object, bool]] = []
    for bit in Sampling().at_most(range(8 * len(data)), 1500):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            found = Head.decode(bytes(changed), HEAD, SHARD_ACTIONS)
        except StoreCorruptError as error:
            refused.append((error.fields["key"], "rebuild-head" in error.message))
        else:
            assert found == head, bit
            assert found.encode() == data, bit
            assert data.startswith(b"\x28"), "only a frame has bits without a meaning"
    assert set(refused) == {(HEAD, True)}


@pytest.mark.parametrize("name", ["read_version", "write_version"])
@pytest.mark.parametrize("version", [4, 7, METADATA_VERSION + 1])
def test_a_flipped_version_hides_no_checksum(name: str, version: int) -> None:
    text = plain_bytes(short(), HEAD)
    changed = text.replace(f'"{name}":5'.encode(), f'"{name}":{version}'.encode())
    with pytest.raises(StoreCorruptError) as caught:
        Head.decode(changed, HEAD, SHARD_ACTIONS)
    end = changed.rindex(b',"crc":')
    assert caught.value.fields["crc"] == crc32c.crc32c(changed[:end])
    assert caught.value.fields["expected_crc"] == head_fields(text)["crc"]


def test_a_head_of_this_version_without_a_checksum_is_damaged() -> None:
    text = plain_bytes(short(), HEAD)
    with pytest.raises(StoreCorruptError) as caught:
        Head.decode(text[: text.rindex(b',"crc":')] + b"}", HEAD, SHARD_ACTIONS)
    assert caught.value.fields["has_checksum"] is False


def test_a_checksum_is_the_last_field() -> None:
    """Otherwise other software would compute it over other bytes."""
    text = plain_bytes(short(), HEAD)
    with pytest.raises(StoreCorruptError):
        Head.decode(text[:-1] + b',"colour":"blue"}', HEAD, SHARD_ACTIONS)


def test_an_earlier_version_goes_on_without(harness: MetadataHarness) -> None:
    harness.log()
    harness.put_head(dataclasses.replace(harness.head(), read_version=WITHOUT, write_version=WITHOUT))
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    log.fold()
    harness.added(log, epoch, (A0, 5, 7))
    assert "crc" not in head_fields(harness.store.get(HEAD).data)
    require_same_state(harness.log(read_only=True).state(), log.state())
    assert log.finalize() == METADATA_VERSION
    first = harness.store.get(HEAD).data
    assert head_bytes(head_fields(first)) == first
    assert "crc" in head_fields(first), "the head with the finalization has one"
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_an_earlier_version_has_no_checksum(harness: MetadataHarness) -> None:
    """Earlier software would keep it beside the next commit."""
    fields = head_fields(short()) | {"read_version": WITHOUT, "write_version": WITHOUT}
    plain = plain_bytes(head_bytes(fields), HEAD)
    assert Head.decode(plain, HEAD, SHARD_ACTIONS).write_version == WITHOUT
    before = plain[:-1]
    with pytest.raises(StoreCorruptError) as caught:
        Head.decode(before + b',"crc":%d}' % crc32c.crc32c(before), HEAD, SHARD_ACTIONS)
    assert caught.value.fields["write_version"] == WITHOUT


def stored_log(store: ObjectStore, harness: MetadataHarness) -> StoredLog[Any]:
    return StoredLog(store, harness.layout, ShardMachine(harness.load_directory))


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_head_is_refused_everywhere_and_stays_as_it_is(seed: int) -> None:
    harness = MetadataHarness()
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    damaged = bytearray(harness.store.get(HEAD).data)
    damaged[Random(seed).randrange(len(damaged))] ^= 1 << seed
    harness.store.put(HEAD, bytes(damaged))
    attempts: list[Callable[[], object]] = [
        harness.log,
        partial(harness.log, read_only=True),
        log.refresh,
        partial(log.refresh, dated=True),
        lambda: log.claim("x", harness.ids.uuid()),
        stored_log(harness.store, harness).head,
    ]
    for attempt in attempts:
        with pytest.raises(StoreCorruptError) as caught:
            attempt()
        assert caught.value.fields["key"] == HEAD
    assert harness.store.get(HEAD).data == damaged


def once(*faults: tuple[str, Fault]) -> FaultPlan:
    """Faults at the next requests of these verbs for the head, one after the other."""
    waiting = list(faults)

    def plan(operation: Operation) -> Fault:
        if not waiting or operation.key != HEAD or operation.verb != waiting[0][0]:
            return Fault.NONE
        return waiting.pop(0)[1]

    return plan


FLIPPED = ("GET", Fault.IS_FLIPPED)


def faulty(harness: MetadataHarness, seed: int, *faults: tuple[str, Fault]) -> FaultyObjectStore:
    return FaultyObjectStore(harness.store, Random(seed), once(*faults))


def has_flipped(store: FaultyObjectStore) -> bool:
    return any(entry.fault is Fault.IS_FLIPPED for entry in store.trace.entries)


@pytest.mark.parametrize("seed", range(3))
def test_one_flipped_answer_is_survived_by_reads(seed: int) -> None:
    harness = MetadataHarness()
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    opening = faulty(harness, seed, FLIPPED)
    follower = harness.log(store=opening, read_only=True)
    require_same_state(follower.state(), log.state())
    assert has_flipped(opening)
    stored = faulty(harness, seed, FLIPPED)
    assert stored_log(stored, harness).head() == harness.head()
    assert has_flipped(stored)


@pytest.mark.parametrize("dated", [False, True])
def test_one_flipped_answer_is_survived_by_followers(harness: MetadataHarness, dated: bool) -> None:
    log, epoch = harness.owned()
    plans: list[FaultPlan] = []
    store = FaultyObjectStore(harness.store, Random(1), lambda one: plans[0](one) if plans else Fault.NONE)
    follower = harness.log(store=store, read_only=True)
    harness.added(log, epoch, (A0, 0, 5))
    plans.append(once(FLIPPED))
    require_same_state(follower.refresh(dated=dated), log.state())
    assert has_flipped(store)
    requests = store.trace.operation_count
    follower.refresh()
    assert store.trace.operation_count == requests + 1, "the ETag is that of the second answer"
    follower.check()


@pytest.mark.parametrize("put", [Fault.LANDS_UNKNOWN, Fault.LANDS_AND_IS_REFUSED])
def test_one_flipped_answer_is_survived_while_a_commit_is_settled(
    harness: MetadataHarness, put: Fault
) -> None:
    plans: list[FaultPlan] = []
    store = FaultyObjectStore(harness.store, Random(1), lambda one: plans[0](one) if plans else Fault.NONE)
    log = harness.log(store=store)
    epoch = log.claim("owner-1", harness.ids.uuid())
    seq = log.state().seq
    plans.append(once(("PUT", put), FLIPPED))
    harness.added(log, epoch, (A0, 0, 5))
    assert has_flipped(store)
    assert log.state().seq == seq + 1, "it is committed once"
    assert [commit.seq for commit in harness.head().commits] == [*range(1, seq + 2)]
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_one_flipped_answer_is_survived_by_a_commit_after_a_lost_race(harness: MetadataHarness) -> None:
    plans: list[FaultPlan] = []
    store = FaultyObjectStore(harness.store, Random(1), lambda one: plans[0](one) if plans else Fault.NONE)
    log = harness.log(store=store)
    epoch = log.claim("owner-1", harness.ids.uuid())
    harness.log("compactor").pin("scan", 1 << 40)
    plans.append(once(FLIPPED))
    harness.added(log, epoch, (A0, 0, 5))
    assert has_flipped(store)
    require_same_state(harness.log(read_only=True).state(), log.state())


def test_two_flipped_answers_are_refused(harness: MetadataHarness) -> None:
    harness.owned()
    with pytest.raises(StoreCorruptError) as caught:
        harness.log(store=faulty(harness, 1, FLIPPED, FLIPPED), read_only=True)
    assert caught.value.fields["key"] == HEAD


def test_a_new_head_is_settled_by_a_second_answer(harness: MetadataHarness) -> None:
    """Rebuilds and restores write one."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5))
    state = log.state()
    harness.store.delete_many([HEAD])
    store = faulty(harness, 1, ("PUT", Fault.LANDS_UNKNOWN), FLIPPED)
    machine = ShardMachine(harness.load_directory)
    head = put_new_head(harness.actor("owner", store=store), harness.layout, machine, state, Beginning())
    assert has_flipped(store)
    assert harness.head() == head
    data = harness.store.get(HEAD).data
    assert head_bytes(head_fields(data)) == data
