"""The real metadata log under every kind of fault, with the protocol's invariants proved after every request.

`make test` plays 25 seeds of each scenario, always the same; `make simulate` plays 500 new ones. By hand,
`STRATALOG_SIMULATION_SEEDS` sets how many, `STRATALOG_SIMULATION_FIRST_SEED` where they begin, and
`STRATALOG_SIMULATION_STEPS` how long each run is. A failure names its scenario and seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from random import randrange

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.remote.tier.orphan_sweep import OrphanSweep, SweepSettings
from stratalog.testing.store_faults import no_faults
from tests.support.simulation import metadata_actors as actors
from tests.support.simulation.metadata_world import MetadataWorld, Seat
from tests.support.tiered.current_keys import current_keys
from tests.support.tiered.shard_states import require_same_state

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
FIRST_SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", randrange(1 << 40) if IS_LONG else 0))
SEEDS = int(os.environ.get("STRATALOG_SIMULATION_SEEDS", "500" if IS_LONG else "5"))
STEPS = int(os.environ.get("STRATALOG_SIMULATION_STEPS", "800" if IS_LONG else "400"))

Cast = dict[str, Callable[[Seat], None]]

# The scenarios of the protocol's model, and one with all actors.
CASTS: dict[str, Cast] = {
    "two owners": {"owner0": actors.owner, "owner1": actors.owner},
    "racing compactors": {
        "owner": actors.owner,
        "compactor0": actors.compactor,
        "compactor1": actors.compactor,
    },
    "retention and collection": {
        "owner": actors.owner,
        "compactor": actors.compactor,
        "retention": actors.retention,
        "folder": actors.folder,
        "collector": actors.collector,
    },
    "folders and collector": {
        "owner": partial(actors.owner, uploads=6),
        "folder0": actors.folder,
        "folder1": actors.folder,
        "collector": actors.collector,
    },
    "owner and sweepers": {
        "owner": partial(actors.owner, uploads=8),
        "sweeper0": actors.sweeper,
        "sweeper1": actors.sweeper,
    },
    "folds, compaction and sweepers": {
        "owner": partial(actors.owner, uploads=6),
        "compactor": actors.compactor,
        "folder0": actors.folder,
        "folder1": actors.folder,
        "sweeper": partial(actors.sweeper, sweeps=8),
        "collector": actors.collector,
    },
    "pins, collection and sweepers": {
        "owner": actors.owner,
        "compactor": partial(actors.compactor, jobs=8),
        "folder": actors.folder,
        "pinner": actors.pinner,
        "historian": actors.historian,
        "collector": partial(actors.collector, jobs=8),
        "sweeper": actors.sweeper,
    },
    "snapshots, collection and sweepers": {
        "owner": partial(actors.owner, uploads=6),
        "compactor": partial(actors.compactor, jobs=8),
        "folder": partial(actors.folder, jobs=6),
        "traveller0": partial(actors.traveller, pins=6),
        "traveller1": partial(actors.traveller, pins=6),
        "historian": actors.historian,
        "collector0": partial(actors.collector, jobs=8, graces=0.5),
        "collector1": partial(actors.collector, jobs=8, graces=0.5),
        "sweeper": actors.sweeper,
    },
    "folds, history and sweepers": {
        "owner": partial(actors.owner, uploads=8),
        "folder0": partial(actors.folder, jobs=6),
        "folder1": partial(actors.folder, jobs=6),
        "historian0": actors.historian,
        "historian1": actors.historian,
        "pinner": actors.pinner,
        "collector": partial(actors.collector, jobs=6),
        "sweeper": partial(actors.sweeper, sweeps=6),
    },
    "losses": {
        "owner0": partial(actors.owner, uploads=6, losses=0.5),
        "owner1": partial(actors.owner, losses=0.5),
        "compactor0": partial(actors.compactor, jobs=8),
        "compactor1": actors.compactor,
        "retention": actors.retention,
        "folder": actors.folder,
        "collector": actors.collector,
    },
    "dropped tiers": {
        "owner0": partial(actors.owner, uploads=8, losses=0.1, drops=0.6),
        "owner1": partial(actors.owner, uploads=6, drops=0.4),
        "compactor0": partial(actors.compactor, jobs=8),
        "compactor1": actors.compactor,
        "retention": actors.retention,
        "folder": partial(actors.folder, jobs=6),
        "collector": actors.collector,
        "sweeper": actors.sweeper,
    },
    "all actors": {
        "owner0": partial(actors.owner, losses=0.2, drops=0.3),
        "owner1": actors.owner,
        "compactor0": actors.compactor,
        "compactor1": actors.compactor,
        "retention": actors.retention,
        "dropper": actors.topic_dropper,
        "folder0": actors.folder,
        "folder1": actors.folder,
        "collector": actors.collector,
        "sweeper": actors.sweeper,
        "pinner": actors.pinner,
        "traveller": actors.traveller,
        "historian": actors.historian,
    },
}


def play(
    cast: Cast, seed: int, *, steps: int = STEPS, fault_probability: float | None = None
) -> MetadataWorld:
    """One run: act, come to rest, clean up."""
    probability = (0.0, 0.03, 0.1, 0.2)[seed % 4] if fault_probability is None else fault_probability
    with MetadataWorld(seed, fault_probability=probability, stops=seed % 3 != 0) as world:
        world.seat("founder", no_faults, is_interleaved=False).open_log("owner")
        for name, body in cast.items():
            world.spawn(name, body)
        world.run(steps)
        world.settle_down()
        clean_up(world)
    return world


def clean_up(world: MetadataWorld) -> None:
    """From wherever a run ended, a folder, a collector and a sweeper get rid of everything but live objects
    and current metadata.
    """
    seat = world.seat("janitor", no_faults, is_interleaved=False)
    log = seat.open_log("janitor")
    for pin in log.state().pins:
        log.unpin(pin.seq)
    actors.folder(seat, jobs=2)
    actors.collector(seat, jobs=2)
    # A file that was born at the newest commit waits for another one, which the first sweep makes.
    for _ in range(2):
        sweep = OrphanSweep(seat.store, log, SweepSettings(grace_ms=0))
        sweep.run(world.clock.now_ms(), StopSignal(), is_whole=True)
    world.audit.check()
    state = seat.open_log("reader").state()
    state.check()
    require_same_state(state, world.audit.state)
    assert (state.dropped, state.replacements) == ((), ()), "a quiet system has nothing left to delete"
    keys = {found.key for found in world.memory.list(world.layout.prefix)}
    needed = set(current_keys(world.memory, world.layout, state.objects, state.history_start_seq))
    assert keys == needed, "the bucket holds live objects and current metadata, nothing else"


@pytest.mark.timeout(0 if IS_LONG else 300)
@pytest.mark.parametrize("name", CASTS)
def test_invariants_hold_after_every_step(name: str) -> None:
    committed = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            world = play(CASTS[name], seed)
        except BaseException as error:
            error.add_note(f"scenario {name}, seed {seed}")
            raise
        committed += world.audit.state.seq
    assert committed > 5 * SEEDS, "the simulation does something"


def test_the_same_seed_gives_the_same_run() -> None:
    first = play(CASTS["all actors"], 5)
    second = play(CASTS["all actors"], 5)
    assert first.schedule == second.schedule
    assert str(first.trace) == str(second.trace)
    assert [commit.text for commit in first.audit.commits] == [commit.text for commit in second.audit.commits]
    assert str(play(CASTS["all actors"], 6).trace) != str(first.trace)
