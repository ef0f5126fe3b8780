"""Executes an order of the compactor on a cluster: as one task, or divided among many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done, Failed
from stratalog.compaction.job_execution import JobOrder, JobResult
from stratalog.pipeline.jobs.cluster import Cluster
from stratalog.pipeline.jobs.divided_order import DividedOrder
from stratalog.pipeline.jobs.key_exchange import find_survivors
from stratalog.pipeline.jobs.order_task import ExecutedOrder, execute_task
from stratalog.pipeline.jobs.task_place import OpenPlace


def execute_order(
    cluster: Cluster, open_place: OpenPlace, order: JobOrder, max_task_bytes: int
) -> ExecutedOrder:
    """Execute an order; a partition with more data than `max_task_bytes` is divided among tasks. Raises
    LogStoreError if the cluster gives up, StoreCorruptError if it loses keys."""
    divided = DividedOrder(order, max_task_bytes)
    task = partial(execute_task, open_place)
    if divided.is_whole:
        return cluster.each(task, [order])[0]
    found = find_survivors(cluster, open_place, divided)
    if found.failed is not None:
        return ExecutedOrder(found.failed, found.transfer, ())
    parts = divided.parts(divided.survivors(found.bitmaps))
    return _joined(order, parts, cluster.each(task, parts), found.transfer)


def _joined(
    order: JobOrder, parts: Sequence[JobOrder], executed: Sequence[ExecutedOrder], transfer: Transfer
) -> ExecutedOrder:
    """The end of the whole order: one failed part is enough to fail it."""
    for one in executed:
        transfer = transfer.plus(one.transfer)
    failed = next((one.ended for one in executed if isinstance(one.ended, Failed)), None)
    if failed is not None:
        return ExecutedOrder(failed, transfer, ())
    counts: dict[TopicIdPartition, tuple[int, int]] = {
        run.topic_id_partition: (0, 0) for run in order.job.runs
    }
    for part, one in zip(parts, executed, strict=True):
        for run, (read, kept) in zip(part.job.runs, _runs_of(part, one), strict=True):
            before = counts[run.topic_id_partition]
            counts[run.topic_id_partition] = before[0] + read, before[1] + kept
    results = [one.ended.result for one in executed if isinstance(one.ended, Done)]
    result = JobResult(
        stored=tuple(stored for one in results for stored in one.stored),
        records_in=sum(one.records_in for one in results),
        records_out=sum(one.records_out for one in results),
        tombstones_removed=sum(one.tombstones_removed for one in results),
    )
    return ExecutedOrder(Done(result), transfer, tuple(counts.values()))


def _runs_of(part: JobOrder, executed: ExecutedOrder) -> Sequence[tuple[int, int]]:
    assert len(executed.runs) == len(part.job.runs), "each run is rewritten"
    return executed.runs
