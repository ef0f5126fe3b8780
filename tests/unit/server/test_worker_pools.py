"""Functions that run together on threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from stratalog.base.errors import OverloadedError, StoppingError
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.turn_threads import TurnThreads
from stratalog.server.worker_pools import (
    COMPUTING_THREAD_COUNT,
    PoolUse,
    WorkerPools,
    run_together,
    running_together,
)
from stratalog.testing.manual_clock import ManualClock


def test_results_come_in_order_and_the_first_error_is_raised() -> None:
    def failing() -> int:
        raise OSError

    with running_together(3) as run_all:
        assert run_all([lambda: 1, lambda: 2, lambda: 3, lambda: 4]) == [1, 2, 3, 4]
        with pytest.raises(OSError):  # noqa: PT011 - it has no text
            run_all([lambda: 1, failing])


def test_work_that_outlives_its_threads_ends_as_by_a_stop() -> None:
    """A verification reads pages on threads that a stopping server closes before it ends."""
    began, may_end = threading.Event(), threading.Event()
    threads = ThreadPoolExecutor(1)
    ended: list[str] = []

    def first() -> None:
        began.set()
        may_end.wait(10)
        ended.append("first")

    outcomes: list[BaseException] = []

    def work() -> None:
        functions: list[Callable[[], object]] = [lambda: 1, lambda: 2]
        try:
            run_together(threads, functions)
        except StoppingError as stopping:
            outcomes.append(stopping)

    threads.submit(first)
    began.wait(10)
    threads.shutdown(wait=False)
    worker = threading.Thread(target=work)
    worker.start()
    worker.join(10)
    may_end.set()
    threads.shutdown(wait=True)
    assert [type(one) for one in outcomes] == [StoppingError]
    assert ended == ["first"]


def test_the_oldest_turn_of_a_log_directory_may_be_one_with_long_validation() -> None:
    clock = ManualClock()
    pools = WorkerPools(ServerSettings(data_dir="/a"), clock)
    may_end = threading.Event()

    def begin(threads: TurnThreads) -> None:
        begun = threading.Event()

        def turn() -> None:
            begun.set()
            may_end.wait(30)

        threads.submit(turn)
        assert begun.wait(30)

    try:
        begin(pools.validate("/a"))
        clock.advance(4_000)
        begin(pools.append("/a"))
        begin(pools.append("/b"))
        clock.advance(2_000)
        begin(pools.validate("/b"))
        assert pools.append_waits_s() == {"/a": 6, "/b": 2}
    finally:
        may_end.set()
        pools.close()
    assert pools.append_waits_s() == {"/a": 0, "/b": 0}


async def test_look_ups_in_the_store_have_a_bound_and_reads_have_none() -> None:
    """A look-up counts until its thread is free; a read whose caller leaves before its turn does not run."""
    settings = ServerSettings(data_dir="/a", cold_read_thread_count=1, cold_read_queue_count=1)
    pools = WorkerPools(settings, ManualClock())
    may_end, began = threading.Event(), threading.Event()
    ran: list[int] = []

    def stand_still() -> bool:
        began.set()
        return may_end.wait(30)

    try:
        share_count = pools.cold_share_count
        reads: list[asyncio.Task[Any]] = [asyncio.create_task(pools.cold_read(stand_still))]
        reads += [asyncio.create_task(pools.cold_read(partial(ran.append, number))) for number in range(9)]
        lookups = [asyncio.create_task(pools.cold_lookup(stand_still)) for _ in range(2)]
        assert await asyncio.to_thread(began.wait, 30)
        assert pools.cold_share_count < 0 < share_count
        reads[4].cancel()
        lookups[0].cancel()
        await asyncio.wait([reads[4], lookups[0]])
        with pytest.raises(OverloadedError) as caught:
            await pools.cold_lookup(stand_still)
        assert caught.value.fields == {"waiting": 2}
        may_end.set()
        await asyncio.wait([*reads, *lookups], timeout=30)
        assert ran == [0, 1, 2, 4, 5, 6, 7, 8]
        assert lookups[1].result()
        assert pools.cold_share_count == share_count
        assert await pools.cold_lookup(stand_still)
    finally:
        may_end.set()
        await asyncio.to_thread(pools.close)


def test_a_log_directory_that_hangs_holds_up_no_other_one() -> None:
    clock = ManualClock()
    pools = WorkerPools(ServerSettings(data_dir="/a", append_thread_count=2), clock)
    may_end = threading.Event()
    assert pools.flush_waits_s() == pools.append_waits_s() == {}
    try:
        appended, flushed = threading.Event(), threading.Event()
        for _ in range(100):
            pools.append("/a").submit(may_end.wait)
            pools.flush("/a").submit(may_end.wait)
        for _ in range(100):
            pools.validate("/a").submit(may_end.wait)
        pools.append("/b").submit(appended.set)
        pools.flush("/b").submit(flushed.set)
        assert appended.wait(10)
        assert flushed.wait(10)
        assert pools.append_waits_s() == {"/a": 0, "/b": 0}
        clock.advance(5_000)
        pools.flush("/a").submit(may_end.wait)
        clock.advance(1_000)
        assert pools.flush_waits_s() == {"/a": 6, "/b": 0}, "since when the oldest one waits"
        assert pools.append_waits_s() == {"/a": 6, "/b": 0}, "since when the oldest one is under way"
        assert pools.append("/b") is pools.append("/b")
        assert pools.uses()["validate"].thread_count == COMPUTING_THREAD_COUNT, (
            "those of the other directory begin at their first use"
        )
    finally:
        may_end.set()
        pools.close()
    assert pools.flush_waits_s() == pools.append_waits_s() == {"/a": 0, "/b": 0}
    for late in (pools.append("/a"), pools.append("/new"), pools.validate("/a"), pools.validate("/new")):
        with pytest.raises(RuntimeError):
            late.submit(may_end.wait)
    with pytest.raises(RuntimeError):
        pools.flush("/new").submit(may_end.wait)


async def test_reads_of_a_directory_that_hangs_hold_up_no_other_reads_and_no_work_in_memory() -> None:
    pools = WorkerPools(ServerSettings(data_dir="/a", read_thread_count=2), ManualClock())
    may_end = threading.Event()
    stuck = [asyncio.ensure_future(pools.read("/a", may_end.wait)) for _ in range(20)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await pools.read("/b", lambda: "read") == "read"
            assert await pools.compute(lambda: "computed") == "computed"
        assert pools.uses()["read"] == PoolUse(4, 18), "both directories"
        assert not any(one.done() for one in stuck)
    finally:
        may_end.set()
        await asyncio.gather(*stuck)
        await asyncio.to_thread(pools.close)


def test_waiting_tasks_and_durations_show_by_purpose() -> None:
    clock = ManualClock()
    pools = WorkerPools(ServerSettings(data_dir="/a", append_thread_count=2, admin_thread_count=3), clock)
    may_end = threading.Event()

    def stand_still(begun: threading.Barrier) -> None:
        begun.wait(10)
        may_end.wait(10)

    try:
        assert pools.uses()["admin"] == PoolUse(3, 0)
        for directory in ("/a", "/b"):
            begun = threading.Barrier(3)
            for _ in range(2):
                pools.append(directory).submit(stand_still, begun)
            begun.wait(10)
            for _ in range(3):
                pools.append(directory).submit(may_end.wait)
        assert pools.uses()["append"] == PoolUse(4, 6), "both directories"
        flushed = pools.flush("/a").submit(may_end.wait)
        clock.advance(3_000)
        assert sum(pools.flush_durations()["/a"].counts) == 0, "it has not ended"
        may_end.set()
        flushed.result(10)
    finally:
        may_end.set()
        pools.close()
    durations = pools.flush_durations()["/a"]
    assert (sum(durations.counts), durations.total) == (1, 3.0)


async def test_look_ups_that_find_the_queue_full_count() -> None:
    settings = ServerSettings(data_dir="/a", cold_read_thread_count=1, cold_read_queue_count=1)
    pools = WorkerPools(settings, ManualClock())
    may_end = threading.Event()
    try:
        lookups = [asyncio.create_task(pools.cold_lookup(may_end.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await pools.cold_lookup(may_end.wait)
        assert pools.cold_refused_count == 1
        assert pools.uses()["lookup"] == PoolUse(1, 1)
        may_end.set()
        assert await asyncio.gather(*lookups) == [True, True]
    finally:
        may_end.set()
        pools.close()
