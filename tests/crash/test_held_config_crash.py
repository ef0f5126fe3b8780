"""A server that starts with new log directories on a store of others, and dies at every operation.

Whenever the machine dies, and whichever of the directories is there at the next start, nobody knows what was
altered, so retention stays off. A store that nobody else has had is no such store, however its first start
ends.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.server.broker_config_file import BrokerConfigFile
from stratalog.server.held_config import HELD_CONFIG
from stratalog.server.partition_host import PartitionHost
from stratalog.server.runtime_config import RuntimeConfig
from stratalog.server.settings import ServerSettings
from stratalog.server.storage_engine import StorageEngineBuilder
from stratalog.testing.crash_moments import EVERYTHING_KEPT, NOTHING_KEPT, deaths
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import Kept, Survival
from stratalog.testing.sampling import Sampling
from stratalog.testing.sequential_ids import SequentialIds

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
