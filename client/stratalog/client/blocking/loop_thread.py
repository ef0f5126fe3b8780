"""The event loop of a synchronous client, in a thread of its own.

Each call hands a coroutine to the loop and waits for it; an iteration asks the loop for one element after the
other.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.client.errors import ClientClosedError
from stratalog.client.sending.home_process import HomeProcess

_T = TypeVar("_T")

CANCEL_AGAIN_S = 1.0
"""A task that has not ended after this time is cancelled again."""


class _Call:
    """A coroutine that runs on a loop while a thread waits for it. The thread calls the public methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._end: Future[asyncio.Task[Any]] = Future()

    def start(self) -> None:
        """Let it begin."""
        self._loop.call_soon_threadsafe(self._begin)

    def wait(self) -> asyncio.Task[Any]:
        """Wait for its end."""
        return self._end.result()

    def cancel(self) -> None:
        """Cancel it, whether it has begun or not, and wait for its end."""
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has ended it.
            self._loop.call_soon_threadsafe(self._cancel)
        ended = self.wait()
        if not ended.cancelled():
            # Its failure, which is not asked for any more, is no news for the loop.
            ended.exception()

    def _begin(self) -> asyncio.Task[Any]:
        if self._task is None:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._end.set_result)
        return self._task

    def _cancel(self) -> None:
        self._begin().cancel()


class LoopThread:
    """An event loop in a thread of its own. Thread-safe."""

    def __init__(self, leave: Callable[[], Awaitable[None]]) -> None:
        """`leave` releases the resources of the loop, when all other work on it was cancelled."""
        self._loop = asyncio.new_event_loop()
        self._leave = leave
        self._lock = threading.RLock()
        self._is_closed = False
        self._home = HomeProcess()
        self._releases: set[asyncio.Future[object]] = set()
        """Those that have not ended: a loop keeps no task alive. The loop's thread uses it."""
        self._thread = threading.Thread(  # noqa: TID251 - an application has no Scheduler
            target=self._serve, name="stratalog-client", daemon=True
        )
        self._thread.start()
        # A program that ends without `close` does not wait for the thread.
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop, and wait for its result. Raises ClientClosedError if `close` was
        called before or meanwhile, and in a forked process. An interruption of the wait, such as
        KeyboardInterrupt, cancels the coroutine.
        """
        call = _Call(self._loop, work)
        try:
            # Before the lock, which a thread of the parent process may have held for ever.
            self.require_process()
            with self._lock:
                self._require_open()
                call.start()
            ended = call.wait()
        except LogStoreError:
            work.close()
            raise
        except BaseException:
            call.cancel()
            raise
        if not ended.cancelled():
            result: _T = ended.result()
            return result
        if self._is_closed:
            raise ClientClosedError("the client was closed during the call; make another client")
        raise CancelledError

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function on the loop, and wait for its result. Raises as `run`."""
        return self.run(_called(function))

    def iterate(self, begin: Callable[[], AsyncGenerator[_T]]) -> Generator[_T]:
        """Begin an iteration on the loop, and yield its elements. Each wait is one of `run`. The iteration
        ends with the generator.
        """
        return self._elements(self.call(begin))

    def _elements(self, elements: AsyncGenerator[_T]) -> Generator[_T]:
        try:
            while True:
                try:
                    element = self.run(_next(elements))
                except StopAsyncIteration:
                    return
                yield element
        finally:
            self.finish(elements.aclose)

    def finish(self, release: Callable[[], Awaitable[object]]) -> None:
        """Let the loop release resources soon; not after `close`, which has released them. It neither waits
        nor locks: the garbage collector calls it in any thread, which may hold any lock.
        """
        with contextlib.suppress(RuntimeError):
            # A loop that is closed has released all.
            self._loop.call_soon_threadsafe(self._begin_release, release)

    def _begin_release(self, release: Callable[[], Awaitable[object]]) -> None:
        if not self._is_closed:
            task = asyncio.ensure_future(release(), loop=self._loop)
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def close(self) -> None:
        """Cancel everything that runs on the loop, and end the thread. Calls that wait raise
        ClientClosedError.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.close)

    def _require_open(self) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidRequestError(
                "the client's own event loop cannot wait for itself; use `Client` in it"
            )
        if self._is_closed:
            raise ClientClosedError("the client was closed; make another client")

    def require_process(self) -> None:
        """Raise ClientClosedError in a forked process, which does not have the thread."""
        self._home.require()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._shut_down())
        finally:
            self._loop.close()

    async def _shut_down(self) -> None:
        await _cancel_others()
        try:
            await self._leave()
        finally:
            # grpc.aio may leave a call's task that has not run to its end.
            await _cancel_others()
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()


async def _called(function: Callable[[], _T]) -> _T:
    return function()


async def _next(elements: AsyncGenerator[_T]) -> _T:
    return await anext(elements)


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop until none is left: a task may begin another one at its end."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        # A task that goes on although it was cancelled is cancelled again.
        await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
