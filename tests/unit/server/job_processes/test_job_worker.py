"""A job process whose requests run beside its work: several threads look at its pipe and write to it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, cast

from stratalog.compaction.compaction_progress import Transfer
from stratalog.objectstore.counted import CountedObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.job_processes.job_worker import PipeSignal, Sender, Teller
from stratalog.server.job_processes.messages import Progress
from stratalog.testing.manual_clock import ManualClock

THREAD_COUNT = 4
TRANSFER_COUNT = 200


class MeetingPipe:
    """A pipe with one message, at which all threads that look meet before one takes it."""

    def __init__(self) -> None:
        self.taken_count = 0
        self._meeting = threading.Barrier(THREAD_COUNT)

    def poll(self) -> bool:
        found = self.taken_count == 0
        # Those that may not look together wait in vain.
        with suppress(threading.BrokenBarrierError):
            self._meeting.wait(0.05)
        return found

    def recv(self) -> object:
        self.taken_count += 1
        return None


def test_a_message_that_stops_a_job_is_taken_once() -> None:
    pipe = MeetingPipe()
    signal = PipeSignal(cast("Connection", pipe))
    with ThreadPoolExecutor(THREAD_COUNT) as threads:
        looks = [threads.submit(lambda: signal.is_set) for _ in range(THREAD_COUNT)]
        assert all(look.result() for look in looks)
    assert pipe.taken_count == 1


def test_progress_of_several_threads_arrives_whole_and_once() -> None:
    clock = ManualClock()
    here, there = cast("tuple[Any, Any]", Pipe())
    received: list[Progress] = []

    def receive() -> None:
        with suppress(EOFError):
            while True:
                received.append(here.recv())

    teller = Teller(
        Sender(there).send, _HurryingClock(), CountedObjectStore(MemoryObjectStore(clock), lambda _: "data")
    )

    def report(number: int) -> None:
        for _ in range(TRANSFER_COUNT):
            teller.add_transfer(Transfer(get_count=1, read_bytes=number))
            teller.add_run(2, 1)

    with ThreadPoolExecutor(THREAD_COUNT + 1) as threads:
        receiving = threads.submit(receive)
        for working in [threads.submit(report, number) for number in range(THREAD_COUNT)]:
            working.result()
        teller.tell()
        there.close()
        receiving.result()
    here.close()
    transfer = Transfer()
    for message in received:
        transfer = transfer.plus(message.transfer)
    read_bytes = TRANSFER_COUNT * sum(range(THREAD_COUNT))
    assert transfer == Transfer(get_count=THREAD_COUNT * TRANSFER_COUNT, read_bytes=read_bytes)
    assert sum(len(message.runs) for message in received) == THREAD_COUNT * TRANSFER_COUNT


class _HurryingClock(ManualClock):
    """A clock by which it is always time to tell."""

    def monotonic_s(self) -> float:
        self.advance(1000)
        return super().monotonic_s()
