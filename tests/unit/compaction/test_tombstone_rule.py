"""Which jobs stamp tombstones, and which drop them."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import PartitionRun, RunMode
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.record.keep_rules import MAX_HORIZON_MS
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


@pytest.mark.parametrize(
    ("mode", "covers", "may_drop", "expected"),
    [
        (RunMode.COMPACT, True, True, (NOW_MS, NOW_MS + 500)),
        # Clocks that cannot be trusted.
        (RunMode.COMPACT, True, False, (None, NOW_MS + 500)),
        (RunMode.COMPACT, False, True, (None, None)),
        (RunMode.CARRY, True, True, (None, None)),
    ],
)
def test_only_a_job_from_the_first_slice_stamps_and_drops(
    mode: RunMode, covers: bool, may_drop: bool, expected: tuple[int | None, int | None]
) -> None:
    assert TombstoneRule.of(run_of(mode, covers=covers), NOW_MS, may_drop=may_drop) == expected


@pytest.mark.parametrize(("delete_retention_ms", "horizon_ms"), [(0, NOW_MS), (2**63 - 1, MAX_HORIZON_MS)])
def test_no_retention_and_the_longest_one(delete_retention_ms: int, horizon_ms: int) -> None:
    run = run_of(RunMode.COMPACT, covers=True, delete_retention_ms=delete_retention_ms)
    assert TombstoneRule.of(run, NOW_MS, may_drop=True).stamp_ms == horizon_ms
