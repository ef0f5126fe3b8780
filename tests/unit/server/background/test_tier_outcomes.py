"""The outcomes of the passes over the tiers."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compactor import CONFIG_CHANGED, INPUTS_GONE
from stratalog.remote.metadata.shard.shard_judge import CONFIGURATION_CHANGED, INPUTS_CHANGED
from stratalog.server.background.tier_outcomes import compaction_outcome

FIRST, SECOND, THIRD = (TopicIdPartition(UUID(int=1), number) for number in range(3))


def test_a_partition_that_a_job_left_out_counts_by_its_own_reason() -> None:
    refused = ((FIRST, CONFIGURATION_CHANGED), (SECOND, INPUTS_CHANGED), (THIRD, CONFIGURATION_CHANGED))
    outcome = compaction_outcome(
        [
            CompactionReport(inputs=2, partitions=1, refused_partitions=refused),
            CompactionReport(inputs=1, refused=CONFIG_CHANGED),
            CompactionReport(inputs=1, refused=INPUTS_GONE, lost_races=2),
            CompactionReport(inputs=1, refused=INPUTS_GONE, lost_races=3),
        ],
        (),
    )
    assert {reason: count for reason, count in outcome.refusals.items() if count} == {
        "configuration-changed": 2,
        "inputs-changed": 1,
        "stale-configuration": 1,
        "inputs-gone": 2,
        "no-progress": 1,
    }
    assert (outcome.done["jobs"], outcome.failures) == (1, ())


def test_a_job_that_was_planned_again_counts_by_the_smaller_ones() -> None:
    without_room = CompactionReport(inputs=4, input_bytes=40, refused="no room")
    planned_again = dataclasses.replace(without_room, is_planned_again=True)
    halves = [CompactionReport(inputs=2, partitions=1), CompactionReport(inputs=2, refused="damaged")]
    assert compaction_outcome([planned_again, halves[0]], ()).failures == ()
    left = compaction_outcome([planned_again, *halves], ())
    assert (left.failures, left.backlog.count) == (("damaged",), 1)
    assert compaction_outcome([without_room], ()).failures == ("no room",), "the run has ended before"
