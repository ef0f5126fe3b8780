"""Remembers the failures of a compactor: partitions that are left alone, and objects whose jobs failed.

A partition whose data fails is excluded for a while. One that this version cannot compact is carried
meanwhile: its slices move as they are. After that while it is tried again, and remains among the exclusions
until a job of it is committed, or a plan has no job for it any more: a failure that comes back must not look
like one that is over.

An object counts the failures of the jobs that read it, in a row; of the object that the failure names, if it
names one. After the second one it rests, before the next try. Later jobs with it come last and become
smaller (`job_assembly`). A job over the same inputs that fails twice makes no progress, which is an alarm. A
job for which there is no room, or that has run out of its time, becomes smaller at once. Of one that cannot
become smaller a partition is excluded; for longer after the latter, because each try would take as much time.

A partition counts the jobs that have lost it to other commits, in a row. That is no failure, but it is an
alarm where it never ends: records are deleted during each job, say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import NamedTuple, Protocol
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import UnsupportedOperationError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import CompactionJob, JobRoom, Refusal, RunMode
from stratalog.compaction.plan.job_assembly import FAILURES_TO_SHRINK


class Exclusion(NamedTuple):
    """A partition that compaction leaves alone, as the last run has found it."""

    reason: str
    since_ms: int
    """The first failure in a row, or the first compaction that left it out for the reason."""
    until_ms: int | None
    """The next run after this time tries it again. None: as long as the reason lasts, for which each run
    looks."""
    failure_count: int
    """Failures in a row."""
    is_carried: bool = False
    """Whether its slices move along with others, as they are."""
    rest_ms: int = 0
    """How long it is left alone after each failure, if that is longer than for other failures."""


class KeptExclusions(Protocol):
    """A place where exclusions outlive the process."""

    def read(self) -> Mapping[TopicIdPartition, Exclusion]: ...

    def write(self, exclusions: Mapping[TopicIdPartition, Exclusion]) -> None: ...


class JobHistory:
    """The failures of a compactor's jobs. Thread-safe: `_lock` guards all fields, and `_keeping` is held
    while they are written, so that no reader waits for a disk."""

    def __init__(
        self, clock: Clock, retry_backoff_ms: Callable[[], int], kept: KeptExclusions | None = None
    ) -> None:
        """`retry_backoff_ms`: how long a partition is left alone. `kept`: the exclusions of an earlier
        process, and the place for those of this one."""
        self._clock = clock
        self._retry_backoff_ms = retry_backoff_ms
        self._lock = threading.Lock()
        # Partitions that failed, with the last failure; and those that a run left out without a try.
        before = dict[TopicIdPartition, Exclusion]() if kept is None else kept.read()
        self._kept = kept
        self._keeping = threading.Lock()
        self._failed = {tip: one for tip, one in before.items() if one.until_ms is not None}
        self._left_out = {tip: one for tip, one in before.items() if one.until_ms is None}
        self._written = dict(before)
        self._end_in_time(clock.now_ms())
        self._failures: dict[str, int] = {}
        self._rest_ends_ms: dict[str, int] = {}
        self._passed_over: set[str] = set()
        self._wasted: dict[TopicIdPartition, int] = {}
        self._lost: dict[TopicIdPartition, int] = {}
        self._rooms: dict[str, JobRoom] = {}
        self._attempts: dict[tuple[str, ...], int] = {}
        self._exclusion_count = self._outgrown_count = 0

    @property
    def change_count(self) -> int:
        """Grows with each partition that is left alone more than it was, and each job that must be smaller:
        then another plan has other jobs."""
        return self._exclusion_count + self._outgrown_count

    @property
    def failures(self) -> Mapping[str, int]:
        """How often the last jobs with an object have failed in a row, by its name."""
        with self._lock:
            return dict(self._failures)

    @property
    def rooms(self) -> Mapping[str, JobRoom]:
        """The most that a job with an object may take, by its name, where there was no room for more."""
        with self._lock:
            return dict(self._rooms)

    def excluded(self, *, is_carried: bool | None = None) -> Mapping[TopicIdPartition, str]:
        """The partitions that failed lately, with the reasons. `is_carried`: only those that are carried, or
        only those that are not."""
        now_ms = self._clock.now_ms()
        self._end_in_time(now_ms)
        with self._lock:
            return {
                tip: one.reason
                for tip, one in self._failed.items()
                if (one.until_ms or 0) > now_ms and is_carried in (None, one.is_carried)
            }

    def _end_in_time(self, now_ms: int) -> None:
        """Let no exclusion last longer than one that begins now: the clock may have been ahead at a failure,
        also that of an earlier process."""
        rest_ms = self._retry_backoff_ms()
        with self._lock:
            for tip, one in self._failed.items():
                latest_ms = now_ms + max(rest_ms, one.rest_ms)
                if (one.until_ms or 0) > latest_ms:
                    since_ms = min(one.since_ms, now_ms)
                    self._failed[tip] = one._replace(since_ms=since_ms, until_ms=latest_ms)

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """All partitions that the last runs left alone, without a try or because they failed, also those that
        the next run tries again."""
        self._end_in_time(self._clock.now_ms())
        with self._lock:
            return {**self._left_out, **self._failed}

    def reset(self, tip: TopicIdPartition) -> bool:
        """Forget the failures of a partition, and that there was no room for a job: the one who resets may
        have made some. False if the partition had not failed."""
        with self._lock:
            has_failed = self._failed.pop(tip, None) is not None
            self._rooms.clear()
        self._keep()
        return has_failed

    def exclude(
        self, job: CompactionJob, failed: Set[TopicIdPartition], error: Exception, rest_ms: int = 0
    ) -> Exclusion:
        """Leave the failed partitions of the job alone for a while, at least for `rest_ms`. They are carried
        if their data is sound. Returns the exclusion of one of them."""
        runs = [run for run in job.runs if run.topic_id_partition in failed]
        before = self.excluded(is_carried=False).keys() | self.excluded(is_carried=True).keys()
        now_ms = self._clock.now_ms()
        until_ms = now_ms + max(self._retry_backoff_ms(), rest_ms)
        last = Exclusion(str(error), now_ms, until_ms, 1)
        with self._lock:
            for run in runs:
                tip = run.topic_id_partition
                former = self._failed.get(tip)
                is_carried = isinstance(error, UnsupportedOperationError) and run.mode is RunMode.COMPACT
                last = Exclusion(
                    reason=str(error),
                    since_ms=now_ms if former is None else former.since_ms,
                    until_ms=until_ms,
                    failure_count=1 if former is None else former.failure_count + 1,
                    is_carried=is_carried,
                    rest_ms=rest_ms,
                )
                self._failed[tip] = last
                is_worse = former is not None and former.is_carried and not is_carried
                self._exclusion_count += tip not in before or is_worse
        self._keep()
        return last

    def committed(self, job: CompactionJob) -> None:
        """Forget the failures of the job's partitions and inputs."""
        with self._lock:
            for run in job.runs if self._failed else ():
                former = self._failed.get(run.topic_id_partition)
                if former is not None and not (former.is_carried and run.mode is RunMode.CARRY):
                    del self._failed[run.topic_id_partition]
            for name in job.input_names:
                self._failures.pop(name, None)
                self._rest_ends_ms.pop(name, None)
            self._attempts.pop(job.input_names, None)
        self._keep()

    def gained(self, job: CompactionJob) -> int:
        """Note a job that has gained something. Returns how many jobs in a row have gained nothing: 0."""
        with self._lock:
            for tip in job.partitions if self._wasted else ():
                self._wasted.pop(tip, None)
        return 0

    def wasted(self, job: CompactionJob) -> int:
        """Note a job that was committed and has gained nothing. Returns how many jobs in a row have gained
        nothing for one of its partitions."""
        with self._lock:
            for tip in job.partitions:
                self._wasted[tip] = self._wasted.get(tip, 0) + 1
            return max(self._wasted[tip] for tip in job.partitions)

    def lost(self, job: CompactionJob, lost: Collection[TopicIdPartition]) -> Mapping[TopicIdPartition, int]:
        """Note that a job has lost these of its partitions, because other commits were first, and no others.
        Returns how many jobs in a row have lost each of them."""
        with self._lock:
            for tip in job.partitions.difference(lost) if self._lost else ():
                self._lost.pop(tip, None)
            for tip in lost:
                self._lost[tip] = self._lost.get(tip, 0) + 1
            return {tip: self._lost[tip] for tip in lost}

    def failed(self, job: CompactionJob, input_name: str | None) -> int:
        """Note a failure of the job that is not of its data, but of the input with this name, if it is known.
        From the second one in a row on, the input is not tried again for a while. Returns how many jobs over
        these inputs have failed in a row."""
        names = job.input_names if input_name is None else (input_name,)
        with self._lock:
            self._passed_over.update(names)
            for name in names:
                self._failures[name] = self._failures.get(name, 0) + 1
                if self._failures[name] >= FAILURES_TO_SHRINK:
                    self._rest_ends_ms[name] = self._clock.now_ms() + self._retry_backoff_ms()
            attempts = self._attempts[job.input_names] = self._attempts.get(job.input_names, 0) + 1
            return attempts

    def begin_run(self) -> None:
        """Note that a run begins, which tries again what the last one has passed over."""
        with self._lock:
            self._passed_over.clear()

    def passes_over(self, job: CompactionJob) -> bool:
        """Whether a job of this run with one of its inputs has failed, or rests. It was tried once then."""
        with self._lock:
            return not self._passed_over.isdisjoint(job.input_names)

    def resting(self, job: CompactionJob) -> tuple[int, int] | None:
        """If the job should not be tried again yet: how often jobs with one of its inputs have failed in a
        row, and how many milliseconds to wait."""
        now_ms = self._clock.now_ms()
        with self._lock:
            wait_ms, name = max((self._rest_ends_ms.get(name, 0) - now_ms, name) for name in job.input_names)
            if wait_ms <= 0:
                return None
            self._passed_over |= {one for one in job.input_names if self._rest_ends_ms.get(one, 0) > now_ms}
            return (self._failures[name], wait_ms)

    def outgrown(self, job: CompactionJob) -> None:
        """Note that there is no room for the job: the next one with its inputs has half of them, and of the
        bytes."""
        # Slices without data, too, leave a job of their own.
        room = JobRoom(len(job.inputs) // 2, min(job.planned_bytes // 2, job.planned_bytes - 1))
        with self._lock:
            for name in job.input_names:
                self._rooms[name] = room.within(self._rooms.get(name, room))
            self._outgrown_count += 1

    def forget_all_but(self, live: Collection[str], topic_ids: Collection[UUID]) -> None:
        """Forget the objects that are gone, and the failures of topics that are deleted; `topic_ids`: the
        others."""
        with self._lock:
            self._failed = {tip: one for tip, one in self._failed.items() if tip.topic_id in topic_ids}
            self._wasted = {tip: count for tip, count in self._wasted.items() if tip.topic_id in topic_ids}
            self._lost = {tip: count for tip, count in self._lost.items() if tip.topic_id in topic_ids}
            self._failures = {name: count for name, count in self._failures.items() if name in live}
            self._rest_ends_ms = {name: end for name, end in self._rest_ends_ms.items() if name in live}
            self._rooms = {name: room for name, room in self._rooms.items() if name in live}
            self._attempts = {
                names: count for names, count in self._attempts.items() if all(name in live for name in names)
            }

    def note_left_out(
        self, refusals: Sequence[Refusal], planned: Set[TopicIdPartition], *, is_whole: bool
    ) -> None:
        """Keep the refusals of a run, those of an earlier run with its time. `planned`: the partitions of its
        jobs. `is_whole`: of a run over all topics, so that the other refusals are over, and so are failures
        whose partitions could be tried again and are in no job."""
        now_ms, excluded = self._clock.now_ms(), self.excluded()
        with self._lock:
            if is_whole:
                self._failed = {
                    tip: one for tip, one in self._failed.items() if tip in excluded or tip in planned
                }
            former = self._left_out
            left_out = {} if is_whole else dict(former)
            for tip, reason in refusals:
                if tip in self._failed:
                    continue
                known = former.get(tip)
                if known is None or known.reason != reason:
                    known = Exclusion(reason, now_ms, None, 0)
                left_out[tip] = known
            self._left_out = left_out
        self._keep()

    def _keep(self) -> None:
        """Let the exclusions outlive the process, if they have changed."""
        if self._kept is None:
            return
        with self._keeping:
            with self._lock:
                known = {**self._left_out, **self._failed}
            if known != self._written:
                self._kept.write(known)
                self._written = known
