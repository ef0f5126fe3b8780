"""Partitions with transactions that are longer than a job, or that come back after a disaster."""

from __future__ import annotations

import dataclasses

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.objects.slice_entry import OpenTransaction
from tests.support.compaction.written_transactions import WrittenTransactions
from tests.support.simulation.planned_shard import NOW_MS, Shard, entry_of, topic
from tests.support.tiered.restore_world import RestoreWorld

SLICES = 12
SLICE_BYTES = 10_000
SETTINGS = CompactionSettings(spool_directory="/spool", max_inputs_per_job=4)


def shard_of_one_transaction(policy: TopicPolicy, last_ms: int = NOW_MS) -> tuple[Shard, TopicIdPartition]:
    """Twelve objects, and a small one with the marker, at `last_ms`, of a transaction that the first one
    begins."""
    shard, tip = Shard(), TopicIdPartition(policy.topic_id, 0)
    row = PartitionRow()
    for number in range(SLICES + 1):
        is_last = number == SLICES
        size_bytes = 10 if is_last else SLICE_BYTES
        entry = entry_of(
            policy,
            0,
            10 * number,
            10 * number + 10,
            size_bytes,
            min_timestamp=last_ms if is_last else 0,
            max_timestamp=last_ms if is_last else 0,
            has_markers=is_last,
            open_transactions=() if is_last else (OpenTransaction(1, 5),),
        )
        name = shard.new_object(size_bytes)
        row = row.with_slice(LiveSlice(name, 10 * number, 10 * number + 10, entry))
    shard.partitions[tip] = row
    return shard, tip


def carry_out(shard: Shard, policy: TopicPolicy, settings: CompactionSettings) -> int:
    """Carry out plans until nothing is planned; returns the number of jobs."""
    for count in range(50):
        planned = plan(shard.state(), {policy.topic_id: policy}, NOW_MS, settings)
        if not planned.jobs:
            return count
        for job in planned.jobs:
            shard.commit(job)
    raise AssertionError("the planner never stops planning")


def test_slices_within_a_long_transaction_count_as_dirty_until_a_job_has_decided_them() -> None:
    """The first job of such a partition ends inside of the transaction. The slices behind it are not
    compacted, although no job would decide more of them without the last slice."""
    policy = topic(1, is_compacted=True)
    shard, tip = shard_of_one_transaction(policy)
    settings = dataclasses.replace(SETTINGS, merge_fanout=50)
    carry_out(shard, policy, settings)
    assert shard.partitions[tip].compacted_upto == 10 * (SLICES + 1)


def test_slices_within_a_long_transaction_wait_no_longer_than_the_topic_allows() -> None:
    policy = topic(1, is_compacted=True, min_dirty_ratio=1.0)
    policy = dataclasses.replace(policy, max_compaction_lag_ms=NOW_MS // 2)
    shard, tip = shard_of_one_transaction(policy)
    settings = dataclasses.replace(SETTINGS, merge_fanout=50)
    carry_out(shard, policy, settings)
    assert shard.partitions[tip].compacted_upto == 10 * (SLICES + 1)


def test_a_horizon_has_no_effect_before_the_slice_that_decides_its_records_may_be_compacted() -> None:
    """A tombstone may have an older value in the open transaction. Until its marker has aged enough, each
    slice that has would be a reason to write all those before it again."""
    policy = topic(1, is_compacted=True, min_dirty_ratio=1.0, lag_ms=1_000)
    shard, tip = Shard(), TopicIdPartition(policy.topic_id, 0)
    row = PartitionRow()
    for base_offset in (0, 10, 20):
        is_last = base_offset == 20
        entry = entry_of(
            policy,
            0,
            base_offset,
            base_offset + 10,
            SLICE_BYTES,
            tombstone_count=1,
            horizon_ms=NOW_MS - 1 if base_offset == 0 else None,
            max_timestamp=NOW_MS if is_last else 0,
            open_transactions=() if is_last else (OpenTransaction(1, 5),),
        )
        name = shard.new_object(SLICE_BYTES)
        row = row.with_slice(LiveSlice(name, base_offset, base_offset + 10, entry))
    shard.partitions[tip] = row._replace(compacted_upto=5)
    assert carry_out(shard, policy, SETTINGS) == 0
    aged = dataclasses.replace(policy, min_compaction_lag_ms=0)
    assert carry_out(shard, aged, SETTINGS) == 1
    assert shard.partitions[tip].compacted_upto == 30


def test_deleted_records_of_a_transaction_that_come_back_without_its_marker_can_be_deleted_again() -> None:
    """A rebuild undoes deletions that only the head knew. A compaction has dropped the marker meanwhile, so
    whether the records count is not known any more: no job may guess, and the error says the way out."""
    world, written = RestoreWorld(0), WrittenTransactions()
    tip = world.tips[0]

    def upload(*batches: bytes, base_offset: int) -> None:
        world.tiered.upload({tip: batches}, ends={tip: written.slice_end(base_offset)})

    def put(key: bytes, producer_id: int | None = None) -> bytes:
        return written.data([Record(0, world.clock.now_ms(), key, b"x")], Codec.NONE, producer_id)

    def end() -> bytes:
        return written.end(8, world.clock.now_ms(), is_aborted=True)

    upload(put(b"a", 8), base_offset=0)
    upload(end(), put(b"b"), base_offset=1)
    world.tiered.advance_log_start(tip, 2)
    assert [report.refused for report in world.tiered.compactor().run()] == [None]
    upload(end(), put(b"c"), base_offset=3)
    world.lose("shards/0000/head")
    world.rebuild()
    assert world.tiered.partition(tip).log_start_offset == 0
    refused = world.tiered.compactor().run()[0].refused
    assert refused is not None
    assert "marker_offset=`3`" in refused
    assert "delete its records again" in refused
    world.tiered.advance_log_start(tip, 1)
    assert [report.refused for report in world.tiered.compactor().run()] == [None]
    assert [record.offset for record in world.tiered.records(tip)] == [2, 4]
