"""InitProducer over a loopback connection: ids that no other producer gets, after restarts too."""

from __future__ import annotations

from pathlib import Path
from random import Random

import grpc
import pytest

from stratalog.base.errors import NotOwnerError, StoreUnavailableError
from stratalog.client.errors import error_of_call
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.topics.producer_ids import MIN_LEFT_COUNT
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.store_faults import Fault, Operation
from stratalog.v1 import log_pb2
from tests.support.service.service_bench import ServiceBench, catalog_elsewhere, service_bench


async def init_producer(bench: ServiceBench) -> int:
    answer = await bench.client.log.InitProducer(log_pb2.InitProducerRequest())
    assert answer.producer_epoch == 0
    return answer.producer_id


async def test_each_producer_gets_an_id_of_its_own(bench: ServiceBench) -> None:
    catalog = bench.server.engine.topics.catalog
    first = await init_producer(bench)
    seq = catalog.seq
    assert [await init_producer(bench) for _ in range(5)] == list(range(first + 1, first + 6))
    assert catalog.seq == seq, "one commit is enough for a block"


async def test_a_restart_wastes_the_rest_of_a_block_and_gives_no_id_twice(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        async with service_bench(tmp_path) as bench:
            given += [await init_producer(bench), await init_producer(bench)]
    assert given == [0, 1, 1000, 1001, 2000, 2001]


async def test_a_block_goes_on_from_the_catalog_as_others_left_it(tmp_path: Path) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path, store=store) as bench:
        assert catalog_elsewhere(store).take_producer_ids(17) == range(17)
        assert await init_producer(bench) == 17


async def test_a_silent_store_refuses_a_new_block_and_not_the_rest_of_one(tmp_path: Path) -> None:
    memory = MemoryObjectStore(ManualClock())
    is_silent = False

    def plan(operation: Operation) -> Fault:
        return Fault.FAILS if is_silent else Fault.NONE

    store = FaultyObjectStore(memory, Random(0), plan)
    async with service_bench(tmp_path, store=store) as bench:
        is_silent = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await init_producer(bench)
        assert type(error_of_call(caught.value, "")) is StoreUnavailableError
        is_silent = False
        first = await init_producer(bench)
        is_silent = True
        assert await init_producer(bench) == first + 1


async def test_new_producers_have_ids_while_the_store_is_silent(tmp_path: Path) -> None:
    is_silent = False
    store = FaultyObjectStore(
        MemoryObjectStore(ManualClock()), Random(0), lambda _: Fault.FAILS if is_silent else Fault.NONE
    )
    async with service_bench(tmp_path, store=store) as bench:
        catalog, ids = bench.server.engine.topics.catalog, bench.server.engine.topics.producer_ids
        await bench.run_task("producer-ids")
        is_silent = True
        assert await init_producer(bench) == 0
        given = [ids.give() for _ in range(MIN_LEFT_COUNT - 1)]
        is_silent = False
        seq = catalog.seq
        await bench.run_task("producer-ids")
        assert catalog.seq == seq, "half of the block is left"
        given.append(ids.give())
        # A pass that fails leaves the ids that are there.
        is_silent = True
        await bench.run_task("producer-ids")
        assert bench.server.engine.passes.status("producer-ids").failed_turn_count == 1
        is_silent = False
        assert catalog_elsewhere(store).take_producer_ids(7) == range(1000, 1007)
        await bench.run_task("producer-ids")
        is_silent = True
        # Over the edge of the block, to the next one, behind those of others.
        given += [ids.give() for _ in range(1000 - len(given))]
        assert [0, *given] == [*range(1000), 1007]
        assert [ids.is_given(one) for one in (999, 1000, 1007, 1008, 2006, 2007)] == [
            True,
            True,
            True,
            False,
            False,
            False,
        ]
        assert await init_producer(bench) == 1008


async def test_a_former_owner_gives_no_ids(tmp_path: Path) -> None:
    store = MemoryObjectStore(ManualClock())
    async with service_bench(tmp_path / "one", store=store) as one:
        await init_producer(one)
        async with service_bench(tmp_path / "two", store=store) as two:
            await one.refresh()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await init_producer(one)
            assert type(error_of_call(caught.value, "")) is NotOwnerError
            assert await init_producer(two) == 1000
