"""Verifies a shard: its metadata (`metadata_scrub`), and every live slice against that.

Several objects are verified at once. Their slices are collected for some objects at a time, by a pass over
the pages of the metadata, so memory does not grow with the store.

Of each object the header, the footer and the directory are read first: they must be those of the committed
object, and the directory must have the slices as they were committed. Of each slice the batches are read
once, forward, in chunks. The checksum of the slice and those of its batches must match, the records must be
as many as the directory says, and their offsets must ascend inside of the slice. The index and the key stream
are read, too. A part that is damaged is read a second time, because a connection may have garbled it; damage
that stays is a finding, and the verification goes on.

An object that is missing is no finding if another commit has replaced it meanwhile. An archived object is a
finding: it is not lost, but nothing can be read from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import Buffer
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.slice_reader import SliceReader
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.stoppable import StoppableObjectStore
from stratalog.record.batch import verify
from stratalog.record.header import parse_header
from stratalog.record.native.batch_kernels import scan_batches
from stratalog.remote.lanes import in_lanes
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.catalog_state import CatalogMachine
from stratalog.remote.metadata.head.head_log import StateMachine
from stratalog.remote.metadata.head.page_loader import RunAll, run_in_order
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog, ShardMachine
from stratalog.remote.metadata.shard.shard_state import ShardState
from stratalog.remote.objects.key_stream import verify_key_stream
from stratalog.remote.objects.object_parts import ObjectParts
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.restore.metadata_scrub import (
    NO_PARTITION,
    FindingKind,
    ListedFault,
    Unreferenced,
    VerificationFinding,
    document_findings,
    existence_finding,
    identity_findings,
    listed_faults,
    newest_state,
    partition_findings,
    unreferenced,
)
from stratalog.remote.tier.collector import CollectorSettings

MAX_FINDING_COUNT = 1000
"""Findings that a report has; it counts all."""
VERIFIED_AT_ONCE = 4
"""Objects that are read at the same time."""
MAX_SLICE_COUNT = 50_000
"""Slices whose objects are verified after one pass over the metadata, about a kilobyte each."""
_CHUNK_BYTES = 4 << 20
_DAMAGE = (
    CorruptRecordError,
    ObjectArchivedError,
    StoreCorruptError,
    StoreNotUsableError,
    UnsupportedOperationError,
)


T = TypeVar("T")

_NO_COUNTS: Mapping[FindingKind, int] = MappingProxyType({})

ObjectSlices = tuple[ObjectRef, list[LiveSlice]]
"""An object, and its live slices in the order of their data."""


class VerificationReport(NamedTuple):
    """The result of a verification, or its progress."""

    object_count: int = 0
    slice_count: int = 0
    data_bytes: int = 0
    record_count: int = 0
    finding_count: int = 0
    findings: tuple[VerificationFinding, ...] = ()
    total_slice_count: int = 0
    total_bytes: int = 0
    gaps: tuple[LiveSlice, ...] = ()
    """Recorded losses. They are no findings."""
    unreferenced: Unreferenced = Unreferenced()
    """They are no findings either."""
    counts: Mapping[FindingKind, int] = _NO_COUNTS
    """Findings by kind."""

    def plus(self, other: VerificationReport) -> VerificationReport:
        """Both together."""
        return VerificationReport(
            object_count=self.object_count + other.object_count,
            slice_count=self.slice_count + other.slice_count,
            data_bytes=self.data_bytes + other.data_bytes,
            record_count=self.record_count + other.record_count,
            finding_count=self.finding_count + other.finding_count,
            findings=(*self.findings, *other.findings)[:MAX_FINDING_COUNT],
            total_slice_count=self.total_slice_count + other.total_slice_count,
            total_bytes=self.total_bytes + other.total_bytes,
            gaps=self.gaps + other.gaps,
            unreferenced=self.unreferenced.plus(other.unreferenced),
            counts=Counter(self.counts) + Counter(other.counts),
        )

    def with_findings(self, found: Sequence[VerificationFinding]) -> VerificationReport:
        """With more findings."""
        return self.plus(
            VerificationReport(
                finding_count=len(found),
                findings=tuple(found[:MAX_FINDING_COUNT]),
                counts=Counter(one.kind for one in found),
            )
        )


class TierVerification:
    """Verifies one shard, and with shard 0 the store's identity and the catalog. Thread-safe: it keeps
    nothing between calls."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataLog,
        catalog: Catalog,
        run_all: RunAll = run_in_order,
    ) -> None:
        """`run_all` runs on threads that nothing else waits for: an object may need pages of the metadata."""
        self._store = store
        self._metadata = metadata
        self._catalog = catalog
        self._run_all = run_all

    def run(
        self,
        topic_ids: Collection[UUID] | None,
        stop: StopSignal,
        on_object: Callable[[VerificationReport], None],
        *,
        reads_data: bool = True,
    ) -> VerificationReport:
        """Verify the metadata, and the slices of these topics (None: of all), object by object; calls
        `on_object`, one call at a time, after each. Without `reads_data` objects are only listed.

        Memory holds the names of the objects, the slices of some of them, and a chunk of each that is being
        read. Raises StoppingError between two requests, StoreUnavailableError, StoreAccessDeniedError.
        """
        report, objects = self.survey(topic_ids, stop, reads_data=reads_data)
        if not reads_data:
            return report
        store = StoppableObjectStore(self._store, stop)

        def verify(item: ObjectSlices) -> VerificationReport:
            return self._verify_object(store, *item)

        def note(_: object, verified: VerificationReport) -> None:
            nonlocal report
            report = report.plus(verified)
            on_object(report)

        in_lanes(self._run_all, objects, verify, note, VERIFIED_AT_ONCE)
        return report

    def survey(
        self, topic_ids: Collection[UUID] | None, stop: StopSignal, *, reads_data: bool = True
    ) -> tuple[VerificationReport, Iterator[ObjectSlices]]:
        """Verify the metadata, list the objects, and return those that are left to be read. Without
        `reads_data` the listing says which are archived: a read knows better, because a copy may have been
        restored. Raises as `run`."""
        store = StoppableObjectStore(self._store, stop)
        report = self._scrub(store, topic_ids, stop)
        state = self._metadata.state()
        faults = listed_faults(store, self._metadata, state, stop, counts_archived=not reads_data)
        report = report.plus(self._overview(state, topic_ids, faults, stop))
        # These have findings already.
        return report, _with_slices(state, topic_ids, faults, stop)

    def verify_object(self, item: ObjectSlices) -> VerificationReport:
        """Read one object of a survey. Raises as `run`."""
        return self._verify_object(self._store, *item)

    def _overview(
        self,
        state: ShardState,
        topic_ids: Collection[UUID] | None,
        faults: Mapping[str, ListedFault],
        stop: StopSignal,
    ) -> VerificationReport:
        """The number and size of the slices, the gaps, and slices whose objects have faults in the listing,
        unless they are missing because another commit has replaced them meanwhile."""
        slice_count = total_bytes = 0
        gaps: list[LiveSlice] = []
        found: list[VerificationFinding] = []
        for live in _slices_of(state, topic_ids, stop):
            if live.gap is not None:
                gaps.append(live)
                continue
            slice_count += 1
            total_bytes += live.entry.data_bytes
            finding = existence_finding(state, faults, live)
            if finding is not None:
                found.append(finding)
        if found:
            newest = newest_state(self._metadata).objects
            found = [one for one in found if one.object_name in newest or one.kind is not FindingKind.MISSING]
        report = VerificationReport(total_slice_count=slice_count, total_bytes=total_bytes, gaps=tuple(gaps))
        return report.with_findings(found)

    def _scrub(
        self, store: ObjectStore, topic_ids: Collection[UUID] | None, stop: StopSignal
    ) -> VerificationReport:
        """The findings in the documents, and what nothing refers to."""
        metadata, catalog = self._metadata, self._catalog
        report = VerificationReport()
        logs: list[tuple[MetadataLog | Catalog, StateMachine[Any]]] = [
            (metadata, ShardMachine(_no_directory))
        ]
        if metadata.layout.shard == 0:
            logs.append((catalog, CatalogMachine()))
            report = report.with_findings(identity_findings(store, catalog.identity))
        for log, machine in logs:
            faults = document_findings(store, log, machine)
            report = report.with_findings(faults)
            if not faults:
                # Only a sound head tells what it refers to.
                found = unreferenced(store, log, CollectorSettings().grace_ms, stop)
                report = report._replace(unreferenced=report.unreferenced.plus(found))
        state = newest_state(metadata)
        return report.with_findings([*partition_findings(state, newest_state(catalog), topic_ids)])

    def _verify_object(
        self, store: ObjectStore, ref: ObjectRef, slices: Sequence[LiveSlice]
    ) -> VerificationReport:
        parts = ObjectParts(store, self._metadata.layout, ref)
        _, frame_damage = _twice(parts, parts.verify_frame)
        directory, lost = _twice(parts, parts.directory)
        entries = frozenset(directory or ())
        data_bytes = record_count = 0
        found: list[VerificationFinding] = []
        if frame_damage is not None and lost is None and not isinstance(frame_damage, ObjectNotFoundError):
            # The slices can be read, but a rebuild of the metadata could not find them.
            found.append(_frame_finding(ref, frame_damage))
        for live in slices:
            count, damage = 0, lost
            if lost is None:
                counted, damage = _twice(parts, partial(_verify_slice, parts, ref, live, entries))
                count = counted or 0
            data_bytes += live.entry.data_bytes
            record_count += count
            if damage is not None and (not isinstance(damage, ObjectNotFoundError) or self._is_live(live)):
                found.append(_finding(live, damage))
        report = VerificationReport(
            object_count=1, slice_count=len(slices), data_bytes=data_bytes, record_count=record_count
        )
        return report.with_findings(found)

    def _is_live(self, live: LiveSlice) -> bool:
        state = newest_state(self._metadata)
        return live.object_name in state.objects


def _twice(parts: ObjectParts, read: Callable[[], T]) -> tuple[T | None, LogStoreError | None]:
    """The result of `read`, and the damage if it is still there when it is read anew."""
    try:
        return read(), None
    except (ObjectNotFoundError, *_DAMAGE):
        parts.forget()
    try:
        return read(), None
    except (ObjectNotFoundError, *_DAMAGE) as damage:
        return None, damage


def _verify_slice(
    parts: ObjectParts, ref: ObjectRef, live: LiveSlice, entries: Collection[SliceEntry]
) -> int:
    """Returns the number of records. `entries` are those of the directory. Raises the error of the damage,
    StoreError."""
    entry = live.entry
    if entry not in entries:
        raise StoreCorruptError(
            "the directory of an object does not have the slice that was committed; restore the object",
            name=ref.name,
            **entry.topic_id_partition.error_fields,
        )
    record_count = 0
    if entry.data_bytes:
        with parts.opened(entry.data_position, entry.data_bytes) as read:
            for row in SliceReader(entry, read, _CHUNK_BYTES).rows():
                record_count += _verify_row(row, entry)
    parts.slice_index(entry)
    keys = entry.key_stream
    if keys is not None and keys.size_bytes:
        with parts.opened(keys.position, keys.size_bytes) as read:
            verify_key_stream(read, keys, entry.record_count)
    return record_count


def _slices_of(
    state: ShardState, topic_ids: Collection[UUID] | None, stop: StopSignal
) -> Iterator[LiveSlice]:
    """The live slices of these topics (None: of all), each loaded when it is asked for."""
    for tip in state.partitions:
        if topic_ids is None or tip.topic_id in topic_ids:
            stop.check()
            yield from state.partition(tip).slices_from(0)


def _with_slices(
    state: ShardState,
    topic_ids: Collection[UUID] | None,
    faults: Collection[str],
    stop: StopSignal,
) -> Iterator[ObjectSlices]:
    """The objects without faults in the listing, in order, each with its slices of these topics, in the
    order of their data."""
    names = [name for name in sorted(state.objects) if name not in faults]
    start = 0
    while start < len(names):
        end, count = start, 0
        while end < len(names) and (end == start or count < MAX_SLICE_COUNT):
            count += state.objects[names[end]].live_slices
            end += 1
        slices: dict[str, list[LiveSlice]] = {name: [] for name in names[start:end]}
        for live in _slices_of(state, topic_ids, stop):
            if live.object_name in slices:
                slices[live.object_name].append(live)
        for name in names[start:end]:
            found = slices.pop(name)
            if found:
                found.sort(key=lambda live: live.entry.data_position)
                yield state.objects[name].ref, found
        start = end


def _no_directory(_: ObjectRef) -> Sequence[SliceEntry]:
    """The documents are read, and their commits are not applied."""
    return ()


def _verify_row(row: Buffer, entry: SliceEntry) -> int:
    """Check a row of whole batches; returns the number of records. Raises CorruptRecordError.

    The first batch may begin below the slice, which begins inside of it where the log start was moved there
    before the upload.
    """
    position = record_count = next_offset = 0
    while position < len(row):
        scanned = scan_batches(row, position, len(row), 0)
        if scanned.end_position > position:
            first_offset, last_offset = scanned.first_offset, scanned.last_offset
            record_count += scanned.records_count
            position = scanned.end_position
        else:
            header = parse_header(row, position)
            summary = verify(row, position, header)
            first_offset = last_offset = header.base_offset
            if header.records_count:
                first_offset += summary.first_offset_delta
                last_offset += summary.last_offset_delta
            record_count += header.records_count
            position += header.size_in_bytes
        is_in_slice = entry.base_offset <= last_offset < entry.end_offset
        if not (next_offset <= first_offset <= last_offset and is_in_slice):
            raise CorruptRecordError(
                "the offsets of a stored batch do not ascend inside of its slice; restore the object",
                first_offset=first_offset,
                last_offset=last_offset,
                at_least=max(next_offset, entry.base_offset),
                below=entry.end_offset,
            )
        next_offset = last_offset + 1
    return record_count


def _finding(live: LiveSlice, damage: LogStoreError) -> VerificationFinding:
    return VerificationFinding(
        topic=live.entry.topic,
        partition=live.entry.partition,
        object_name=live.object_name,
        base_offset=live.base_offset,
        end_offset=live.end_offset,
        reason=str(damage),
        kind=FindingKind.MISSING if isinstance(damage, ObjectNotFoundError) else FindingKind.DAMAGED,
    )


def _frame_finding(ref: ObjectRef, damage: LogStoreError) -> VerificationFinding:
    return VerificationFinding(
        topic="",
        partition=NO_PARTITION,
        object_name=ref.name,
        base_offset=0,
        end_offset=0,
        reason=str(damage),
    )
