"""The process that executes jobs of compaction for a server: `python -m` this module, with the number of the
pipe and the digest of the server's software. One thread works; others wait for the store beside it.

It ends once the pipe is closed, also by the death of the server: a job at work stops before its next request
and aborts its uploads. It executes, and commits nothing; the server plans, commits, and knows the history.

It yields to the server: the processor goes to it with lower priority, and if the machine is out of memory,
the kernel kills this process first.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.process_tuning import share_one_heap, tune_for_jobs
from stratalog.base.randomness import SystemIdGenerator
from stratalog.base.scheduler import RunBeside
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_progress import TELL_PERIOD_S, Transfer
from stratalog.compaction.execution_end import Done, Failed, execute_to_end
from stratalog.compaction.job_execution import REQUESTS_BESIDE, JobExecution, JobOrder
from stratalog.compaction.paced_object_store import PacedObjectStore
from stratalog.objectstore.counted import CountedObjectStore
from stratalog.objectstore.open_store import open_store
from stratalog.remote.store_layout import kind_of_key
from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.server.beside_threads import running_beside
from stratalog.server.job_processes.messages import OTHER_SOFTWARE, Hello, Progress
from stratalog.server.job_processes.software_on_disk import software_digest

_NICENESS = 10
_OOM_SCORE = 500
"""Points, of 1,000, on top of those for its memory."""

_Pipe = Connection
Send = Callable[[object], None]


class PipeSignal(StopSignal):
    """Is set by the next message, or by the end of the pipe. Thread-safe: `_lock` guards the message, which
    is taken once."""

    __slots__ = ("_lock", "_pipe")

    def __init__(self, pipe: _Pipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        with self._lock:
            if not super().is_set and self._pipe.poll():
                self.set()
                try:
                    self._pipe.recv()
                except (EOFError, OSError):
                    # The server is gone.
                    pass
            return super().is_set


class Teller:
    """Collects the progress of a job, and sends it from time to time. Thread-safe: `_lock` is held by each
    method."""

    def __init__(self, send: Send, clock: Clock, store: CountedObjectStore) -> None:
        self._send = send
        self._clock = clock
        self._store = store
        # The first request is shown at once: a budget may keep the next one waiting.
        self._told_s = clock.monotonic_s() - TELL_PERIOD_S
        self._transfer = Transfer()
        self._runs: list[tuple[int, int]] = []
        self._lock = threading.RLock()

    def add_transfer(self, done: Transfer) -> None:
        with self._lock:
            self._transfer = self._transfer.plus(done)
            self._tell_at_times()

    def add_run(self, record_count: int, kept_count: int) -> None:
        with self._lock:
            self._runs.append((record_count, kept_count))
            self._tell_at_times()

    def _tell_at_times(self) -> None:
        if self._clock.monotonic_s() - self._told_s >= TELL_PERIOD_S:
            self.tell()

    def tell(self) -> None:
        """Send what has happened since the last time."""
        with self._lock:
            self._told_s = self._clock.monotonic_s()
            self._send(Progress(self._transfer, tuple(self._runs), self._store.take_use()))
            self._transfer = Transfer()
            self._runs.clear()


class _LogToPipe(logging.Handler):
    """Sends log records to the server, which logs them."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
        try:
            self._send(record)
        except OSError:
            # The server has gone, and with it the log. The job notices it, too.
            pass


class Sender:
    """Sends messages. Thread-safe: `_lock` is held while one is sent."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message. Raises OSError if the server is gone."""
        with self._lock:
            self._pipe.send(message)


class JobWorker:
    """Executes jobs that come through a pipe. Not thread-safe: one thread works."""

    def __init__(self, pipe: _Pipe, send: Send, store_url: str, run_beside: RunBeside) -> None:
        """`run_beside` runs the requests that the work need not wait for."""
        self._pipe = pipe
        self._send = send
        self._run_beside = run_beside
        self._filesystem = PosixFileSystem()
        self._clock = SystemClock()
        self._ids = SystemIdGenerator()
        store = open_store(store_url, filesystem=self._filesystem, clock=self._clock, ids=self._ids)
        self._store = CountedObjectStore(store, kind_of_key, self._clock)
        self._budgets: dict[int, UploadBudget] = {}
        """The limits of each shard."""

    def run(self) -> None:
        """Execute jobs until the pipe is closed. Raises EOFError or OSError then."""
        while True:
            message = self._pipe.recv()
            # The job that another message is about has ended.
            if isinstance(message, JobOrder):
                self._send(self._execute(message))

    def _execute(self, order: JobOrder) -> Done | Failed:
        budget = self._budgets.setdefault(order.shard, UploadBudget(self._clock))
        budget.limit(order.settings.shard_bytes_per_s, order.settings.shard_requests_per_s)
        teller = Teller(self._send, self._clock, self._store)
        signal_ = PipeSignal(self._pipe)
        store = PacedObjectStore(self._store, order.shard, budget, signal_, teller.add_transfer)
        execution = JobExecution(self._filesystem, self._clock, self._ids, store, order, self._run_beside)
        ended = execute_to_end(execution, teller.add_run)
        teller.tell()
        return ended


def _yield_to_server() -> None:
    os.nice(_NICENESS)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(_OOM_SCORE))
    except OSError:
        # Another system than Linux, or one that hides it.
        pass


def _main(pipe: _Pipe) -> None:
    # A signal to the whole group is the server's to obey.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _yield_to_server()
    try:
        hello = pipe.recv()
        assert isinstance(hello, Hello)
        share_one_heap()
        send = Sender(pipe).send
        logging.basicConfig(level=hello.log_level, handlers=[_LogToPipe(send)])
        with running_beside(REQUESTS_BESIDE) as run_beside:
            worker = JobWorker(pipe, send, hello.store_url, run_beside)
            tune_for_jobs()
            worker.run()
    except (EOFError, OSError):
        # The server has closed the pipe, or is gone.
        pass


if __name__ == "__main__":
    if sys.argv[2] != software_digest():
        sys.exit(OTHER_SOFTWARE)
    _main(Connection(int(sys.argv[1])))
