"""Measures a compaction while it runs: jobs, partitions, bytes, records, requests, and the time that is left.

The compactor has one meter a run. Its store reports requests and bytes as they happen, and the job at work
each partition that it has rewritten. Numbers of jobs that have ended are exact. Those of the others are of
the plan: an estimate for the jobs to come, and the cost of the job at work (`job_cost`).
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.compaction.plan.compaction_job import JobSize
from stratalog.compaction.plan.job_cost import JobCost

TELL_PERIOD_S = 0.2
"""Time between two reports within a job."""


class Transfer(NamedTuple):
    """Requests and bytes between a compaction and the objects of its store."""

    get_count: int = 0
    """GET requests; those that resumed a broken stream are counted apart."""
    resumed_get_count: int = 0
    put_count: int = 0
    """Requests that send objects: a PUT each, or those that begin, fill and end an upload in parts."""
    read_bytes: int = 0
    """Bytes that have arrived, except those of a read that broke."""
    written_bytes: int = 0
    """Bytes that were given to the store."""

    def plus(self, more: Transfer) -> Transfer:
        """Both together."""
        return Transfer(*map(operator.add, self, more))

    def since(self, before: Transfer) -> Transfer:
        """The part behind an earlier moment."""
        return Transfer(*(now - then for now, then in zip(self, before, strict=True)))


class CompactionProgress(NamedTuple):
    """The progress of a compaction at one moment. Immutable."""

    done_job_count: int = 0
    """Jobs that have ended, refused ones included."""
    job_count: int = 0
    """Jobs that are known."""
    done_partition_count: int = 0
    """Partitions that were rewritten; one in several jobs counts for each."""
    partition_count: int = 0
    """Partitions of all jobs that are known."""
    transfer: Transfer = Transfer()
    planned_read_bytes: int = 0
    """Bytes that all known jobs read, those of jobs to come as an estimate."""
    kept_record_count: int = 0
    dropped_record_count: int = 0
    elapsed_ms: int = 0
    remaining_ms: int | None = None
    """The time that the rest of the known jobs takes at the speed up to now; None if that is not known."""

    def behind(self, done: CompactionProgress) -> CompactionProgress:
        """This compaction behind one that has ended, as one."""
        return CompactionProgress(
            done_job_count=done.done_job_count + self.done_job_count,
            job_count=done.job_count + self.job_count,
            done_partition_count=done.done_partition_count + self.done_partition_count,
            partition_count=done.partition_count + self.partition_count,
            transfer=Transfer(*map(sum, zip(done.transfer, self.transfer, strict=True))),
            planned_read_bytes=done.planned_read_bytes + self.planned_read_bytes,
            kept_record_count=done.kept_record_count + self.kept_record_count,
            dropped_record_count=done.dropped_record_count + self.dropped_record_count,
            elapsed_ms=done.elapsed_ms + self.elapsed_ms,
            remaining_ms=self.remaining_ms,
        )


class ProgressMeter:
    """Measures one run of a compactor. Thread-safe: `_lock` is held by each method, and while the progress is
    told."""

    def __init__(self, clock: Clock, tell: Callable[[CompactionProgress], None]) -> None:
        """`tell` gets the progress when jobs are planned, begin and end, and every `TELL_PERIOD_S` meanwhile,
        if anything has happened; on the thread that brings it."""
        self._clock = clock
        self._tell = tell
        self._lock = threading.RLock()
        self._begin_s = clock.monotonic_s()
        self._told_s = self._begin_s
        self.transfer = Transfer()
        self._done_job_count = 0
        self._done_partition_count = 0
        self._job_partition_count = 0
        """Partitions of the job at work that were rewritten."""
        self._kept_record_count = self._dropped_record_count = 0
        self._known: list[JobSize] = []
        """The jobs to come, and the one at work, in their order."""
        self._job_begin = Transfer()

    @property
    def progress(self) -> CompactionProgress:
        """The progress now."""
        read_bytes = self._job_begin.read_bytes
        # A job reads more than was foretold if its streams break late, and less if keys have no survivors.
        at_work_bytes = self.transfer.read_bytes - read_bytes
        planned_bytes = read_bytes + max(sum(size.read_bytes for size in self._known), at_work_bytes)
        elapsed_ms = round(1000 * (self._clock.monotonic_s() - self._begin_s))
        return CompactionProgress(
            done_job_count=self._done_job_count,
            job_count=self._done_job_count + len(self._known),
            done_partition_count=self._done_partition_count + self._job_partition_count,
            partition_count=self._done_partition_count + sum(size.partition_count for size in self._known),
            transfer=self.transfer,
            planned_read_bytes=planned_bytes,
            kept_record_count=self._kept_record_count,
            dropped_record_count=self._dropped_record_count,
            elapsed_ms=elapsed_ms,
            remaining_ms=_remaining_ms(elapsed_ms, self.transfer.read_bytes, planned_bytes),
        )

    def plan(self, sizes: Sequence[JobSize]) -> None:
        """These jobs come next, and no others."""
        with self._lock:
            self._known = list(sizes)
            self.tell()

    def begin_job(self, partition_count: int, cost: JobCost) -> None:
        """The next of the planned jobs begins."""
        with self._lock:
            self._known[0] = JobSize(partition_count, cost.read_bytes)
            self._job_begin = self.transfer
            self._job_partition_count = 0
            self.tell()

    @property
    def transfer_of_job(self) -> Transfer:
        """The requests and bytes of the job at work."""
        return self.transfer.since(self._job_begin)

    def end_job(self) -> None:
        """The job at work has ended, well or not."""
        with self._lock:
            self._known.pop(0)
            self._done_job_count += 1
            self._done_partition_count += self._job_partition_count
            self._job_partition_count = 0
            self._job_begin = self.transfer
            self.tell()

    def add_partition(self, record_count: int, kept_count: int) -> None:
        """The job at work has rewritten a partition of `record_count` records."""
        with self._lock:
            self._job_partition_count += 1
            self._kept_record_count += kept_count
            self._dropped_record_count += record_count - kept_count
            self._tell_at_times()

    def add_transfer(self, done: Transfer) -> None:
        """Requests and bytes that have just been transferred."""
        with self._lock:
            self.transfer = self.transfer.plus(done)
            self._tell_at_times()

    def _tell_at_times(self) -> None:
        if self._clock.monotonic_s() - self._told_s >= TELL_PERIOD_S:
            self.tell()

    def tell(self) -> None:
        """Report the progress now."""
        with self._lock:
            self._told_s = self._clock.monotonic_s()
            self._tell(self.progress)


def _remaining_ms(elapsed_ms: int, done_bytes: int, planned_bytes: int) -> int | None:
    """The time that the rest takes at the speed up to now."""
    if done_bytes <= 0 or elapsed_ms <= 0:
        return None
    return elapsed_ms * (planned_bytes - done_bytes) // done_bytes
