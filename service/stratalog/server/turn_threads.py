"""Threads that run short tasks without results, at the least cost for each.

A turn of a partition's writer answers its requests itself, so it needs no future. For a small append the
futures, locks and semaphores of Python's own pool took a third of the hop to the thread and back; and the
last of that came behind the answer, when the event loop wanted the interpreter's lock.

The thread that became idle last takes the next task, because its processor has the most of what the task
needs. For the same reason a task that one of the threads submits waits for the end of that thread's own task,
which comes soon: a turn submits the next one as one of its last acts. A thread starts where none is idle, up
to a limit, and stays. A task is taken or refused: one that was refused does not run.

Each task costs one look at the clock, so that one which a disk holds up can be seen from outside. One that
computes for long notes its steps, so that it does not look the same.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.clock import Clock, SystemClock
from stratalog.server.bells import Bell

logger = logging.getLogger(__name__)


class _Task(NamedTuple):
    function: Callable[..., object]
    arguments: tuple[object, ...]


class TurnThread(threading.Thread):
    """One of the threads. It alone uses its fields, but for the task, which is set before a ring of its
    bell, and for the time, at which others may look."""

    def __init__(self, owner: TurnThreads, serve: Callable[[TurnThread], None], name: str) -> None:
        """`serve` runs on it. Raises OSError if the process has no descriptor left."""
        super().__init__(target=serve, args=(self,), name=name)
        self.owner = owner
        self.bell = Bell(waits=True)
        """Rung when it has a task, or must end."""
        self.task: _Task | None = None
        """Its next task; None for its end."""
        self.since_s: float | None = None
        """The monotonic time at which the task that it runs began, or its last step; None: it runs none."""
        self.last_bell: Bell | None = None
        """Rung when it has no task any more."""

    def ring_at_end(self, bell: Bell) -> None:
        """Ring that bell when the task has ended. On this thread."""
        if self.last_bell is not None and self.last_bell is not bell:
            self.last_bell.ring()
        self.last_bell = bell


def note_step(now_s: float) -> None:
    """Note that the task on the calling thread gets on: its age counts from this monotonic time. On any
    thread; without effect on those that run no turns."""
    current = threading.current_thread()
    if isinstance(current, TurnThread):
        current.since_s = now_s


class TurnThreads:
    """A bounded number of threads. Thread-safe: `_lock` guards the threads and the tasks that wait."""

    def __init__(self, limit: int, name: str, clock: Clock | None = None) -> None:
        """At most `limit` threads, whose names begin with `name`."""
        assert limit > 0
        self.threads: tuple[TurnThread, ...] = ()
        """Those that have started."""
        self._clock = clock or SystemClock()
        self._limit = limit
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[TurnThread] = []
        self._waiting: deque[_Task] = deque()
        """Tasks without a thread. None is idle, or the thread that has submitted one takes the first."""
        self._is_closed = False

    @property
    def idle_count(self) -> int:
        """Threads without a task. Any thread may ask."""
        return len(self._idle)

    @property
    def waiting_count(self) -> int:
        """Tasks that wait for a thread. Any thread may ask."""
        return len(self._waiting)

    def oldest_task_s(self) -> float:
        """How long ago the oldest running task has begun, or noted a step, in seconds; 0 if none runs. Any
        thread may ask."""
        begins = [one.since_s for one in self.threads]
        oldest_s = min((begin_s for begin_s in begins if begin_s is not None), default=None)
        return 0.0 if oldest_s is None else max(0.0, self._clock.monotonic_s() - oldest_s)

    def submit(self, task: Callable[..., object], /, *arguments: object) -> None:
        """Run a task with its arguments on a thread; it handles its own failures, and is short behind a task
        that it submits. Raises RuntimeError if the threads are closed, or there is none and the system has no
        other: the task does not run then."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the threads are closed")
            current = threading.current_thread()
            if isinstance(current, TurnThread) and current.owner is self:
                idle = None
            elif self._idle:
                idle = self._idle.pop()
            else:
                idle = self._start() if len(self.threads) < self._limit else None
            if idle is None:
                self._waiting.append(_Task(task, arguments))
                return
        idle.task = _Task(task, arguments)
        idle.bell.ring()

    def shutdown(self, wait: bool = True) -> None:
        """Take no more tasks. The threads end behind those that wait, and `wait` waits for that."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for one in idle:
            one.bell.ring()
        if wait:
            for thread in self.threads:
                thread.join()

    def _start(self) -> TurnThread | None:
        """One more thread, which waits for its task; None if the system has none for us, but others will be
        idle. The lock is held. Raises RuntimeError if there is none at all."""
        try:
            thread = TurnThread(self, self._serve, f"{self._name}_{len(self.threads)}")
            try:
                thread.start()
            except RuntimeError:
                thread.bell.close()
                raise
        except (RuntimeError, OSError) as failure:
            if not self.threads:
                raise RuntimeError("the system has no thread") from failure
            logger.debug("no more threads of %s", self._name, exc_info=True)
            return None
        self.threads += (thread,)
        return thread

    def _serve(self, thread: TurnThread) -> None:
        last_bell: Bell | None = None
        while True:
            thread.bell.wait_behind(last_bell)
            found, thread.task = thread.task, None
            if found is None:
                thread.bell.close()
                return
            last_bell = self._run(thread, found)
            # It holds what it has used.
            del found

    def _run(self, thread: TurnThread, found: _Task) -> Bell | None:
        """Run this task and those that wait; then the thread is idle. Returns the bell that it rings."""
        while True:
            thread.since_s = self._clock.monotonic_s()
            try:
                found.function(*found.arguments)
            except BaseException:
                logger.exception("a task failed unexpectedly")
            last_bell, thread.last_bell = thread.last_bell, None
            thread.since_s = None
            with self._lock:
                if not self._waiting:
                    if self._is_closed:
                        # It ends by itself.
                        thread.bell.ring()
                    else:
                        self._idle.append(thread)
                    return last_bell
                found = self._waiting.popleft()
            if last_bell is not None:
                last_bell.ring()
