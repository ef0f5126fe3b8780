"""Write, read and space amplification of compaction over a year of traffic, within the bounds of
docs/compaction.md.

CI takes one seed of ten days with a plan each hour, and of four months with a plan each day. `make simulate`
takes a month and a year of these, and a year with a plan each hour. The name of a test shows the seed, which
`STRATALOG_SIMULATION_FIRST_SEED` sets.
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
    [(FIRST_SEED, 30 if IS_LONG else 10, 24, 12, 1), (FIRST_SEED, 365 if IS_LONG else 120, 1, 24, 2)],
)
def test_amplification_is_bounded(
    seed: int, days: int, plans_of_day: int, uploads_of_plan: int, slice_mib: int
) -> None:
    year = CompactionYear(seed, year_settings(TARGET_BYTES), partition_count=PARTITIONS)
    found = year.run(
        days, plans_of_day=plans_of_day, uploads_of_plan=uploads_of_plan, slice_bytes=slice_mib * MIB
    )
    require_bounds(found, slice_bytes=slice_mib * MIB, uploads_of_plan=uploads_of_plan)


@pytest.mark.parametrize(("key_gib", "days"), [(4, 30), (8, 30), (28, 24), (100, 16)])
def test_amplification_of_a_partition_larger_than_a_job_is_bounded(key_gib: int, days: int) -> None:
    """Jobs have 1 GiB. A partition beyond it was once written again whole for each upload: at 4 and 8 GiB,
    each byte 15 and 30 times."""
    slice_bytes = max(8 * MIB, 2 * key_gib * MIB)
    year = CompactionYear(
        FIRST_SEED,
        year_settings(TARGET_BYTES),
        partition_count=1,
        policies=[COMPACTED],
        key_bytes=key_gib * 1024 * MIB,
    )
    found = year.run(days, plans_of_day=24, uploads_of_plan=4, slice_bytes=slice_bytes)
    levels = math.ceil(math.log(TARGET_BYTES / slice_bytes, FANOUT))
    # It is merged up to the target and once up to the bytes of a job, and then compacted with its like.
    assert 2 < found.write <= 1 + levels + 1 / COMPACTED.min_dirty_ratio
    # Beside the uploads since the last plan.
    assert found.most_dirty <= COMPACTED.min_dirty_ratio + 0.01
    # Two slices together exceed the bytes of a job, but for as many small ones as a job may read.
    assert found.most_slices[COMPACTED] <= 2 * 2 * key_gib + year_settings(TARGET_BYTES).max_inputs_per_job
    assert found.last_plans <= levels + 3, "the planner comes to rest"


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
