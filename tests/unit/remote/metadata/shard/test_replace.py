"""Replacements: exact inputs, clipping behind log start, refusal by partition, and what moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.base.errors import InvalidRequestError, PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, ReplaceOutcome
from stratalog.remote.metadata.shard.replace_judge import MAX_INPUTS
from stratalog.remote.metadata.shard.shard_actions import PartitionOffset
from stratalog.remote.metadata.shard.shard_judge import (
    INPUTS_CHANGED,
    KNOWN_ALREADY,
    NOT_FROM_FIRST_SLICE,
    TOPIC_DELETED,
)
from stratalog.remote.metadata.shard.tiered_partition import LiveSlice
from stratalog.remote.objects.slice_entry import LastBatch
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import (
    A0,
    A1,
    B0,
    TOPIC_B,
    MetadataHarness,
    Range,
    ranges_of,
    slices_of,
)

Inputs = dict[TopicIdPartition, Sequence[LiveSlice]]


@pytest.fixture
def harness() -> MetadataHarness:
    return MetadataHarness()


def filled(harness: MetadataHarness, *ranges: tuple[Range, ...]) -> tuple[MetadataLog, int]:
    """A shard with one object for each group of ranges."""
    log, epoch = harness.owned()
    for group in ranges:
        harness.added(log, epoch, *group)
    return log, epoch


def swap(
    log: MetadataLog,
    inputs: Inputs,
    outputs: Sequence[MockObject],
    covers: dict[TopicIdPartition, bool] | None = None,
    catalog_seq: int = 0,
) -> ReplaceOutcome:
    names = sorted({live.object_name for slices in inputs.values() for live in slices})
    outcome = log.replace(
        inputs,
        names,
        [(made.ref, made.entries()) for made in outputs],
        covers=covers or {},
        catalog_seq=catalog_seq,
        drops_records=True,
    )
    log.check()
    return outcome


def test_outputs_take_the_place_of_their_inputs(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5), (A1, 0, 2)), ((A0, 5, 8),), ((A0, 8, 9),))
    end_mark = log.state().partition(A0).end_mark
    old = [live.object_name for live in slices_of(log, A0)]
    made = harness.put(log, (A0, 0, 8))
    outcome = swap(log, {A0: slices_of(log, A0)[:2]}, [made], {A0: True}, catalog_seq=2)
    assert (outcome.refused, outcome.clipped, outcome.has_committed) == ((), (), True)
    assert ranges_of(log, A0) == [(made.ref.name, 0, 8), (old[2], 8, 9)]
    partition = log.state().partition(A0)
    assert partition.compacted_upto == 8
    assert partition.end_mark == end_mark == LastBatch(8, 0, 8)
    assert [dropped.name for dropped in log.state().dropped] == [old[1]], (
        "the first one has a slice of A1 left"
    )
    assert log.state().objects[old[0]].live_slices == 1
    assert log.state().catalog_seq == 2
    assert harness.log().state() == log.state()


def test_compacted_upto_moves_only_with_cover(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5), (B0, 0, 5)), ((A0, 5, 8), (B0, 5, 8)))
    made = harness.put(log, (A0, 0, 8), (B0, 0, 8))
    swap(log, {A0: slices_of(log, A0), B0: slices_of(log, B0)}, [made], {A0: True, B0: False})
    assert log.state().partition(A0).compacted_upto == 8
    assert log.state().partition(B0).compacted_upto == 0
    assert harness.log().state() == log.state()


def test_a_job_that_claims_cover_begins_at_the_first_slice(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 8),))
    made = harness.put(log, (A0, 5, 8))
    outcome = swap(log, {A0: slices_of(log, A0)[1:]}, [made], {A0: True})
    assert [refusal.reason for refusal in outcome.refused] == [NOT_FROM_FIRST_SLICE]
    assert not outcome.has_committed


def test_partitions_are_judged_one_by_one(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5), (A1, 0, 5), (B0, 0, 5)), ((A0, 5, 8), (A1, 5, 8)))
    plan: Inputs = {A0: slices_of(log, A0), A1: slices_of(log, A1), B0: slices_of(log, B0)}
    made = harness.put(log, (A0, 0, 8), (A1, 0, 8), (B0, 0, 5))
    # Meanwhile somebody else compacts one partition, and a topic goes.
    swap(log, {A0: slices_of(log, A0)}, [harness.put(log, (A0, 0, 8))], {A0: True})
    log.drop_partitions(TOPIC_B, 0)
    outcome = swap(log, plan, [made], {A1: True})
    assert [(refusal.partition, refusal.reason) for refusal in outcome.refused] == [
        (A0, INPUTS_CHANGED),
        (B0, TOPIC_DELETED),
    ]
    assert ranges_of(log, A1) == [(made.ref.name, 0, 8)]
    assert log.state().objects[made.ref.name].live_slices == 1
    assert harness.log().state() == log.state()


def test_a_rest_behind_log_start_is_replaced_clipped(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 8),), ((A0, 8, 9),))
    plan: Inputs = {A0: slices_of(log, A0)}
    made = harness.put(log, (A0, 0, 9))
    log.advance_log_start({A0: 6}, epoch=None, catalog_seq=0)
    outcome = swap(log, plan, [made], {A0: True})
    assert outcome.clipped == (PartitionOffset(A0, 5),)
    assert ranges_of(log, A0) == [(made.ref.name, 5, 9)]
    assert slices_of(log, A0)[0].entry.base_offset == 0, "the bytes are what they are"
    assert log.state().partition(A0).compacted_upto == 9
    assert harness.log().state() == log.state()


def test_outputs_wholly_behind_log_start_do_not_come_to_live(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 8),))
    plan: Inputs = {A0: slices_of(log, A0)}
    low, high = harness.put(log, (A0, 0, 5)), harness.put(log, (A0, 5, 8))
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=0)
    outcome = swap(log, plan, [low, high], {A0: True})
    assert outcome.clipped == (PartitionOffset(A0, 5),)
    assert ranges_of(log, A0) == [(high.ref.name, 5, 8)]
    assert low.ref.name not in log.state().objects


def test_nothing_left_of_the_inputs(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 8),))
    plan: Inputs = {A0: slices_of(log, A0)[:1]}
    made = harness.put(log, (A0, 0, 5))
    log.advance_log_start({A0: 5}, epoch=None, catalog_seq=0)
    outcome = swap(log, plan, [made])
    assert [refusal.reason for refusal in outcome.refused] == [INPUTS_CHANGED]


def test_several_outputs_tile(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    first, second = harness.put(log, (A0, 0, 3)), harness.put(log, (A0, 3, 9))
    swap(log, {A0: slices_of(log, A0)}, [second, first], {A0: True})
    assert ranges_of(log, A0) == [(first.ref.name, 0, 3), (second.ref.name, 3, 9)]
    assert harness.log().state() == log.state()


def test_compacted_upto_does_not_go_back(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    halves = [harness.put(log, (A0, 0, 5)), harness.put(log, (A0, 5, 9))]
    swap(log, {A0: slices_of(log, A0)}, halves, {A0: True})
    swap(log, {A0: slices_of(log, A0)[:1]}, [harness.put(log, (A0, 0, 5))], {A0: True})
    assert log.state().partition(A0).compacted_upto == 9


def test_an_output_may_be_without_records(harness: MetadataHarness) -> None:
    log, epoch = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    name = log.next_object_name()
    made = harness.put_named(name, (A0, 0, 9))
    empty = MockObject.build(name, [made.slices[0]._replace(records=())])
    harness.store.put(log.layout.data_key(name), empty.data)
    swap(log, {A0: slices_of(log, A0)}, [empty], {A0: True})
    assert ranges_of(log, A0) == [(name, 0, 9)]
    harness.added(log, epoch, (A0, 9, 10))
    log.check()


def test_the_same_replacement_twice(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    plan: Inputs = {A0: slices_of(log, A0)}
    made = harness.put(log, (A0, 0, 9))
    swap(log, plan, [made])
    outcome = swap(log, plan, [made])
    assert [refusal.reason for refusal in outcome.refused] == [KNOWN_ALREADY]
    assert not outcome.has_committed


def test_a_stale_configuration_drops_no_records(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    log.advance_log_start({A0: 1}, epoch=None, catalog_seq=9)
    plan: Inputs = {A0: slices_of(log, A0)}
    made = harness.put(log, (A0, 0, 9))
    with pytest.raises(PreconditionFailedError):
        swap(log, plan, [made], catalog_seq=8)
    names = [live.object_name for live in plan[A0]]
    outputs = [(made.ref, made.entries())]
    outcome = log.replace(plan, names, outputs, covers={}, catalog_seq=8, drops_records=False)
    assert outcome.has_committed, "merging alone needs no configuration"


def test_plans_that_contradict_themselves(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 5), (A1, 0, 5)), ((A0, 5, 9),), ((A0, 9, 12),))
    slices = slices_of(log, A0)
    too_short = harness.put(log, (A0, 0, 8))
    hole = [harness.put(log, (A0, 0, 3)), harness.put(log, (A0, 4, 9))]
    whole = harness.put(log, (A0, 0, 9))
    other = harness.put(log, (A0, 0, 9), (B0, 0, 1))
    plans: list[tuple[Inputs, list[MockObject]]] = [
        ({}, [whole]),
        ({A0: slices[:2]}, [too_short]),
        ({A0: slices[:2]}, hole),
        ({A0: slices[:2]}, [other]),
        ({A0: slices[:2], A1: slices_of(log, A1)}, [whole]),
        ({A0: (slices[0], slices[2])}, [harness.put(log, (A0, 0, 12))]),
        ({A0: slices[1::-1]}, [whole]),
    ]
    for inputs, outputs in plans:
        with pytest.raises(InvalidRequestError):
            swap(log, inputs, outputs)
    with pytest.raises(InvalidRequestError):
        log.replace(
            {A0: slices[:2]}, [], [(whole.ref, whole.entries())], covers={}, catalog_seq=0, drops_records=True
        )


def test_inputs_of_a_job_are_bounded(harness: MetadataHarness) -> None:
    log, _ = filled(harness, ((A0, 0, 1),))
    (live,) = slices_of(log, A0)
    many = [
        live._replace(object_name=harness.put_born(0).ref.name, base_offset=n, end_offset=n + 1)
        for n in range(MAX_INPUTS + 1)
    ]
    made = harness.put(log, (A0, 0, MAX_INPUTS + 1))
    with pytest.raises(InvalidRequestError) as caught:
        swap(log, {A0: many}, [made])
    assert caught.value.fields == {"inputs": MAX_INPUTS + 1, "max_inputs": MAX_INPUTS}
