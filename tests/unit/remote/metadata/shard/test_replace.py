"""Replacements: exact inputs, clipping behind log start, refusal by partition, and what moves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.base.errors import InvalidRequestError, StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.head.commit import Commit, Writer
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, ReplaceOutcome
from stratalog.remote.metadata.shard.replace_judge import MAX_INPUTS
from stratalog.remote.metadata.shard.shard_actions import Replace
from stratalog.remote.metadata.shard.shard_builder import apply_commit
from stratalog.remote.metadata.shard.shard_judge import INPUTS_CHANGED, RECORDS_DELETED
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.slice_entry import LastBatch
from tests.support.simulation.mock_objects import MockObject, MockSlice
from tests.support.tiered.metadata_harness import (
    A0,
    A1,
    B0,
    MetadataHarness,
    Range,
    ranges_of,
    slices_of,
)

Inputs = dict[TopicIdPartition, Sequence[LiveSlice]]


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
        {tip: SliceRanges.of(slices) for tip, slices in inputs.items()},
        names,
        [(made.ref, made.entries()) for made in outputs],
        covers=covers or {},
        catalog_seq=catalog_seq,
        drops_records=True,
    )
    log.check()
    return outcome


def test_an_output_may_be_without_records(harness: MetadataHarness) -> None:
    log, epoch = filled(harness, ((A0, 0, 5),), ((A0, 5, 9),))
    name = log.next_object_name()
    made = harness.put_named(name, (A0, 0, 9))
    empty = MockObject.build(name, [made.slices[0]._replace(records=())])
    harness.store.put(log.layout.data_key(name), empty.data)
    swap(log, {A0: slices_of(log, A0)}, [empty], {A0: True})
    assert ranges_of(log, A0) == [(name, 0, 9)]
    end_mark = log.state().partition(A0).end_mark
    harness.added(log, epoch, (A0, 9, 10))
    upload = MockObject.build(log.next_object_name(), [MockSlice(A0, 10, 12, ())])
    harness.store.put(log.layout.data_key(upload.ref.name), upload.data)
    log.add([(upload.ref, upload.entries())], epoch)
    partition = log.state().partition(A0)
    assert (partition.tiered_end_offset, partition.end_mark) == (12, LastBatch(9, 0, 9))
    assert end_mark == LastBatch(8, 0, 8)
    log.check()


@pytest.mark.parametrize(("log_start_offset", "is_refused"), [(5, False), (6, False), (7, True), (9, True)])
def test_records_below_those_that_were_compared_by_version(
    harness: MetadataHarness, log_start_offset: int, is_refused: bool
) -> None:
    """A record that is gone may have beaten one of those that are left."""
    log, _ = filled(harness, ((A0, 0, 5), (B0, 0, 5)), ((A0, 5, 9), (B0, 5, 9)), ((A0, 9, 12),))
    inputs = {A0: slices_of(log, A0)[1:], B0: slices_of(log, B0)[1:]}
    names = sorted({live.object_name for slices in inputs.values() for live in slices})
    made = harness.put(log, (A0, 5, 12), (B0, 5, 9))
    log.advance_log_start({A0: log_start_offset, B0: 7}, epoch=None, catalog_seq=None)
    outcome = log.replace(
        {tip: SliceRanges.of(slices) for tip, slices in inputs.items()},
        names,
        [(made.ref, made.entries())],
        covers={},
        catalog_seq=0,
        drops_records=True,
        compared_from={A0: 6},
    )
    log.check()
    refused = [(one.partition, one.reason) for one in outcome.refused]
    assert refused == ([(A0, RECORDS_DELETED)] if is_refused else []), "B0 was compared by offset"
    assert len(slices_of(log, B0)) == 1


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize(
    ("other", "log_start_offset"),
    [((2, 5), 0), ((0, 5), 0), ((0, 9), 0), ((5, 9), 0), ((2, 9), 0), ((5, 9), 5)],
)
def test_inputs_that_another_job_has_taken_are_refused(
    harness: MetadataHarness, other: tuple[int, int], log_start_offset: int, is_folded: bool
) -> None:
    """Though slices of the same range are live, or the last inputs still are."""
    log, _ = filled(
        harness, ((A0, 0, 2), (B0, 0, 1)), ((A0, 2, 5),), ((A0, 5, 9), (B0, 1, 4)), ((A0, 9, 12),)
    )
    planned: Inputs = {A0: slices_of(log, A0)[1:3], B0: slices_of(log, B0)}
    begin, end = other
    taken = [live for live in slices_of(log, A0) if begin <= live.base_offset < end]
    swap(log, {A0: taken}, [harness.put(log, (A0, begin, end))])
    log.advance_log_start({A0: log_start_offset}, epoch=None, catalog_seq=None)
    if is_folded:
        log.fold()
    outcome = swap(log, planned, [harness.put(log, (A0, 2, 9), (B0, 0, 4))])
    assert [(one.partition, one.reason) for one in outcome.refused] == [(A0, INPUTS_CHANGED)]
    assert [live.end_offset for live in slices_of(log, B0)] == [4]
    assert any((live.base_offset, live.end_offset) == other for live in slices_of(log, A0))


@pytest.mark.parametrize("made", [(0, 8), (0, 5), (1, 9), (5, 12), (9, 12), (4, 5)])
def test_a_follower_refuses_an_output_that_has_not_the_range_of_live_slices(
    harness: MetadataHarness, made: tuple[int, int]
) -> None:
    log, _ = filled(harness, ((A0, 0, 3),), ((A0, 3, 7),), ((A0, 7, 9),))
    output = harness.put(log, (A0, *made))
    names = [live.object_name for live in slices_of(log, A0)]
    replacement = Replace(inputs=tuple(sorted(names)), outputs=(output.ref,))
    writer = Writer("compactor", "c")
    commit = Commit.build(log.state().seq + 1, harness.ids.uuid(), 0, writer, None, [replacement])
    with pytest.raises(StoreCorruptError):
        apply_commit(log.state(), commit, harness.load_directory)


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
            {A0: SliceRanges.of(slices[:2])},
            [],
            [(whole.ref, whole.entries())],
            covers={},
            catalog_seq=0,
            drops_records=True,
        )


def test_outputs_of_partitions_may_lie_in_any_order_in_any_object(harness: MetadataHarness) -> None:
    """A partition that is divided has each part in another object, and these come as they were finished."""
    log, _ = filled(harness, ((A0, 0, 5), (A1, 0, 5), (B0, 0, 5)), ((A0, 5, 9), (B0, 5, 9)))
    inputs: Inputs = {tip: slices_of(log, tip) for tip in (B0, A0, A1)}
    later = harness.put(log, (A0, 5, 9), (A1, 2, 5), (B0, 5, 9))
    earlier = harness.put(log, (A0, 0, 5), (A1, 0, 2), (B0, 0, 5))
    outcome = swap(log, inputs, [later, earlier])
    assert outcome.has_committed
    assert not outcome.refused
    assert ranges_of(log, A1) == [(earlier.ref.name, 0, 2), (later.ref.name, 2, 5)]
    assert ranges_of(log, B0) == [(earlier.ref.name, 0, 5), (later.ref.name, 5, 9)]


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
