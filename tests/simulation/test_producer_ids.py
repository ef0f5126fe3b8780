"""Servers that give producer ids, over a store with every kind of fault: no id is given twice.

Servers lose races, lose the outcomes of their commits, and stop for ever in the middle of a block; others
start, fold the catalog, and import topics with producer ids of a Kafka cluster. The oracle is the set of the
ids that were given. `STRATALOG_SIMULATION_SEEDS` sets how many seeds, `STRATALOG_SIMULATION_FIRST_SEED` where
they begin. A failure names its seed.
"""

from __future__ import annotations

import os
from functools import partial
from random import randrange

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.topics.producer_ids import ProducerIds
from stratalog.testing.store_faults import no_faults
from tests.support.simulation.metadata_actors import insist
from tests.support.simulation.metadata_world import SETTINGS, MetadataWorld, Seat

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "simulate"
FIRST_SEED = int(os.environ.get("STRATALOG_SIMULATION_FIRST_SEED", randrange(1 << 40) if IS_LONG else 0))
SEEDS = int(os.environ.get("STRATALOG_SIMULATION_SEEDS", "500" if IS_LONG else "10"))
STEPS = 400
SERVER_COUNT = 5


class OwnedShards(ShardSet):
    """Shards that no other server claims. Immutable."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]  # it has no shards
        self._shards = ()

    def confirm_owned(self) -> None:
        pass


class Ledger:
    """The oracle: the ids that were given, and those that imports brought. Not thread-safe: one actor runs at
    a time."""

    def __init__(self) -> None:
        self.given: set[int] = set()
        self.brought_end = 0

    def give(self, ids: ProducerIds, begin: int) -> None:
        """`begin`: the end of the imported ids when the server began its block at the latest."""
        producer_id = ids.give()
        assert producer_id not in self.given, "an id is given twice"
        assert producer_id >= begin, "a new producer has the id of an imported one"
        self.given.add(producer_id)


def open_catalog(seat: Seat, settings: CommitSettings = SETTINGS) -> Catalog:
    world = seat.world
    actor = StoreActor(
        store=seat.store,
        clock=world.clock,
        random_source=seat.random,
        ids=seat.ids,
        identity=world.identity,
        writer=Writer("owner", seat.name),
    )
    return insist(lambda: Catalog.open(actor, settings=settings))


def serve(seat: Seat, ledger: Ledger) -> None:
    """Several lives of a server: each begins with an empty memory."""
    for _ in range(4):
        begin = ledger.brought_end
        catalog = open_catalog(seat, CommitSettings(max_store_failures=seat.random.choice((1, 4))))
        ids = ProducerIds(catalog, OwnedShards())
        for _ in range(seat.random.choice((1, 3, 1100))):
            try:
                if seat.random.random() < 0.1:
                    ids.refill()
                ledger.give(ids, begin)
            except StoreUnavailableError:
                continue


def import_topics(seat: Seat, ledger: Ledger) -> None:
    catalog = open_catalog(seat)
    for number in range(3):
        end = seat.random.choice((0, 500, 5000, 10_000 * number))
        insist(partial(catalog.create, f"t{number}", 1, topic_id=seat.ids.uuid(), next_producer_id=end))
        ledger.brought_end = max(ledger.brought_end, end)


def fold(seat: Seat) -> None:
    catalog = open_catalog(seat)
    for _ in range(3):
        insist(catalog.refresh)
        insist(catalog.fold)


def play(seed: int) -> Ledger:
    ledger = Ledger()
    probability = (0.0, 0.05, 0.15, 0.3)[seed % 4]
    with MetadataWorld(seed, fault_probability=probability, stops=seed % 3 != 0) as world:
        founder = world.seat("founder", no_faults, is_interleaved=False)
        open_catalog(founder)
        for number in range(SERVER_COUNT):
            world.spawn(f"server{number}", lambda seat: serve(seat, ledger))
        world.spawn("importer", lambda seat: import_topics(seat, ledger))
        world.spawn("folder", fold)
        world.run(STEPS)
        world.settle_down()
        catalog = open_catalog(founder)
        catalog.check()
        assert catalog.state().next_producer_id > max(ledger.given, default=-1)
        assert catalog.state().next_producer_id >= ledger.brought_end
        serve(founder, ledger)
    return ledger


@pytest.mark.timeout(0 if IS_LONG else 300)
def test_no_id_is_given_twice() -> None:
    given_count = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            given_count += len(play(seed).given)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert given_count > 1000 * SEEDS, "the simulation does something"
