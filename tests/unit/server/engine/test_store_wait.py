"""Reports of a start whose store takes its time."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import cast

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.engine_builder import StorageEngineBuilder
from stratalog.server.engine.storage_engine import EngineSeams
from stratalog.server.engine.store_wait import tell_of_waiting
from stratalog.server.partitions.opening.partition_opener import PartitionHost
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_reported_every_five_seconds_until_it_ends(
    caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    with caplog.at_level(logging.WARNING):
        try:
            with tell_of_waiting(scheduler, clock, "s3://bucket"):
                clock.advance(4_999)
                assert caplog.messages == []
                clock.advance(5_002)
                if fails:
                    raise TimeoutError
        except TimeoutError:
            assert fails
        clock.advance(60_000)
    assert caplog.messages == [
        f"still waiting for the store after {seconds} s, store=`s3://bucket`" for seconds in (5, 10)
    ]


def test_a_start_on_a_silent_store_tells_of_it(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def plan(_: Operation) -> Fault:
        clock.advance(60_000)
        return Fault.FAILS

    seams = EngineSeams(
        filesystem=MemoryFileSystem(),
        store=FaultyObjectStore(MemoryObjectStore(clock), Random(1), plan),
        clock=clock,
        scheduler=ManualScheduler(clock),
        long_scheduler=ManualScheduler(clock),
        ids=SequentialIds(1),
        stop=StopSignal(),
    )
    builder = StorageEngineBuilder(seams, ServerSettings(data_dir="/data"), "here:1")
    with ThreadPoolExecutor(1) as executor, pytest.raises(StoreUnavailableError):
        # No partition is opened, so none needs a host.
        builder.open(cast("PartitionHost", None), lambda _path, _count: executor, lambda: None)
    assert caplog.messages[0].startswith("still waiting for the store after 5 s")
    assert len(caplog.messages) == 12
