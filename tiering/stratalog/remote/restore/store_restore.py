"""Restores an earlier state of a store as a new store, under another URL. The old one is only read.

1. Every object that is live at the cut is copied, several at once, unless an earlier attempt has done so
   (see `object_copy`).
2. Checkpoint and head of every shard follow, then those of the catalog.
3. The identity of the new store comes last. Before that nothing takes the target for a store, so a restore
   that was interrupted is repeated, and one that was not finished serves no server.

The id of the new store follows from the old id, the target and the cut: a repeated attempt goes on with its
own files, and a restore of another cut refuses them. The cut is noted in the target (see `restore_note`), so
that a repeated attempt goes on with it though the source has gone on. Data directories are bound to the id of
their store, so a server starts on the new store with a new data directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID, uuid5

from stratalog.base.errors import ObjectNotFoundError, PreconditionFailedError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.lanes import in_lanes
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine, CatalogState
from stratalog.remote.metadata.head.document_ref import DroppedObject
from stratalog.remote.metadata.head.head_actions import Action
from stratalog.remote.metadata.head.head_log import StateMachine, StoreActor
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.head.persistent_map import PersistentMap
from stratalog.remote.metadata.shard.metadata_log import ShardMachine
from stratalog.remote.metadata.shard.shard_checkpoint import shard_detached
from stratalog.remote.metadata.shard.shard_judge import judge_claim
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_directory import read_directory
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.restore.new_head import Beginning, put_new_head
from stratalog.remote.restore.object_copy import CopiedObject, ObjectCopy
from stratalog.remote.restore.partition_tiling import closed
from stratalog.remote.restore.restore_note import RestoreNote, end_note
from stratalog.remote.restore.shard_rebuild import live_objects
from stratalog.remote.restore.store_cut import StoreCut
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY, StoreLayout, is_probe, shard_of

S = TypeVar("S", bound=HeadState)

OWNER = "stratalog tier restore"
"""The owner that the head of a restored shard names until a server claims it."""

IS_STORE = "the target is a store already"


class RestoredPartition(NamedTuple):
    """A partition at the cut."""

    topic: str
    """Its name; the id where the catalog does not know it."""
    partition: int
    log_start_offset: int | None
    tiered_end_offset: int | None
    size_bytes: int | None
    """None if nothing tells which offsets it had: what brought them is gone, and the restored partition is
    empty and begins at offset 0."""


class LostRecords(NamedTuple):
    """Offsets [base, end) of a partition whose objects are no longer there."""

    topic: str
    """Its name; the id where the catalog does not know it."""
    partition: int
    base_offset: int
    end_offset: int
    is_start: bool
    """Whether they lie before all others, so that log start moves over them."""


class RestorePlan(NamedTuple):
    """The objects and partitions that a restore copies. Nothing is written yet. Immutable."""

    catalog_seq: int
    shard_seqs: tuple[int, ...]
    time_ms: int
    """The time of the newest of these commits."""
    object_count: int
    object_bytes: int
    partitions: tuple[RestoredPartition, ...]
    lost: tuple[LostRecords, ...]
    gone: tuple[str, ...]
    """Objects that are no longer there; nothing else tells which offsets they had at the end of a
    partition."""
    archived: tuple[str, ...]
    """Keys of objects to copy that the listing has in an archive: they have to be restored from it before,
    unless that was done."""
    problems: tuple[str, ...]


class RestoreProgress(NamedTuple):
    """The objects that a restore has copied so far. Immutable."""

    server_count: int = 0
    """Objects that the server of both stores has copied."""
    through_here_count: int = 0
    """Objects whose bytes came through this machine."""
    there_count: int = 0
    """Objects that an earlier attempt has copied."""
    done_bytes: int = 0
    """Size of all of them."""
    damages: tuple[str, ...] = ()
    """Damage of objects in the source, which their copies have too; a text for people each."""

    def plus(self, copied: CopiedObject, size_bytes: int) -> RestoreProgress:
        """With one more object."""
        return RestoreProgress(
            server_count=self.server_count + (not copied.was_there and not copied.through_here),
            through_here_count=self.through_here_count + copied.through_here,
            there_count=self.there_count + copied.was_there,
            done_bytes=self.done_bytes + size_bytes,
            damages=(*self.damages, copied.damage) if copied.damage else self.damages,
        )


class StoreRestore:
    """Restores one cut. Not thread-safe: one command uses it."""

    def __init__(
        self,
        source: ObjectStore,
        identity: StoreIdentity,
        cut: StoreCut,
        now_ms: int,
        copies: ObjectStore | None = None,
    ) -> None:
        """`now_ms`: the time by the clock of the target. `copies`: the target, whose objects of an earlier
        attempt need not be in the source any more."""
        self._source = source
        self._stores = (source,) if copies is None else (copies, source)
        self._identity = identity
        self._cut = cut
        self._now_ms = now_ms
        self._lost = [*cut.lost]
        self._archived: list[str] = []
        self._shards = [self._present(shard, state) for shard, state in enumerate(cut.shards)]

    def plan(self) -> RestorePlan:
        """The objects that would be copied, and those that are no longer there."""
        live = [one for state in self._shards for one in state.objects.values()]
        states: tuple[HeadState, ...] = (self._cut.catalog, *self._cut.shards)
        return RestorePlan(
            catalog_seq=self._cut.catalog.seq,
            shard_seqs=tuple(state.seq for state in self._cut.shards),
            time_ms=max(state.time_ms for state in states),
            object_count=len(live),
            object_bytes=sum(one.ref.size_bytes for one in live),
            partitions=tuple(sorted(self._all_partitions(), key=lambda one: (one.topic, one.partition))),
            lost=tuple(
                LostRecords(
                    topic=self._topic_name(one.partition.topic_id),
                    partition=one.partition.partition,
                    base_offset=one.base_offset,
                    end_offset=one.end_offset,
                    is_start=one.is_start,
                )
                for one in self._lost
            ),
            gone=self._cut.gone,
            archived=tuple(self._archived),
            problems=self._cut.problems,
        )

    @property
    def _note(self) -> RestoreNote:
        seqs = (self._cut.catalog.seq, *(state.seq for state in self._cut.shards))
        return RestoreNote(self._identity.store_id, seqs)

    def identity_for(self, target: ObjectStore) -> StoreIdentity:
        """The identity of the new store."""
        name = f"{target.url} {self._cut.catalog.seq} {[state.seq for state in self._cut.shards]}"
        return StoreIdentity(uuid5(self._identity.store_id, name), self._identity.shard_count)

    def write(
        self, actor: StoreActor, on_object: Callable[[RestoreProgress], None], *, accepts_loss: bool = False
    ) -> RestoreProgress:
        """Make the new store; calls `on_object`, one call at a time, behind each object that is there.

        `actor` has the identity of `identity_for`. Raises PreconditionFailedError if the target has files of
        something else, if an object was collected meanwhile, or if offsets are lost, unless it
        `accepts_loss`, StoreError. A call that failed may be repeated.
        """
        if (self._lost or self._cut.gone) and not accepts_loss:
            raise PreconditionFailedError(
                "objects of that moment are gone; choose a later one, or accept gaps in their place",
                partitions=len({one.partition for one in self._lost}),
                offsets=sum(one.end_offset - one.base_offset for one in self._lost),
                partitions_of_unknown_offsets=sum(1 for _ in self._unknown_partitions()),
                objects=",".join(self._cut.gone[:10]) or "none",
            )
        target = actor.store
        progress = self._copy_objects(actor, on_object)
        for shard, state in enumerate(self._shards):
            layout = StoreLayout(shard)
            machine = ShardMachine(partial(read_directory, target, layout))
            claim = judge_claim(state, OWNER, actor.ids.uuid(), 0, "").actions
            _put_head(actor, layout, machine, self._begun(state), claim)
        _put_head(actor, StoreLayout(None), CatalogMachine(), self._catalog(), ())
        with contextlib.suppress(PreconditionFailedError):
            target.put(IDENTITY_KEY, actor.identity.encode(), if_absent=True)
        if StoreIdentity.open(target) != actor.identity:
            raise PreconditionFailedError("another store was made there meanwhile", store=target.url)
        end_note(target)
        return progress

    def _copy_objects(
        self, actor: StoreActor, on_object: Callable[[RestoreProgress], None]
    ) -> RestoreProgress:
        self._note.require_no_other(actor.store)
        there = self._require_own(actor.store, actor.identity.store_id)
        if IDENTITY_KEY not in there:
            self._note.begin(actor.store)
        copying, progress = ObjectCopy(self._source, actor.store), RestoreProgress()

        def copy(item: tuple[StoreLayout, ObjectRef]) -> CopiedObject:
            layout, ref = item
            try:
                return copying.copy(layout, ref, there.get(layout.data_key(ref.name)))
            except ObjectNotFoundError as error:
                raise PreconditionFailedError(
                    "an object was collected while it was about to be copied; plan the restore again",
                    key=layout.data_key(ref.name),
                ) from error

        def note(item: tuple[StoreLayout, ObjectRef], copied: CopiedObject) -> None:
            nonlocal progress
            progress = progress.plus(copied, item[1].size_bytes)
            on_object(progress)

        in_lanes(actor.loader.run_all, self._objects(), copy, note)
        return progress

    def _present(self, shard: int, state: ShardState) -> ShardState:
        """The state without the objects that are gone; gaps take their place. Notes those that are archived
        wherever they are."""
        prefix = StoreLayout(shard).data_prefix
        there: dict[tuple[str, int], bool] = {}
        for store in self._stores:
            for info in store.list(prefix):
                one = info.key.removeprefix(prefix), info.size
                there[one] = info.is_archived and there.get(one, True)
        sizes = ((name, one.ref.size_bytes) for name, one in sorted(state.objects.items()))
        self._archived += [prefix + name for name, size_bytes in sizes if there.get((name, size_bytes))]
        gone = {name for name, one in state.objects.items() if (name, one.ref.size_bytes) not in there}
        if not gone:
            return state
        partitions: dict[TopicIdPartition, TieredPartition] = {}
        for tip in state.partitions:
            partition = state.partition(tip)
            tiles = [live for live in partition.slices if live.object_name not in gone]
            if len(tiles) == len(partition.slices):
                partitions[tip] = partition
                continue
            tiling = closed(tip, partition, tiles, self._now_ms)
            partitions[tip] = tiling.partition
            self._lost += tiling.lost
        present = dataclasses.replace(
            state,
            partitions=PersistentMap((tip, partition.row) for tip, partition in partitions.items()),
            objects=PersistentMap(
                live_objects(state.objects, partitions, {}, state.seq, self._now_ms).items()
            ),
        )
        return shard_detached(present)

    def _all_partitions(self) -> Iterator[RestoredPartition]:
        yield from self._partitions()
        for topic, partition in self._unknown_partitions():
            yield RestoredPartition(topic, partition, None, None, None)

    def _unknown_partitions(self) -> Iterator[tuple[str, int]]:
        """The partitions that the catalog has and of which nothing is left, in shards where objects are gone
        that nothing else tells of."""
        for entry in self._cut.catalog.entries.values():
            if entry.is_deleted or entry.config.get("remote.storage.enable") == "false":
                continue
            for number in range(entry.partition_count):
                tip = TopicIdPartition(entry.topic_id, number)
                shard = shard_of(tip, self._identity.shard_count)
                if shard in self._cut.incomplete_shards and tip not in self._shards[shard].partitions:
                    yield entry.name, number

    def _topic_name(self, topic_id: UUID) -> str:
        entry = self._cut.catalog.entries.get(topic_id)
        return str(topic_id) if entry is None else entry.name

    def _partitions(self) -> Iterator[RestoredPartition]:
        for state in self._shards:
            for tip, partition in state.partitions.items():
                yield RestoredPartition(
                    topic=self._topic_name(tip.topic_id),
                    partition=tip.partition,
                    log_start_offset=partition.log_start_offset,
                    tiered_end_offset=partition.tiered_end_offset,
                    size_bytes=partition.tiered_bytes,
                )

    def _objects(self) -> Iterator[tuple[StoreLayout, ObjectRef]]:
        """The objects to copy."""
        for shard, state in enumerate(self._shards):
            for _, live in sorted(state.objects.items()):
                yield StoreLayout(shard), live.ref

    def _require_own(self, target: ObjectStore, store_id: UUID) -> Mapping[str, int]:
        """The files of the target by key. Raises PreconditionFailedError unless it is empty, or an earlier
        attempt has made them."""
        there = {info.key: info.size for info in target.list("") if not is_probe(info.key)}
        planned = {layout.data_key(ref.name) for layout, ref in self._objects()}
        metadata = tuple(
            StoreLayout(shard).prefix + folder
            for shard in (None, *range(self._identity.shard_count))
            for folder in ("checkpoints/", "pages/", "head")
        )
        known = (*metadata, IDENTITY_KEY)
        foreign = [key for key in there if key not in planned and not key.startswith(known)]
        is_store = IDENTITY_KEY in there
        # A server that has begun there has made files of its own.
        if is_store and (foreign or StoreIdentity.open(target).store_id != store_id):
            raise PreconditionFailedError(
                f"{IS_STORE}: if an earlier attempt has finished it, start a server there; else choose an"
                " empty target",
                store=target.url,
                key=IDENTITY_KEY,
            )
        if foreign:
            raise _foreign(target, foreign[0])
        return there

    def _begun(self, state: ShardState) -> ShardState:
        return dataclasses.replace(state, **_first_fields(state, self._now_ms))

    def _catalog(self) -> CatalogState:
        """The catalog, with a number that no shard has seen a later one of."""
        catalog = self._cut.catalog
        seq = max((catalog.seq, *(state.catalog_seq for state in self._shards)))
        catalog = dataclasses.replace(catalog, seq=seq, next_producer_id=self._cut.next_producer_id)
        return dataclasses.replace(catalog, **_first_fields(catalog, self._now_ms))


def _first_fields(state: HeadState, now_ms: int) -> dict[str, Any]:
    """The bookkeeping of a log that begins with this state."""
    return {
        "time_ms": now_ms,
        "orphan_horizon_seq": state.seq,
        "checkpoint": None,
        "history": None,
        "history_start_seq": max(state.seq, 1),
        "pins": (),
        "dropped_objects": PersistentMap[str, DroppedObject](),
        "replacements": (),
    }


def _put_head(
    actor: StoreActor, layout: StoreLayout, machine: StateMachine[S], state: S, actions: Sequence[Action]
) -> None:
    """Put the head of a log, unless an earlier attempt has. A log without a commit gets its head from the
    server."""
    if state.uuid is None:
        return
    there = StoredLog(actor.store, layout, machine).head()
    if there is None:
        put_new_head(actor, layout, machine, state, Beginning(actions=actions))
    elif there.store_id != actor.identity.store_id:
        raise _foreign(actor.store, layout.head_key)


def _foreign(target: ObjectStore, key: str) -> PreconditionFailedError:
    return PreconditionFailedError(
        "the target has files of something else, or of a restore of another moment; choose an empty one",
        store=target.url,
        key=key,
    )
