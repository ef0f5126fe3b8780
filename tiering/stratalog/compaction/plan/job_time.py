"""The time that a job may take: its outputs must be committed before the collector takes them for orphans,
and a tombstone's horizon, which is stamped before the commit, allows for the longest job.

The collector sweeps unfinished uploads, and refuses objects, that were begun longer ago than its grace. So a
job that would take longer does not begin, and one that turns out to be so slow ends. Monotonic time may stand
still while a machine is suspended. So the date counts, too, before a job is committed.
"""

from __future__ import annotations

import math

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, OverloadedError
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.plan.job_cost import JobCost

MAX_JOB_S = 2 * 60 * 60
"""The longest time of a job: far less than the collector's grace, which goes on until the commit has landed,
and as much as a tombstone may stay too long."""
MAX_JOB_MS = MAX_JOB_S * 1000
REST_OF_LATE_MS = 24 * 60 * 60 * 1000
"""A partition rests for so long after its least job has run out of time: each further try would cost as
much."""


def require_time(cost: JobCost, settings: CompactionSettings) -> None:
    """Raise OverloadedError if the limits of bytes and requests make a job of that cost longer than it may
    take."""
    byte_count, request_count = cost.read_bytes + cost.written_bytes, cost.get_count + cost.put_count
    bytes_s, requests_s = (
        byte_count / settings.shard_bytes_per_s,
        request_count / settings.shard_requests_per_s,
    )
    if max(bytes_s, requests_s) <= MAX_JOB_S:
        return
    if bytes_s >= requests_s:
        name, limit, count = "io.max.bytes.per.second", settings.max_bytes_per_s, byte_count
    else:
        name, limit, count = "max.requests.per.second", settings.max_requests_per_s, request_count
    least = math.ceil(count * settings.limit_parts / MAX_JOB_S)
    raise OverloadedError(
        "a compaction job would take longer than a job may, so it does not begin; raise"
        f" remote.compaction.{name} from {limit:.10g} to at least {least}",
        needed_s=int(max(bytes_s, requests_s)),
        max_s=MAX_JOB_S,
        max_bytes_per_s=settings.max_bytes_per_s,
        max_requests_per_s=settings.max_requests_per_s,
    )


class JobTimer:
    """The time of the jobs of a run. Not thread-safe but for `check`: the thread of the run uses it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_s = clock.monotonic_s()
        self._begin_ms = 0

    def begin(self, begin_s: float, begin_ms: int) -> None:
        """The time is that of the job that began then, by the monotonic clock and by the store's."""
        self._begin_s = begin_s
        self._begin_ms = begin_ms

    def check(self) -> None:
        """Raise OverloadedError if the job has taken longer than it may: see `ran_out`."""
        took_s = self._clock.monotonic_s() - self._begin_s
        if took_s > MAX_JOB_S:
            raise OverloadedError(
                "a compaction job takes too long, so it ends here; raise the limits of remote.compaction,"
                " find out why the store or this machine is so slow, or share the work of one partition among"
                " many machines by `stratalog spark compact`",
                took_s=int(took_s),
                max_s=MAX_JOB_S,
            )

    def check_date(self, date_ms: int) -> None:
        """Raise LogStoreError if the job has begun too long before this time of the store, which `check` does
        not see if the machine was suspended."""
        if date_ms - self._begin_ms > MAX_JOB_MS:
            raise LogStoreError(
                "by the store's clock the job has taken longer than a job may, so it is not committed; if"
                " this machine was suspended, there is nothing to do",
                took_s=(date_ms - self._begin_ms) // 1000,
                max_s=MAX_JOB_S,
            )


def ran_out(error: OverloadedError) -> bool:
    """Whether a job has run, and taken longer than it may."""
    return "took_s" in error.fields
