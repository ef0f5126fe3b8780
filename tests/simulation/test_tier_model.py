"""Random lives of a server, from its local log to its bucket, against a list of records.

`make test` lives a few lives, always the same; `make simulate` many new ones. By hand,
`STRATALOG_SIMULATION_SEEDS` sets how many, `STRATALOG_SIMULATION_FIRST_SEED` where they begin, and
`STRATALOG_SIMULATION_STEPS` how long each is. A failure names its seed and lists its steps.
"""

from __future__ import annotations

import os
from random import randrange

import pytest

from tests.support.tier_model.tier_life import live

pytestmark = pytest.mark.usefixtures("quiet_servers")

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
FIRST_SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", randrange(1 << 40) if IS_LONG else 0))
SEEDS = int(os.environ.get("STRATALOG_SIMULATION_SEEDS", "500" if IS_LONG else "4"))
STEPS = int(os.environ.get("STRATALOG_SIMULATION_STEPS", "300" if IS_LONG else "120"))


@pytest.mark.parametrize("is_stormy", [False, True], ids=["calm", "stormy"])
def test_what_was_appended_is_read_in_every_tier(is_stormy: bool) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        live(seed, is_stormy=is_stormy, steps=STEPS)
