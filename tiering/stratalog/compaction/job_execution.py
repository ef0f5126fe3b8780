"""Executes one job up to its commit: reads the inputs, writes, verifies and stores the outputs.

Partitions come in the order of their slices in objects, so that all streams only move forward. Phase 1 comes
first for all partitions whose keys are known from key streams, and right before phase 2 for the others. Of an
input only its key streams (in scratch) and the position in its data stream are held.

A failure leaves the inputs as they are. Outputs in the store are orphans then, which the collector removes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, ObjectArchivedError, ObjectNotFoundError
from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.scheduler import RunBeside, run_here
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_report import CompactionReport
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.input_streams import InputBuffers, InputStreams
from stratalog.compaction.keys.survivor_plan import SurvivorPlan
from stratalog.compaction.output.job_output import JobOutput
from stratalog.compaction.output.output_division import OutputBounds, pieces_of
from stratalog.compaction.output.output_stream import OutputStream
from stratalog.compaction.output.part_sends import PartSends
from stratalog.compaction.output.verifier import PlannedSlice
from stratalog.compaction.partition_rewriter import PartitionRewriter, RewrittenPartition
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.compaction.run_carrier import RunCarrier
from stratalog.compaction.scratch_budget import (
    input_memory_bytes,
    output_memory_bytes,
    part_bytes,
    require_scratch,
    window_bytes,
)
from stratalog.compaction.slice_at_work import SliceAtWork
from stratalog.compaction.small_runs import (
    DecidedRun,
    Ranges,
    SmallRun,
    SmallRunCalls,
    data_ranges,
    decide,
    groups_of,
    with_sums,
)
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.resuming_reads import ResumingReads
from stratalog.record.native.batch_filter import CompactedSlices
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, Objects
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.repeated_put import PutAttempts, RepeatedWrites
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.spool import SCRATCH_SUFFIX, Spool
from stratalog.remote.store_layout import StoreLayout

REQUESTS_BESIDE = 8
"""Requests of one job, or of the jobs of one process, that are under way at once."""
_MAX_SMALL_INPUT_BYTES = 8 << 20
_SMALL_RUNS = 64
"""Small runs that are rewritten together, at the most; a few more where one has several parts."""
_BEGIN_AHEAD_BYTES = 8 << 20
"""An input is asked for its data when so many bytes of the run come before them: a stream must not idle."""


class JobClock(NamedTuple):
    """The time of a job, and whether it is certain enough to drop tombstones."""

    now_ms: int
    may_drop_tombstones: bool


class JobResult(NamedTuple):
    """The objects that the job stored, and its counts."""

    stored: Objects
    records_in: int
    records_out: int
    tombstones_removed: int


class RunCounts(NamedTuple):
    """The records of a run before and after its rewrite."""

    records_in: int
    records_out: int
    tombstones_removed: int


class CompactedShard(NamedTuple):
    """The shard that a compactor works on."""

    store: ObjectStore
    store_id: UUID
    metadata: MetadataLog
    catalog: Catalog

    def order(self, job: CompactionJob, settings: CompactionSettings, job_clock: JobClock) -> JobOrder:
        """The order to execute a job of this shard now."""
        return JobOrder(
            job=job,
            settings=settings,
            job_clock=job_clock,
            store_id=self.store_id,
            shard=self.metadata.shard,
            birth=self.metadata.state().seq,
        )


class JobOrder(NamedTuple):
    """All that an execution has to know of a job and of its shard. Immutable, and pickled to the processes
    that execute jobs."""

    job: CompactionJob
    settings: CompactionSettings
    job_clock: JobClock
    store_id: UUID
    shard: int
    birth: int
    """The newest commit, with which the names of the outputs begin."""
    decided: Mapping[TopicIdPartition, tuple[bytes, ...]] | None = None
    """The survivors of runs whose keys were merged elsewhere: a bitmap for each slice."""

    def with_spool(self, directory: str) -> JobOrder:
        """The order with its scratch in that directory."""
        return self._replace(settings=dataclasses.replace(self.settings, spool_directory=directory))


class Execution(Protocol):
    """One execution of one job, in this process or in another. Not thread-safe: used once, by one thread."""

    @property
    def job(self) -> CompactionJob: ...

    @property
    def current(self) -> TopicIdPartition | None:
        """The partition that is being rewritten; if the execution fails, the one to blame."""
        ...

    def execute(self, on_run: Callable[[int, int], None]) -> JobResult:
        """Rewrite the inputs; commits nothing. Calls and raises as `JobExecution.execute` does."""
        ...

    def named(self, error: LogStoreError) -> LogStoreError:
        """The error of the execution with the slice that was read."""
        ...


def blamed_for(execution: Execution, error: LogStoreError) -> frozenset[TopicIdPartition]:
    """The partitions to blame for a failure: those in an input that cannot be read at all, the one that the
    error names, because outputs are proved after they were written, or the one at work; all of the job if
    there is none."""
    runs = {run.topic_id_partition: run for run in execution.job.runs}
    named = error.fields.get("topic"), error.fields.get("partition")
    is_whole = isinstance(error, ObjectArchivedError | ObjectNotFoundError)
    for tip, run in runs.items():
        if (run.topic.name, tip.partition) == named and not is_whole:
            return frozenset({tip})
    name = failed_input(execution.job, error)
    if name is None:
        return frozenset(runs if execution.current is None else {execution.current})
    return frozenset(tip for tip, run in runs.items() if name in run.slices.object_names)


def named_by(job: CompactionJob, error: Exception) -> frozenset[TopicIdPartition]:
    """The partitions of the job that the error may name: the one of its fields, or all, if that is none of
    the job; none without such a field."""
    fields = error.fields if isinstance(error, LogStoreError) else {}
    if "topic" not in fields:
        return frozenset()
    named = fields["topic"], fields.get("partition")
    tips = {run.topic_id_partition: (run.topic.name, run.topic_id_partition.partition) for run in job.runs}
    return frozenset(tip for tip, one in tips.items() if one == named) or frozenset(tips)


def failed_input(job: CompactionJob, error: Exception) -> str | None:
    """The name of the input that the error names, if any."""
    fields = error.fields if isinstance(error, LogStoreError) else {}
    texts = [str(fields.get(field, "")) for field in ("object", "key", "name")]
    return next((name for name in job.input_names if any(name in text for text in texts)), None)


def is_less(job: CompactionJob, report: CompactionReport, result: JobResult) -> bool:
    """Whether the job has left fewer records, tombstones, slices, objects or bytes."""
    input_count = sum(len(run.slices) for run in job.runs)
    output_count = sum(len(entries) for _, entries in result.stored)
    return (
        result.records_out < result.records_in
        or result.tombstones_removed > 0
        or output_count < input_count
        or report.outputs < report.inputs
        or report.output_bytes < report.input_bytes
    )


class JobExecution:
    """One execution of one job, in this process. Not thread-safe: used once, by one thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        clock: Clock,
        ids: IdGenerator,
        store: ObjectStore,
        order: JobOrder,
        run_beside: RunBeside = run_here,
        on_proved: Callable[[Objects], object] = lambda _: None,
    ) -> None:
        """`clock`: for the pauses before broken streams are resumed, and outputs sent again. `run_beside`
        runs the requests that the work need not wait for; with threads, `store` must be thread-safe.
        `on_proved` gets the outputs while the end of the last one is on its way to the store; they count only
        once the execution has ended."""
        job, settings = order.job, order.settings
        self.current: TopicIdPartition | None = None
        """The partition that is being rewritten; if the execution fails, the one to blame."""
        self.job = job
        self.inputs: dict[str, InputStreams] = {}
        """The streams of the inputs, by name."""
        self.at_work = SliceAtWork()
        """The slice that is being read, for errors."""
        self._plans: dict[TopicIdPartition, SurvivorPlan] = {}
        """The survivors of runs that are not rewritten yet, where no data was needed for them."""
        self._small: dict[TopicIdPartition, DecidedRun] = {}
        """The same of plain runs that were decided together."""
        self._filesystem = filesystem
        self._ids = ids
        self._store = store
        self._order = order
        self._run_beside = run_beside
        self._on_proved = on_proved
        self._sends = PartSends(run_beside)
        self._waiting: dict[str, int] = {}
        """The inputs whose data were not asked for, with the position of the first data that will be
        read."""
        self._decided = order.decided or {}
        self._layout = StoreLayout(order.shard)
        self._settings = settings
        self._clock = clock
        self._job_clock = order.job_clock
        self._share_bytes = input_memory_bytes(job, settings)
        self._bounds = OutputBounds.of(settings)

    def named(self, error: LogStoreError) -> LogStoreError:
        """The error of this execution with the slice that was read."""
        return error if self.current is None else self.at_work.named(error)

    def execute(self, on_run: Callable[[int, int], None] = lambda _in, _out: None) -> JobResult:
        """Rewrite the inputs; commits nothing. Calls `on_run` behind each run, with the number of its records
        and of those that stay. Raises StoreError, CorruptRecordError, UnsupportedOperationError and OSError,
        and OverloadedError if there is no room for its scratch."""
        settings = self._settings
        require_scratch(self._filesystem, self.job, settings)
        writer_settings = ObjectWriterSettings(
            spool_directory=settings.spool_directory, memory_bytes=output_memory_bytes(self.job, settings)
        )
        with contextlib.ExitStack() as closing:
            closing.callback(self._close_inputs)
            self._open_inputs()
            self._decide()
            self._waiting = {
                name: begin for name, one in self.inputs.items() if (begin := one.data_begin) is not None
            }
            output = closing.enter_context(
                JobOutput(
                    self._filesystem,
                    self._open_stream,
                    self._header,
                    writer_settings,
                    max_object_bytes=self._bounds.data_bytes,
                )
            )
            records_in = records_out = tombstones_removed = 0
            for counts in self._rewrite_all(output):
                on_run(counts.records_in, counts.records_out)
                records_in += counts.records_in
                records_out += counts.records_out
                tombstones_removed += counts.tombstones_removed
            self.current = None
            self._close_inputs()
            output.finish(self._on_proved)
            return JobResult(tuple(output.stored), records_in, records_out, tombstones_removed)

    def open_keys(self) -> Iterator[tuple[PartitionRun, SurvivorPlan]]:
        """The keys of each run that is compacted, for a merge elsewhere: read the parts of a plan before the
        next one. Raises as `execute`."""
        require_scratch(self._filesystem, self.job, self._settings)
        with contextlib.ExitStack() as closing:
            closing.callback(self._close_inputs)
            self._open_inputs()
            for run in self.job.runs:
                if run.mode is RunMode.COMPACT:
                    for live in run.hashed_slices():
                        self.inputs[live.object_name].will_read(
                            live.entry.data_position, live.entry.data_bytes
                        )
            for run in self.job.runs:
                if run.mode is RunMode.COMPACT:
                    self.current = run.topic_id_partition
                    with SurvivorPlan.undecided(run, self.inputs, self._make_scratch, self._settings) as plan:
                        yield run, plan
            self.current = None

    def _rewrite_all(self, output: JobOutput) -> Iterator[RunCounts]:
        """Rewrite all runs in their order, small ones next to each other together."""
        small: list[SmallRun] = []
        for run in self.job.runs:
            decided = self._small.pop(run.topic_id_partition, None) if self._small else None
            if decided is not None:
                small += self._small_parts(run, decided)
            if small and (decided is None or len(small) >= _SMALL_RUNS):
                yield from self._rewrite_small(small, output)
                small = []
            if decided is None:
                yield self._rewrite(run, output)
        if small:
            yield from self._rewrite_small(small, output)

    def _small_parts(self, run: PartitionRun, decided: DecidedRun) -> Iterator[SmallRun]:
        survivors, data_bytes, record_count = decided
        rule = TombstoneRule.of(run, self._job_clock.now_ms, may_drop=self._job_clock.may_drop_tombstones)
        if not run.part_counts and self._bounds.hold(data_bytes, record_count):
            yield SmallRun(
                run=run,
                survivors=survivors,
                record_count=record_count,
                rule=rule,
                place=0,
                goes_on=False,
                is_last=True,
            )
            return
        plan = SurvivorPlan.decided(run, survivors, self.inputs)
        for place, first, end, goes_on in pieces_of(run, plan.survivors, self._bounds):
            part = run.part(first, end)
            yield SmallRun(
                run=part,
                survivors=bytearray().join(plan.survivors[first:end]),
                record_count=part.record_count,
                rule=rule,
                place=place,
                goes_on=goes_on,
                is_last=end == len(run.slices),
            )

    def _rewrite_small(self, parts: Sequence[SmallRun], output: JobOutput) -> Iterator[RunCounts]:
        """Rewrite consecutive small runs, many with one call."""
        calls = SmallRunCalls(self.inputs, output.index_interval_bytes)
        records_in = records_out = tombstones_removed = 0
        self.current = parts[0].run.topic_id_partition
        for ranges, results in calls.compact(parts):
            self._begin_ranges(ranges)
            for one in results:
                counts = (
                    self._rewrite_alone(one.parts, output)
                    if one.slices is None
                    else self._add_compacted(one.parts, one.slices, calls, output)
                )
                for small, (kept_count, removed_count) in zip(one.parts, counts, strict=True):
                    records_in += small.record_count
                    records_out += kept_count
                    tombstones_removed += removed_count
                    if small.is_last:
                        yield RunCounts(records_in, records_out, tombstones_removed)
                        records_in = records_out = tombstones_removed = 0

    def _rewrite_alone(self, parts: Sequence[SmallRun], output: JobOutput) -> Iterator[tuple[int, int]]:
        """Rewrite small runs the long way; returns for each the records that stay, and the tombstones that
        go."""
        for small in parts:
            run, kind = small.run, small.run.topic.kind
            self.current = run.topic_id_partition
            self.at_work.end()
            writer = output.writer(small.place, kind=kind, goes_on=small.goes_on)
            plan = SurvivorPlan.decided(run, small.survivors, self.inputs)
            rewriter = PartitionRewriter(run, plan, small.rule, writer)
            kept, removed_count = rewriter.rewrite(self.inputs, self._settings.read_chunk_bytes)
            planned = PlannedSlice(kept, run.base_offset, run.end_offset, has_one_record_a_key=True)
            output.expect(run.topic_id_partition, planned, small.place, kind=kind)
            yield kept.record_count, removed_count

    def _add_compacted(
        self, parts: Sequence[SmallRun], slices: CompactedSlices, calls: SmallRunCalls, output: JobOutput
    ) -> Iterator[tuple[int, int]]:
        """Add the slices of small runs that were compacted together; returns as `_rewrite_alone`."""
        self.at_work.end()
        ends: list[SliceEnd] = []
        for small in parts:
            self.current = small.run.topic_id_partition
            ends.append(calls.end_of(small.run))
        first = parts[0]
        output.add_compacted(
            slices,
            [small.run.slice_start for small in parts],
            ends,
            first.place,
            kind=first.run.topic.kind,
            goes_on=first.goes_on,
        )
        return zip(slices.column("record_count"), slices.column("dropped_tombstone_count"), strict=True)

    def _rewrite(self, run: PartitionRun, output: JobOutput) -> RunCounts:
        """Rewrite a run."""
        self.current = run.topic_id_partition
        self._begin_data(run)
        plan = self._plans.pop(run.topic_id_partition, None)
        if plan is not None or run.mode is RunMode.CARRY:
            return self._rewrite_parts(run, plan, output)
        with self._plan(run) as plan:
            return self._rewrite_parts(run, plan, output)

    def _begin_data(self, run: PartitionRun) -> None:
        """Let the inputs send the data of a run side by side, where these come soon."""
        if not self._waiting:
            return
        slices, before_bytes = run.slices, 0
        positions, sizes = slices.column("data_position"), slices.column("data_bytes")
        for name, position, data_bytes in zip(slices.object_names, positions, sizes, strict=True):
            if before_bytes > _BEGIN_AHEAD_BYTES:
                return
            before_bytes += data_bytes
            # One that is read only behind this slice would idle until then.
            if self._waiting.get(name, position + data_bytes) < position + data_bytes:
                del self._waiting[name]
                self.inputs[name].begin()

    def _begin_ranges(self, ranges: Ranges) -> None:
        """Let the inputs of a call send their data side by side, where these come soon."""
        before_bytes = 0
        for name, (begin, end) in ranges.items() if self._waiting else ():
            if before_bytes > _BEGIN_AHEAD_BYTES:
                return
            before_bytes += end - begin
            if self._waiting.pop(name, None) is not None:
                self.inputs[name].begin()

    def _rewrite_parts(self, run: PartitionRun, plan: SurvivorPlan | None, output: JobOutput) -> RunCounts:
        """Rewrite each part of a run into an object of its own. The survivors are those of the whole run."""
        kind, compacts = run.topic.kind, plan is not None
        rule = TombstoneRule.of(run, self._job_clock.now_ms, may_drop=self._job_clock.may_drop_tombstones)
        records_out = tombstones_removed = 0
        bits = None if plan is None else plan.survivors
        for place, first, end, goes_on in pieces_of(run, bits, self._bounds):
            part = run.part(first, end)
            part_plan = None if plan is None else plan.part(first, end)
            writer = output.writer(place, kind=kind, is_carried=not compacts, goes_on=goes_on)
            kept, removed = self._rewrite_part(part, part_plan, rule, writer)
            planned = PlannedSlice(kept, part.base_offset, part.end_offset, compacts)
            output.expect(run.topic_id_partition, planned, place, kind=kind)
            records_out += kept.record_count
            tombstones_removed += removed
        return RunCounts(run.record_count, records_out, tombstones_removed)

    def _decide(self) -> None:
        """Phase 1 of all runs whose keys are known without their data: then the inputs know which slices will
        be read. Bits are held until phase 2 of their run."""
        runs, grouped_end = self.job.runs, 0
        for first, end in groups_of(runs, self._decided):
            for run in runs[grouped_end:first]:
                self._decide_alone(run, None)
            self._decide_together(runs[first:end])
            grouped_end = end
        for run in runs[grouped_end:]:
            self._decide_alone(run, None)

    def _decide_together(self, runs: Sequence[PartitionRun]) -> None:
        self.current = runs[0].topic_id_partition
        small: list[PartitionRun] = []
        survivors_of_small: list[bytearray] = []
        for run, survivors in decide(runs, self.inputs):
            if survivors is None or run.slices.are_transactional:
                self._decide_alone(run, survivors)
            else:
                small.append(run)
                survivors_of_small.append(survivors)
        for run, decided in zip(small, with_sums(small, survivors_of_small), strict=True):
            self._small[run.topic_id_partition] = decided
        for name, (begin, end) in data_ranges(small, survivors_of_small).items():
            self.inputs[name].will_read(begin, end - begin)

    def _decide_alone(self, run: PartitionRun, survivors: bytearray | None) -> None:
        """Decide a run, unless its keys are in its data; `survivors`: as in `SmallRun`, if they are known."""
        if run.mode is not RunMode.COMPACT:
            return
        self.current = run.topic_id_partition
        plan = None if survivors is None else SurvivorPlan.decided(run, survivors, self.inputs)
        if plan is None and not run.hashed_slices():
            plan = self._plan(run)
        if plan is not None:
            self._plans[run.topic_id_partition] = plan
        slices = run.slices
        positions, sizes = slices.column("data_position"), slices.column("data_bytes")
        for index in range(len(slices)) if plan is None else plan.read_indexes(slices):
            self.inputs[slices.object_names[index]].will_read(positions[index], sizes[index])

    def _plan(self, run: PartitionRun) -> SurvivorPlan:
        decided = self._decided.get(run.topic_id_partition)
        if decided is None:
            return SurvivorPlan.of(run, self.inputs, self._make_scratch, self._settings)
        plan = SurvivorPlan.undecided(run, self.inputs, self._make_scratch, self._settings)
        plan.decide(decided)
        return plan

    def _rewrite_part(
        self, part: PartitionRun, plan: SurvivorPlan | None, rule: TombstoneRule, writer: ObjectWriter
    ) -> RewrittenPartition:
        if plan is None:
            return RunCarrier(part, writer, self.inputs).carry()
        rewriter = PartitionRewriter(part, plan, rule, writer)
        return rewriter.rewrite(self.inputs, self._settings.read_chunk_bytes)

    def _open_inputs(self) -> None:
        for live_object in self.job.inputs:
            name = live_object.ref.name
            self.inputs[name] = InputStreams(
                ResumingReads(self._store, self._clock, self._layout.data_key(name)),
                live_object.ref,
                self.job.needs.inputs[name],
                self._make_scratch,
                InputBuffers(
                    chunk_bytes=self._settings.read_chunk_bytes,
                    small_bytes=min(self._share_bytes, _MAX_SMALL_INPUT_BYTES),
                ),
                self.at_work,
                self._run_beside,
            )

    def _close_inputs(self) -> None:
        """Give back what the inputs hold, all of them whatever fails. Called before the ends of the outputs,
        which take memory too, are made."""
        with contextlib.ExitStack() as closing:
            for streams in self.inputs.values():
                closing.callback(streams.close)

    def _open_stream(self, name: str) -> OutputStream:
        key = self._layout.data_key(name)
        writes = RepeatedWrites(self._clock, self._store, key, PutAttempts())
        window = partial(self._make_scratch, window_bytes(self.job, self._settings))
        return OutputStream(name, writes, window, part_bytes(self.job, self._settings), self._sends)

    def _make_scratch(self, memory_bytes: int | None = None) -> Spool:
        path = f"{self._settings.spool_directory}/{self._ids.uuid()}{SCRATCH_SUFFIX}"
        return Spool(self._filesystem, path, self._share_bytes if memory_bytes is None else memory_bytes)

    def _header(self) -> ObjectHeader:
        return ObjectHeader(
            store_id=self._order.store_id,
            shard=self._order.shard,
            epoch=0,
            kind=ObjectKind.REPLACEMENT,
            name=format_object_name(self._order.birth, self._ids.uuid()),
            inputs=self.job.input_names,
        )
