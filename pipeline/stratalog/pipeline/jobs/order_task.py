"""Executes an order of the compactor as one task."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done, Failed, execute_to_end
from stratalog.compaction.job_execution import JobExecution, JobOrder
from stratalog.compaction.paced_object_store import PacedObjectStore
from stratalog.pipeline.jobs.task_place import OpenPlace
from stratalog.remote.tier.upload_budget import UploadBudget


class ExecutedOrder(NamedTuple):
    """The end of an order. Pickled to the driver."""

    ended: Done | Failed
    transfer: Transfer
    """Requests and bytes of the task."""
    runs: tuple[tuple[int, int], ...]
    """The records of each partition that was rewritten, and those of them that stay."""


class TaskTransfer:
    """Adds up the requests and bytes of a task. Not thread-safe: the task has one thread."""

    def __init__(self) -> None:
        self.total = Transfer()

    def add(self, done: Transfer) -> None:
        self.total = self.total.plus(done)


@contextmanager
def opened_execution(
    open_place: OpenPlace, order: JobOrder, transfer: TaskTransfer
) -> Generator[JobExecution]:
    """The execution of an order with the means of this machine."""
    with open_place() as means:
        settings = order.settings
        budget = UploadBudget(means.clock)
        budget.limit(settings.max_bytes_per_s, settings.max_requests_per_s)
        store = PacedObjectStore(means.store, order.shard, budget, StopSignal(), transfer.add)
        yield JobExecution(
            means.filesystem, means.clock, means.ids, store, order.with_spool(means.scratch_directory)
        )


def execute_task(open_place: OpenPlace, order: JobOrder) -> ExecutedOrder:
    """Execute an order. Objects that it stores are orphans until a commit names them: so a task that fails,
    or runs twice, leaves nothing visible."""
    transfer = TaskTransfer()
    runs: list[tuple[int, int]] = []
    with opened_execution(open_place, order, transfer) as execution:
        ended = execute_to_end(execution, lambda read, kept: runs.append((read, kept)))
    return ExecutedOrder(ended, transfer.total, tuple(runs))
