"""Commits that are applied again, where all of their objects are there and where some are gone."""

from __future__ import annotations

import itertools

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.restore.shard_replay import Replayed, ShardReplay
from tests.support.simulation.mock_objects import MockObject
from tests.support.tiered.metadata_harness import A0, A1, B0, TOPIC_B, MetadataHarness, ranges_of
from tests.support.tiered.shard_states import partitions_in


@pytest.fixture
def harness() -> MetadataHarness:
    return MetadataHarness()


def replayed(harness: MetadataHarness) -> Replayed:
    """All commits of the head, from the beginning."""
    replay = ShardReplay(ShardState(), harness.load_directory)
    for commit in harness.head().commits:
        replay.apply(commit)
    return replay.finish()


def replace(
    log: MetadataLog,
    tips: list[TopicIdPartition],
    made: list[MockObject],
    covers: dict[TopicIdPartition, bool],
) -> None:
    inputs = {tip: SliceRanges.of(log.state().partition(tip).slices) for tip in tips}
    log.replace(
        inputs,
        sorted({name for ranges in inputs.values() for name in ranges.object_names}),
        [(one.ref, one.entries()) for one in made],
        covers=covers,
        catalog_seq=0,
        drops_records=False,
    )


def test_a_replay_with_all_objects_is_the_state(harness: MetadataHarness) -> None:
    """With slices that were refused, a job that covers a part of its partitions, and dropped tiers."""
    log, epoch = harness.owned()
    harness.added(log, epoch, (A0, 0, 5), (A1, 0, 3), (B0, 0, 2))
    refused = harness.put(log, (A0, 7, 9), (A1, 3, 6))
    assert [one.partition for one in log.add([(refused.ref, refused.entries())], epoch).refused] == [A0]
    harness.added(log, epoch, (A0, 5, 8))
    replace(log, [A0, A1], [harness.put(log, (A0, 0, 8), (A1, 0, 6))], {A0: True})
    assert (log.state().partition(A0).compacted_upto, log.state().partition(A1).compacted_upto) == (8, 0)
    log.drop_tier({A1: 4}, epoch=epoch, catalog_seq=1)
    harness.added(log, epoch, (A1, 4, 9), (A0, 8, 9))
    log.drop_tier({A0: 2}, epoch=epoch, catalog_seq=1)
    log.drop_partitions(TOPIC_B, 1)
    found = replayed(harness)
    assert not found.lost
    assert not found.gone
    assert found.state.objects.keys() == log.state().objects.keys()
    for tip in (A0, A1):
        mine, its = found.state.partition(tip), log.state().partition(tip)
        assert mine.slices == its.slices
        assert (mine.log_start_offset, mine.tiered_end_offset) == (
            its.log_start_offset,
            its.tiered_end_offset,
        )
        assert mine.compacted_upto == its.compacted_upto
        assert mine.end_mark == its.end_mark
        assert mine.row.lowered_seq == its.row.lowered_seq > 0
    assert set(partitions_in(found.state)) == {A0, A1}


@pytest.mark.parametrize("inputs", [(0, 9), (0, 2, 5, 9), (0, 3, 6, 9)], ids=str)
@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_inputs_stay_where_their_output_is_gone(
    harness: MetadataHarness, inputs: tuple[int, ...], gone: tuple[int, ...]
) -> None:
    log, epoch = harness.owned()
    uploads = [harness.added(log, epoch, (A0, base, end)) for base, end in itertools.pairwise(inputs)]
    outputs = [harness.put(log, (A0, base, base + 3)) for base in (0, 3, 6)]
    replace(log, [A0], outputs, {A0: True})
    harness.store.delete_many([harness.layout.data_key(outputs[number].ref.name) for number in gone])
    found = replayed(harness)
    assert not found.lost
    assert found.gone == tuple(sorted(outputs[number].ref.name for number in gone))
    partition = found.state.partition(A0)
    partition.check()
    assert partition.compacted_upto == 0, "inputs of the job are read again"
    names = {one.ref.name for one in uploads}
    for number, base in enumerate((0, 3, 6)):
        for offset in range(base, base + 3):
            [live] = [one for one in partition.slices if one.base_offset <= offset < one.end_offset]
            if number in gone:
                assert live.object_name in names, f"offset {offset}"


def test_an_upload_that_is_gone_is_a_loss_unless_it_was_replaced(harness: MetadataHarness) -> None:
    log, epoch = harness.owned()
    first, second = (harness.added(log, epoch, (A0, base, base + 3)) for base in (0, 3))
    replace(log, [A0], [harness.put(log, (A0, 0, 6))], {A0: True})
    harness.store.delete_many([harness.layout.data_key(one.ref.name) for one in (first, second)])
    assert replayed(harness).gone == ()
    lost = harness.added(log, epoch, (A0, 6, 8))
    harness.added(log, epoch, (A0, 8, 9))
    harness.store.delete_many([harness.layout.data_key(lost.ref.name)])
    found = replayed(harness)
    assert found.gone == (lost.ref.name,)
    assert [(one.base_offset, one.end_offset) for one in found.lost] == [(6, 8)]
    assert ranges_of(log, A0)[-1][1:] == (8, 9)
