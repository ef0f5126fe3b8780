"""The outcome of a producer's batch, for those who wait for its records.

The records of a batch have the same outcome, unless the batch was sent in parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from typing import NamedTuple

from stratalog.base.clock import SystemClock
from stratalog.base.errors import LogStoreError
from stratalog.base.types import Durability
from stratalog.client.sending.home_process import HomeProcess
from stratalog.record.ack import Ack
from stratalog.record.native.record_accumulator import Delivery

UNKNOWN_OFFSET = -1
"""The offset of a record that is stored, at a place that the server has forgotten."""

_CLOCK = SystemClock()

_Waiter = asyncio.Future[None] | threading.Event
"""A task or a thread that waits."""


class _Outcome(NamedTuple):
    """The outcome of the records [first_index, end_index) of a batch."""

    first_index: int
    end_index: int
    base_offset: int
    durability: Durability
    error: LogStoreError | None


class BatchReceipt:
    """Knows what became of the records of one batch, and wakes those who wait for them. Thread-safe: a lock
    guards it; `settle` is called by one thread, which the garbage collector may have interrupted in any other
    method.
    """

    __slots__ = (
        "_claimed",
        "_claimed_ranges",
        "_home",
        "_lock",
        "_outcomes",
        "_waiting",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: int, home: HomeProcess | None = None) -> None:
        """`home` is the process of the producer; None: this one."""
        self.topic = topic
        self.partition = partition
        self._home = home or HomeProcess()
        self._lock = threading.RLock()
        self._outcomes: list[_Outcome] = []
        self._waiting: dict[_Waiter, int] = {}
        """Those that wait, with the indexes of their records."""
        self._claimed: set[int] = set()
        """Records whose outcome was asked for."""
        self._claimed_ranges: list[range] = []
        """The same, of several records at a time."""

    @property
    def receipt(self) -> BatchReceipt:
        """Itself: a record that is in no batch yet has a receipt only."""
        return self

    def is_settled(self, index: int) -> bool:
        """Whether the record is stored or has failed."""
        return self._outcome(index) is not None

    async def wait(self, delivery: Delivery) -> Ack:
        """Wait for a record. Raises the LogStoreError by which it failed, and ClientClosedError in a forked
        process, which hears of no outcome.
        """
        while True:
            receipt, index = _place_of(delivery)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if receipt._claim(index, future):
                return receipt._ack(delivery, index)
            try:
                if delivery.receipt is receipt:
                    # A record that was in no batch may be in one afterwards.
                    await future
            finally:
                receipt._leave(future)

    def result(self, delivery: Delivery, timeout_s: float | None) -> Ack:
        """Block until a record is stored. Raises the LogStoreError by which it failed, TimeoutError, and
        ClientClosedError in a forked process, which hears of no outcome. The thread must not be that of the
        producer's event loop.
        """
        end_s = None if timeout_s is None else _CLOCK.monotonic_s() + timeout_s
        while True:
            receipt, index = _place_of(delivery)
            event = threading.Event()
            if receipt._claim(index, event):
                return receipt._ack(delivery, index)
            try:
                if delivery.receipt is not receipt:
                    # The record came into a batch between the two looks, and its old receipt wakes no more.
                    continue
                if not event.wait(None if end_s is None else max(end_s - _CLOCK.monotonic_s(), 0.0)):
                    raise TimeoutError
            finally:
                receipt._leave(event)

    def settle(
        self,
        first_index: int,
        end_index: int,
        *,
        base_offset: int = UNKNOWN_OFFSET,
        durability: Durability = Durability.OS,
        error: LogStoreError | None = None,
    ) -> None:
        """Note the outcome of records: their first offset, or the error."""
        assert first_index < end_index
        with self._lock:
            assert all(
                end_index <= settled.first_index or settled.end_index <= first_index
                for settled in self._outcomes
            ), "a record has one outcome"
            self._outcomes.append(_Outcome(first_index, end_index, base_offset, durability, error))
            if not self._waiting:
                return
            woken = [one for one, index in self._waiting.items() if first_index <= index < end_index]
            for waiter in woken:
                del self._waiting[waiter]
        _wake(woken)

    def wake_all(self) -> None:
        """Let all who wait look again: their record has another receipt."""
        if not self._waiting:
            return
        with self._lock:
            woken, self._waiting = list(self._waiting), {}
        _wake(woken)

    async def wait_for_all(self, first_index: int, end_index: int) -> None:
        """Wait for the records of a range. Raises the LogStoreError of the first that failed."""
        self._claimed_ranges.append(range(first_index, end_index))
        index = first_index
        while index < end_index:
            await self.wait(Delivery(self, index, 0))
            outcome = self._outcome(index)
            assert outcome is not None
            index = outcome.end_index

    def is_claimed(self, first_index: int, end_index: int) -> bool:
        """Whether the outcome of each of the records was asked for."""
        if any(
            claimed[0] <= first_index and end_index - 1 <= claimed[-1] for claimed in self._claimed_ranges
        ):
            return True
        count = end_index - first_index
        return len(self._claimed) >= count and self._claimed.issuperset(range(first_index, end_index))

    def claim(self, index: int) -> None:
        """Note that the outcome of a record was asked for."""
        self._claimed.add(index)

    def _claim(self, index: int, waiter: _Waiter) -> bool:
        """Ask for the outcome of a record. Returns False if it has none, and wakes the caller later. Raises
        ClientClosedError if nothing can wake it.
        """
        self._claimed.add(index)
        if self._outcome(index) is not None:
            return True
        # Before the lock, which a thread of the parent process may have held for ever.
        self._home.require(outcome="unknown")
        with self._lock:
            self._waiting[waiter] = index
            if self._outcome(index) is None:
                return False
            self._waiting.pop(waiter, None)
            return True

    def _leave(self, waiter: _Waiter) -> None:
        """Wait no more, woken or not."""
        if waiter in self._waiting:
            with self._lock:
                self._waiting.pop(waiter, None)

    def _outcome(self, index: int) -> _Outcome | None:
        for outcome in self._outcomes:
            if outcome.first_index <= index < outcome.end_index:
                return outcome
        return None

    def _ack(self, delivery: Delivery, index: int) -> Ack:
        outcome = self._outcome(index)
        assert outcome is not None
        if outcome.error is not None:
            # Several callers raise the same error.
            raise outcome.error.with_traceback(None)
        return Ack(
            self.topic,
            self.partition,
            UNKNOWN_OFFSET if outcome.base_offset < 0 else outcome.base_offset + index - outcome.first_index,
            delivery.timestamp_ms,
            outcome.durability,
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _place_of(delivery: Delivery) -> tuple[BatchReceipt, int]:
    """The receipt of a record and its place there, both from before or from after `follow`."""
    while True:
        receipt, index = delivery.receipt, delivery.index
        if delivery.receipt is receipt:
            assert isinstance(receipt, BatchReceipt)
            return receipt, index


def _wake(waiting: Iterable[_Waiter]) -> None:
    running = running_loop()
    for waiter in waiting:
        if isinstance(waiter, threading.Event):
            waiter.set()
        elif waiter.get_loop() is running:
            _finish(waiter)
        else:
            # The other loop may be closed; its tasks wait no more.
            with contextlib.suppress(RuntimeError):
                waiter.get_loop().call_soon_threadsafe(_finish, waiter)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
