"""Write, read and space amplification of compaction over a year of traffic, within the bounds of
docs/compaction.md.

CI takes one seed of a month with a plan each hour, and of a year with a plan each day. `make simulate` takes
a year with a plan each hour. `STRATALOG_SIMULATION_FIRST_SEED` sets the seed, which the name of a test shows.
"""

from __future__ import annotations

import math
import os

import pytest

from tests.support.simulation.compaction_year import (
    COMPACTED,
    DAY_MS,
    FOR_EVER,
    MIB,
    WEEK,
    Amplification,
    CompactionYear,
    year_settings,
)

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
FIRST_SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", "1"))
PARTITIONS = 2
TOPICS = 3
TARGET_BYTES = 256 * MIB
FANOUT = 4


def require_bounds(found: Amplification, *, slice_bytes: int, uploads_of_plan: int) -> None:
    """Check the bounds of docs/compaction.md."""
    object_bytes = slice_bytes * PARTITIONS * TOPICS
    levels = math.ceil(math.log(TARGET_BYTES / object_bytes, FANOUT))
    assert 1 < found.write <= 1 + levels
    # Slices that die together lie together.
    assert 1 <= found.space <= 1.05
    # In each level fewer than the fanout wait, beside the uploads since the last plan.
    young = (FANOUT - 1) * (levels + 1) + uploads_of_plan
    assert found.most_slices[COMPACTED] <= young
    # A week of one partition, in slices of an eighth of it, and what has not expired as a whole.
    assert found.most_slices[WEEK] <= 2 * 8 + young
    # Plain topics share objects, and those of the largest class have at least the target.
    whole = found.uploaded_bytes * 2 / TOPICS / TARGET_BYTES
    assert found.most_slices[FOR_EVER] <= whole + young
    assert found.widest_ms <= 7 * DAY_MS // 8
    assert found.last_plans <= levels + 1, "the planner comes to rest"


@pytest.mark.parametrize(
    ("seed", "days", "plans_of_day", "uploads_of_plan", "slice_mib"),
    [(FIRST_SEED, 30, 24, 12, 1), (FIRST_SEED, 365, 1, 24, 2)],
)
def test_amplification_is_bounded(
    seed: int, days: int, plans_of_day: int, uploads_of_plan: int, slice_mib: int
) -> None:
    year = CompactionYear(seed, year_settings(TARGET_BYTES), partition_count=PARTITIONS)
    found = year.run(
        days, plans_of_day=plans_of_day, uploads_of_plan=uploads_of_plan, slice_bytes=slice_mib * MIB
    )
    require_bounds(found, slice_bytes=slice_mib * MIB, uploads_of_plan=uploads_of_plan)


def test_a_seed_has_one_life() -> None:
    def life(seed: int) -> Amplification:
        year = CompactionYear(seed, year_settings(TARGET_BYTES))
        return year.run(3, plans_of_day=8, uploads_of_plan=4, slice_bytes=MIB)

    assert life(5) == life(5) != life(6)


@pytest.mark.skipif(not IS_LONG, reason="a year hour by hour takes many minutes: `make simulate`")
@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_amplification_of_a_year_hour_by_hour_is_bounded(seed: int) -> None:
    year = CompactionYear(seed, year_settings(TARGET_BYTES), partition_count=PARTITIONS)
    found = year.run(365, plans_of_day=24, uploads_of_plan=12, slice_bytes=MIB)
    require_bounds(found, slice_bytes=MIB, uploads_of_plan=12)
