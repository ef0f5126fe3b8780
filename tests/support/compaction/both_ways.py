"""Executes each job of a compactor twice: by itself, and divided among the tasks of a cluster. Both must make
the same slices, byte for byte; the compactor commits the divided ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

from stratalog.base.errors import LogStoreError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done
from stratalog.compaction.job_execution import JobExecution, JobOrder, JobResult
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.jobs.divided_order import DividedOrder
from stratalog.pipeline.jobs.order_execution import execute_order
from stratalog.remote.objects.slice_entry import KeyStreamRef, PartRef, SliceEntry
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace


class BothWays:
    """Makes such executions. Not thread-safe: one test uses it."""

    def __init__(self, random: Random, store: ObjectStore, clock: ManualClock) -> None:
        self._random = random
        self._filesystem = MemoryFileSystem()
        self._clock = clock
        self._ids = SequentialIds(random.randrange(1 << 20))
        self._store = store
        self.cluster = InlineCluster(random)
        self.divided_count = 0
        """Jobs that were divided."""
        self.part_count = 0
        """Orders that they were divided into."""

    def execution(
        self, order: JobOrder, _stop: StopSignal, _note: Callable[[Transfer], None]
    ) -> _BothExecutions:
        bound = self._random.choice((200, 1_000, 1 << 20))
        settings = dataclasses.replace(order.settings, max_job_bytes=bound, target_object_bytes=bound)
        return _BothExecutions(self, order._replace(settings=settings))

    def execute(self, order: JobOrder, on_run: Callable[[int, int], None]) -> JobResult:
        """Both results are those of the order."""
        max_task_bytes = self._random.choice((1, 300, 1_000))
        place = InlinePlace(self._filesystem, self._clock, self._ids, self._store)
        executed = execute_order(self.cluster, place, order, max_task_bytes)
        if not isinstance(executed.ended, Done):
            raise executed.ended.error
        divided = DividedOrder(order, max_task_bytes)
        self.divided_count += not divided.is_whole
        alone = JobExecution(
            self._filesystem, self._clock, self._ids, self._store, order.with_spool("/alone")
        )
        runs: list[tuple[int, int]] = []
        expected = alone.execute(lambda read, kept: runs.append((read, kept)))
        result = executed.ended.result
        assert list(executed.runs) == runs
        assert result[1:] == expected[1:]
        assert _slices_of(result) == _slices_of(expected)
        self.part_count += len(result.stored)
        for read, kept in runs:
            on_run(read, kept)
        return result


class _BothExecutions:
    """Implements `Execution`."""

    def __init__(self, both: BothWays, order: JobOrder) -> None:
        self.job = order.job
        self.current: TopicIdPartition | None = None
        self._both = both
        self._order = order

    def execute(self, on_run: Callable[[int, int], None]) -> JobResult:
        return self._both.execute(self._order, on_run)

    def named(self, error: LogStoreError) -> LogStoreError:
        return error


def _slices_of(result: JobResult) -> list[SliceEntry]:
    """All that the directory says of the slices, checksums included, but for their places in objects."""
    found = [_without_place(entry) for _, entries in result.stored for entry in entries]
    return sorted(found, key=lambda entry: (entry.topic_id, entry.partition, entry.base_offset))


def _without_place(entry: SliceEntry) -> SliceEntry:
    changes: dict[str, Any] = {"data_position": 0, "index": PartRef(0, *entry.index[1:])}
    if entry.key_stream is not None:
        changes["key_stream"] = KeyStreamRef(0, *entry.key_stream[1:])
    return entry._replace(**changes)
