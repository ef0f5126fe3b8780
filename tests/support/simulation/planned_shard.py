"""A shard of objects and slices without bytes, on which the jobs of a plan are carried out.

The model of a job is written from the rules, not from the planner: a run becomes one slice, or several where
one would be too wide; what was compacted from the first slice has horizons, as far as the run decides all.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan.compaction_job import CompactionJob, PartitionRun, RunMode
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.topic_policy import TopicPolicy
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import LiveObject, ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.slice_entry import OpenTransaction, SliceEntry
from stratalog.remote.objects.slice_span import UNBOUNDED, SliceSpan
from tests.support.tiered.sample_entry import sample_entry
from tests.support.tiered.shard_states import row_of

NOW_MS = 1_000_000
DELETE_RETENTION_MS = 1_000
DATA_POSITION = 96

Topics = dict[UUID, TopicPolicy]


def topic(
    number: int,
    *,
    is_compacted: bool,
    lag_ms: int = 0,
    span: SliceSpan = UNBOUNDED,
    min_dirty_ratio: float = 0.5,
    retention_ms: int = 2**63 - 1,
) -> TopicPolicy:
    return TopicPolicy(
        topic_id=UUID(int=number),
        name=f"topic-{number}",
        hashing=KeyHashing(bytes([number]) * 16),
        is_compacted=is_compacted,
        delete_retention_ms=DELETE_RETENTION_MS,
        min_compaction_lag_ms=lag_ms,
        max_compaction_lag_ms=2**63 - 1,
        min_dirty_ratio=min_dirty_ratio,
        span=span,
        retention_ms=retention_ms,
    )


def entry_of(
    policy: TopicPolicy,
    partition: int,
    base_offset: int,
    end_offset: int,
    data_bytes: int,
    *,
    position: int = 0,
    tombstone_count: int = 0,
    horizon_ms: int | None = None,
    min_timestamp: int = 0,
    max_timestamp: int = 0,
    has_markers: bool = False,
    open_transactions: tuple[OpenTransaction, ...] = (),
) -> SliceEntry:
    stable_end_offset = min((one.first_offset for one in open_transactions), default=end_offset)
    return sample_entry(
        base_offset,
        end_offset,
        topic_id=policy.topic_id,
        topic=policy.name,
        partition=partition,
        data_position=DATA_POSITION + position,
        data_bytes=data_bytes,
        record_count=0 if data_bytes == 0 else max(2, tombstone_count + 1),
        min_timestamp=min(min_timestamp, max_timestamp),
        max_timestamp=max_timestamp,
        tombstone_count=tombstone_count,
        marker_count=int(has_markers),
        earliest_delete_horizon_ms=horizon_ms,
        open_transactions=open_transactions,
        stable_end_offset=stable_end_offset,
    )


class Shard:
    """A shard whose objects are put together slice by slice."""

    def __init__(
        self,
        output_bytes: Callable[[PartitionRun], int] | None = None,
        max_slice_bytes: int = 2**63 - 1,
    ) -> None:
        """`output_bytes`: the size of a run's output; by default two thirds of several compacted slices.
        `max_slice_bytes`: it is divided where a slice would have more."""
        self._output_bytes = output_bytes or two_thirds
        self._max_slice_bytes = max_slice_bytes
        self.written_bytes = 0
        """Data of all objects that jobs have written."""
        self.seq = self.uploaded_ms = 0
        self.partitions: dict[TopicIdPartition, PartitionRow] = {}
        self.refs: dict[str, ObjectRef] = {}
        self.object_seqs: dict[str, int] = {}

    def new_object(self, data_bytes: int) -> str:
        self.seq += 1
        name = format_object_name(self.seq, UUID(int=self.seq))
        end = DATA_POSITION + data_bytes
        self.refs[name] = ObjectRef(
            name=name,
            size_bytes=end + 100,
            data_position=DATA_POSITION,
            directory_position=end,
            directory_bytes=10,
            key_streams_end=end + 50,
            directory_crc=0,
        )
        self.object_seqs[name] = self.seq
        return name

    def state(self) -> ShardState:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for row in self.partitions.values():
            for live in slices_of(row):
                if live.gap is None:
                    counts[live.object_name] += 1
                    sizes[live.object_name] += live.entry.data_bytes
        objects = {
            name: LiveObject(
                self.refs[name], self.object_seqs[name], counts[name], sizes[name], self.uploaded_ms
            )
            for name in counts
        }
        return ShardState(
            seq=self.seq,
            partitions=PersistentMap(self.partitions.items()),
            objects=PersistentMap(objects.items()),
            unfolded_slices=sum(row.slice_count for row in self.partitions.values()),
        )

    def commit(self, job: CompactionJob) -> None:
        """Change the shard as the commit of the job would."""
        for kind in sorted({run.topic.kind for run in job.runs}):
            runs = [run for run in job.runs if run.topic.kind == kind]
            settled = [run.slices[-1].entry.stable_end_offset for run in runs]
            outputs = [list(self._outputs(run)) for run in runs]
            for place in range(max(map(len, outputs))):
                level = [
                    (*of_run[place], offset)
                    for of_run, offset in zip(outputs, settled, strict=True)
                    if place < len(of_run)
                ]
                total_bytes = sum(size_bytes for _, size_bytes, _ in level)
                name = self.new_object(total_bytes)
                self.written_bytes += total_bytes
                for part, size_bytes, offset in level:
                    self._replace(part, name, size_bytes, offset)

    def _outputs(self, run: PartitionRun) -> Iterator[tuple[PartitionRun, int]]:
        """The slices that each output slice replaces, and its size: each input keeps the same share."""
        for first, end in run.parts:
            part = run.part(first, end)
            size_bytes = self._output_bytes(part)
            share = size_bytes / max(part.data_bytes, 1)
            if size_bytes <= self._max_slice_bytes:
                yield part, size_bytes
                continue
            piece: list[LiveSlice] = []
            piece_bytes = 0
            for live in part.slices:
                kept_bytes = round(live.entry.data_bytes * share)
                if piece and piece_bytes + kept_bytes > self._max_slice_bytes:
                    yield dataclasses.replace(part, slices=RunSlices(piece)), piece_bytes
                    piece, piece_bytes = [], 0
                piece.append(live)
                piece_bytes += kept_bytes
            yield dataclasses.replace(part, slices=RunSlices(piece)), piece_bytes

    def _replace(self, run: PartitionRun, name: str, size_bytes: int, settled_end_offset: int) -> None:
        """Replace a part of a run by one slice. The parts of a run come in order. The whole run decides all
        below `settled_end_offset`."""
        tip = run.topic_id_partition
        before = self.partitions[tip]
        old = slices_of(before)
        first = old.index(run.slices[0])
        assert old[first : first + len(run.slices)] == run.slices, "inputs are live, in a row"
        tombstone_count, has_markers, horizon_ms = horizons_after(run, settled_end_offset)
        entry = entry_of(
            run.topic,
            tip.partition,
            run.base_offset,
            run.end_offset,
            size_bytes,
            tombstone_count=tombstone_count if size_bytes else 0,
            horizon_ms=horizon_ms if tombstone_count or has_markers else None,
            min_timestamp=min(live.entry.min_timestamp for live in run.slices),
            max_timestamp=max(live.entry.max_timestamp for live in run.slices),
            has_markers=has_markers and size_bytes > 0,
            open_transactions=run.slices[-1].entry.open_transactions,
        )
        output = LiveSlice(name, run.base_offset, run.end_offset, entry)
        slices = (*old[:first], output, *old[first + len(run.slices) :])
        is_covering = run.mode is RunMode.COMPACT and run.covers
        upto = max(before.compacted_upto, entry.stable_end_offset) if is_covering else before.compacted_upto
        self.partitions[tip] = row_of(slices)._replace(
            log_start_offset=before.log_start_offset,
            stable_end_offset=before.stable_end_offset,
            end_mark=before.end_mark,
            compacted_upto=upto,
        )


def uploads(
    policy: TopicPolicy,
    sizes: list[int],
    *,
    tombstone_count: int = 0,
    max_timestamp: int = 0,
    max_slice_bytes: int = 2**63 - 1,
) -> Shard:
    """A shard with an object of a slice of 10 offsets for each size, all of one partition."""
    shard = Shard(max_slice_bytes=max_slice_bytes)
    tip = TopicIdPartition(policy.topic_id, 0)
    partition = PartitionRow()
    for number, size_bytes in enumerate(sizes):
        name = shard.new_object(size_bytes)
        made = entry_of(
            policy,
            0,
            number * 10,
            number * 10 + 10,
            size_bytes,
            tombstone_count=tombstone_count,
            max_timestamp=max_timestamp,
        )
        partition = partition.with_slice(LiveSlice(name, number * 10, number * 10 + 10, made))
    shard.partitions[tip] = partition
    return shard


def slices_of(row: PartitionRow) -> tuple[LiveSlice, ...]:
    """The slices of a row that has all of them in memory."""
    return tuple(TieredPartition(TopicIdPartition(UUID(int=0), 0), row).slices)


def two_thirds(run: PartitionRun) -> int:
    total = sum(live.entry.data_bytes for live in run.slices)
    return total if run.mode is RunMode.CARRY or len(run.slices) == 1 else total * 2 // 3


def horizons_after(run: PartitionRun, settled_end_offset: int) -> tuple[int, bool, int | None]:
    """How many tombstones a run keeps, whether it keeps markers, and their earliest horizon: new ones are
    stamped, due ones go."""
    is_covering = run.mode is RunMode.COMPACT and run.covers
    count, has_markers = 0, False
    horizons: list[int] = []
    for live in run.slices:
        horizon_ms = live.entry.earliest_delete_horizon_ms
        settles = is_covering and live.end_offset <= settled_end_offset
        if settles and horizon_ms is not None and horizon_ms <= NOW_MS:
            continue
        count += live.entry.tombstone_count
        has_markers |= live.entry.marker_count > 0
        if horizon_ms is not None:
            horizons.append(horizon_ms)
        elif settles and (live.entry.tombstone_count or live.entry.marker_count):
            horizons.append(NOW_MS + DELETE_RETENTION_MS)
    return count, has_markers, min(horizons, default=None)
