"""Which jobs stamp tombstones, and which drop them."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.job_time import MAX_JOB_MS
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import DELETE_HORIZON_BIT, parse_header
from stratalog.record.keep_rules import MAX_HORIZON_MS, MarkerFate
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.slice_entry import OpenTransaction
from tests.support.tiered.sample_entry import sample_entry

NOW_MS = 1_000_000


def run_of(mode: RunMode, *, covers: bool, delete_retention_ms: int = 500) -> PartitionRun:
    topic = TopicPolicy(
        topic_id=UUID(int=1),
        name="topic",
        hashing=KeyHashing(bytes(16)),
        is_compacted=True,
        delete_retention_ms=delete_retention_ms,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=2**63 - 1,
    )
    return PartitionRun(
        topic_id_partition=TopicIdPartition(topic.topic_id, 0),
        topic=topic,
        mode=mode,
        covers=covers,
        log_start_offset=0,
        slices=RunSlices((slice_of(0, 10), slice_of(10, 20, open_since=15))),
    )


def slice_of(base_offset: int, end_offset: int, *, open_since: int | None = None) -> LiveSlice:
    opened = () if open_since is None else (OpenTransaction(1, open_since),)
    entry = sample_entry(
        base_offset, end_offset, open_transactions=opened, stable_end_offset=open_since or end_offset
    )
    return LiveSlice("object", base_offset, end_offset, entry)


@pytest.mark.parametrize(
    ("mode", "covers", "may_drop", "expected"),
    [
        (RunMode.COMPACT, True, True, (NOW_MS, NOW_MS + MAX_JOB_MS + 500, 15)),
        # Clocks that cannot be trusted.
        (RunMode.COMPACT, True, False, (None, NOW_MS + MAX_JOB_MS + 500, 15)),
        (RunMode.COMPACT, False, True, (None, None, 0)),
        (RunMode.CARRY, True, True, (None, None, 0)),
    ],
)
def test_only_a_job_from_the_first_slice_stamps_and_drops(
    mode: RunMode, covers: bool, may_drop: bool, expected: tuple[int | None, int | None, int]
) -> None:
    assert TombstoneRule.of(run_of(mode, covers=covers), NOW_MS, may_drop=may_drop) == expected


@pytest.mark.parametrize(("delete_retention_ms", "horizon_ms"), [(0, NOW_MS), (2**63 - 1, MAX_HORIZON_MS)])
def test_no_retention_and_the_longest_one(delete_retention_ms: int, horizon_ms: int) -> None:
    run = run_of(RunMode.COMPACT, covers=True, delete_retention_ms=delete_retention_ms)
    assert TombstoneRule.of(run, NOW_MS, may_drop=True).stamp_ms == horizon_ms


@pytest.mark.parametrize(
    ("covers", "may_drop", "is_data_kept", "horizon_ms", "fate"),
    [
        (False, True, None, NOW_MS, MarkerFate.STAYS),
        (True, True, True, None, MarkerFate.STAYS),
        (True, True, False, None, MarkerFate.STAYS_ONCE_MORE),
        (True, True, None, None, MarkerFate.GETS_HORIZON),
        (True, True, None, NOW_MS + 1, MarkerFate.STAYS_UNTIL_HORIZON),
        (True, True, None, NOW_MS, MarkerFate.GOES),
        # Clocks that cannot be trusted.
        (True, False, None, NOW_MS, MarkerFate.STAYS_UNTIL_HORIZON),
    ],
)
def test_a_marker_goes_after_its_data_and_its_horizon(
    covers: bool, may_drop: bool, is_data_kept: bool | None, horizon_ms: int | None, fate: MarkerFate
) -> None:
    header = parse_header(EndTransactionMarker(ControlType.ABORT, 0).to_batch(1, 0, 5))
    if horizon_ms is not None:
        attributes = header.attributes | DELETE_HORIZON_BIT
        header = header._replace(attributes=attributes, base_timestamp=horizon_ms)
    rule = TombstoneRule.of(run_of(RunMode.COMPACT, covers=covers), NOW_MS, may_drop=may_drop)
    assert rule.marker_fate(header, is_data_kept=is_data_kept) is fate
