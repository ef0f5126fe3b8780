"""The next snapshot of an Iceberg table: its manifests, the list of them, and its summary."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid5

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

from stratalog.pipeline.lake.formats.iceberg_io import StoreFileIO
from stratalog.pipeline.lake.refresh_files import metadata_prefix

_COMPRESSION: Final = "deflate"
MERGED_MANIFESTS = 100
"""So many manifests of data files are merged to one."""


@dataclass(slots=True)
class SnapshotFiles:
    """The files of a snapshot. Not thread-safe: one read makes it."""

    data_manifests: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    deletes: dict[str, ManifestEntry] = field(default_factory=dict)
    """By the location of the data file whose rows are dead."""

    @property
    def data(self) -> list[ManifestEntry]:
        """All data files."""
        return [entry for _, entries in self.data_manifests for entry in entries]

    def changed(
        self, added: Sequence[DataFile], marks: Mapping[str, DataFile], dropped: Iterable[str]
    ) -> SnapshotChange:
        """The step to the next snapshot: new data files, new deletes by the locations of their data files,
        and data files that go."""
        return SnapshotChange(self, added, marks, frozenset(dropped))


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """A step to the next snapshot. Immutable."""

    files: SnapshotFiles
    added: Sequence[DataFile]
    marks: Mapping[str, DataFile]
    dropped: frozenset[str]

    @property
    def replaced_marks(self) -> list[DataFile]:
        """Deletes that go."""
        return [
            entry.data_file
            for location, entry in self.files.deletes.items()
            if location in self.dropped or location in self.marks
        ]


class _DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files, which pyiceberg only reads."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Manifests:
    """Writes the manifests of a snapshot. Not thread-safe: one commit uses it."""

    def __init__(
        self, io: StoreFileIO, metadata: TableMetadata, schema: Schema, snapshot_id: int, refresh_id: str
    ) -> None:
        self._io = io
        self._spec = metadata.spec()
        self._schema = schema
        self._snapshot_id = snapshot_id
        self._refresh_id = refresh_id
        self._numbers = itertools.count()

    def made(self, change: SnapshotChange) -> list[ManifestFile]:
        """The manifests of the next snapshot."""
        kept: list[ManifestFile] = []
        moved: list[ManifestEntry] = []
        manifests = change.files.data_manifests
        is_merging = len(manifests) >= MERGED_MANIFESTS
        for manifest, entries in manifests:
            living = [entry for entry in entries if entry.data_file.file_path not in change.dropped]
            if len(living) == len(entries) and not is_merging:
                kept.append(manifest)
            else:
                moved += living
        deletes = [
            entry
            for location, entry in change.files.deletes.items()
            if location not in change.dropped and location not in change.marks
        ]
        made = [
            *self._manifest(ManifestWriterV2, moved, change.added),
            *self._manifest(_DeleteManifestWriter, deletes, list(change.marks.values())),
        ]
        return [*made, *kept]

    def _manifest(
        self, kind: type[ManifestWriterV2], existing: Sequence[ManifestEntry], added: Sequence[DataFile]
    ) -> list[ManifestFile]:
        if not existing and not added:
            return []
        location = self._io.location_of(f"{metadata_prefix(self._refresh_id)}m{next(self._numbers)}.avro")
        with kind(
            self._spec, self._schema, self._io.new_output(location), self._snapshot_id, _COMPRESSION
        ) as writer:
            for entry in existing:
                writer.existing(entry)
            for file in added:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [writer.to_manifest_file()]


def made_snapshot(
    io: StoreFileIO,
    metadata: TableMetadata,
    schema: Schema,
    change: SnapshotChange,
    refresh_id: str,
    now_ms: int,
) -> Snapshot:
    """Write the manifests of the next snapshot. Raises StoreError."""
    # From the refresh, so that no other one writes the same bytes.
    snapshot_id = uuid5(UUID(refresh_id), "snapshot").int >> 65
    former = metadata.current_snapshot()
    parent_id = None if former is None else former.snapshot_id
    sequence_number = metadata.next_sequence_number()
    location = io.location_of(f"{metadata_prefix(refresh_id)}list.avro")
    with write_manifest_list(
        format_version=2,
        output_file=io.new_output(location),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=sequence_number,
        avro_compression=_COMPRESSION,
    ) as writer:
        writer.add_manifests(_Manifests(io, metadata, schema, snapshot_id, refresh_id).made(change))
    # The names of its fields in JSON are those that its constructor is typed with.
    fields: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent_id,
        "sequence-number": sequence_number,
        "timestamp-ms": now_ms if former is None else max(now_ms, former.timestamp_ms),
        "manifest-list": location,
        "summary": _summary(schema, change, former, refresh_id),
        "schema-id": metadata.current_schema_id,
    }
    return Snapshot(**fields)


def _summary(schema: Schema, change: SnapshotChange, former: Snapshot | None, refresh_id: str) -> Summary:
    collector = SnapshotSummaryCollector()
    for file in [*change.added, *change.marks.values()]:
        collector.add_file(file, schema)
    gone = [entry.data_file for entry in change.files.data if entry.data_file.file_path in change.dropped]
    for file in [*gone, *change.replaced_marks]:
        collector.remove_file(file, schema)
    values: dict[str, Any] = {**collector.build(), "stratalog.refresh": refresh_id}
    operation = Operation.APPEND if former is None else Operation.OVERWRITE
    before = None if former is None or former.summary is None else former.summary
    return update_snapshot_summaries(Summary(operation=operation, **values), before)
