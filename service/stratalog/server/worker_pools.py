"""The thread pools on which requests touch disk and network, so that the event loop never waits for these.

Each kind of work has its own pool, and each log directory its own for appends, for those whose validation
takes long, for flushes and for reads: a slow store fills the cold pool only, a disk that hangs the pools of
its directory. Work in memory alone has threads that no disk and no store holds up.

Reads of tiered data wait for a thread in the order in which they were asked for, and none is refused: a call
that reads has a few of them at most. Look-ups in the store have threads of their own, so they do not wait
behind a crowd of readers that catch up. Their queue is bounded; a look-up that finds it full is refused as
retriable.

A read of a file that the system has in memory takes less time than a thread for it: bytes that another
processor has read and compared must be moved from its caches. So the event loop does such reads itself, up to
`LOOP_READ_BYTES` in each of its passes (`may_read_here`); threads do the others beside it.
What the event loop does itself for large answers takes turns, too (`turns`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import OverloadedError, StoppingError
from stratalog.base.histogram import HistogramCounts
from stratalog.base.scheduler import RunBeside
from stratalog.cleaner.throttler import Throttler
from stratalog.remote.metadata.head.page_loader import RunAll
from stratalog.remote.read.object_reads import ReadThreads
from stratalog.server.answer_turns import AnswerTurns
from stratalog.server.change_threads import ChangeThreads
from stratalog.server.configuration.broker_config import BrokerConfig
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.request_threads import RequestThreads
from stratalog.server.tracing.carrying_threads import CarryingThreads
from stratalog.server.turn_threads import TurnThreads
from stratalog.server.watched_threads import WatchedThreads

FLUSH_THREAD_COUNT = 4
"""The fsyncs of one log directory at a time. A file system makes those that come together durable at once.
With more threads each fsync serves fewer appends, which costs more of the processor than it saves of the
disk."""

COMPUTING_THREAD_COUNT = 4
"""Kernels let go of the interpreter's lock; more would mostly wait for it."""

DESCRIBING_THREAD_COUNT = 2
"""More would only wait for the interpreter."""

LOOP_READ_BYTES = 1 << 20
"""The most that the event loop reads from files in one of its passes: 0.2 ms of work."""

_FLUSH = "flush "
"""The threads of this name and a log directory are watched."""
_READ = "read "

_T = TypeVar("_T")


class PoolUse(NamedTuple):
    """The threads of one purpose."""

    thread_count: int
    waiting_count: int
    """Tasks that wait for a thread."""


class WorkerPools:
    """Coroutines are called on the event loop; `append`, `validate` and `flush` are for `PartitionWriter`,
    `opening` is for `PartitionOpener`.
    """

    def __init__(self, settings: ServerSettings, clock: Clock, *, carries_context: bool = False) -> None:
        """With `carries_context` reads and administrative calls have the context of their caller, for traces;
        it costs each of them a microsecond."""
        make = self._make = CarryingThreads if carries_context else ThreadPoolExecutor
        self._read_throttler = Throttler(clock)
        self.turns = AnswerTurns(settings.cold_read_thread_count, self._read_throttler)
        self._clock = clock
        self.request_threads = RequestThreads()
        """For requests that nothing can end, and whose callers give up after a time."""
        self._append_thread_count = settings.append_thread_count
        self._read_thread_count = settings.read_thread_count
        self._appending: dict[str, TurnThreads] = {}
        self._validating: dict[str, TurnThreads] = {}
        self._opening: dict[str, Executor] = {}
        self._sized: list[tuple[str, ThreadPoolExecutor | TurnThreads, int]] = []
        """Each pool with its purpose and the number of its threads."""
        self._is_closed = False
        self._opening_lock = threading.Lock()
        self._compute = make(COMPUTING_THREAD_COUNT, thread_name_prefix="stratalog-compute")
        self._cold = make(settings.cold_read_thread_count, thread_name_prefix="stratalog-cold")
        self._lookups = make(settings.cold_read_thread_count, thread_name_prefix="stratalog-lookup")
        self._ahead = make(settings.cold_read_thread_count, thread_name_prefix="stratalog-ahead")
        # Twice as many as may wait for them, because a slow request gets a rival.
        self._requests = make(4 * settings.cold_read_thread_count, thread_name_prefix="stratalog-get")
        self._task = make(settings.admin_thread_count, thread_name_prefix="stratalog-admin")
        self._change = make(settings.admin_thread_count, thread_name_prefix="stratalog-change")
        self._changes = ChangeThreads(partial(begin, self._change))
        self._long_task = make(settings.admin_thread_count, thread_name_prefix="stratalog-long-admin")
        self._describe = make(DESCRIBING_THREAD_COUNT, thread_name_prefix="stratalog-describe")
        self._cold_limit = settings.cold_read_thread_count + settings.cold_read_queue_count
        self._cold_read_count = 0
        """Reads of tiered data that run or wait for a thread."""
        self._lookup_count = 0
        self._here_bytes = 0
        """The bytes that the event loop has read in this pass."""
        self.cold_refused_count = 0
        """Look-ups in the object store that were refused since the start."""
        cold_count = settings.cold_read_thread_count
        self._sized += (
            ("compute", self._compute, COMPUTING_THREAD_COUNT),
            ("cold", self._cold, cold_count),
            ("lookup", self._lookups, cold_count),
            ("ahead", self._ahead, cold_count),
            ("requests", self._requests, 4 * cold_count),
            ("admin", self._task, settings.admin_thread_count),
            ("change", self._change, settings.admin_thread_count),
            ("long admin", self._long_task, settings.admin_thread_count),
            ("describe", self._describe, DESCRIBING_THREAD_COUNT),
        )

    def append(self, directory: str) -> TurnThreads:
        """The threads that append to the logs of a log directory; closed ones after `close`. Any thread may
        call."""
        # This is called for each append, and the threads of a directory never change.
        found = self._appending.get(directory)
        return found or self._begin_turns("append", self._appending, directory, self._append_thread_count)

    def validate(self, directory: str) -> TurnThreads:
        """The threads for appends to the logs of a log directory whose validation takes long; closed ones
        after `close`. Any thread may call."""
        return self._begin_turns("validate", self._validating, directory, COMPUTING_THREAD_COUNT)

    def _begin_turns(
        self, purpose: str, pools: dict[str, TurnThreads], directory: str, count: int
    ) -> TurnThreads:
        with self._opening_lock:
            threads = pools.get(directory)
            if threads is None:
                threads = TurnThreads(count, f"stratalog-{purpose}-{len(pools)}", self._clock)
                self._sized.append((purpose, threads, count))
                pools[directory] = threads
                if self._is_closed:
                    threads.shutdown()
            return threads

    def flush(self, directory: str) -> Executor:
        """The threads that fsync the logs of a log directory. Any thread may call."""
        return flush_threads(self.opening, directory)

    def opening(self, directory: str, thread_count: int) -> Executor:
        """The threads that open the logs of this log directory, so that no disk waits for another, those for
        the requests of the `metadata`, or those that fsync or read the logs of a log directory; the first
        call sets their number. Any thread may call. Closed ones after `close`."""
        with self._opening_lock:
            pool = self._opening.get(directory)
            if pool is None:
                name = f"stratalog-open-{len(self._opening)}"
                make = self._make if directory.startswith(_READ) else ThreadPoolExecutor
                pool = make(thread_count, thread_name_prefix=name)
                self._sized.append((_purpose(directory), pool, thread_count))
                if directory.startswith(_FLUSH):
                    pool = WatchedThreads(self._clock, pool)
                self._opening[directory] = pool
                if self._is_closed:
                    pool.shutdown()
            return pool

    def flush_waits_s(self) -> Mapping[str, float]:
        """How long the oldest fsync has been waited for in each log directory that had one, in seconds; 0 if
        none is. Any thread may call."""
        return {path: threads.oldest_wait_s() for path, threads in self._flushing().items()}

    def append_waits_s(self) -> Mapping[str, float]:
        """How long the oldest turn of appends has been under way in each log directory that had one, or how
        long ago its last step of long validation began, in seconds; 0 if none is. Any thread may call."""
        with self._opening_lock:
            taking_turns = (*self._appending.items(), *self._validating.items())
        waits_s: dict[str, float] = {}
        for path, threads in taking_turns:
            # A turn with long validation writes on its own threads.
            waits_s[path] = max(waits_s.get(path, 0.0), threads.oldest_task_s())
        return waits_s

    def flush_durations(self) -> Mapping[str, HistogramCounts]:
        """How long fsyncs took in each log directory that had one, in seconds, with the wait for a thread.
        Any thread may call."""
        return {path: threads.durations() for path, threads in self._flushing().items()}

    def uses(self) -> Mapping[str, PoolUse]:
        """The threads by purpose; those of several log directories together. Any thread may call."""
        with self._opening_lock:
            sized = tuple(self._sized)
        uses: dict[str, PoolUse] = {}
        for purpose, pool, thread_count in sized:
            former = uses.get(purpose, PoolUse(0, 0))
            uses[purpose] = PoolUse(
                former.thread_count + thread_count, former.waiting_count + _waiting_count(pool)
            )
        return uses

    def _flushing(self) -> Mapping[str, WatchedThreads]:
        """The threads for fsyncs, by log directory."""
        with self._opening_lock:
            opening = tuple(self._opening.items())
        return {name.removeprefix(_FLUSH): pool for name, pool in opening if isinstance(pool, WatchedThreads)}

    def begin_read(self, directory: str, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Begin to read the logs of a log directory. On the event loop."""
        threads = self.opening(f"{_READ}{directory}", self._read_thread_count)
        return asyncio.get_running_loop().run_in_executor(threads, function)

    async def read(self, directory: str, function: Callable[[], _T]) -> _T:
        """Read the logs of a log directory."""
        return await self.begin_read(directory, function)

    async def compute(self, function: Callable[[], _T]) -> _T:
        """Run a part of a call that needs memory alone, and takes too long for the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._compute, function)

    def may_read_here(self, size_bytes: int) -> bool:
        """Whether the event loop may read so many bytes itself in this pass, without a wait for the disk."""
        return self._here_bytes + size_bytes <= LOOP_READ_BYTES

    def add_read_here(self, size_bytes: int) -> None:
        """Count bytes that the event loop has read itself."""
        if size_bytes and not self._here_bytes:
            asyncio.get_running_loop().call_soon(self._end_pass)
        self._here_bytes += size_bytes

    def _end_pass(self) -> None:
        self._here_bytes = 0

    async def cold_lookup(self, function: Callable[[], _T]) -> _T:
        """Run a look-up in the object store. Raises OverloadedError if too many are waiting."""
        if self._lookup_count >= self._cold_limit:
            self.cold_refused_count += 1
            raise OverloadedError(
                "too many look-ups in tiered data are waiting; try again after a pause",
                waiting=self._lookup_count,
            )
        self._lookup_count += 1
        return await self._run_cold(self._lookups, function, self._end_lookup)

    async def cold_read(
        self, function: Callable[[], _T], size_bytes: int = 0, found_bytes: Callable[[_T], int] | None = None
    ) -> _T:
        """Run a read of up to so many bytes of tiered data when its turn comes; `found_bytes` are those of
        its result. A cancelled call whose turn has not come does not run."""
        self._cold_read_count += 1
        try:
            await self.turns.begin_read(size_bytes)
        except BaseException:
            self._cold_read_count -= 1
            raise

        def end(found: _T | None) -> None:
            self._cold_read_count -= 1
            count = 0 if found is None or found_bytes is None else found_bytes(found)
            self.turns.end_read(size_bytes, count)

        return await self._run_cold(self._cold, function, end)

    async def _run_cold(
        self, threads: Executor, function: Callable[[], _T], end: Callable[[_T | None], None]
    ) -> _T:
        """Run on threads; `end` is called with the result, None without one, once the thread is free again,
        not when the caller gives up: a cancelled call still occupies it."""
        try:
            running = threads.submit(function)
        except BaseException:
            end(None)
            raise
        future = asyncio.wrap_future(running)

        def done(ended: asyncio.Future[_T]) -> None:
            # This also retrieves the failure of a cancelled call, or asyncio logs a warning.
            has_result = not ended.cancelled() and ended.exception() is None
            end(ended.result() if has_result else None)

        future.add_done_callback(done)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            running.cancel()
            raise

    def _end_lookup(self, _: object) -> None:
        self._lookup_count -= 1

    def require_applicable(self, config: BrokerConfig) -> None:
        """Accept each rate of reads."""

    def apply(self, config: BrokerConfig) -> None:
        """Let reads of tiered data go on at the rate of this configuration. Thread-safe."""
        self._read_throttler.set_max_bytes_per_s(config.max_fetched_bytes_per_s)

    @property
    def reading(self) -> ReadThreads:
        """The threads beside the reads of tiered data. What is ahead of readers is bounded by their cache."""
        return ReadThreads(self._ahead.submit, self._requests.submit)

    @property
    def cold_share_count(self) -> int:
        """The cold reads that one call may begin now: half of the room, to leave some for the next. 0 or less
        if there is no room; a read that begins anyway waits for its turn."""
        return (self._cold_limit - self._cold_read_count + 1) // 2

    async def describe(self, function: Callable[[], _T]) -> _T:
        """Run an administrative call that needs memory alone: it makes a list or a description."""
        return await asyncio.get_running_loop().run_in_executor(self._describe, function)

    async def task(self, function: Callable[[], _T]) -> _T:
        """Run an administrative call that uses disk and network."""
        return await asyncio.get_running_loop().run_in_executor(self._task, function)

    async def change(self, topic: str, function: Callable[[], _T]) -> _T:
        """Run a change of this topic, or of the server's configuration if it is empty: it may take minutes.
        Those of one topic come one after another. Raises StoppingError."""
        return await self._changes.run(topic, function)

    async def long_task(self, function: Callable[[], _T]) -> _T:
        """Run an administrative call that reads much, or waits for an fsync: it may take minutes."""
        return await asyncio.get_running_loop().run_in_executor(self._long_task, function)

    async def beside(self, function: Callable[[], _T]) -> _T:
        """Run an administrative call that waits for disks for a bounded time, on a thread of its own: it is
        answered also where calls that wait for a disk without a bound have all others."""
        return await asyncio.wrap_future(begin_beside(self.request_threads.run, function))

    def close(self) -> None:
        """Wait for running work, which the stop signal ends early. Nothing may be submitted afterwards."""
        # Reads wait for requests, so those go last.
        reading = (self._cold, self._lookups, self._ahead, self._requests)
        with self._opening_lock:
            self._is_closed = True
            pools: list[Executor | TurnThreads] = [*self._appending.values(), *self._validating.values()]
            pools += self._opening.values()
        pools += (*reading, self._task, self._change, self._long_task, self._describe, self._compute)
        for pool in pools:
            pool.shutdown(wait=True)
        self.request_threads.close()


def _waiting_count(pool: ThreadPoolExecutor | TurnThreads) -> int:
    if isinstance(pool, TurnThreads):
        return pool.waiting_count
    # The queue has no public name, and a count of our own would cost each task.
    return pool._work_queue.qsize()  # pyright: ignore[reportPrivateUsage]  # as above


def _purpose(name: str) -> str:
    """The purpose of threads that are named for a log directory, or for the metadata."""
    prefixes = {_FLUSH: "flush", _READ: "read"}
    return next((purpose for prefix, purpose in prefixes.items() if name.startswith(prefix)), "open")


def flush_threads(opening: Callable[[str, int], Executor], directory: str) -> Executor:
    """The threads that fsync the logs of a log directory, of those that `opening` has."""
    return opening(f"{_FLUSH}{directory}", FLUSH_THREAD_COUNT)


def begin(threads: Executor, function: Callable[[], _T]) -> Future[_T]:
    """Begin to run a function on threads. Raises StoppingError if they are closed, as they are while long
    work still ends."""
    try:
        return threads.submit(function)
    except RuntimeError as closed:
        raise StoppingError("the server is stopping; send the request again to the next server") from closed


def begin_beside(run_beside: RunBeside, function: Callable[[], _T]) -> Future[_T]:
    """Begin to run a function on a thread of its own."""
    running: Future[_T] = Future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - the future raises it
            running.set_exception(error)
        else:
            running.set_result(result)

    run_beside(run)
    return running


def run_together(threads: Executor, functions: Sequence[Callable[[], object]]) -> Sequence[object]:
    """Run functions on threads, and wait for all of them; their results in order. Raises the first error;
    StoppingError if the threads are closed, as they are while long work still ends.

    Not for a function that runs on the same threads.
    """
    if len(functions) == 1:
        return [functions[0]()]
    futures: list[Future[object]] = []
    try:
        futures += (begin(threads, function) for function in functions)
    finally:
        wait(futures)
    return [future.result() for future in futures]


@contextmanager
def running_together(thread_count: int) -> Generator[RunAll]:
    """`run_together` on threads of its own, for a command; its end waits for them."""
    with ThreadPoolExecutor(thread_count, thread_name_prefix="stratalog-lane") as threads:
        yield partial(run_together, threads)


@contextmanager
def closing_threads(directories: Iterable[str], count: int) -> Generator[Callable[[str], Executor]]:
    """So many threads for each of these log directories, which close its logs in parallel, after all pools
    are closed. The end does not wait for those that a disk keeps; nothing begins on them any more."""
    pools = {path: ThreadPoolExecutor(count, thread_name_prefix="stratalog-close") for path in directories}
    try:
        yield pools.__getitem__
    finally:
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
