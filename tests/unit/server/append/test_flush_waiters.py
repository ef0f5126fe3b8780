"""Appends that wait for a flush: one for all that wait, beside which the next ones are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from stratalog.base.errors import DataDirectoryError, InvalidRecordError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append.flush_waiters import FlushWaiters
from stratalog.server.append.pending_append import AppendSession, Outcome, PendingAppend, resolve
from stratalog.server.request_memory import RequestMemory
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG

OS, DISK, OBJECT = Durability.OS, Durability.DISK, Durability.OBJECT


class Bench:
    """A log of one record an append, whose flushes the test has in hand. Belongs to the test's loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.threads = HandExecutor()
        self.waiters = FlushWaiters(self._get_threads, self._flush, self._commit, self._deliver)
        self.flush_count = self.end_offset = 0
        self.during: list[Callable[[], object]] = []
        """The middle of the next flush does it."""
        self.error: Exception | None = None
        """The next flush fails with it."""
        self.threads_error: Exception | None = None
        """The threads cannot be had, because of it."""
        self.were_beyond_os: list[bool] = []
        """Whether each flush served an append beyond `os`."""
        self.commits: list[int] = []
        """The offsets of the appends that were passed on to their commit."""

    def _get_threads(self) -> HandExecutor:
        if self.threads_error is not None:
            raise self.threads_error
        return self.threads

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        self.loop.call_soon_threadsafe(resolve, outcomes)

    def _flush(self, *, is_beyond_os: bool) -> int:
        self.were_beyond_os.append(is_beyond_os)
        self.flush_count += 1
        end_offset = self.end_offset
        during, self.during = self.during, []
        for work in during:
            work()
        error, self.error = self.error, None
        if error is not None:
            raise error
        return end_offset

    def _commit(self, appended: list[tuple[PendingAppend, AppendInfo]]) -> None:
        self.commits += (info.base_offset for _, info in appended)

    def take(
        self, durability: Durability = DISK, session: AppendSession | None = None, *, waits: bool = False
    ) -> asyncio.Future[AppendInfo] | None:
        """Append to the log; None if it need not wait."""
        append = PendingAppend(
            batches=b"",
            durability=durability,
            future=self.loop.create_future(),
            memory=RequestMemory(1).lease(),
            identity=SOME_LOG,
            session=session,
        )
        info = AppendInfo(self.end_offset, self.end_offset, 1)
        self.end_offset += 1
        is_taken = self.waiters.take(append, info, waits=waits)
        self.waiters.begin()
        return append.future if is_taken else None

    def wait(
        self, durability: Durability = DISK, session: AppendSession | None = None, *, waits: bool = False
    ) -> asyncio.Future[AppendInfo]:
        future = self.take(durability, session, waits=waits)
        assert future is not None
        return future

    async def run_one(self) -> None:
        self.threads.run_one()
        await asyncio.sleep(0)

    async def run_all(self) -> None:
        while self.threads.waiting:
            await self.run_one()


async def test_what_is_written_beside_a_flush_waits_for_the_next_one() -> None:
    bench = Bench()
    first = [bench.wait() for _ in range(3)]
    beside: list[asyncio.Future[AppendInfo]] = []
    bench.during.append(lambda: beside.extend(bench.wait() for _ in range(2)))
    assert len(bench.threads.waiting) == 1, "one turn at a time"
    await bench.run_one()
    assert [one.result().base_offset for one in first] == [0, 1, 2]
    assert [one.done() for one in beside] == [False] * 2
    await bench.run_all()
    assert [one.result().base_offset for one in beside] == [3, 4]
    assert bench.flush_count == 2


async def test_only_an_append_at_os_behind_one_of_its_session_waits() -> None:
    bench = Bench()
    session, other = AppendSession(), AppendSession()
    assert bench.take(OS, session) is None
    ahead = bench.wait(DISK, session)
    behind = bench.wait(OS, session)
    assert bench.take(OS, other) is None
    assert bench.take(OS) is None
    bench.during.append(lambda: bench.wait(OS, session))
    await bench.run_one()
    assert ahead.done()
    assert behind.done()
    later = bench.wait(OS, session)
    await bench.run_all()
    assert later.done()
    assert bench.flush_count == 2
    assert bench.take(OS, session) is None, "nothing of it waits any more"


async def test_an_append_at_os_waits_where_many_records_wait() -> None:
    bench = Bench()
    session = AppendSession()
    alone, ahead = bench.wait(OS, waits=True), bench.wait(OS, session, waits=True)
    behind = bench.wait(OS, session)
    await bench.run_all()
    assert all(one.done() for one in (alone, ahead, behind))
    at_object = bench.wait(OBJECT, waits=True)
    beside = bench.wait(OS, waits=True)
    await bench.run_all()
    assert not at_object.done()
    assert beside.done()
    assert bench.commits == [3], "behind the flush"
    assert bench.were_beyond_os == [False, True]


async def test_an_append_at_object_behind_one_of_its_session_goes_to_its_commit_behind_the_flush() -> None:
    bench = Bench()
    session = AppendSession()
    assert bench.take(OBJECT, session) is None
    ahead = bench.wait(DISK, session)
    behind = bench.wait(OBJECT, session)
    assert bench.take(OBJECT) is None
    await bench.run_one()
    assert ahead.done()
    assert bench.commits == [2]
    assert not behind.done(), "its commit answers it"
    assert bench.take(OBJECT, session) is None, "nothing of it waits any more"
    failing = [bench.wait(durability, session) for durability in (DISK, OBJECT)]
    bench.error = DataDirectoryError("gone")
    await bench.run_all()
    assert [type(one.exception()) for one in failing] == [DataDirectoryError] * 2
    assert bench.commits == [2]


async def test_a_failed_flush_fails_what_waits_behind_it_in_its_sessions_and_nothing_else() -> None:
    bench = Bench()
    failing, other = AppendSession(), AppendSession()
    flushed = [bench.wait(DISK, failing), bench.wait()]
    waiting: list[asyncio.Future[AppendInfo]] = []
    bench.during.append(
        lambda: waiting.extend(
            (bench.wait(OS, failing), bench.wait(DISK, other), bench.wait(DISK, failing), bench.wait())
        )
    )
    bench.error = OSError(24, "Too many open files")
    await bench.run_one()
    for one in (*flushed, waiting[0], waiting[2]):
        assert isinstance(one.exception(), DataDirectoryError)
    for durability in (OS, DISK):
        # It is in the log by now, as they are.
        with pytest.raises(DataDirectoryError):
            bench.take(durability, failing)
    await bench.run_all()
    assert [waiting[place].result().base_offset for place in (1, 3)] == [3, 5]


async def test_a_later_failure_of_the_session_is_none_of_an_append_that_waits() -> None:
    bench = Bench()
    session = AppendSession()
    waiting = bench.wait(DISK, session)
    session.fail(InvalidRecordError("bad"))
    await bench.run_all()
    assert waiting.result().base_offset == 0


async def test_a_flush_that_does_not_reach_them_fails_them_as_a_defect() -> None:
    bench = Bench()
    first = bench.wait()
    bench.end_offset = 0
    await bench.run_all()
    assert isinstance(first.exception(), AssertionError)


async def test_at_a_shutdown_what_is_in_the_log_is_flushed() -> None:
    bench = Bench()
    first = bench.wait()
    beside: list[asyncio.Future[AppendInfo]] = []
    bench.during += (lambda: beside.append(bench.wait()), lambda: setattr(bench.threads, "is_closed", True))
    await bench.run_all()
    beside.append(bench.wait())
    await asyncio.sleep(0)
    assert [one.result().base_offset for one in (first, *beside)] == [0, 1, 2]


async def test_a_turn_that_found_no_thread_is_not_taken_again_beside_another() -> None:
    bench = Bench()
    bench.threads.finds_no_thread = True
    first = bench.wait()
    await asyncio.sleep(0)
    assert first.result().base_offset == 0
    bench.threads.finds_no_thread = False
    (stray,) = bench.threads.waiting
    session = AppendSession()
    ahead = bench.wait(DISK, session)
    beside: list[asyncio.Future[AppendInfo]] = []

    def arrive() -> None:
        beside.append(bench.wait())
        stray()
        # What is being flushed still holds up the later ones of its session.
        beside.append(bench.wait(OS, session))

    bench.threads.waiting.remove(stray)
    bench.during.append(arrive)
    await bench.run_one()
    assert ahead.done()
    assert not any(one.done() for one in beside)
    await bench.run_all()
    assert [one.result().base_offset for one in beside] == [2, 3]
    assert bench.flush_count == 3


async def test_without_a_thread_all_that_comes_beside_a_flush_is_flushed_behind_it() -> None:
    bench = Bench()
    bench.threads.finds_no_thread = True
    futures: list[asyncio.Future[AppendInfo]] = []

    def arrive() -> None:
        if len(futures) < 2000:
            bench.during.append(arrive)
            futures.append(bench.wait())

    bench.during.append(arrive)
    last = bench.wait()
    await asyncio.sleep(0)
    assert last.done()
    assert [one.result().base_offset for one in futures] == list(range(1, 2001))
    bench.threads.run_all()
    assert bench.flush_count == 2001, "no turn is taken twice"


async def test_a_turn_that_begins_although_it_was_refused_is_the_only_one() -> None:
    bench = Bench()

    class BusyThread(HandExecutor):
        """Gets free, and takes the refused work, before its caller hears of the refusal."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            fn(*args, **kwargs)
            raise RuntimeError("can't start new thread")

    bench.threads = BusyThread()
    first = bench.wait()
    await asyncio.sleep(0)
    assert first.result().base_offset == 0
    assert bench.flush_count == 1


async def test_no_append_waits_for_ever_if_the_threads_cannot_be_had() -> None:
    bench = Bench()
    bench.threads_error = KeyError("/data")
    for _ in range(2):
        future = bench.wait()
        await asyncio.sleep(0)
        assert future.done()
