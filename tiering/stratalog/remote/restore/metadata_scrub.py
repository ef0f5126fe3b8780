"""Checks the metadata of a log against itself, against a listing of the bucket, and against the catalog.

No data is read: documents of the metadata, and names and sizes of everything else. It changes nothing.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog_state import CatalogState
from stratalog.remote.metadata.head.committed_log import CommittedLog
from stratalog.remote.metadata.head.head_log import StateMachine
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.restore.document_faults import document_faults
from stratalog.remote.restore.stored_log import StoredLog
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import IDENTITY_KEY, StoreLayout
from stratalog.remote.tier.orphan_sweep import NEVER_MS, OrphanKind, OrphanSweep, SweepSettings

S = TypeVar("S", bound=HeadState)

SHARD_DAMAGE = (CorruptRecordError, ObjectArchivedError, ObjectNotFoundError, StoreCorruptError)
"""Errors that keep the metadata of a shard from being read because of what lies in the store."""
NO_PARTITION = -1
_MAX_COUNTED_ORPHANS = 1_000_000


class FindingKind(enum.StrEnum):
    """Kinds of findings."""

    DAMAGED = "damaged"
    """A slice, the header or footer of an object, or a document of the metadata is not what was written, or
    cannot be read because the store has archived it."""
    MISSING = "missing"
    """An object or a document that the metadata refers to is not in the bucket."""
    HOLE = "hole"
    """Offsets that no slice has, between two slices or at an end of a partition."""
    OVERLAP = "overlap"
    """Offsets that two slices have."""
    CATALOG = "catalog"
    """A partition that the catalog does not know."""


class VerificationFinding(NamedTuple):
    """Something in the store that is not as the commits say."""

    topic: str
    """Empty for a document of the metadata, and for the header or footer of an object; the id where no slice
    tells the name."""
    partition: int
    """-1 without a topic."""
    object_name: str
    """The object's name; the key of a document; empty for offsets without an object."""
    base_offset: int
    end_offset: int
    reason: str
    kind: FindingKind = FindingKind.DAMAGED


class ListedFault(NamedTuple):
    """Something that a listing says of an object that is live."""

    size_bytes: int | None
    """None: the object is not there."""
    is_archived: bool = False


class Unreferenced(NamedTuple):
    """Files that no commit refers to, those in their grace included. They cost money, and are no findings."""

    file_count: int = 0
    size_bytes: int = 0
    waiting_count: int = 0
    """Those of them whose grace is not over: uploads under way, and what dead ones have left."""
    waiting_bytes: int = 0
    due_ms: int = NEVER_MS
    """The time before which none of these is deleted, by the store's clock; -1 if none waits."""

    def plus(self, other: Unreferenced) -> Unreferenced:
        """Both together."""
        dues_ms = [one.due_ms for one in (self, other) if one.due_ms != NEVER_MS]
        return Unreferenced(
            file_count=self.file_count + other.file_count,
            size_bytes=self.size_bytes + other.size_bytes,
            waiting_count=self.waiting_count + other.waiting_count,
            waiting_bytes=self.waiting_bytes + other.waiting_bytes,
            due_ms=min(dues_ms, default=NEVER_MS),
        )


def document_findings(
    store: ObjectStore, log: CommittedLog[Any], machine: StateMachine[Any]
) -> list[VerificationFinding]:
    """Missing and damaged documents of a log. Raises StoreUnavailableError, StoreAccessDeniedError."""
    faults = document_faults(StoredLog(store, log.layout, machine), log.state().history_start_seq)
    return [_document_finding(fault.key, fault.error) for fault in faults]


def identity_findings(store: ObjectStore, known: StoreIdentity) -> list[VerificationFinding]:
    """The finding on the identity of the store, unless it is there as a running server knows it. Raises
    StoreUnavailableError, StoreAccessDeniedError."""
    if _identity_fault(store, known) is None:
        return []
    # A connection may have garbled it: only what stays counts.
    fault = _identity_fault(store, known)
    return [] if fault is None else [_document_finding(IDENTITY_KEY, fault)]


def _identity_fault(store: ObjectStore, known: StoreIdentity) -> LogStoreError | None:
    try:
        found = StoreIdentity.decode(store.get(IDENTITY_KEY).data)
    except ObjectNotFoundError:
        return ObjectNotFoundError(
            "the identity of the store is missing, and no server starts without it; restore it from the"
            " bucket's versions or a copy, or write it by hand: `docs/store_repairs.md` says how",
            key=IDENTITY_KEY,
        )
    except (ObjectArchivedError, StoreCorruptError, StoreNotUsableError) as error:
        return error
    if (found.store_id, found.shard_count) == (known.store_id, known.shard_count):
        return None
    return StoreCorruptError(
        "the identity of the store is another one than when the server opened it; put back the former one",
        key=IDENTITY_KEY,
        store_id=known.store_id,
        shard_count=known.shard_count,
        found_store_id=found.store_id,
        found_shard_count=found.shard_count,
    )


def unread_shard_finding(shard: int, damage: LogStoreError) -> VerificationFinding:
    """The finding on a shard whose metadata cannot be read, because of one of `SHARD_DAMAGE`. It names the
    key of the object at fault."""
    layout = StoreLayout(shard)
    name = damage.fields.get("name")
    # A document is named by its key, and an object by its name.
    named = (str(damage.fields.get(field)) for field in ("key", "what"))
    default_key = layout.data_key(str(name)) if name else layout.head_key
    key = next((one for one in named if one.startswith(layout.prefix)), default_key)
    # The metadata log says so of an object that its head refers to.
    is_missing = any(isinstance(one, ObjectNotFoundError) for one in (damage, damage.__cause__))
    return VerificationFinding(
        topic="",
        partition=NO_PARTITION,
        object_name=key,
        base_offset=0,
        end_offset=0,
        reason=f"shard {shard} cannot be read, so what is in it is not verified: {damage}",
        kind=FindingKind.MISSING if is_missing else FindingKind.DAMAGED,
    )


def partition_findings(
    state: ShardState, catalog: CatalogState | None, topic_ids: Collection[UUID] | None
) -> Iterator[VerificationFinding]:
    """Slices that do not tile, and partitions that the catalog does not know. `catalog` is not older than
    the state; None if it is not to be asked.

    A topic without a record may be unknown: no object tells its name to a catalog that is rebuilt.
    """
    for tip in state.partitions:
        if topic_ids is not None and tip.topic_id not in topic_ids:
            continue
        partition = state.partition(tip)
        yield from _tiling_findings(tip, partition)
        reason = "" if catalog is None else _stranger(tip, partition, catalog)
        if reason:
            start, end = partition.log_start_offset, partition.tiered_end_offset
            yield _finding(tip, partition, start, end, reason, FindingKind.CATALOG)


def listed_faults(
    store: ObjectStore, log: MetadataLog, state: ShardState, stop: StopSignal, *, counts_archived: bool
) -> dict[str, ListedFault]:
    """The objects of a state that a listing does not have, or that have another size there, or that it has in
    an archive, if these count. The listing is younger than the state. Raises StoreError, StoppingError."""
    prefix = log.layout.data_prefix
    faults: dict[str, ListedFault] = {}
    expected = iter(sorted(state.objects))
    name = next(expected, None)
    for info in store.list(prefix):
        stop.check()
        found = info.key.removeprefix(prefix)
        while name is not None and name < found:
            faults[name] = ListedFault(None)
            name = next(expected, None)
        if name == found:
            is_archived = counts_archived and info.is_archived
            if is_archived or state.objects[found].ref.size_bytes != info.size:
                faults[found] = ListedFault(info.size, is_archived)
            name = next(expected, None)
    while name is not None:
        faults[name] = ListedFault(None)
        name = next(expected, None)
    return faults


def existence_finding(
    state: ShardState, faults: Mapping[str, ListedFault], live: LiveSlice
) -> VerificationFinding | None:
    """The finding of a slice with what the listing says of its object; None if that is there as it should
    be."""
    known = state.objects.get(live.object_name)
    if known is None:
        reason, kind = "no commit that is left has brought the object", FindingKind.DAMAGED
    elif live.object_name not in faults:
        return None
    else:
        size_bytes, is_archived = faults[live.object_name]
        kind = FindingKind.MISSING if size_bytes is None else FindingKind.DAMAGED
        if size_bytes is None:
            reason = "the object is not in the bucket; restore it from a copy"
        elif is_archived:
            reason = (
                "the listing has the object in an archive; end the lifecycle rule that took it there, restore"
                " it (`aws s3api restore-object`) and copy it over itself in another storage class"
            )
        else:
            reason = f"the object has {size_bytes} bytes instead of {known.ref.size_bytes}; restore it"
    return VerificationFinding(
        topic=live.entry.topic,
        partition=live.entry.partition,
        object_name=live.object_name,
        base_offset=live.base_offset,
        end_offset=live.end_offset,
        reason=reason,
        kind=kind,
    )


def newest_state(log: CommittedLog[S]) -> S:
    """The current state; the newest one that was read if the head is damaged, archived or lost since."""
    try:
        return log.refresh()
    except (ObjectArchivedError, StoreCorruptError, StoreNotUsableError):
        return log.state()


def unreferenced(store: ObjectStore, log: CommittedLog[Any], grace_ms: int, stop: StopSignal) -> Unreferenced:
    """The files of a log that no commit refers to, without unfinished uploads. Raises StoreError,
    StoppingError.
    """
    log.refresh(dated=True)
    settings = SweepSettings(grace_ms=grace_ms, max_file_count=_MAX_COUNTED_ORPHANS)
    report = OrphanSweep(store, log, settings).run(log.store_date_ms, stop, is_dry_run=True)
    going, waiting = (
        [one for one in some if one.kind is not OrphanKind.UPLOAD]
        for some in (report.deleted, report.waiting)
    )
    waiting_bytes = sum(one.size_bytes for one in waiting)
    return Unreferenced(
        file_count=len(going) + len(waiting),
        size_bytes=sum(one.size_bytes for one in going) + waiting_bytes,
        waiting_count=len(waiting),
        waiting_bytes=waiting_bytes,
        due_ms=min((one.due_ms for one in waiting), default=NEVER_MS),
    )


def _document_finding(key: str, error: LogStoreError) -> VerificationFinding:
    return VerificationFinding(
        topic="",
        partition=NO_PARTITION,
        object_name=key,
        base_offset=0,
        end_offset=0,
        reason=str(error),
        kind=FindingKind.MISSING if isinstance(error, ObjectNotFoundError) else FindingKind.DAMAGED,
    )


def _tiling_findings(tip: TopicIdPartition, partition: TieredPartition) -> Iterator[VerificationFinding]:
    slices = partition.slices
    start = slices[0].base_offset if slices else partition.tiered_end_offset
    if start > partition.log_start_offset:
        yield _hole(tip, partition, partition.log_start_offset, start)
    for earlier, later in itertools.pairwise(slices):
        if earlier.end_offset < later.base_offset:
            yield _hole(tip, partition, earlier.end_offset, later.base_offset)
        elif earlier.end_offset > later.base_offset:
            reason = f"two slices have these offsets; the first is of object {earlier.object_name}"
            base, end = later.base_offset, earlier.end_offset
            found = _finding(tip, partition, base, end, reason, FindingKind.OVERLAP)
            yield found._replace(object_name=later.object_name)
    if slices and slices[-1].end_offset < partition.tiered_end_offset:
        yield _hole(tip, partition, slices[-1].end_offset, partition.tiered_end_offset)


def _hole(tip: TopicIdPartition, partition: TieredPartition, base: int, end: int) -> VerificationFinding:
    reason = "no slice has these offsets, and no gap says that they are lost; keep everything, investigate"
    return _finding(tip, partition, base, end, reason, FindingKind.HOLE)


def _finding(
    tip: TopicIdPartition, partition: TieredPartition, base: int, end: int, reason: str, kind: FindingKind
) -> VerificationFinding:
    names = (live.entry.topic for live in partition.slices if live.entry.topic)
    return VerificationFinding(
        topic=next(names, str(tip.topic_id)),
        partition=tip.partition,
        object_name="",
        base_offset=base,
        end_offset=end,
        reason=reason,
        kind=kind,
    )


def _stranger(tip: TopicIdPartition, partition: TieredPartition, catalog: CatalogState) -> str:
    """The reason that the catalog does not know the partition; empty if it does, or if there is nothing that
    could be read."""
    entry = catalog.entries.get(tip.topic_id)
    if entry is None:
        if not partition.slices and partition.log_start_offset == partition.tiered_end_offset:
            return ""
        return f"the catalog does not know the topic {tip.topic_id}; its records cannot be read"
    if tip.partition >= entry.partition_count and not entry.is_deleted:
        return f"topic {entry.name} has {entry.partition_count} partitions in the catalog"
    return ""
