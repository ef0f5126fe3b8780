"""`ShardState.check` notices every way in which a state can contradict itself that the state alone shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import DroppedTopic, LiveObject, ShardState
from stratalog.remote.objects.slice_entry import OpenTransaction
from tests.support.tiered.metadata_harness import A0, A1, TOPIC_A, MetadataHarness


@pytest.fixture
def state() -> ShardState:
    harness = MetadataHarness()
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (A1, 0, 5))
    harness.added(log, epoch, (A0, 5, 9))
    harness.added(log, epoch, (A0, 9, 12))
    log.advance_log_start({A0: 6}, epoch=None, catalog_seq=0)
    state = log.state()
    state.check()
    return state


def with_partition(state: ShardState, row: PartitionRow) -> ShardState:
    evolution = state.partitions.evolve()
    evolution[A0] = row
    return replace(state, partitions=evolution.finish())


def with_object(state: ShardState, name: str, changed: LiveObject | None) -> ShardState:
    evolution = state.objects.evolve()
    if changed is None:
        evolution.pop(name)
    else:
        evolution[name] = changed
    return replace(state, objects=evolution.finish())


def expect(state: ShardState, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        state.check()


def test_partitions_that_contradict_themselves(state: ShardState) -> None:
    good = state.partitions[A0]
    first, second = state.partition(A0).slices
    broken: list[tuple[PartitionRow, str]] = [
        (good._replace(pieces=(first, second._replace(base_offset=10))), "slices tile"),
        (good._replace(pieces=(second, first)), "slices tile"),
        (good._replace(pieces=(first._replace(base_offset=4), second)), "low end"),
        (good._replace(pieces=(first._replace(base_offset=9, end_offset=9), second)), "has a range"),
        (good._replace(pieces=(first, second._replace(end_offset=13)), tiered_end_offset=13), "high end"),
        (good._replace(log_start_offset=9), "wholly below"),
        (good._replace(log_start_offset=3), "no hole"),
        (good._replace(tiered_end_offset=13), "ends at the tiered end"),
        (good._replace(stable_end_offset=13), "stable"),
        (good._replace(compacted_upto=13), "compacted"),
        (PartitionRow(3, 4, 4), "without slices"),
        (good._replace(slice_count=1), "slices are counted"),
        (good._replace(tiered_bytes=1), "bytes are counted"),
        (good._replace(oldest_newest_ms=1), "age is known"),
        (good._replace(open_transactions=(OpenTransaction(1, 1),)), "transactions are open"),
    ]
    for partition, message in broken:
        expect(with_partition(state, partition), message)


def test_what_needs_no_page_is_checked_without_one(state: ShardState) -> None:
    broken = state.partitions[A0]._replace(tiered_bytes=1)
    for one in (with_partition(state, broken), replace(state, unfolded_slices=1)):
        with pytest.raises(AssertionError):
            one.check_rows()


def test_objects_that_contradict_the_slices(state: ShardState) -> None:
    name = state.partition(A0).slices[0].object_name
    live = state.objects[name]
    expect(with_object(state, name, None), "with a live slice")
    expect(with_object(state, name, live._replace(live_slices=2)), "live slices are counted")
    expect(with_object(state, name, live._replace(live_bytes=1)), "live bytes are counted")
    expect(with_object(state, name, live._replace(seq=99)), "a commit added")
    expect(with_object(state, name, live._replace(ref=live.ref._replace(name="x"))), "under its name")
    dropped = PersistentMap([(name, DroppedObject(name, 1, 3, 0, brought_seq=2))])
    expect(replace(state, dropped_objects=dropped), "is not live")


def test_a_slice_lies_in_its_own_partition(state: ShardState) -> None:
    partition = state.partition(A0)
    stray = [live._replace(entry=live.entry._replace(partition=7)) for live in partition.slices]
    expect(with_partition(state, partition.row._replace(pieces=tuple(stray))), "its partition")


def test_bookkeeping(state: ShardState) -> None:
    expect(replace(state, orphan_horizon_seq=state.seq + 1), "horizon")
    expect(replace(state, epoch=9), "newest claim")
    expect(replace(state, claims=state.claims * 2), "epochs grow")
    expect(replace(state, dropped_topics=PersistentMap([(TOPIC_A, DroppedTopic(1, 0))])), "dropped topic")
    wrong = PersistentMap([("x", DroppedObject("x", 1, 2, 0, brought_seq=2))])
    expect(replace(state, dropped_objects=wrong), "after it was added")
