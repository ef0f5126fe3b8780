"""Compacts and merges the objects of a shard: plans jobs, executes them one after the other, commits each.

A commit replaces exactly the slices that the job read. A failure before it leaves objects that no commit
names, which the collector sweeps as orphans. The first commit wins: if the slices of a partition have changed
in the meantime, the commit refuses this partition alone, and the next plan takes it again. The commit drops
inputs without slices; the collector deletes them after the grace period.

The configuration of each topic is read again just before the commit. Partitions of a topic that has changed
keep their inputs; the commit goes on with the others. Time is the store's; if the local clock is too far from
it, tombstones stay.

If a job fails on the data of a partition, that partition is excluded for a while, and the others are planned
again without it: one damaged slice must not keep a shard from being compacted. A job without room for its
scratch, or without time, is planned anew and smaller, unless other work has the room for now; of the smallest
one the largest partition is excluded.
A job that fails for another reason does not end the run: the next one follows. Two in a row end it, and so
does a full disk. A run plans again as long as that brings its `RunGoal` closer. `JobHistory` keeps what
failed. Each failure is one line of the log. A defect of this software counts as one of the data.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    OverloadedError,
    PreconditionFailedError,
    StoppingError,
    StoreCorruptError,
    StoreError,
    StoreNotUsableError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import CompactionProgress, ProgressMeter, Transfer
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.exclusion.exclusion_file import ExclusionFile
from stratalog.compaction.job_execution import (
    CompactedShard,
    Execution,
    JobClock,
    JobExecution,
    JobOrder,
    JobResult,
    blamed_for,
    failed_input,
    is_less,
    named_by,
)
from stratalog.compaction.job_history import Exclusion, JobHistory
from stratalog.compaction.output.commit_ahead import CommitAhead
from stratalog.compaction.paced_object_store import PacedObjectStore
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.due_partitions import CompactionBacklog, DuePartitions
from stratalog.compaction.plan.job_assembly import FAILURES_TO_SHRINK
from stratalog.compaction.plan.job_cost import JobCost, cost_of
from stratalog.compaction.plan.job_time import REST_OF_LATE_MS, JobTimer, ran_out, require_time
from stratalog.compaction.plan.planned_jobs import CompactionPlan
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.run_goal import PlanAgain, RunGoal
from stratalog.compaction.plan.topic_policy import TopicPolicy, topic_policies
from stratalog.compaction.scratch_budget import promised_scratch, waits_for_others
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.shard.shard_judge import CONFIGURATION_CHANGED, TOPIC_DELETED
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.remote.objects.spool import clear_spool_directory
from stratalog.remote.tier.upload_budget import UploadBudget

logger = logging.getLogger(__name__)

CONFIG_CHANGED = (
    "a topic was deleted or configured anew while the job ran; it is planned again with the new settings"
)
INPUTS_GONE = (
    "other commits took the inputs, or deleted records of them, while the job ran; what is left of them is"
    " planned again"
)
LOST_AGAIN = (
    "no progress %d times in a row: each job of the partition was wasted; delete records less often, let one"
    " compactor have the shard, or lower remote.compaction.job.max.bytes, so that jobs are shorter"
)
_TOPIC_CHANGES = (CONFIGURATION_CHANGED, TOPIC_DELETED)
"""Reasons of a commit that leaves out a partition, of which another compaction is not the cause."""
MAX_ROUNDS = 4
"""The plans of a run that may go out of date, because partitions turned out to be unusable, or jobs too
large."""
REST_OF_PLAN = 19
"""A compactor rests so many times as long as its last plan took."""
_CONFIRM_ATTEMPTS = 5
"""How often a job is judged because other actors use newer catalogs."""


ExecutionElsewhere = Callable[[JobOrder, StopSignal, Callable[[Transfer], None]], Execution]
"""Makes the execution of a job by another process. It may begin at once. The signal ends it, also if
nothing waits for it any more. The last argument gets the requests and bytes of the job while it is waited
for, and none of them from time to time while nothing happens; it raises OverloadedError once the job takes
too long."""


class CompactorScratch(NamedTuple):
    """The place of scratch files of a compactor that is not alone on its disk."""

    directory: Callable[[], str]
    """Called at the beginning of a run for an empty or missing directory, in place of that of the
    settings."""
    disk: ScratchDisk
    """Promises each job its space, as long as it runs."""


class CompactorConfig(NamedTuple):
    """The configuration of a compactor, looked at whenever it is needed."""

    topic_defaults: Callable[[Mapping[str, str]], LogConfig] = lambda _: LogConfig()
    """The defaults of topics under a server configuration of the catalog."""
    renewed: Callable[[CompactionSettings], CompactionSettings] = lambda settings: settings
    """The settings that are in force now, with the spool directory of those that it gets."""
    scratch: CompactorScratch | None = None
    stop: StopSignal = StopSignal()
    """Ends each run that has no signal of its own, also while it waits for a limit."""
    exclusions_path: str | None = None
    """A file that keeps which partitions are left alone; None: they are forgotten with the process."""
    execution_elsewhere: ExecutionElsewhere | None = None
    """Makes the executions of jobs, in place of those on the thread of the run."""
    jobs_at_once: int = 1
    """So many jobs of a plan are begun elsewhere at the same time; they are committed one after the other, in
    the order of the plan."""


DEFAULT_CONFIG = CompactorConfig()

OnProgress = Callable[[CompactionProgress, Sequence[CompactionReport]], None]


class _BegunJob(NamedTuple):
    """A job whose execution was made, and may be at work."""

    execution: Execution
    commit: CommitAhead
    settings: CompactionSettings
    """Those that it runs by."""
    cost: JobCost
    stop: StopSignal
    """Ends it alone."""
    begin_s: float
    """By the monotonic clock."""
    begin_ms: int
    """By the clock of the store."""


class _Run(NamedTuple):
    """One run of a compactor."""

    store: ObjectStore
    """Waits for the budget, and ends with the signal."""
    stop: StopSignal
    meter: ProgressMeter
    timer: JobTimer
    on_transfer: Callable[[Transfer], None]
    """Gets the requests and bytes of a job as they happen. Raises OverloadedError if that takes too long."""
    reports: list[CompactionReport]
    """Those of the jobs that have ended."""
    outgrown: list[int]
    """The places of those reports whose jobs are smaller in the next plan of the run."""


class Compactor:
    """Compacts a shard's objects. Thread-safe: `_lock` is held during `run`, so that calls follow one
    another."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        ids: IdGenerator,
        shard: CompactedShard,
        settings: CompactionSettings,
        config: CompactorConfig = DEFAULT_CONFIG,
        run_beside: RunBeside = run_here,
    ) -> None:
        """`run_beside`: for `JobExecution`, of jobs that are executed here."""
        self._filesystem = filesystem
        self._clock = clock
        self._ids = ids
        self._shard = shard
        self._metadata = shard.metadata
        self._catalog = shard.catalog
        self._settings = settings
        self._config = config
        self._run_beside = run_beside
        self._budget = UploadBudget(clock)
        path = config.exclusions_path
        kept = None if path is None else ExclusionFile(filesystem, path)
        self._history = JobHistory(clock, lambda: self._current().retry_backoff_ms, kept)
        self._due = DuePartitions()
        self._backlog = CompactionBacklog()
        self._rest_end_s = clock.monotonic_s()
        self._lock = threading.Lock()

    @property
    def is_resting(self) -> bool:
        """Whether a periodic run should wait: the last plan took long (`REST_OF_PLAN`), or the last run was
        stopped within `retry_backoff_ms`."""
        return self._clock.monotonic_s() < self._rest_end_s

    @property
    def backlog(self) -> CompactionBacklog:
        """The data that is not compacted, as the last plan of a run over all topics, or the last `measure`,
        has found it. Never waits."""
        return self._backlog

    @property
    def settings(self) -> CompactionSettings:
        """The settings that are in force now."""
        return self._current()

    def run(
        self,
        topics: Collection[str] | None = None,
        *,
        left_alone: Mapping[TopicIdPartition, str] = MappingProxyType({}),
        stop: StopSignal | None = None,
        plan_again: PlanAgain | None = None,
        on_progress: OnProgress = lambda _progress, _reports: None,
    ) -> tuple[CompactionReport, ...]:
        """Plan, and run every job of the plan; under the conditions `plan_again` until all that was due at
        the begin is compacted, or nothing comes closer to it. A report for each job, and one for partitions
        that no job takes. `on_progress` gets the progress and the reports
        so far: see `ProgressMeter`.

        `topics` limits the reasons for jobs to these, by name; each of them is then compacted whether it pays
        or not. `left_alone` are not touched, for the reasons given. Jobs that fail are reported, not raised.
        Raises UnknownTopicOrPartitionError for a name that is not in the catalog, InvalidConfigError if this
        version refuses the server's configuration in the catalog, StoreError if metadata
        cannot be read, OSError if the spool directory cannot be used, StoppingError if a stop signal or the
        store says so: jobs that were committed stay, the one that was running has not happened.
        """
        with self._lock:
            if self._config.scratch is not None:
                directory = self._config.scratch.directory()
                self._settings = dataclasses.replace(self._settings, spool_directory=directory)
            else:
                clear_spool_directory(self._filesystem, self._settings.spool_directory)
            self._history.begin_run()
            reports: list[CompactionReport] = []
            number = self._metadata.shard
            meter = ProgressMeter(self._clock, lambda progress: on_progress(progress, reports))
            stop = stop or self._config.stop
            timer = JobTimer(self._clock)

            def on_transfer(transfer: Transfer) -> None:
                if any(transfer):
                    meter.add_transfer(transfer)
                timer.check()

            paced = PacedObjectStore(self._shard.store, number, self._budget, stop, on_transfer)
            run = _Run(
                store=paced,
                stop=stop,
                meter=meter,
                timer=timer,
                on_transfer=on_transfer,
                reports=reports,
                outgrown=[],
            )
            try:
                self._run_plans(run, topics, left_alone, plan_again)
            except StoppingError:
                # Someone wants no compaction now, so the next minute is too early.
                rest_s = self._current().retry_backoff_ms / 1000
                self._rest_end_s = max(self._rest_end_s, self._clock.monotonic_s() + rest_s)
                raise
            meter.tell()
            return tuple(reports)

    def plan(
        self,
        topics: Collection[str] | None = None,
        *,
        left_alone: Mapping[TopicIdPartition, str] = MappingProxyType({}),
    ) -> CompactionPlan:
        """The jobs that `run` would run first, and the reasons where there is none. Raises as that does,
        and changes nothing."""
        return self._plan(topics, left_alone)[0]

    def measure(self, *, left_alone: Mapping[TopicIdPartition, str] = MappingProxyType({})) -> None:
        """Plan for the backlog alone, where another process compacts. Raises as `plan` does."""
        with self._lock:
            self._note_backlog(self._plan(None, left_alone)[0])

    def excluded(self) -> Mapping[TopicIdPartition, str]:
        """The partitions that failed lately, with the reasons: no run compacts them."""
        return self._history.excluded()

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """All partitions that the last runs left alone, without a try or because they failed, also those that
        the next run tries again."""
        return self._history.exclusions()

    def reset(self, tip: TopicIdPartition) -> bool:
        """Let the next run try a partition that failed; False if it had not failed."""
        return self._history.reset(tip)

    def _current(self) -> CompactionSettings:
        """The settings that are in force now."""
        return self._config.renewed(self._settings)

    def _plan(
        self, names: Collection[str] | None, left_alone: Mapping[TopicIdPartition, str]
    ) -> tuple[CompactionPlan, Mapping[UUID, TopicEntry]]:
        begin_s = self._clock.monotonic_s()
        catalog = self._catalog.refresh()
        topics = catalog.topics()
        state = self._metadata.refresh(dated=True)
        self._history.forget_all_but(state.objects, {topic.topic_id for topic in topics.values()})
        job_clock = self._job_clock()
        planned = plan(
            state,
            topic_policies(topics.values(), self._config.topic_defaults(catalog.server_config)),
            job_clock.now_ms,
            self._current(),
            only=None if names is None else _ids_of(names, topics),
            excluded={**self._history.excluded(is_carried=False), **left_alone},
            carried=self._history.excluded(is_carried=True),
            failures=self._history.failures,
            rooms=self._history.rooms,
            may_drop_tombstones=job_clock.may_drop_tombstones,
        )
        end_s = self._clock.monotonic_s()
        self._rest_end_s = end_s + REST_OF_PLAN * (end_s - begin_s)
        return planned, {topic.topic_id: topic for topic in topics.values()}

    def _note_backlog(self, planned: CompactionPlan) -> None:
        now_ms = self._clock.now_ms()
        self._backlog = self._due.look(self._metadata.state(), planned.outlooks, now_ms)

    def _run_plans(
        self,
        run: _Run,
        names: Collection[str] | None,
        left_alone: Mapping[TopicIdPartition, str],
        plan_again: PlanAgain | None,
    ) -> None:
        """Plan and run jobs until the goal is reached, or no further plan would help."""
        goal: RunGoal | None = None
        partitions: set[TopicIdPartition] = set()
        outdated_count, run_begin_s = 0, self._clock.monotonic_s()
        while outdated_count < MAX_ROUNDS:
            begin_s = self._clock.monotonic_s()
            planned, topics = self._plan(names, left_alone)
            work_begin_s = self._clock.monotonic_s()
            for place in run.outgrown:
                run.reports[place] = dataclasses.replace(run.reports[place], is_planned_again=True)
            run.outgrown.clear()
            if names is None:
                self._note_backlog(planned)
            if goal is None:
                goal = RunGoal(planned.outlooks, self._metadata.state().partitions, names)
            ending = self._run_round(run, planned, topics, partitions, is_asked_for=names is not None)
            if ending is _RoundEnding.STOPPED:
                return
            if ending is _RoundEnding.OUTDATED:
                outdated_count += 1
                continue
            end_s = self._clock.monotonic_s()
            times_s = work_begin_s - begin_s, end_s - work_begin_s, end_s - run_begin_s
            is_met = plan_again is not None and plan_again.is_met(*times_s)
            if not (is_met and goal.comes_closer(self._metadata.state().partitions)):
                break
            outdated_count = 0
        else:
            return
        self._history.note_left_out(planned.refusals, partitions, is_whole=names is None)
        if planned.refusals:
            run.reports.append(CompactionReport.of_refusals(planned.refusals))

    def _run_round(
        self,
        run: _Run,
        planned: CompactionPlan,
        topics: Mapping[UUID, TopicEntry],
        partitions: set[TopicIdPartition],
        *,
        is_asked_for: bool,
    ) -> _RoundEnding:
        """Run the jobs of a plan. Adds the partitions of all of them."""
        run.meter.plan(planned.jobs.sizes)
        change_count = self._history.change_count
        has_failed = False
        jobs = self._jobs_to_run(run, planned, partitions, is_asked_for=is_asked_for)
        begun: deque[_BegunJob] = deque()
        try:
            while True:
                while len(begun) < self._config.jobs_at_once and (job := next(jobs, None)) is not None:
                    begun.append(self._begin(run, job))
                if not begun:
                    break
                ending = self._run_job(run, begun.popleft(), topics)
                # One job may fail alone; two in a row say that the store is silent.
                if ending is _Ending.ENDS_RUN or (has_failed and ending is _Ending.FAILED):
                    return _RoundEnding.STOPPED
                has_failed = ending is _Ending.FAILED
        except _PlanTooOldError:
            return _RoundEnding.OUTDATED
        finally:
            for left in begun:
                left.stop.set()
        is_outdated = self._history.change_count > change_count
        return _RoundEnding.OUTDATED if is_outdated else _RoundEnding.DONE

    def _jobs_to_run(
        self, run: _Run, planned: CompactionPlan, partitions: set[TopicIdPartition], *, is_asked_for: bool
    ) -> Iterator[CompactionJob]:
        """The jobs of the plan but for those that rest, which are reported. Adds the partitions of all of
        them. Raises _PlanTooOldError if pages of it are gone."""
        for number in range(len(planned.jobs)):
            try:
                job = planned.jobs[number]
            except ObjectNotFoundError:
                raise _PlanTooOldError from None
            partitions |= job.partitions
            if not job.partitions.isdisjoint(self._history.excluded(is_carried=False)):
                # A job before it has failed on one of them. The next plan of the run has the others.
                continue
            if self._history.passes_over(job):
                continue
            if not is_asked_for and (resting := self._history.resting(job)) is not None:
                run.reports.append(CompactionReport.of_resting(job, *resting))
                continue
            yield job

    def _begin(self, run: _Run, job: CompactionJob) -> _BegunJob:
        settings = self._current()
        job_clock, begin_s = self._job_clock(), self._clock.monotonic_s()
        stop = StopSignal(run.stop)
        commit = CommitAhead(self._metadata, self._catalog, job)
        order = self._shard.order(job, settings, job_clock)
        execution = self._execution(run, order, stop, commit)
        return _BegunJob(
            execution=execution,
            commit=commit,
            settings=settings,
            cost=cost_of(job, settings),
            stop=stop,
            begin_s=begin_s,
            begin_ms=job_clock.now_ms,
        )

    def _run_job(self, run: _Run, begun: _BegunJob, topics: Mapping[UUID, TopicEntry]) -> _Ending:
        """Run a job to its end, and report it. Returns its meaning for the others."""
        run.timer.begin(begun.begin_s, begun.begin_ms)
        run.meter.begin_job(len(begun.execution.job.runs), begun.cost)
        report, ending = self._execute(run, begun, topics)
        if ending is _Ending.OUTGROWN:
            run.outgrown.append(len(run.reports))
        done = run.meter.transfer_of_job
        run.reports.append(
            dataclasses.replace(
                report,
                get_requests=done.get_count,
                resumed_get_count=done.resumed_get_count,
                put_requests=done.put_count,
                bytes_read=done.read_bytes,
            )
        )
        run.meter.end_job()
        return ending

    def _execution(self, run: _Run, order: JobOrder, stop: StopSignal, commit: CommitAhead) -> Execution:
        if self._config.execution_elsewhere is not None:
            return self._config.execution_elsewhere(order, stop, run.on_transfer)
        self._budget.limit(order.settings.shard_bytes_per_s, order.settings.shard_requests_per_s)
        return JobExecution(
            self._filesystem,
            self._clock,
            self._ids,
            run.store,
            order,
            self._run_beside,
            on_proved=commit.prepare,
        )

    def _execute(
        self, run: _Run, begun: _BegunJob, topics: Mapping[UUID, TopicEntry]
    ) -> tuple[CompactionReport, _Ending]:
        """The job's report but for requests, and its meaning for the others."""
        execution, job = begun.execution, begun.execution.job
        try:
            require_time(begun.cost, self._current())
            with self._scratch(job, begun.settings):
                result = execution.execute(run.meter.add_partition)
            # The horizons of tombstones allow for no more.
            run.timer.check()
            run.timer.check_date(self._job_clock().now_ms)
            before = self._metadata.state()
            report = self._commit(begun, topics, result)
            if report.refused is None:
                self._history.committed(job)
                has_gained = is_less(job, report, result)
                has_gained = has_gained or _compacted_ends(job, before) != _compacted_ends(
                    job, self._metadata.state()
                )
                report = self._judged(execution, report, has_gained=has_gained)
            return self._raced(execution, report), _Ending.DONE
        except StoppingError:
            raise
        except ObjectNotFoundError as error:
            return self._raced(execution, self._missing_input(execution, error)), _Ending.DONE
        except (
            CorruptRecordError,
            ObjectArchivedError,
            StoreCorruptError,
            StoreNotUsableError,
            UnsupportedOperationError,
        ) as error:
            named = execution.named(error)
            blamed = blamed_for(execution, named)
            # The reason of each of several partitions must not name another one of them.
            self._exclude(execution, blamed, named if len(blamed) == 1 else error)
            return _refused(execution, named, blamed), _Ending.DONE
        except OverloadedError as error:
            if waits_for_others(error):
                # A smaller job would stay small for as long as its objects live.
                _log_failure(execution, None, error, "the next run tries it again")
                return _refused(execution, error), _Ending.DONE
            return self._outgrown(execution, error)
        except (LogStoreError, OSError) as error:
            attempts = self._history.failed(job, failed_input(job, error))
            is_of_disk = isinstance(error, OSError)
            _log_failure(execution, execution.current, error, _next_step(attempts, is_of_disk=is_of_disk))
            report = _refused(execution, error)
            report = dataclasses.replace(report, failed_attempts=attempts)
            return report, _Ending.ENDS_RUN if is_of_disk else _Ending.FAILED
        except Exception as error:
            logger.exception("a compaction job failed by a defect; report it with this trace")
            blamed = job.partitions if execution.current is None else frozenset({execution.current})
            self._exclude(execution, blamed, error)
            defect = RuntimeError(f"internal error: {error}")
            return _refused(execution, defect, blamed), _Ending.DONE

    def _scratch(self, job: CompactionJob, settings: CompactionSettings) -> AbstractContextManager[None]:
        """The scratch that the job may need by these settings. Raises OverloadedError as `promised_scratch`
        does."""
        scratch = self._config.scratch
        return nullcontext() if scratch is None else promised_scratch(scratch.disk, job, settings)

    def _commit(
        self, begun: _BegunJob, topics: Mapping[UUID, TopicEntry], result: JobResult
    ) -> CompactionReport:
        """Commit the job without the partitions whose topic has changed since it was planned. A commit that
        is refused because another actor used a newer catalog in between is judged again with that one."""
        execution, job = begun.execution, begun.execution.job
        prepared = begun.commit.prepared(result.stored)
        for _ in range(_CONFIRM_ATTEMPTS):
            catalog_seq, withdrawn = self._confirm(job, topics)
            if len(withdrawn) == len(job.runs):
                break
            try:
                outcome = self._metadata.commit_replace(
                    prepared, catalog_seq=catalog_seq, withdrawn=withdrawn
                )
            except PreconditionFailedError:
                continue
            # Each output object of a partition has a refusal of its own.
            refused = tuple({refusal.partition: refusal.reason for refusal in outcome.refused}.items())
            if not outcome.has_committed:
                return _report(execution, refused=INPUTS_GONE, refused_partitions=refused)
            return _report(execution, result=result, refused_partitions=refused)
        return _report(execution, refused=CONFIG_CHANGED)

    def _judged(
        self, execution: Execution, report: CompactionReport, *, has_gained: bool
    ) -> CompactionReport:
        """The report of a job that was committed. If it is the second one in a row that has changed nothing
        for its partitions, they are left alone: the next plan would have it again."""
        count = self._history.gained(execution.job) if has_gained else self._history.wasted(execution.job)
        if count >= FAILURES_TO_SHRINK:
            error = RuntimeError(
                f"no progress twice: {count} jobs in a row were committed and have changed nothing; report it"
                " with the settings of the topics and the output of `stratalog compaction plan`"
            )
            self._exclude(execution, execution.job.partitions, error)
        return dataclasses.replace(report, failed_attempts=count)

    def _raced(self, execution: Execution, report: CompactionReport) -> CompactionReport:
        """The report of a job that has come to its commit, with the races that were lost in a row."""
        if report.refused not in (None, INPUTS_GONE):
            return report
        job = execution.job
        lost = {tip for tip, reason in report.refused_partitions if reason not in _TOPIC_CHANGES}
        if report.refused is not None and not report.refused_partitions:
            lost = set(job.partitions)
        counts = self._history.lost(job, lost)
        raced = dataclasses.replace(report, lost_races=max(counts.values(), default=0))
        if raced.loses_each_race:
            tip = max(counts, key=counts.__getitem__)
            _log_failure(execution, tip, RuntimeError(INPUTS_GONE), LOST_AGAIN % raced.lost_races)
        return raced

    def _confirm(
        self, job: CompactionJob, topics: Mapping[UUID, TopicEntry]
    ) -> tuple[int, Mapping[TopicIdPartition, str]]:
        """Read the catalog: its commit number, and the partitions whose topic is not as it was planned with,
        with the reason."""
        catalog_seq, changed = self._catalog.confirm(topics[topic_id] for topic_id in job.topic_ids)
        defaults = self._config.topic_defaults(self._catalog.state().server_config)
        moved = {
            policy.topic_id
            for policy in job.topics
            if policy.topic_id in changed or policy != TopicPolicy.of(topics[policy.topic_id], defaults)
        }
        runs = job.runs if moved else ()
        withdrawn = {
            run.topic_id_partition: CONFIGURATION_CHANGED for run in runs if run.topic.topic_id in moved
        }
        return catalog_seq, withdrawn

    def _missing_input(self, execution: Execution, error: ObjectNotFoundError) -> CompactionReport:
        """An input is not in the store: it was replaced and collected in the meantime, or it is lost."""
        job = execution.job
        try:
            live = self._metadata.refresh().objects
        except StoreError as unread:
            return _refused(execution, unread)
        if all(name in live for name in job.input_names):
            lost = StoreCorruptError(
                "a live object is not in the store; restore it from a copy and delete nothing",
                object=failed_input(job, error) or ", ".join(job.input_names),
            )
            self._exclude(execution, blamed_for(execution, error), lost)
            return _report(execution, refused=str(lost))
        return _report(execution, refused=INPUTS_GONE)

    def _exclude(
        self,
        execution: Execution,
        blamed: frozenset[TopicIdPartition],
        error: Exception,
        rest_ms: int = 0,
    ) -> None:
        exclusion = self._history.exclude(execution.job, blamed, error, rest_ms)
        failed = next(iter(blamed)) if len(blamed) == 1 else None
        how = "moved as it is, and not compacted," if exclusion.is_carried else "left alone"
        what = f"{len(blamed)} partitions are" if failed is None else "the partition is"
        seconds = max(self._current().retry_backoff_ms, rest_ms) // 1000
        _log_failure(execution, failed, error, f"{what} {how} for {seconds} s; the others are planned again")

    def _outgrown(self, execution: Execution, error: OverloadedError) -> tuple[CompactionReport, _Ending]:
        """There is no room for the job, or no time. It becomes smaller, or its largest partition is
        excluded."""
        job = execution.job
        if job.is_least:
            least = OverloadedError(f"no smaller job would gain anything: {error.message}", **error.fields)
            largest = max(job.runs, key=lambda run: run.data_bytes)
            rest_ms = REST_OF_LATE_MS if ran_out(error) else 0
            self._exclude(execution, frozenset({largest.topic_id_partition}), least, rest_ms)
            return _refused(execution, least), _Ending.DONE
        self._history.outgrown(job)
        _log_failure(execution, None, error, "the next job with these objects is smaller")
        return _refused(execution, error), _Ending.OUTGROWN

    def _job_clock(self) -> JobClock:
        """The store's time by now, and whether the own clock agrees with it."""
        expected_ms = self._metadata.expected_date_ms
        if expected_ms is not None:
            return JobClock(expected_ms, may_drop_tombstones=True)
        self._metadata.refresh(dated=True)
        return JobClock(self._metadata.store_date_ms, self._metadata.is_clock_trusted)


class _PlanTooOldError(Exception):
    """Pages of the metadata that the plan refers to are gone."""


class _RoundEnding(enum.Enum):
    """The end of the jobs of a plan."""

    DONE = enum.auto()
    OUTDATED = enum.auto()
    """A failure has left something to plan anew."""
    STOPPED = enum.auto()
    """The run ends."""


class _Ending(enum.Enum):
    """The end of a job, by its meaning for the other jobs."""

    DONE = enum.auto()
    """They go on."""
    OUTGROWN = enum.auto()
    """They go on, and the next plan has smaller ones in its place."""
    FAILED = enum.auto()
    """They go on, unless the job before has failed, too."""
    ENDS_RUN = enum.auto()
    """They would fail too."""


def _next_step(attempts: int, *, is_of_disk: bool) -> str:
    """The next step after a failure that is not of the data, in words."""
    rest = "the run ends here" if is_of_disk else "other jobs go on"
    if attempts < FAILURES_TO_SHRINK:
        return f"{rest}, and the next run tries this one last"
    return f"no progress twice on these objects: {rest}, and the next job with them is smaller"


def _log_failure(
    execution: Execution, failed: TopicIdPartition | None, error: Exception, next_step: str
) -> None:
    """One line: the partition at work, the objects, the reason, and the next step."""
    job = execution.job
    names = {
        run.topic_id_partition: f"{run.topic.name}-{run.topic_id_partition.partition}" for run in job.runs
    }
    logger.warning(
        "a compaction job (%s) failed at partition `%s`, reading %d objects (`%s` ...): %s; %s",
        job.reason.value,
        "none" if failed is None else names.get(failed, str(failed)),
        len(job.inputs),
        job.input_names[0],
        error,
        next_step,
    )


def _ids_of(names: Collection[str], topics: Mapping[str, TopicEntry]) -> frozenset[UUID]:
    for name in names:
        if name not in topics:
            raise UnknownTopicOrPartitionError(
                "there is no such topic; create it, or correct the name", topic=name
            )
    return frozenset(topics[name].topic_id for name in names)


def _report(
    execution: Execution,
    *,
    result: JobResult | None = None,
    refused: str | None = None,
    refused_partitions: tuple[tuple[TopicIdPartition, str], ...] = (),
) -> CompactionReport:
    assert (result is None) == (refused is not None), "a job is committed or refused"
    job = execution.job
    report = CompactionReport(
        inputs=len(job.inputs),
        input_bytes=sum(live.ref.size_bytes for live in job.inputs),
        refused=refused,
        refused_partitions=refused_partitions,
    )
    if result is None:
        return report
    return dataclasses.replace(
        report,
        records_in=result.records_in,
        records_out=result.records_out,
        tombstones_removed=result.tombstones_removed,
        outputs=len(result.stored),
        output_bytes=sum(ref.size_bytes for ref, _ in result.stored),
        partitions=len(job.runs) - len(refused_partitions),
    )


def _refused(
    execution: Execution, error: Exception, blamed: frozenset[TopicIdPartition] = frozenset()
) -> CompactionReport:
    """The report of a job that the error has ended, because of these partitions if any."""
    named = blamed | named_by(execution.job, error)
    return dataclasses.replace(_report(execution, refused=str(error)), named_partitions=named)


def _compacted_ends(job: CompactionJob, state: ShardState) -> list[int]:
    rows = (state.partitions.get(run.topic_id_partition) for run in job.runs)
    return [row.compacted_upto for row in rows if row is not None]
