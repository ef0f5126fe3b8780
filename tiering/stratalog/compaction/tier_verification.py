"""Verifies stored data: reads every live slice of a shard and compares it with the metadata.

Of each object the directory is read first: it must have the slices as they were committed. Of each slice the
batches are read once, forward, in chunks. The checksum of the slice and those of its batches must match, the
records must be as many as the directory says, and their offsets must ascend inside of the slice. The index
and the key stream are read, too. A slice that is damaged is read a second time, because a connection may have
garbled it; damage that stays is a finding, and the verification goes on.

An object that is missing is no finding if another commit has replaced it meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
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
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.key_stream import verify_key_stream
from stratalog.remote.objects.object_directory import read_directory, read_slice_index
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry

MAX_FINDING_COUNT = 1000
"""Findings that a report has; it counts all."""
_CHUNK_BYTES = 4 << 20
_DAMAGE = (CorruptRecordError, StoreCorruptError, StoreNotUsableError, UnsupportedOperationError)


class VerificationFinding(NamedTuple):
    """A live slice that is not as its commit says."""

    topic: str
    partition: int
    object_name: str
    base_offset: int
    end_offset: int
    reason: str


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
        )


class TierVerification:
    """Verifies the live slices of one shard. Thread-safe: it keeps nothing between calls."""

    def __init__(self, store: ObjectStore, metadata: MetadataLog) -> None:
        self._store = store
        self._metadata = metadata

    def run(
        self,
        topic_ids: Collection[UUID] | None,
        stop: StopSignal,
        on_object: Callable[[VerificationReport], None],
    ) -> VerificationReport:
        """Verify the slices of these topics (None: of all), object by object; calls `on_object` after each.

        Memory holds a chunk of one slice. Raises StoppingError between two requests, StoreUnavailableError,
        StoreAccessDeniedError.
        """
        state = self._metadata.refresh()
        slices: dict[str, list[LiveSlice]] = {}
        gaps: list[LiveSlice] = []
        for tip in state.partitions:
            if topic_ids is None or tip.topic_id in topic_ids:
                for live in state.partition(tip).slices:
                    if live.gap is not None:
                        gaps.append(live)
                        continue
                    slices.setdefault(live.object_name, []).append(live)
        report = VerificationReport(
            total_slice_count=sum(map(len, slices.values())),
            total_bytes=sum(live.entry.data_bytes for found in slices.values() for live in found),
            gaps=tuple(gaps),
        )
        store = StoppableObjectStore(self._store, stop)
        for name in sorted(slices):
            found = sorted(slices[name], key=lambda live: live.entry.data_position)
            report = self._verify_object(store, state.objects[name].ref, found, report)
            on_object(report)
        return report

    def _verify_object(
        self, store: ObjectStore, ref: ObjectRef, slices: Sequence[LiveSlice], report: VerificationReport
    ) -> VerificationReport:
        report = report._replace(object_count=report.object_count + 1)
        for live in slices:
            record_count, damage = self._verify_twice(store, ref, live)
            report = report._replace(
                slice_count=report.slice_count + 1,
                data_bytes=report.data_bytes + live.entry.data_bytes,
                record_count=report.record_count + record_count,
            )
            if damage is not None:
                report = report._replace(
                    finding_count=report.finding_count + 1,
                    findings=(*report.findings, _finding(live, damage))[:MAX_FINDING_COUNT],
                )
        return report

    def _verify_twice(
        self, store: ObjectStore, ref: ObjectRef, live: LiveSlice
    ) -> tuple[int, LogStoreError | None]:
        """The number of records in the slice, and its damage."""
        damage: LogStoreError | None = None
        for _ in range(2):
            try:
                return self._verify_slice(store, ref, live), None
            except ObjectNotFoundError as missing:
                if not self._is_live(live):
                    return 0, None
                damage = missing
            except _DAMAGE as found:
                damage = found
        return 0, damage

    def _is_live(self, live: LiveSlice) -> bool:
        state = self._metadata.refresh()
        return live.object_name in state.objects

    def _verify_slice(self, store: ObjectStore, ref: ObjectRef, live: LiveSlice) -> int:
        """Returns the number of records. Raises the error of the damage, StoreError."""
        layout, entry = self._metadata.layout, live.entry
        if entry not in read_directory(store, layout, ref):
            raise StoreCorruptError(
                "the directory of an object does not have the slice that was committed; restore the object",
                name=ref.name,
                partition=entry.topic_id_partition,
            )
        key = layout.data_key(ref.name)
        record_count = 0
        if entry.data_bytes:
            with contextlib.closing(store.open_range(key, entry.data_position, entry.data_bytes)) as stream:
                for row in SliceReader(entry, stream.read, _CHUNK_BYTES).rows():
                    record_count += _verify_row(row, entry)
        read_slice_index(store, layout, ref.name, entry)
        keys = entry.key_stream
        if keys is not None and keys.size_bytes:
            with contextlib.closing(store.open_range(key, keys.position, keys.size_bytes)) as stream:
                verify_key_stream(stream.read, keys, entry.record_count)
        return record_count


def _verify_row(row: Buffer, entry: SliceEntry) -> int:
    """Check a row of whole batches; returns the number of records. Raises CorruptRecordError."""
    position = record_count = 0
    next_offset = entry.base_offset
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
        if not next_offset <= first_offset <= last_offset < entry.end_offset:
            raise CorruptRecordError(
                "the offsets of a stored batch do not ascend inside of its slice; restore the object",
                first_offset=first_offset,
                last_offset=last_offset,
                at_least=next_offset,
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
    )
