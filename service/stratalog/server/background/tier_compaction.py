"""Compaction of the tiered data of a server, over all shards: runs, plans, and the partitions that it leaves
alone.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, overload
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_progress import CompactionProgress
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.compactor import OnProgress
from stratalog.compaction.job_history import Exclusion
from stratalog.compaction.plan.compaction_job import CompactionJob
from stratalog.compaction.plan.due_partitions import CompactionBacklog
from stratalog.compaction.plan.planned_jobs import CompactionPlan, PlannedJobs
from stratalog.compaction.plan.run_goal import PlanAgain
from stratalog.log.log_config import LogConfig
from stratalog.server.background.pass_outcome import PassOutcome
from stratalog.server.background.pass_rounds import PassRounds, each_shard, unless_fenced
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tier_outcomes import compaction_outcome
from stratalog.server.operations.operation import Operation, OperationKind, OperationProgress
from stratalog.server.operations.operation_registry import OperationRegistry
from stratalog.server.operations.operation_results import CompactionResult
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.scratch_space import scratch_error

PERIODICALLY = PlanAgain(work_of_plan=3.0, within_s=300.0)
"""A periodic compaction leaves the rest to the next pass, a minute later: other shards, and compactions by
hand, wait for its end."""
NOT_TIERED = "not tiered; the log cleaner of the server cleans it if it is compacted"
REFUSED_CONFIG = "this version refuses its configuration"
NO_SLICES = "no records in the object store; `stratalog tier upload` uploads them now"

RESTS = "jobs have failed in a row; they are tried again after a pause, or at once if the topic is named"
"""The failure of jobs that rest where the last turn has none, because their failures were on request."""


class IdleTopic(NamedTuple):
    """A topic without a job, and why it has none."""

    topic: str
    reasons: Sequence[str]


class PlannedCompaction(NamedTuple):
    """The jobs that a compaction would run, and the topics without one."""

    jobs: Sequence[CompactionJob]
    """Each is made when it is asked for."""
    idle_topics: Sequence[IdleTopic]
    """Those that were asked for, by name."""
    digest: str
    """Another plan has it only if its jobs and its topics without one are the same."""
    settings: CompactionSettings


class _JobsOfShards(Sequence[CompactionJob]):
    """The jobs of several plans, one behind the other. Immutable, so thread-safe."""

    def __init__(self, plans: Iterable[PlannedJobs]) -> None:
        self._places = [(jobs, index) for jobs in plans for index in range(len(jobs))]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> CompactionJob: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CompactionJob]: ...
    def __getitem__(self, index: int | slice) -> CompactionJob | Sequence[CompactionJob]:
        if isinstance(index, slice):
            return [jobs[place] for jobs, place in self._places[index]]
        jobs, place = self._places[index]
        return jobs[place]


class AskedTopic(NamedTuple):
    """A topic of which a plan says why it has no job."""

    topic_id: UUID
    name: str
    config: LogConfig | None
    """None if this version refuses it."""


class ShownRuns:
    """Runs over shards, one after the other, shown as one. Not thread-safe: one run uses it."""

    def __init__(self, on_progress: OnProgress) -> None:
        self.reports: list[CompactionReport] = []
        """Those of the shards that have ended, and of the one at work."""
        self._on_progress = on_progress
        self._ended = self._latest = CompactionProgress()
        self._ended_count = 0

    def show(self, progress: CompactionProgress, reports: Sequence[CompactionReport]) -> None:
        """Show the progress of the shard at work, with its reports so far."""
        self._latest = progress.behind(self._ended)
        self.reports[self._ended_count :] = reports
        if self._latest.job_count:
            self._on_progress(self._latest, self.reports)

    def end_shard(self) -> None:
        """The next shard begins."""
        self._ended, self._ended_count = self._latest, len(self.reports)


class TierCompaction:
    """Compacts and plans. Thread-safe: the compactors are. Every method but `exclusions` and `reset` may take
    the network for long."""

    def __init__(
        self,
        tiers: Iterable[ShardTier],
        registry: PartitionRegistry,
        rounds: PassRounds[int],
        operations: OperationRegistry,
    ) -> None:
        """Periodic compactions with jobs are among the `operations`."""
        self._operations = operations
        self._tiers = tuple(tiers)
        self._rounds = rounds
        self._registry = registry
        self._failures: dict[int, tuple[str, ...]] = {}
        """Those of the last periodic run of each shard, by its number. One pass at a time uses it."""

    def run(
        self, topics: Collection[str] = (), operation: Operation | None = None
    ) -> Sequence[CompactionReport]:
        """Plan and run compaction of the named topics (all if none is named), in the shards that this server
        owns. A refused job says so in its report. Raises UnknownTopicOrPartitionError, NotOwnerError if other
        servers own all shards, and StoppingError between two steps of a job, whose inputs are unchanged then;
        StoreError, DataDirectoryError after it has tried all shards.
        """
        left_alone = self._left_alone(topics)
        shown = ShownRuns(_shown_in(operation))
        stop = None if operation is None else operation.stop

        def compact_in(tier: ShardTier) -> None:
            try:
                tier.compactor.run(
                    topics or None,
                    left_alone=left_alone,
                    stop=stop,
                    plan_again=PlanAgain(),
                    on_progress=shown.show,
                )
            except OSError as failure:
                raise scratch_error(failure) from failure
            finally:
                shown.end_shard()

        each_shard(self._owned(), compact_in)
        if operation is not None:
            operation.set_result(CompactionResult(tuple(shown.reports)))
        return shown.reports

    def compact(self, topics: Collection[str], operation: Operation) -> PassOutcome:
        """`run` as an operation; returns its outcome."""
        return compaction_outcome(self.run(topics, operation), [tier.shard for tier in self._tiers])

    def compact_pass(self) -> PassOutcome:
        """Compact what is due, periodically, in shards whose compactor does not rest. Where there are jobs it
        is an operation, which people may cancel. The failures of a shard that rests, or is at work still, are
        those of its last turn, because they are not over. However long a turn takes, it does not hang: each
        job ends in its time. Raises StoreError, DataDirectoryError, StoppingError."""
        left_alone = self._left_alone(())

        def compact_in(tier: ShardTier) -> Sequence[CompactionReport] | None:
            tier.shard.leader_epoch()
            return None if tier.compactor.is_resting else self._run_due(tier, left_alone)

        owned = {tier.shard.metadata.shard: tier for tier in self._tiers if not tier.shard.is_fenced}
        works = {number: unless_fenced(tier, compact_in) for number, tier in owned.items()}
        most = max((tier.compactor.settings.max_shards for tier in self._tiers), default=1)
        done = self._rounds.run("compaction", works, most, math.inf)
        ended = {number: reports for number, reports in done.results.items() if reports is not None}
        self._failures |= {number: self._lasting(number, one) for number, one in ended.items()}
        reports = [report for one in ended.values() for report in one]
        return compaction_outcome(reports, [tier.shard for tier in owned.values()])._replace(
            failures=tuple(text for number in owned for text in self._failures.get(number, ())),
            failed_shards=done.failures,
            is_postponed=bool(owned) and not ended and not done.failures,
        )

    def _lasting(self, number: int, reports: Sequence[CompactionReport]) -> tuple[str, ...]:
        """The failures of a shard's turn. Where jobs rest, and no other one has failed, they are those of its
        last turn: what a resting job says changes with every second, and would be a line in the log each
        time."""
        tried = compaction_outcome([one for one in reports if not one.is_resting], ()).failures
        if tried or not any(one.is_resting for one in reports):
            return tried
        return self._failures.get(number) or (RESTS,)

    def _run_due(
        self, tier: ShardTier, left_alone: Mapping[TopicIdPartition, str]
    ) -> Sequence[CompactionReport]:
        """Run what is due in a shard. A cancellation ends it with the reports up to then."""
        with self._operations.aside(OperationKind.COMPACTION) as operation:
            shown = ShownRuns(_shown_in(operation))
            try:
                tier.compactor.run(
                    left_alone=left_alone,
                    stop=operation.stop,
                    plan_again=PERIODICALLY,
                    on_progress=shown.show,
                )
            except OSError as failure:
                raise scratch_error(failure) from failure
        return shown.reports

    def _owned(self) -> list[ShardTier]:
        """The shards that this server owns. Raises NotOwnerError if others own all of them."""
        owned = [tier for tier in self._tiers if not tier.shard.is_fenced]
        if not owned:
            self._tiers[0].shard.leader_epoch()
        return owned

    def plan(self, topics: Collection[str] = ()) -> PlannedCompaction:
        """The jobs that `run` would run now, and the reasons where there is none. Raises as `run` does."""
        left_alone = self._left_alone(topics)
        owned = self._owned()
        plans = [tier.compactor.plan(topics or None, left_alone=left_alone) for tier in owned]
        asked = [self._registry.topic(name) for name in topics] or self._registry.topics()
        return planned_compaction(
            plans,
            (AskedTopic(one.topic_id, one.name, one.config) for one in asked),
            owned[0].compactor.settings,
        )

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """The partitions that compaction leaves alone, as the last runs have found them."""
        return {tip: found for tier in self._tiers for tip, found in tier.compactor.exclusions().items()}

    def backlogs(self) -> Mapping[int, CompactionBacklog]:
        """The data that is not compacted, by the number of each shard that this server owns, as the last look
        has found it."""
        return {
            tier.shard.metadata.shard: tier.compactor.backlog
            for tier in self._tiers
            if not tier.shard.is_fenced
        }

    def measure_pass(self) -> PassOutcome:
        """Look for the data that is not compacted, where another process compacts, in shards whose last look
        was not a long one. Raises as `compact_pass` does."""
        left_alone = self._left_alone(())

        def measure_in(tier: ShardTier) -> bool:
            tier.shard.leader_epoch()
            if not tier.compactor.is_resting:
                tier.compactor.measure(left_alone=left_alone)
            return True

        owned = {tier.shard.metadata.shard: tier for tier in self._tiers if not tier.shard.is_fenced}
        works = {number: unless_fenced(tier, measure_in) for number, tier in owned.items()}
        return PassOutcome(failed_shards=self._rounds.run("compaction-backlog", works).failures)

    def reset(self, topic: str, partition: int) -> bool:
        """Let compaction try a partition again at once; False if it was not excluded because of a failure.
        Raises UnknownTopicOrPartitionError.
        """
        tip = self._registry.find_partition(topic, partition).topic_id_partition
        return sum(tier.compactor.reset(tip) for tier in self._tiers) > 0

    def _left_alone(self, topics: Collection[str]) -> Mapping[TopicIdPartition, str]:
        for name in topics:
            self._registry.topic(name)
        return {
            offline.topic_id_partition: f"{offline.topic_partition} is offline"
            for offline in self._registry.offline_partitions()
        }


def planned_compaction(
    plans: Sequence[CompactionPlan], asked: Iterable[AskedTopic], settings: CompactionSettings
) -> PlannedCompaction:
    """The plans of several shards as one, with the reasons of those `asked` topics that have no job."""
    busy = frozenset[UUID]().union(*(planned.jobs.topic_ids for planned in plans))
    reasons: dict[UUID, set[str]] = defaultdict(set)
    for planned in plans:
        for one in (*planned.refusals, *planned.idle()):
            reasons[one.topic_id_partition.topic_id].add(one.reason)
    idle = sorted(
        IdleTopic(one.name, _reasons(one, reasons[one.topic_id])) for one in asked if one.topic_id not in busy
    )
    digest = hashlib.sha256()
    for planned in plans:
        for identity in planned.jobs.identities():
            digest.update(identity.encode())
    digest.update(repr([one.topic for one in idle]).encode())
    jobs = _JobsOfShards(planned.jobs for planned in plans)
    return PlannedCompaction(jobs, idle, digest.hexdigest()[:32], settings)


def operation_progress(progress: CompactionProgress) -> OperationProgress:
    """The progress of a compaction as that of an operation."""
    return OperationProgress(
        phase="runs jobs",
        done_count=progress.done_job_count,
        total_count=progress.job_count,
        done_bytes=progress.transfer.read_bytes,
        total_bytes=progress.planned_read_bytes,
        compaction=progress,
    )


def _shown_in(operation: Operation | None) -> OnProgress:
    """Shows progress and reports in the operation, if there is one."""

    def show(progress: CompactionProgress, reports: Sequence[CompactionReport]) -> None:
        if operation is not None:
            operation.set_result(CompactionResult(tuple(reports)))
            operation.report(operation_progress(progress))

    return show


def _reasons(topic: AskedTopic, found: Iterable[str]) -> Sequence[str]:
    if topic.config is None:
        return [REFUSED_CONFIG]
    if not topic.config.remote_storage_enable:
        return [NOT_TIERED]
    return sorted(found) or [NO_SLICES]
