"""Rebuilds the state of a shard whose head is lost: from its newest checkpoint, its history, and the objects
that describe themselves.

Commits after the history are lost. Their uploads and compactions are found again by the objects
(`partition_tiling` has the rules). Not found again are claims, so the epoch jumps; deletions, so what
was deleted lately may be back, which the report says; and pins, of which the new head has none.

The rebuilt state has a later number than any file, and its orphan horizon is that number: whatever was begun
before and is not live is refused from now on. Its claim fences every former owner that still runs.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    LogStoreError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.log.retention.retention_outlook import utc_text
from stratalog.objectstore.protocol import ObjectInfo
from stratalog.remote.lanes import in_lanes
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.head.document_ref import DroppedObject, FileKind
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.head.head_state import DROPPED, ChangedRows
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.partition_row import PartitionRow
from stratalog.remote.metadata.shard.shard_state import OBJECTS, PARTITIONS, LiveObject, ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_format import ObjectKind
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.restore.found_object import FoundObject, read_object
from stratalog.remote.restore.partition_tiling import (
    LostOffsets,
    Output,
    Tiling,
    Upload,
    closed,
    extended,
    is_refused,
    with_output,
    with_uploads,
)
from stratalog.remote.restore.rebuild_report import RebuildReport
from stratalog.remote.restore.stored_log import FoundState, StoredLog

LOST_COMMITS = 1_000
"""More commits, and more claims, than a head can lose: both numbers go on above."""
_DAMAGE = (ObjectNotFoundError, StoreCorruptError, StoreNotUsableError)


class RebuiltShard(NamedTuple):
    """A shard's state without its head, and how it was found."""

    number: int
    state: ShardState
    epoch: int
    """The epoch of the claim that begins the new head; above every lost one."""
    claim_uuid: UUID
    """The uuid of that claim."""
    known: FoundState[ShardState] | None
    report: RebuildReport


class _Changes:
    """The rows of partitions that differ from the known state, and what that means for its objects. Guarded
    by its rebuild."""

    def __init__(self, before: ShardState, refs: Mapping[str, ObjectRef]) -> None:
        self._before = before
        self._refs = refs
        self.rows: dict[TopicIdPartition, PartitionRow | None] = {}
        """None for a partition that goes."""
        self._counts: dict[str, int] = defaultdict(int)
        self._sizes: dict[str, int] = defaultdict(int)

    @property
    def names(self) -> Iterable[str]:
        """The names of the objects whose slices differ."""
        return self._counts

    def extend(self, tip: TopicIdPartition, row: PartitionRow, added: Iterable[LiveSlice]) -> None:
        """Note a partition with more slices."""
        self.rows[tip] = row
        self._count(added, 1)

    def replace(self, tip: TopicIdPartition, after: TieredPartition) -> None:
        """Note a partition whose slices are in memory."""
        self.rows[tip] = after.row
        self._count(self._before.partition(tip).slices, -1)
        self._count(after.slices, 1)

    def drop(self, tip: TopicIdPartition) -> None:
        """Note a partition that goes."""
        if tip in self._before.partitions:
            self.rows[tip] = None
            self._count(self._before.partition(tip).slices, -1)

    def objects(self, new_seq: int, new_ms: int) -> Iterator[tuple[str, LiveObject | None]]:
        """The objects whose slices differ; None for one without live slices. Those that are not known get
        `new_seq` as their commit and `new_ms` as the time of their upload: they are no older than they may
        be."""
        for name, count in self._counts.items():
            known = self._before.objects.get(name)
            if known is None:
                if count:
                    yield name, LiveObject(self._refs[name], new_seq, count, self._sizes[name], new_ms)
            elif known.live_slices + count == 0:
                yield name, None
            else:
                yield (
                    name,
                    known._replace(
                        live_slices=known.live_slices + count, live_bytes=known.live_bytes + self._sizes[name]
                    ),
                )

    def _count(self, slices: Iterable[LiveSlice], sign: int) -> None:
        for live in slices:
            if live.gap is None:
                self._counts[live.object_name] += sign
                self._sizes[live.object_name] += sign * live.entry.data_bytes


class ShardRebuild:
    """Rebuilds one shard's state. Not thread-safe: one command uses it."""

    def __init__(
        self, actor: StoreActor, log: StoredLog[ShardState], catalog: CatalogState | None, now_ms: int
    ) -> None:
        """`catalog`: the topics, None if they are not known. `now_ms`: the time by the store's clock."""
        self._actor = actor
        self._log = log
        self._catalog = catalog
        self._now_ms = now_ms
        self._listed: dict[str, ObjectInfo] = {}
        self._warnings: list[str] = []

    def run(self) -> RebuiltShard:
        """Find the state; writes nothing. Memory holds the rows of partitions and objects, the directories of
        the objects that no checkpoint knows, and the slices of the partitions in which one of them replaces
        others. Raises StoreError."""
        prefix = self._log.layout.data_prefix
        self._listed = {info.key.removeprefix(prefix): info for info in self._log.store.list(prefix)}
        known = self._log.newest_state()
        before = ShardState() if known is None else known.state
        found = self._read_unknown(before)
        new_seq = max(self._log.newest_seq(), before.seq) + LOST_COMMITS
        refs = {one.ref.name: one.ref for one in found}
        changes = _Changes(before, refs)
        lost = self._find_partitions(before, found, changes)
        state = self._state(before, changes, new_seq)
        epoch = max((before.epoch, *(one.header.epoch for one in found))) + LOST_COMMITS
        return RebuiltShard(
            number=self._log.layout.shard or 0,
            state=state,
            epoch=epoch,
            claim_uuid=self._claim_uuid(before, found),
            known=known,
            report=self._report(before, state, lost),
        )

    def _claim_uuid(self, before: ShardState, found: Sequence[FoundObject]) -> UUID:
        """The uuid of the newest known claim: the data directory that made it goes on with the records that
        it has not uploaded yet. A new one if objects tell of a later claim, which is lost: then no directory
        is known to be the last one, and each sets its logs aside.
        """
        is_last = before.claims and all(one.header.epoch <= before.epoch for one in found)
        return before.claims[-1].uuid if is_last else self._actor.ids.uuid()

    def _read_unknown(self, before: ShardState) -> list[FoundObject]:
        """The objects that the known state neither has nor has dropped."""
        found: list[FoundObject] = []
        unknown: list[ObjectInfo] = []
        for name, info in self._listed.items():
            if not FileKind.DATA.is_name(name):
                self._warnings.append(f"{info.key} is not the name of an object file, and is passed over")
            elif name not in before.objects and name not in before.dropped_objects:
                unknown.append(info)

        def read(info: ObjectInfo) -> FoundObject | LogStoreError:
            try:
                return read_object(self._log.store, self._log.layout, info)
            except _DAMAGE as error:
                return error

        def note(info: ObjectInfo, one: FoundObject | LogStoreError) -> None:
            if isinstance(one, LogStoreError):
                name = info.key.removeprefix(self._log.layout.data_prefix)
                self._warnings.append(f"object {name} is passed over: {one}")
            else:
                found.append(one)

        in_lanes(self._actor.loader.run_all, unknown, read, note)
        found.sort(key=lambda one: one.ref.name)
        foreign_count = sum(one.header.store_id != self._actor.identity.store_id for one in found)
        if foreign_count:
            self._warnings.append(
                f"{foreign_count} objects were written to another store: this one was restored from it, or"
                " they were copied here"
            )
        return found

    def _find_partitions(
        self, before: ShardState, found: Sequence[FoundObject], changes: _Changes
    ) -> list[LostOffsets]:
        """Note the partitions that differ from the known state; returns the offsets that no object has."""
        uploads, outputs = _uploads_of(found), outputs_of(found)
        damaged = self._partitions_with_losses(before)
        deleted = {tip for tip in before.partitions if self._is_deleted(tip.topic_id, before)}
        lost: list[LostOffsets] = []
        refused: set[str] = set()
        for tip in sorted({*deleted, *damaged, *uploads, *outputs}):
            known = before.partition(tip)
            if self._is_deleted(tip.topic_id, before):
                changes.drop(tip)
                continue
            # A claim is known with all commits of the owners before it.
            of_uploads = [
                one
                for one in uploads.get(tip, ())
                if one.epoch >= before.epoch
                and not is_refused(known.row, one.object_name, one.entry.end_offset)
            ]
            if known.row.pieces and tip not in damaged and tip not in outputs:
                tiles = with_uploads((), known.tiered_end_offset, of_uploads)
                tiling = extended(tip, known.row, tiles, self._now_ms)
                changes.extend(tip, tiling.partition.row, tiles)
            else:
                tiling = self._tiled(tip, known, of_uploads, outputs.get(tip, ()), refused)
                changes.replace(tip, tiling.partition)
            lost += tiling.lost
        self._warnings += (
            f"object {name} was not made from what is live, and is left out in a partition"
            for name in sorted(refused)
        )
        return lost

    def _tiled(
        self,
        tip: TopicIdPartition,
        known: TieredPartition,
        uploads: Sequence[Upload],
        outputs: Iterable[Output],
        refused: set[str],
    ) -> Tiling:
        """The partition of all that is there; adds the names of outputs that have no place to `refused`."""
        names = {one.object_name for one in uploads}
        added = with_uploads((), known.tiered_end_offset, uploads)
        tiles = [*self._present(known), *added]
        start = known.slices[0].base_offset if known.slices else known.tiered_end_offset
        for output in outputs:
            newest = output.slices[-1]
            is_late = is_refused(known.row, newest.object_name, newest.end_offset)
            replaced = None if is_late else with_output(tiles, output, start, names)
            if replaced is None:
                refused.add(output.slices[0].object_name)
            else:
                tiles = replaced
        return closed(tip, known, tiles, self._now_ms, added[-1] if added else None)

    def _partitions_with_losses(self, before: ShardState) -> set[TopicIdPartition]:
        """The known partitions of which an object is gone."""
        gone = {name for name in before.objects if name not in self._listed}
        if not gone:
            return set()
        return {
            tip
            for tip in before.partitions
            if any(live.object_name in gone for live in before.partition(tip).slices)
        }

    def _is_deleted(self, topic_id: UUID, before: ShardState) -> bool:
        entry = None if self._catalog is None else self._catalog.entries.get(topic_id)
        return topic_id in before.dropped_topics or (entry is not None and entry.is_deleted)

    def _present(self, known: TieredPartition) -> list[LiveSlice]:
        return [live for live in known.slices if live.gap is not None or live.object_name in self._listed]

    def _state(self, before: ShardState, changes: _Changes, new_seq: int) -> ShardState:
        partitions, objects = before.partitions.evolve(), before.objects.evolve()
        dropped = before.dropped_objects.evolve()
        for tip, row in changes.rows.items():
            if row is None:
                partitions.pop(tip)
            else:
                partitions[tip] = row
        for name, live in changes.objects(new_seq, self._now_ms):
            if live is not None:
                objects[name] = live
                continue
            gone = objects.pop(name)
            if name in self._listed:
                dropped[name] = DroppedObject(
                    name=name,
                    size_bytes=gone.ref.size_bytes,
                    seq=new_seq,
                    time_ms=self._now_ms,
                    brought_seq=gone.seq,
                )
        seen_seq = 0 if self._catalog is None else self._catalog.seq
        finished = partitions.finish()
        tables: dict[str, Sequence[Hashable]] = {
            PARTITIONS: tuple(changes.rows),
            OBJECTS: tuple(changes.names),
            DROPPED: tuple(changes.names),
        }
        changed = tuple(ChangedRows(new_seq, kind, keys) for kind, keys in tables.items() if keys)
        return dataclasses.replace(
            before,
            seq=new_seq,
            uuid=self._actor.ids.uuid(),
            time_ms=self._now_ms,
            orphan_horizon_seq=new_seq,
            catalog_seq=max(before.catalog_seq, seen_seq),
            checkpoint=None,
            history=None,
            partitions=finished,
            unfolded_slices=sum(row.unfolded_count for row in finished.values()),
            objects=objects.finish(),
            dropped_objects=dropped.finish(),
            changed=(*before.changed, *changed),
        )

    def _report(self, before: ShardState, state: ShardState, lost: Sequence[LostOffsets]) -> RebuildReport:
        unused = [
            info
            for name, info in self._listed.items()
            if name not in state.objects and name not in state.dropped_objects
        ]
        return RebuildReport(
            log=f"shard {self._log.layout.shard}",
            known_seq=before.seq,
            new_seq=state.seq,
            topic_count=len({tip.topic_id for tip in state.partitions}),
            partition_count=len(state.partitions),
            slice_count=sum(row.slice_count for row in state.partitions.values()),
            live_object_count=len(state.objects),
            live_bytes=sum(live.live_bytes for live in state.objects.values()),
            added_object_count=sum(name not in before.objects for name in state.objects),
            unused_object_count=len(unused),
            unused_bytes=sum(info.size for info in unused),
            lost=tuple(lost),
            warnings=(
                *self._log.problems,
                _deletion_warning(before),
                *self._warnings,
                *self._topic_warnings(state),
            ),
        )

    def _topic_warnings(self, state: ShardState) -> Iterator[str]:
        """Partitions that the catalog does not know, or contradicts."""
        if self._catalog is None:
            return
        counts: dict[UUID, int] = {}
        for tip in state.partitions:
            counts[tip.topic_id] = max(counts.get(tip.topic_id, 0), tip.partition + 1)
        for topic_id, count in sorted(counts.items()):
            entry = self._catalog.entries.get(topic_id)
            if entry is None:
                yield f"the catalog does not know topic {topic_id}; its slices are kept, but cannot be read"
            elif entry.partition_count < count:
                yield (
                    f"topic {entry.name} has {count} partitions here and {entry.partition_count} in the"
                    " catalog; add partitions to it"
                )


def _deletion_warning(before: ShardState) -> str:
    """The deletions that are not known, and what to do about them. `before`: the known state."""
    since = f"after commit {before.seq} ({utc_text(before.time_ms)}) " if before.seq else ""
    return (
        f"deletions of records {since}are lost: what they deleted is back, as far as objects have it;"
        " retention deletes it again, and what was deleted by hand has to be deleted again by hand"
        " (stratalog records delete)"
    )


def live_objects(
    known: Mapping[str, LiveObject],
    partitions: Mapping[TopicIdPartition, TieredPartition],
    refs: Mapping[str, ObjectRef],
    new_seq: int,
    new_ms: int,
) -> dict[str, LiveObject]:
    """The objects of the partitions' slices. Those that are not known get `new_seq` as their commit and
    `new_ms` as the time of their upload: they are no older than they may be."""
    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for partition in partitions.values():
        for live in partition.slices:
            if live.gap is None:
                counts[live.object_name] += 1
                sizes[live.object_name] += live.entry.data_bytes
    return {
        name: known[name]._replace(live_slices=count, live_bytes=sizes[name])
        if name in known
        else LiveObject(refs[name], new_seq, count, sizes[name], new_ms)
        for name, count in counts.items()
    }


def _uploads_of(found: Iterable[FoundObject]) -> dict[TopicIdPartition, list[Upload]]:
    uploads: dict[TopicIdPartition, list[Upload]] = defaultdict(list)
    for one in found:
        if one.header.kind is ObjectKind.UPLOAD:
            for entry in one.entries:
                if entry.base_offset < entry.end_offset:
                    uploads[entry.topic_id_partition].append(Upload(one.ref.name, one.header.epoch, entry))
    return uploads


def outputs_of(found: Iterable[FoundObject]) -> dict[TopicIdPartition, list[Output]]:
    """The outputs of all jobs by partition, each behind those that it was made from."""
    jobs: dict[tuple[str, ...], list[FoundObject]] = defaultdict(list)
    for one in found:
        if one.header.kind is ObjectKind.REPLACEMENT:
            jobs[one.header.inputs].append(one)
    generations = _generations(jobs)
    proven = {name for inputs in jobs for name in inputs}

    def order(inputs: tuple[str, ...]) -> tuple[int, bool, str]:
        names = [one.ref.name for one in jobs[inputs]]
        return generations[inputs], proven.isdisjoint(names), min(names)

    outputs: dict[TopicIdPartition, list[Output]] = defaultdict(list)
    for inputs in sorted(jobs, key=order):
        slices: dict[TopicIdPartition, list[LiveSlice]] = defaultdict(list)
        for one in jobs[inputs]:
            for entry in one.entries:
                if entry.base_offset < entry.end_offset:
                    live = LiveSlice(one.ref.name, entry.base_offset, entry.end_offset, entry)
                    slices[entry.topic_id_partition].append(live)
        for tip, of_job in slices.items():
            outputs[tip].append(Output(_chain(of_job), frozenset(inputs)))
    return outputs


def _generations(jobs: Mapping[tuple[str, ...], Sequence[FoundObject]]) -> dict[tuple[str, ...], int]:
    """The number of jobs that stand behind each job: 0 for one that has read uploads only."""
    makers = {one.ref.name: inputs for inputs, made in jobs.items() for one in made}
    generations: dict[tuple[str, ...], int] = {}
    # An input was committed before its job put anything, so births never fall along a chain.
    for inputs in sorted(jobs, key=lambda one: min(made.ref.name for made in jobs[one])):
        _generation(inputs, makers, generations)
    return generations


def _generation(
    inputs: tuple[str, ...],
    makers: Mapping[str, tuple[str, ...]],
    generations: dict[tuple[str, ...], int],
) -> int:
    if inputs not in generations:
        generations[inputs] = 0  # also ends a circle, which only a forged header can make
        before = [_generation(makers[name], makers, generations) for name in inputs if name in makers]
        generations[inputs] = 1 + max(before) if before else 0
    return generations[inputs]


def _chain(slices: Sequence[LiveSlice]) -> tuple[LiveSlice, ...]:
    """One slice for each offset: a job that was repeated has made two."""
    chain: list[LiveSlice] = []
    for live in sorted(slices, key=lambda one: (one.base_offset, -one.end_offset)):
        if not chain or live.base_offset >= chain[-1].end_offset:
            chain.append(live)
    return tuple(chain)
