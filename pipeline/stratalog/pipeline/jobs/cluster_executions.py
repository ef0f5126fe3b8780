"""Executions of a compactor's jobs on a cluster, several at the same time.

Each job has a thread of the driver, which waits for its tasks. The compactor waits for the jobs in the order
of its plan, and commits each by the rules of any other job.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from stratalog.base.errors import LogStoreError, StoppingError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done
from stratalog.compaction.job_execution import JobOrder, JobResult
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.slice_at_work import SliceAtWork
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.order_execution import execute_order
from stratalog.pipeline.jobs.order_task import ExecutedOrder
from stratalog.pipeline.jobs.task_place import OpenPlace

_LOOK_S = 0.1
"""Time between looks at the stop signal."""


class _Work(NamedTuple):
    """An order at work."""

    tag: str
    stop: StopSignal
    future: Future[ExecutedOrder]


class ClusterExecutions:
    """Makes executions of jobs on a cluster, which begin at once. Not thread-safe: used by the thread of the
    compactor; a context manager that ends what is left of them."""

    def __init__(self, cluster: Cluster, open_place: OpenPlace, *, jobs_at_once: int) -> None:
        self._cluster = cluster
        self._open_place = open_place
        self._jobs_at_once = jobs_at_once
        self._pool = ThreadPoolExecutor(jobs_at_once, thread_name_prefix="stratalog-job")
        self._numbers = itertools.count(1)
        self._works: list[_Work] = []

    def __enter__(self) -> ClusterExecutions:
        return self

    def __exit__(self, *_: object) -> None:
        for work in self._works:
            self._end(work)
        self._pool.shutdown(cancel_futures=True)

    def execution(
        self, order: JobOrder, stop: StopSignal, on_transfer: Callable[[Transfer], None]
    ) -> ClusterExecution:
        """Begin a job, as the compactor's `ExecutionElsewhere`. Those that were given up meanwhile are
        ended."""
        for work in self._works:
            if work.stop.is_set:
                self._end(work)
        self._works = [work for work in self._works if not work.future.done()]
        tag = f"stratalog-compaction-{id(self):x}-{next(self._numbers)}"
        work = _Work(tag, stop, self._pool.submit(self._execute, tag, order))
        self._works.append(work)
        return ClusterExecution(order, work, on_transfer, lambda: self._end(work))

    def _execute(self, tag: str, order: JobOrder) -> ExecutedOrder:
        job, settings = order.job, order.settings
        # The limits are those of all jobs and their tasks together.
        lanes = max(self._cluster.lane_count, self._jobs_at_once)
        limited = dataclasses.replace(
            settings,
            max_bytes_per_s=settings.max_bytes_per_s / lanes,
            max_requests_per_s=settings.max_requests_per_s / lanes,
        )
        names = sorted({run.topic.name for run in job.runs})
        description = f"compaction of {', '.join(names[:3])}: {len(job.inputs)} objects"
        with self._cluster.tagged(tag, description):
            return execute_order(
                self._cluster, self._open_place, order._replace(settings=limited), settings.max_job_bytes
            )

    def _end(self, work: _Work) -> None:
        if not work.future.cancel() and not work.future.done():
            self._cluster.cancel(work.tag)


class ClusterExecution:
    """Implements `stratalog.compaction.job_execution.Execution` by a cluster. Not thread-safe: used once, by
    one thread."""

    def __init__(
        self,
        order: JobOrder,
        work: _Work,
        on_transfer: Callable[[Transfer], None],
        end: Callable[[], None],
    ) -> None:
        self.job: CompactionJob = order.job
        self.current: TopicIdPartition | None = None
        self._work = work
        self._on_transfer = on_transfer
        self._end = end
        self._at_work = SliceAtWork()

    def execute(self, on_run: Callable[[int, int], None]) -> JobResult:
        """Wait for the job, and raise as `JobExecution.execute` does. Raises LogStoreError, too, if the
        cluster gives up, and what `on_transfer` raises, which is called again and again meanwhile."""
        try:
            executed = self._wait()
        except BaseException:
            self._end()
            raise
        self._on_transfer(executed.transfer)
        for record_count, kept_count in executed.runs:
            on_run(record_count, kept_count)
        if isinstance(executed.ended, Done):
            return executed.ended.result
        self.current, self._at_work = executed.ended.current, executed.ended.at_work
        raise executed.ended.error

    def named(self, error: LogStoreError) -> LogStoreError:
        """The error of the execution with the slice that was read."""
        return error if self.current is None else self._at_work.named(error)

    def _wait(self) -> ExecutedOrder:
        while True:
            try:
                return self._work.future.result(_LOOK_S)
            except TimeoutError:
                if self._work.stop.is_set:
                    raise StoppingError("the compaction was ended; what was committed stays") from None
                self._on_transfer(Transfer())
