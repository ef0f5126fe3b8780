"""Waiters are woken from any thread, without polling and without losing a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from stratalog.server.fetch.partition_signal import PartitionSignal, waiting_for
from tests.support.service.service_bench import waiting_count

PATIENCE_S = 30.0


async def test_a_waiter_is_woken_from_another_thread() -> None:
    signal = PartitionSignal(asyncio.get_running_loop())
    with waiting_for([signal]) as changed:
        thread = threading.Thread(target=signal.notify)
        thread.start()
        async with asyncio.timeout(PATIENCE_S):
            await changed.wait()
        thread.join()


async def test_any_of_several_signals_wakes() -> None:
    signals = [PartitionSignal(asyncio.get_running_loop()) for _ in range(3)]
    for signal in signals:
        with waiting_for(signals) as changed:
            signal.notify()
            async with asyncio.timeout(PATIENCE_S):
                await changed.wait()
    assert [waiting_count(signal) for signal in signals] == [0, 0, 0]


def notify_often(signal: PartitionSignal) -> None:
    for _ in range(100):
        signal.notify()


def on_a_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


async def test_changes_before_the_wake_up_cost_one_hop() -> None:
    loop = asyncio.get_running_loop()
    signal = PartitionSignal(loop)
    hops = 0
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counted(callback: object, *args: object, **kwargs: object) -> asyncio.Handle:
        nonlocal hops
        hops += 1
        return call_soon_threadsafe(callback, *args, **kwargs)  # type: ignore[arg-type]  # passed on as it came

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign]  # counts on the way
    with waiting_for([signal]) as changed:
        on_a_thread(partial(notify_often, signal))
        assert hops == 1
        await changed.wait()
        changed.clear()
        on_a_thread(signal.notify)
        assert hops == 2
        await changed.wait()


async def test_on_the_loop_a_change_wakes_at_once() -> None:
    loop = asyncio.get_running_loop()
    signal = PartitionSignal(loop)
    with waiting_for([signal]) as changed:
        signal.notify()
        assert changed.is_set()


async def test_without_waiters_nothing_happens() -> None:
    signal = PartitionSignal(asyncio.get_running_loop())
    signal.notify()
    with waiting_for([signal]) as changed:
        await asyncio.sleep(0)
        assert not changed.is_set(), "a change before the look is seen by the look"


async def test_no_change_is_lost_between_a_look_and_the_wait() -> None:
    """A writer counts up as fast as it can; the reader sees the end although it only ever waits."""
    signal = PartitionSignal(asyncio.get_running_loop())
    counts = [0]

    def write() -> None:
        for number in range(1, 20_001):
            counts[0] = number
            signal.notify()

    writer = threading.Thread(target=write)
    writer.start()
    with waiting_for([signal]) as changed:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                changed.clear()
                if counts[0] == 20_000:
                    break
                await changed.wait()
    writer.join()
