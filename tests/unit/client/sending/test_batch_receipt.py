"""A receipt wakes each thread and each task that waits for a record, also while the record gets its batch."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.record.native.record_accumulator import Delivery

WAIT_S = 60.0


class PlacedAtTheLook(BatchReceipt):
    """The receipt of an early record, which gets its batch between two looks of a waiting thread."""

    def __init__(self, place: BatchReceipt) -> None:
        super().__init__("t", -1)
        self.delivery = Delivery(self, 0, 5)
        self._place = place
        self.is_asleep = threading.Event()

    def _claim(self, index: int, waiter: asyncio.Future[None] | threading.Event) -> bool:
        self.delivery.follow(Delivery(self._place, 3, 5))
        self.wake_all()
        is_settled = super()._claim(index, waiter)
        self.is_asleep.set()
        return is_settled


async def test_a_thread_notices_the_batch_that_its_record_got_meanwhile() -> None:
    place = BatchReceipt("t", 1)
    early = PlacedAtTheLook(place)
    waiting = asyncio.create_task(asyncio.to_thread(early.delivery.result, WAIT_S))
    await asyncio.to_thread(early.is_asleep.wait)
    place.settle(0, 4, base_offset=10)
    assert (await waiting).offset == 13


async def test_a_task_notices_the_batch_that_its_record_got_meanwhile() -> None:
    place = BatchReceipt("t", 1)
    early = PlacedAtTheLook(place)

    async def wait() -> int:
        return (await early.delivery).offset

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    place.settle(0, 4, base_offset=10)
    assert await asyncio.wait_for(waiting, WAIT_S) == 13


async def test_a_closed_loop_of_one_waiter_keeps_no_outcome_from_others() -> None:
    receipt = BatchReceipt("t", 0)
    elsewhere = asyncio.new_event_loop()

    def wait_a_little() -> None:
        task = elsewhere.create_task(_waiting(receipt, 0))
        elsewhere.call_soon(elsewhere.stop)
        elsewhere.run_forever()
        task.cancel()
        elsewhere.run_until_complete(asyncio.gather(task, return_exceptions=True))
        elsewhere.close()

    await asyncio.to_thread(wait_a_little)
    here = asyncio.create_task(_waiting(receipt, 1))
    await asyncio.sleep(0)
    receipt.settle(0, 2, base_offset=7)
    assert await asyncio.wait_for(here, WAIT_S) == 8


def test_an_outcome_comes_without_an_event_loop() -> None:
    receipt = BatchReceipt("t", 0)
    receipt.settle(0, 1, error=LogStoreError("given up"))
    with pytest.raises(LogStoreError):
        Delivery(receipt, 0, 0).result(0)


def test_a_record_has_one_outcome() -> None:
    receipt = BatchReceipt("t", 0)
    receipt.settle(0, 2, base_offset=0, durability=Durability.OS)
    with pytest.raises(AssertionError):
        receipt.settle(1, 3, error=LogStoreError("again"))
    receipt.settle(2, 3, base_offset=2)


def test_a_wait_that_is_too_long_ends() -> None:
    with pytest.raises(TimeoutError):
        Delivery(BatchReceipt("t", 0), 0, 0).result(0.0)


class WatchedWaits(BatchReceipt):
    """A receipt that knows how many of those who asked for a record it still knows."""

    def __init__(self) -> None:
        super().__init__("t", 0)
        self.asked: list[weakref.ref[asyncio.Future[None] | threading.Event]] = []

    def _claim(self, index: int, waiter: asyncio.Future[None] | threading.Event) -> bool:
        self.asked.append(weakref.ref(waiter))
        return super()._claim(index, waiter)

    def known_count(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.asked)


async def test_a_wait_that_ends_early_leaves_nothing_behind() -> None:
    receipt = WatchedWaits()
    waiting = asyncio.create_task(_waiting(receipt, 0))
    await asyncio.sleep(0)
    assert receipt.known_count() == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(Delivery(receipt, 0, 0).result, 0)
    assert len(receipt.asked) == 2
    del waiting
    assert receipt.known_count() == 0


class HalfMoved(BatchReceipt):
    """The receipt of an early record, of whose handle another thread sees the new index before the place."""

    def __init__(self, place: BatchReceipt) -> None:
        super().__init__("t", -1)
        self._place = place
        self.delivery = Delivery(self, 3, 5)
        self.is_asleep = threading.Event()

    def move(self) -> None:
        """Give the delivery its place, behind the moment of the look."""
        self.delivery.follow(Delivery(self._place, 3, 5))
        self.wake_all()

    def _claim(self, index: int, waiter: asyncio.Future[None] | threading.Event) -> bool:
        is_settled = super()._claim(index, waiter)
        self.is_asleep.set()
        return is_settled


async def test_a_thread_that_sees_half_of_a_move_is_woken() -> None:
    place = BatchReceipt("t", 1)
    early = HalfMoved(place)
    waiting = asyncio.create_task(asyncio.to_thread(early.delivery.result, WAIT_S))
    await asyncio.to_thread(early.is_asleep.wait)
    early.move()
    place.settle(0, 4, base_offset=10)
    assert (await waiting).offset == 13


async def _waiting(receipt: BatchReceipt, index: int) -> int:
    return (await Delivery(receipt, index, 0)).offset
