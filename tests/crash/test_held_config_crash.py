"""A server that starts with new log directories on a store of others, or with its own after others have had
the store, and dies at every operation.

Whenever the machine dies, and whichever of the directories is there at the next start, nobody knows what was
altered, so retention stays off. A store that nobody else has had is no such store, however its first start
ends, and neither is one that only this server has had.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.shard import shard_judge
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.store_identity import StoreIdentity
from stratalog.server.configuration.broker_config_file import BrokerConfigFile
from stratalog.server.configuration.held_config import HELD_CONFIG
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.partitions.partition_host import PartitionHost
from stratalog.server.storage_engine import StorageEngineBuilder
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import Kept, Survival
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, deaths
from tests.support.logs.sampling import Sampling

FIRST, SECOND = "/first", "/second"
SURVIVALS = (NOTHING_KEPT, EVERYTHING_KEPT, Survival(Kept.ALL, Kept.HALF))


class Machine:
    """Servers of one store, each with a number of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.count = 0

    def store_of_others(self) -> MemoryObjectStore:
        """One that a server with other directories has owned."""
        store = MemoryObjectStore(self.clock)
        assert self.start(FaultyFileSystem(), store, "/data").topic_defaults.retention_ms == 5
        return store

    def start(self, disk: FaultyFileSystem, store: ObjectStore, *directories: str) -> RuntimeConfig:
        """Start a server and stop it; returns what it went by."""
        self.count += 1
        settings = ServerSettings(data_dir=directories[0], log_dirs=directories[1:])
        runtime = RuntimeConfig.open(disk, directories, {"log.retention.ms": "5"}, 1 << 25)
        builder = StorageEngineBuilder(
            disk,
            store,
            self.clock,
            ManualScheduler(self.clock),
            ManualScheduler(self.clock),
            SequentialIds(self.count),
            StopSignal(),
            settings,
            runtime,
        )
        with ThreadPoolExecutor(1) as executor:
            # No partition is opened, so none needs a host.
            builder.open(cast("PartitionHost", None), lambda _: executor, lambda: None).close()
        return runtime

    def stale(self, shares: str) -> tuple[FaultyFileSystem, MemoryObjectStore]:
        """The disk of a server that has had the store, and the store; `shares` says of which of its two
        shards others have been the owners since: all, some or none."""
        disk, store = FaultyFileSystem(), MemoryObjectStore(self.clock)
        StoreIdentity.open_or_create(store, SequentialIds(99), 2)
        assert self.start(disk, store, FIRST, SECOND).topic_defaults.retention_ms == 5
        if shares != "none":
            other = FaultyFileSystem()
            if shares == "some":
                # The other one dies between its two claims.
                trace = FaultyFileSystem()
                self.start(trace, self.stale("none")[1], "/data")
                [at] = [
                    number
                    for number, name in enumerate(trace.trace, 1)
                    if name.startswith("open_append") and "claims-0001" in name
                ]
                other.crash_at(at)
                with pytest.raises(SimulatedCrash):
                    self.start(other, store, "/data")
            else:
                self.start(other, store, "/data")
        return disk, store

    def trace(self, store: ObjectStore) -> list[str]:
        disk = FaultyFileSystem()
        self.start(disk, store, FIRST, SECOND)
        return disk.trace

    def dead(self, store: ObjectStore, operation: int, part: float) -> FaultyFileSystem:
        """The disk of a server that has died at this operation."""
        disk = FaultyFileSystem()
        disk.crash_at(operation, part=part)
        with pytest.raises(SimulatedCrash):
            self.start(disk, store, FIRST, SECOND)
        return disk


def test_whenever_a_start_with_new_directories_dies_retention_stays_off() -> None:
    machine = Machine()
    found = itertools.product(SURVIVALS, ((FIRST, SECOND), (SECOND, FIRST), (FIRST,), (SECOND,)))
    cases, sampling = [*found], Sampling()
    moments = [*deaths(machine.trace(machine.store_of_others()))]
    assert len(moments) > 40
    for operation, part in moments:
        for survival, directories in sampling.some(cases, 8):
            store = machine.store_of_others()
            disk = machine.dead(store, operation, part).reopened(survival)
            for _ in range(2):
                runtime = machine.start(disk, store, *directories)
                assert runtime.current.dynamic == HELD_CONFIG, (operation, part, survival, directories)
                assert runtime.topic_defaults.retention_ms == -1
                stored = BrokerConfigFile(disk, directories[0]).read()
                assert stored is not None
                assert stored.is_stand_in


def test_whenever_the_first_start_of_a_store_dies_it_goes_by_what_it_is_given() -> None:
    machine, sampling = Machine(), Sampling()
    for operation, part in deaths(machine.trace(MemoryObjectStore(machine.clock))):
        for survival in sampling.some(SURVIVALS, 3):
            store = MemoryObjectStore(machine.clock)
            disk = machine.dead(store, operation, part).reopened(survival)
            for _ in range(2):
                assert machine.start(disk, store, FIRST, SECOND).topic_defaults.retention_ms == 5


@pytest.mark.parametrize("shares", ["all", "some", "none"])
def test_whenever_a_start_dies_it_is_held_where_others_have_had_a_shard_since(shares: str) -> None:
    machine, sampling = Machine(), Sampling()
    disk, store = machine.stale(shares)
    before = disk.operation_count
    machine.start(disk, store, FIRST, SECOND)
    cases = [*itertools.product(SURVIVALS, ((FIRST, SECOND), (SECOND, FIRST), (FIRST,), (SECOND,)))]
    held = shares != "none"
    count = 0
    for operation, part in deaths(disk.trace, before + 1):
        for survival, directories in sampling.some(cases, 10):
            disk, store = machine.stale(shares)
            disk.crash_at(operation, part=part)
            with pytest.raises(SimulatedCrash):
                machine.start(disk, store, FIRST, SECOND)
            disk = disk.reopened(survival)
            for _ in range(2):
                runtime = machine.start(disk, store, *directories)
                told = (operation, part, survival, directories)
                if held:
                    assert runtime.current.dynamic == HELD_CONFIG, told
                    assert runtime.held == HELD_CONFIG, told
                elif len(directories) == 2:
                    # One that comes back alone may lack a claim that only the other one has got.
                    assert runtime.topic_defaults.retention_ms == 5, told
            count += 1
    assert count > 20


@pytest.mark.parametrize("shard", [0, 1])
def test_one_that_comes_between_is_noticed_before_anything_is_claimed(
    shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was looked at, and is claimed by another one before the claim lands; then the machine dies,
    or it does not."""
    machine = Machine()
    judge = shard_judge.judge_claim
    # At each judgement of a claim of this server, whether what is held is durable.
    is_held: list[bool] = []

    def others_first(state: ShardState, *rest: Any) -> Judgement[int]:
        stored = [BrokerConfigFile(disk, directory).read() for directory in (FIRST, SECOND)]
        is_held.append(all(one is not None and one.overrides == HELD_CONFIG for one in stored))
        if len(is_held) == 1 + shard:
            monkeypatch.undo()
            machine.start(FaultyFileSystem(), store, "/data")
            monkeypatch.setattr(shard_judge, "judge_claim", others_first)
        return judge(state, *rest)

    disk, store = machine.stale("none")
    monkeypatch.setattr(shard_judge, "judge_claim", others_first)
    runtime = machine.start(disk, store, FIRST, SECOND)
    monkeypatch.undo()
    assert runtime.current.dynamic == HELD_CONFIG
    # The one that came too late, and the one that found that out.
    assert is_held[: 3 + shard] == [False] * (2 + shard) + [True]
    for _ in range(2):
        assert machine.start(disk, store, SECOND).current.dynamic == HELD_CONFIG


def test_a_restart_after_an_added_directory_or_one_that_was_away_holds_nothing() -> None:
    machine = Machine()
    disk, store = machine.stale("none")
    for directories in (
        (FIRST,),
        (FIRST, SECOND),
        (SECOND, FIRST),
        (SECOND, "/third", FIRST),
        ("/third",),
        (FIRST, SECOND, "/third"),
    ):
        assert machine.start(disk, store, *directories).topic_defaults.retention_ms == 5, directories
        disk = disk.killed()
