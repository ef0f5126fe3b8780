"""When a batch's tombstones get their horizon, and when they go."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.compaction.tombstone_rule import MAX_DELETE_HORIZON_MS, TombstoneRule
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.header import BatchHeader, parse_header
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing

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
        slices=(),
    )


def header_with(horizon_ms: int | None) -> BatchHeader:
    header = parse_header(encode_batch([Record(0, 5, b"key", None)]))
    if horizon_ms is None:
        return header
    return parse_header(
        rebuild_batch(header, b"", records_count=0, max_timestamp=5, delete_horizon_ms=horizon_ms)
    )


@pytest.mark.parametrize(
    ("horizon_ms", "drops", "stamps"),
    [(None, False, True), (NOW_MS + 1, False, False), (NOW_MS, True, False), (0, True, False)],
)
def test_a_job_from_the_first_slice_stamps_once_and_drops_when_it_is_time(
    horizon_ms: int | None, drops: bool, stamps: bool
) -> None:
    rule = TombstoneRule.of(run_of(RunMode.COMPACT, covers=True), NOW_MS, may_drop=True)
    assert rule.new_horizon_ms == NOW_MS + 500
    assert rule.drops(header_with(horizon_ms)) == drops
    assert rule.stamps(header_with(horizon_ms)) == stamps


@pytest.mark.parametrize(("mode", "covers"), [(RunMode.COMPACT, False), (RunMode.CARRY, True)])
@pytest.mark.parametrize("horizon_ms", [None, 0, NOW_MS + 1])
def test_other_jobs_leave_tombstones_and_horizons_alone(
    mode: RunMode, covers: bool, horizon_ms: int | None
) -> None:
    rule = TombstoneRule.of(run_of(mode, covers=covers), NOW_MS, may_drop=True)
    assert not rule.drops(header_with(horizon_ms))
    assert not rule.stamps(header_with(horizon_ms))


def test_clocks_that_disagree_drop_nothing_but_stamp() -> None:
    rule = TombstoneRule.of(run_of(RunMode.COMPACT, covers=True), NOW_MS, may_drop=False)
    assert not rule.drops(header_with(0))
    assert rule.stamps(header_with(None))


def test_no_retention_and_the_longest_one() -> None:
    none = TombstoneRule.of(
        run_of(RunMode.COMPACT, covers=True, delete_retention_ms=0), NOW_MS, may_drop=True
    )
    assert none.new_horizon_ms == NOW_MS
    longest = TombstoneRule.of(
        run_of(RunMode.COMPACT, covers=True, delete_retention_ms=2**63 - 1), NOW_MS, may_drop=True
    )
    assert longest.new_horizon_ms == MAX_DELETE_HORIZON_MS
