"""Runs one job up to, and without, its commit: reads the inputs, writes, verifies and stores the outputs.

Partitions are worked on in the order in which slices lie in objects, so all streams only move forward. Phase
1 and phase 2 of one partition follow one another; of an input nothing is held but its key streams (scratch)
and where its data stream stands.

Whatever fails here leaves the inputs as they are; outputs that were stored are orphans, for the collector to
find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.input_streams import InputStreams
from stratalog.compaction.job_output import JobOutput, StoredObject
from stratalog.compaction.partition_rewriter import PartitionRewriter, RewrittenPartition
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.compaction.scratch import Scratch
from stratalog.compaction.survivor_plan import SurvivorPlan
from stratalog.compaction.tombstone_rule import TombstoneRule
from stratalog.compaction.verifier import PlannedSlice
from stratalog.objectstore.counting import CountingObjectStore
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind
from stratalog.remote.objects.object_writer import ObjectWriterSettings
from stratalog.remote.objects.slice_entry import SliceEntry

_MAX_BUFFERED_INPUT_BYTES = 8 << 20


class JobClock(NamedTuple):
    """What time it is for a job, and whether that can be trusted with tombstones."""

    now_ms: int
    may_drop_tombstones: bool


class JobResult(NamedTuple):
    """What lies in the store now, and what the job counted."""

    stored: tuple[StoredObject, ...]
    records_in: int
    records_out: int
    tombstones_removed: int


class JobRun:
    """One run of one job. Not thread-safe: used once, by one thread."""

    def __init__(
        self,
        filesystem: FileSystem,
        store: CountingObjectStore,
        ids: IdGenerator,
        metadata: MetadataLog,
        store_id: UUID,
        settings: CompactionSettings,
        job: CompactionJob,
        clock: JobClock,
    ) -> None:
        self.current: TopicIdPartition | None = None
        """The partition that is being worked on; of use where the run fails."""
        self._filesystem = filesystem
        self._store = store
        self._ids = ids
        self._metadata = metadata
        self._store_id = store_id
        self._layout = metadata.layout
        self._settings = settings
        self._job = job
        self._clock = clock
        # Half of the memory for the outputs (two writers with two spools each), half for the inputs: of each
        # there may be its key streams, its data, and a slice that had to be hashed.
        self._spool_bytes = settings.job_memory_bytes // 8
        self._share_bytes = settings.job_memory_bytes // (6 * len(job.inputs))

    def execute(self) -> JobResult:
        """Raises StoreError, CorruptRecordError, UnsupportedOperationError and OSError; nothing is committed
        then.
        """
        settings = self._settings
        writer_settings = ObjectWriterSettings(
            spool_directory=settings.spool_directory, memory_bytes=self._spool_bytes
        )
        with contextlib.ExitStack() as closing:
            inputs = self._open_inputs(closing)
            output = closing.enter_context(
                JobOutput(
                    self._filesystem,
                    self._store,
                    self._layout,
                    self._header,
                    writer_settings,
                    max_object_bytes=settings.max_job_bytes,
                    chunk_bytes=settings.read_chunk_bytes,
                )
            )
            rewritten = [self._rewrite(run, inputs, output) for run in self._job.runs]
            self.current = None
            output.finish()
            return JobResult(
                stored=tuple(output.stored),
                records_in=sum(one.records_in for one in rewritten),
                records_out=sum(one.kept.record_count for one in rewritten),
                tombstones_removed=sum(one.tombstones_removed for one in rewritten),
            )

    def _rewrite(
        self, run: PartitionRun, inputs: Mapping[str, InputStreams], output: JobOutput
    ) -> RewrittenPartition:
        self.current = run.topic_id_partition
        is_compacted = run.topic.is_compacted
        rule = TombstoneRule.of(run, self._clock.now_ms, may_drop=self._clock.may_drop_tombstones)
        writer = output.writer(is_compacted=is_compacted)
        with contextlib.ExitStack() as closing:
            plan = None
            if run.mode is RunMode.COMPACT:
                plan = SurvivorPlan.of(run, inputs, self._make_scratch, self._settings)
                closing.enter_context(plan)
            rewriter = PartitionRewriter(run, plan, rule, writer)
            rewritten = rewriter.rewrite(inputs, self._settings.read_chunk_bytes)
        planned = PlannedSlice(rewritten.kept, run.base_offset, run.end_offset, run.mode is RunMode.COMPACT)
        output.expect(run.topic_id_partition, planned, is_compacted=is_compacted)
        return rewritten

    def _open_inputs(self, closing: contextlib.ExitStack) -> dict[str, InputStreams]:
        needed: dict[str, list[SliceEntry]] = {name: [] for name in self._job.input_names}
        for run in self._job.runs:
            for live in run.slices:
                needed[live.object_name].append(live.entry)
        inputs: dict[str, InputStreams] = {}
        for live_object in self._job.inputs:
            name = live_object.ref.name
            inputs[name] = InputStreams(
                self._store,
                self._layout.data_key(name),
                live_object.ref,
                needed[name],
                self._make_scratch,
                chunk_bytes=self._settings.read_chunk_bytes,
                buffered_bytes=min(self._share_bytes, _MAX_BUFFERED_INPUT_BYTES),
            )
            closing.callback(inputs[name].close)
        return inputs

    def _make_scratch(self) -> Scratch:
        return Scratch(self._filesystem, self._settings.spool_directory, self._ids.uuid(), self._share_bytes)

    def _header(self) -> ObjectHeader:
        return ObjectHeader(
            store_id=self._store_id,
            shard=self._layout.shard or 0,
            epoch=0,
            kind=ObjectKind.REPLACEMENT,
            name=self._metadata.next_object_name(),
            inputs=self._job.input_names,
        )
