"""A server dies at each operation of its disk and of its store, in each work that moves records of tiers.

The next process has every acknowledged record, and in the end nothing is left over. `make simulate` dies at
all of them, after power losses, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from stratalog.testing.faulty_filesystem import SimulatedCrash
from stratalog.testing.faulty_object_store import ActorStopped
from stratalog.testing.store_faults import Fault
from tests.support.logs.sampling import IS_WHOLE, Sampling
from tests.support.tier_model.tier_life import TierLife
from tests.support.tier_model.tier_world import DAY_MS, TierWorld, end_after_kill, end_after_power_loss

pytestmark = pytest.mark.usefixtures("quiet_servers")

SEEDS = (116, 11) if IS_WHOLE else (116,)
STEPS = 40
SAMPLE = 1
"""Deaths of each kind and work in a run that is not whole."""


def upload(world: TierWorld) -> None:
    world.process.engine.tier.manager.upload_now((), delete_local=False)


def commit_tails(world: TierWorld) -> None:
    for partition in world.partitions():
        if partition.is_tiered:
            partition.writer.commit_waiters.ask()
    world.clock.advance(1_000)


def delete_locally(world: TierWorld) -> None:
    for partition in world.partitions():
        partition.log.retention.delete_local_segments(ignore_retention=True)
    world.clock.advance(2_000)


def retain(world: TierWorld) -> None:
    world.process.engine.tier.manager.remote_retention_pass()


def delete_all_records(world: TierWorld) -> None:
    for partition in world.partitions():
        end_offset = partition.watermarks().high_watermark
        ledger = world.ledger(partition)
        ledger.deletable_offset = max(ledger.deletable_offset, end_offset)
        (result,) = delete_records([RecordDeletion.of(partition, end_offset)])
        assert result == end_offset


def collect(world: TierWorld) -> None:
    world.process.engine.tier.manager.collect_pass()


def compact(world: TierWorld) -> None:
    world.process.engine.tier.compaction.compact_pass()


def fold(world: TierWorld) -> None:
    for tier in world.process.engine.tier.upkeep.tiers:
        tier.shard.metadata.fold()
    world.process.engine.topics.catalog.fold()


WORKS: tuple[Callable[[TierWorld], None], ...] = (
    upload,
    commit_tails,
    delete_locally,
    retain,
    delete_all_records,
    collect,
    compact,
    fold,
)


def prepared(seed: int, work: Callable[[TierWorld], None]) -> TierWorld:
    """A world in the middle of its life, with something to do for the work."""
    world = TierWorld(seed)
    life = TierLife(world, is_stormy=False)
    life.begin()
    for _ in range(STEPS):
        life.step()
    life.append_to_all()
    if work not in (upload, commit_tails):
        upload(world)
    if work in (collect, compact, retain):
        world.clock.advance(DAY_MS)
        world.process.engine.tier.manager.refresh_pass()
    if work is collect:
        compact(world)
        delete_all_records(world)
        fold(world)
        world.clock.advance(2 * DAY_MS)
        world.process.engine.tier.manager.refresh_pass()
    world.take_answers()
    world.read()
    return world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("work", WORKS)
def test_a_death_at_any_operation(work: Callable[[TierWorld], None], seed: int) -> None:
    with prepared(seed, work) as world:
        disk, trace = world.process.disk, world.process.store.trace
        disk_before, store_before = disk.operation_count, trace.operation_count
        work(world)
        disk_count, store_count = disk.operation_count - disk_before, trace.operation_count - store_before
    assert disk_count + store_count > 0, "there is something to do"
    sampling = Sampling()
    in_disk = [(number, part) for number in range(1, disk_count + 1) for part in (0.0, 0.5, 1.0)]
    for number, part in sampling.at_most(in_disk, SAMPLE):
        die(seed, work, f"at operation {number} of the disk, {part}", disk=number, part=part)
    faults = (Fault.STOPS_BEFORE, Fault.STOPS_AFTER)
    in_store = [(number, fault) for number in range(store_count) for fault in faults]
    for number, fault in sampling.at_most(in_store, SAMPLE):
        die(seed, work, f"{fault.value} request {number}", request=number, fault=fault)


def die(
    seed: int,
    work: Callable[[TierWorld], None],
    moment: str,
    *,
    disk: int = 0,
    part: float = 0.0,
    request: int | None = None,
    fault: Fault = Fault.STOPS_BEFORE,
) -> None:
    """Die at that moment of the work, start again, and let all end well."""
    for power_fails in (False, True) if IS_WHOLE else (bool(disk % 2),):
        with prepared(seed, work) as world:
            process = world.process
            if request is None:
                process.die_at(process.disk.operation_count + disk, part=part)
            process.weather.stops_in, process.weather.stop = request, fault
            with pytest.raises((ActorStopped, SimulatedCrash)):
                work(world)
            assert process.is_dead
            try:
                if power_fails:
                    world.lose_power()
                    world.start(end_after_power_loss)
                else:
                    world.kill()
                    world.start(end_after_kill)
                world.read()
                world.settle()
            except Exception as error:
                error.add_note(f"died {moment}, {'with' if power_fails else 'without'} its machine")
                raise
