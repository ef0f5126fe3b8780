"""Executes the jobs of compaction in processes beside the server, so that their work takes neither the
interpreter lock nor the memory of the process that answers clients.

The server plans, because it has the state of its shards in memory, and commits, because each commit is judged
by that state. The part between them, which reads, decides, writes and proves, goes to a process, as an order
with everything it has to know. So a process reads no metadata, and its death is no more than a failed job.

A job has a process for itself; those of several shards run at once. A process starts with the first job,
takes the next ones, and ends after `IDLE_MS` without one. If it dies, its job has failed: the next job starts
another process, and after two failures in a row the other jobs wait for the next compaction, as with each
failure of a job. If an idle one has died, the next job starts another. One that says nothing is killed once
its job has taken longer than a job may.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, StoppingError
from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import Scheduler
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done, Failed
from stratalog.compaction.job_execution import JobOrder, JobResult
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.slice_at_work import SliceAtWork
from stratalog.objectstore.counted import StoreUse
from stratalog.remote.objects.spool import clear_spool_directory
from stratalog.server.job_processes.job_process import PATIENCE_S, JobProcess
from stratalog.server.job_processes.messages import Answer, Hello, Progress
from stratalog.server.job_processes.software_on_disk import software_digest

IDLE_MS = 120_000
"""Two periods of looks for due compactions."""
_LOOK_S = 0.1
"""Time between looks at the stop signal."""
STOP_PATIENCE_S = 20.0
"""Time that a process may take to end a job, as long as a request of it runs; then it is killed."""

CountRequests = Callable[[StoreUse], None]


class JobProcesses:
    """Makes executions of jobs by other processes. Thread-safe: `_lock` guards the list of idle ones; a
    process that is at work belongs to the thread of its job."""

    def __init__(
        self,
        hello: Hello,
        filesystem: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        count_requests: CountRequests,
    ) -> None:
        """Made at the start of the server: a process finds by that whether the software was upgraded since.
        `filesystem` has the scratch files of the jobs. `count_requests` gets the requests of all
        processes."""
        self._hello = hello
        self._software = software_digest()
        self._filesystem = filesystem
        self._clock = clock
        self._scheduler = scheduler
        self._count_requests = count_requests
        self._lock = threading.Lock()
        self._idle: list[JobProcess] = []
        self._pids: set[int] = set()

    def execution(
        self, order: JobOrder, stop: StopSignal, on_transfer: Callable[[Transfer], None]
    ) -> ExecutionElsewhere:
        """An execution of the job by a process. `on_transfer` gets its requests and bytes."""
        return ExecutionElsewhere(self, order, stop, on_transfer)

    def execute(
        self, order: JobOrder, stop: StopSignal, on_answer: Callable[[Answer | None], None]
    ) -> Done | Failed:
        """Execute the job, and return its end. `on_answer` gets the messages before that, and None while
        there is none; the process is killed if it raises. Raises LogStoreError if the process ends first, or
        cannot be started; StoppingError if it does not stop in time."""
        process = self._take()
        is_free = False
        try:
            process.give(order)
            ended = self._follow(process, stop, on_answer)
            is_free = True
            return ended
        finally:
            if is_free:
                self._give_back(process)
            else:
                self._end(process, 0)
                # A process that was killed leaves scratch files, and the next job needs their space.
                with contextlib.suppress(OSError):
                    clear_spool_directory(self._filesystem, order.settings.spool_directory)

    def count_requests(self, use: StoreUse) -> None:
        """Count requests that a process has made."""
        self._count_requests(use)

    def pids(self) -> frozenset[int]:
        """The processes that run, at work or idle."""
        with self._lock:
            return frozenset(self._pids)

    def close(self) -> None:
        """End all processes. No job is at work any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            self._end(process)

    def _follow(
        self, process: JobProcess, stop: StopSignal, on_answer: Callable[[Answer | None], None]
    ) -> Done | Failed:
        stopped_s: float | None = None
        while True:
            if stopped_s is None and stop.is_set:
                stopped_s = self._clock.monotonic_s()
                process.stop()
            answer = process.answer(_LOOK_S)
            if isinstance(answer, Done | Failed):
                return answer
            on_answer(answer)
            if stopped_s is not None and self._clock.monotonic_s() - stopped_s >= STOP_PATIENCE_S:
                raise StoppingError("a compaction job was killed, because a request of it did not end")

    def _take(self) -> JobProcess:
        while (idle := self._idle_one()) is not None:
            if not idle.has_ended:
                return idle
            # The kernel kills an idle process first, too; no job has failed by that.
            self._end(idle)
        process = JobProcess(self._hello, self._software)
        with self._lock:
            self._pids.add(process.pid)
        return process

    def _idle_one(self) -> JobProcess | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _end(self, process: JobProcess, patience_s: float = PATIENCE_S) -> None:
        process.end(patience_s)
        with self._lock:
            self._pids.discard(process.pid)

    def _give_back(self, process: JobProcess) -> None:
        order_count = process.order_count
        with self._lock:
            self._idle.append(process)

        def end_if_idle() -> None:
            with self._lock:
                if process not in self._idle or process.order_count != order_count:
                    return
                self._idle.remove(process)
            self._end(process)

        self._scheduler.once("end an idle process of compaction", end_if_idle, IDLE_MS)


class ExecutionElsewhere:
    """Implements `stratalog.compaction.job_execution.Execution` by another process. Not thread-safe: used
    once, by one thread."""

    def __init__(
        self,
        processes: JobProcesses,
        order: JobOrder,
        stop: StopSignal,
        on_transfer: Callable[[Transfer], None],
    ) -> None:
        self.job: CompactionJob = order.job
        self.current: TopicIdPartition | None = None
        self._processes = processes
        self._order = order
        self._stop = stop
        self._on_transfer = on_transfer
        self._at_work = SliceAtWork()

    def execute(self, on_run: Callable[[int, int], None]) -> JobResult:
        """Rewrite the inputs as `JobExecution.execute` does, and raise as that. Raises LogStoreError, too, if
        the process ends before the job, and what `on_transfer` raises, which is called again and again
        while the process says nothing."""

        def follow(answer: Answer | None) -> None:
            if answer is None:
                self._on_transfer(Transfer())
            elif isinstance(answer, logging.LogRecord):
                _log(answer)
            elif isinstance(answer, Progress):
                self._on_transfer(answer.transfer)
                self._processes.count_requests(answer.use)
                for record_count, kept_count in answer.runs:
                    on_run(record_count, kept_count)

        ended = self._processes.execute(self._order, self._stop, follow)
        if isinstance(ended, Done):
            return ended.result
        self.current, self._at_work = ended.current, ended.at_work
        raise ended.error

    def named(self, error: LogStoreError) -> LogStoreError:
        """The error of the execution with the slice that was read."""
        return error if self.current is None else self._at_work.named(error)


def _log(record: logging.LogRecord) -> None:
    """Log a record of another process as one of this one."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
