"""Compacts and merges the objects of a shard: plans jobs, executes them one after the other, commits each.

A commit replaces exactly the slices that the job read. A failure before it leaves objects that no commit
names, which the collector sweeps as orphans. The first commit wins: if the slices of a partition have changed
in the meantime, the commit refuses this partition alone, and the next plan takes it again. The commit drops
inputs without slices; the collector deletes them after the grace period.

The configuration of each topic is read again just before the commit. Partitions of a topic that has changed
keep their inputs; the commit goes on with the others. Time is the store's; if the local clock is too far from
it, tombstones stay.

If a job fails on the data of a partition, that partition is excluded for a while, and the others are planned
again without it: one damaged slice must not keep a shard from being compacted.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
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
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.job_execution import CompactedShard, JobClock, JobExecution, JobResult
from stratalog.compaction.plan.compaction_job import CompactionJob, CompactionPlan, Refusal, RunMode
from stratalog.compaction.plan.planner import plan
from stratalog.compaction.plan.topic_policy import TopicPolicy, topic_policies
from stratalog.log.log_config import LogConfig
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.shard.shard_judge import CONFIGURATION_CHANGED
from stratalog.remote.objects.spool import clear_spool_directory

CONFIG_CHANGED = (
    "a topic was deleted or configured anew while the job ran; it is planned again with the new settings"
)
INPUTS_GONE = "other commits took the inputs while the job ran; what is left of them is planned again"
MAX_ROUNDS = 4
"""How often `run_once` plans anew because partitions turned out to be unusable."""
_CONFIRM_ATTEMPTS = 5
"""How often a job is judged because other actors use newer catalogs."""


class Exclusion(NamedTuple):
    """A partition that compaction leaves alone, as the last run has found it."""

    reason: str
    since_ms: int
    """The first failure in a row, or the first compaction that left it out for the reason."""
    until_ms: int | None
    """None: as long as the reason lasts, for which each run looks."""
    failure_count: int
    """Failures in a row."""


class Compactor:
    """Compacts a shard's objects. Thread-safe: `_lock` is held during `run_once`, so that calls follow one
    another."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        ids: IdGenerator,
        shard: CompactedShard,
        settings: CompactionSettings,
        defaults: Callable[[Mapping[str, str]], LogConfig] = lambda _: LogConfig(),
        spool_directory: Callable[[], str] | None = None,
    ) -> None:
        """`defaults`: the defaults of topics under that server configuration of the catalog.
        `spool_directory`: called at the beginning of `run_once` for an empty or missing directory, in place
        of that of the settings."""
        self._filesystem = filesystem
        self._clock = clock
        self._ids = ids
        self._shard = shard
        self._metadata = shard.metadata
        self._catalog = shard.catalog
        self._settings = settings
        self._defaults = defaults
        self._spool_directory = spool_directory
        self._lock = threading.Lock()
        # Partitions that failed, with the last failure; and those that a run left out without a try.
        self._excluded: dict[TopicIdPartition, Exclusion] = {}
        self._left_out: dict[TopicIdPartition, Exclusion] = {}

    def run_once(
        self,
        topics: Collection[str] | None = None,
        *,
        left_alone: Mapping[TopicIdPartition, str] = MappingProxyType({}),
        stop: StopSignal | None = None,
        on_report: Callable[[Sequence[CompactionReport], int], None] = lambda _reports, _job_count: None,
    ) -> tuple[CompactionReport, ...]:
        """Plan, and run every job of the plan. A report for each job, and one for partitions that no job
        takes. `on_report` is called with the reports so far and the number of jobs that are known: once
        jobs are planned, and after each job.

        `topics` limits the reasons for jobs to these, by name; each of them is then compacted whether it pays
        or not. `left_alone` are not touched, for the reasons given. Jobs that fail are reported, not raised.
        Raises UnknownTopicOrPartitionError for a name that is not in the catalog, InvalidConfigError if this
        version refuses the server's configuration in the catalog, StoreError if metadata
        cannot be read, OSError if the spool directory cannot be used, StoppingError if `stop` or the store
        says so: jobs that were committed stay, the one that was running has not happened.
        """
        with self._lock:
            if self._spool_directory is not None:
                self._settings = dataclasses.replace(self._settings, spool_directory=self._spool_directory())
            else:
                clear_spool_directory(self._filesystem, self._settings.spool_directory)
            reports: list[CompactionReport] = []
            shard = self._shard
            if stop is not None:
                shard = shard._replace(store=StoppableObjectStore(shard.store, stop))
            for _ in range(MAX_ROUNDS):
                is_done = self._run_round(shard, topics, left_alone, reports, on_report)
                if is_done:
                    break
            return tuple(reports)

    def plan(
        self,
        topics: Collection[str] | None = None,
        *,
        left_alone: Mapping[TopicIdPartition, str] = MappingProxyType({}),
    ) -> CompactionPlan:
        """The jobs that `run_once` would run now, and the reasons where there is none. Raises as that does,
        and changes nothing."""
        return self._plan(topics, left_alone)[0]

    def excluded(self) -> Mapping[TopicIdPartition, str]:
        """The partitions that failed lately, with the reasons: no run takes them."""
        now_ms = self._clock.now_ms()
        return {tip: one.reason for tip, one in list(self._excluded.items()) if (one.until_ms or 0) > now_ms}

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """All partitions that the last runs left alone: because they failed, or without a try."""
        failed = {tip: self._excluded[tip] for tip in self.excluded()}
        return {**self._left_out, **failed}

    def reset(self, tip: TopicIdPartition) -> bool:
        """Let the next run try a partition that failed; False if it had not failed lately."""
        is_excluded = tip in self.excluded()
        self._excluded.pop(tip, None)
        return is_excluded

    def _plan(
        self, names: Collection[str] | None, left_alone: Mapping[TopicIdPartition, str]
    ) -> tuple[CompactionPlan, Mapping[UUID, TopicEntry], JobClock]:
        catalog = self._catalog.refresh()
        topics = catalog.topics()
        state = self._metadata.refresh(dated=True)
        job_clock = self._job_clock()
        planned = plan(
            state,
            topic_policies(topics.values(), self._defaults(catalog.server_config)),
            job_clock.now_ms,
            self._settings,
            only=None if names is None else _ids_of(names, topics),
            excluded={**self.excluded(), **left_alone},
            may_drop_tombstones=job_clock.may_drop_tombstones,
        )
        return planned, {topic.topic_id: topic for topic in topics.values()}, job_clock

    def _run_round(
        self,
        shard: CompactedShard,
        names: Collection[str] | None,
        left_alone: Mapping[TopicIdPartition, str],
        reports: list[CompactionReport],
        on_report: Callable[[Sequence[CompactionReport], int], None],
    ) -> bool:
        """Plan once and run the jobs; False if a failure has left something to plan anew."""
        planned, entries, job_clock = self._plan(names, left_alone)
        job_count = len(reports) + len(planned.jobs)
        on_report(reports, job_count)
        failed_before = dict(self._excluded)
        for job in planned.jobs:
            report, may_go_on = self._run_job(shard, job, entries, job_clock)
            reports.append(report)
            on_report(reports, job_count)
            if not may_go_on:
                return True
        if any(tip not in failed_before for tip in self._excluded):
            return False
        self._note_left_out(planned.refusals, is_whole=names is None)
        if planned.refusals:
            reports.append(_refusal_report(planned.refusals))
        return True

    def _note_left_out(self, refusals: Sequence[Refusal], *, is_whole: bool) -> None:
        """Keep the refusals of a run, those of an earlier run with its time. `is_whole`: of a run over all
        topics, so that the others are over."""
        now_ms, former, excluded = self._clock.now_ms(), self._left_out, self.excluded()
        left_out = {} if is_whole else dict(former)
        for tip, reason in refusals:
            if tip in excluded:
                continue
            known = former.get(tip)
            if known is None or known.reason != reason:
                known = Exclusion(reason, now_ms, None, 0)
            left_out[tip] = known
        self._left_out = left_out

    def _run_job(
        self,
        shard: CompactedShard,
        job: CompactionJob,
        topics: Mapping[UUID, TopicEntry],
        job_clock: JobClock,
    ) -> tuple[CompactionReport, bool]:
        """The job's report, and whether it makes sense to go on with others."""
        execution = JobExecution(
            self._filesystem, self._clock, self._ids, shard, self._settings, job, job_clock
        )
        try:
            result = execution.execute()
            report = self._commit(execution, topics, result)
            if report.refused is None:
                for run in job.runs:
                    self._excluded.pop(run.topic_id_partition, None)
            return report, True
        except StoppingError:
            raise
        except ObjectNotFoundError:
            return self._missing_input(execution), True
        except (
            CorruptRecordError,
            ObjectArchivedError,
            StoreCorruptError,
            StoreNotUsableError,
            UnsupportedOperationError,
        ) as error:
            self._exclude(job, execution.current, error)
            return _report(execution, refused=str(error)), True
        except (LogStoreError, OSError) as error:
            # The store, the disk: what failed here would fail the next job too.
            return _report(execution, refused=str(error)), False

    def _commit(
        self, execution: JobExecution, topics: Mapping[UUID, TopicEntry], result: JobResult
    ) -> CompactionReport:
        """Commit the job without the partitions whose topic has changed since it was planned. A commit that
        is refused because another actor used a newer catalog in between is judged again with that one."""
        job = execution.job
        for _ in range(_CONFIRM_ATTEMPTS):
            catalog_seq, withdrawn = self._confirm(job, topics)
            if len(withdrawn) == len(job.runs):
                break
            try:
                outcome = self._metadata.replace(
                    {run.topic_id_partition: run.slices for run in job.runs},
                    job.input_names,
                    result.stored,
                    covers={run.topic_id_partition: run.settles_tombstones for run in job.runs},
                    catalog_seq=catalog_seq,
                    drops_records=any(run.mode is RunMode.COMPACT for run in job.runs),
                    withdrawn=withdrawn,
                )
            except PreconditionFailedError:
                continue
            refused = tuple((refusal.partition, refusal.reason) for refusal in outcome.refused)
            if not outcome.has_committed:
                return _report(execution, refused=INPUTS_GONE, refused_partitions=refused)
            return _report(execution, result=result, refused_partitions=refused)
        return _report(execution, refused=CONFIG_CHANGED)

    def _confirm(
        self, job: CompactionJob, topics: Mapping[UUID, TopicEntry]
    ) -> tuple[int, Mapping[TopicIdPartition, str]]:
        """Read the catalog: its commit number, and the partitions whose topic is not as it was planned with,
        with the reason."""
        catalog_seq, changed = self._catalog.confirm(topics[topic_id] for topic_id in job.topic_ids)
        defaults = self._defaults(self._catalog.state().server_config)
        withdrawn = {
            run.topic_id_partition: CONFIGURATION_CHANGED
            for run in job.runs
            if run.topic.topic_id in changed
            or run.topic != TopicPolicy.of(topics[run.topic.topic_id], defaults)
        }
        return catalog_seq, withdrawn

    def _missing_input(self, execution: JobExecution) -> CompactionReport:
        """An input is not in the store: it was replaced and collected in the meantime, or it is lost."""
        job = execution.job
        try:
            live = self._metadata.refresh().objects
        except StoreError as error:
            return _report(execution, refused=str(error))
        if all(name in live for name in job.input_names):
            lost = StoreCorruptError(
                "a live object is not in the store; restore it from a copy and delete nothing",
                inputs=", ".join(job.input_names),
            )
            self._exclude(job, None, lost)
            return _report(execution, refused=str(lost))
        return _report(execution, refused=INPUTS_GONE)

    def _exclude(self, job: CompactionJob, failed: TopicIdPartition | None, error: LogStoreError) -> None:
        """Leave the failed partition alone for a while; all of the job's where it is not known which one
        failed.
        """
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._settings.retry_backoff_ms
        for tip in [run.topic_id_partition for run in job.runs] if failed is None else [failed]:
            former = self._excluded.get(tip)
            self._excluded[tip] = Exclusion(
                str(error),
                now_ms if former is None else former.since_ms,
                until_ms,
                1 if former is None else former.failure_count + 1,
            )

    def _job_clock(self) -> JobClock:
        is_trusted = self._metadata.is_clock_trusted
        return JobClock(self._metadata.store_date_ms, is_trusted)


def _ids_of(names: Collection[str], topics: Mapping[str, TopicEntry]) -> frozenset[UUID]:
    for name in names:
        if name not in topics:
            raise UnknownTopicOrPartitionError(
                "there is no such topic; create it, or correct the name", topic=name
            )
    return frozenset(topics[name].topic_id for name in names)


def _report(
    execution: JobExecution,
    *,
    result: JobResult | None = None,
    refused: str | None = None,
    refused_partitions: tuple[tuple[TopicIdPartition, str], ...] = (),
) -> CompactionReport:
    assert (result is None) == (refused is not None), "a job is committed or refused"
    job = execution.job
    report = CompactionReport(
        inputs=len(job.inputs),
        get_requests=sum(streams.reads.get_count for streams in execution.inputs.values()),
        resumed_get_count=sum(streams.reads.resumed_get_count for streams in execution.inputs.values()),
        input_bytes=sum(live.ref.size_bytes for live in job.inputs),
        bytes_read=sum(streams.reads.bytes_read for streams in execution.inputs.values()),
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


def _refusal_report(refusals: Collection[Refusal]) -> CompactionReport:
    partitions = tuple((refusal.topic_id_partition, refusal.reason) for refusal in refusals)
    reasons = "; ".join(sorted({reason for _, reason in partitions}))
    left = (
        "1 partition stays as it is"
        if len(partitions) == 1
        else f"{len(partitions)} partitions stay as they are"
    )
    return CompactionReport(refused=f"{left}: {reasons}", refused_partitions=partitions)
