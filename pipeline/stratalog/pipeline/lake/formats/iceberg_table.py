"""A table of Apache Iceberg, version 2, in a directory. Rows die by position deletes, so an incremental
refresh writes a few bytes for each.

    metadata/v7.metadata.json    a version of the table; the one with the highest number counts
    metadata/version-hint.text   that number, for readers that do not list
    metadata/*.avro              manifests: the data files, and the files with their dead rows

A version is a file that must not be there yet, so of two writers one wins. The position is among the table's
properties. The table needs no catalog; a catalog can register its newest version.

Former versions end as `iceberg_expiry` says.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (some of pyarrow's functions have stubs with open type arguments)
from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid5

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import Record

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError, UnsupportedOperationError
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.lake.formats.iceberg_expiry import (
    EXPIRED_PROPERTY,
    VERSION_KEY,
    delete_expired,
    expired_snapshots,
    old_versions,
    pending_lists,
    without_old_versions,
)
from stratalog.pipeline.lake.formats.iceberg_io import StoreFileIO, table_location
from stratalog.pipeline.lake.formats.iceberg_snapshot import SnapshotFiles, made_snapshot
from stratalog.pipeline.lake.formats.position_deletes import PATH_FIELD, PositionDeletes
from stratalog.pipeline.lake.kept_versions import require_sound
from stratalog.pipeline.lake.lake_table import (
    DeadRows,
    TableChange,
    TableChangedError,
    TableFile,
    TableState,
    WrittenFile,
)
from stratalog.pipeline.lake.refresh_files import data_directory
from stratalog.pipeline.lake.table_position import POSITION_PROPERTY, TablePosition
from stratalog.pipeline.settled_put import settled_put

logger = logging.getLogger(__name__)

_HINT_KEY = "metadata/version-hint.text"


class IcebergTable:
    """Implements `LakeTable`. Not thread-safe: the driver uses it."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        schema: pa.Schema,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`schema` is that of the files that a commit adds, `properties` those of `kept_versions` that it
        sets."""
        self.removal = PositionDeletes(table_location(store))
        self._store = store
        self._clock = clock
        self._properties = properties
        self._io = StoreFileIO(store)
        self._schema: Schema = pyarrow_to_schema(schema)
        self._version = 0
        self._metadata: TableMetadata | None = None
        self._files = SnapshotFiles()

    def rows_directory(self, refresh_id: str) -> str:
        """A folder among `data/`."""
        return data_directory(refresh_id)

    def read(self) -> TableState:
        """The newest version. Raises StoreError, UnsupportedOperationError."""
        self._version, self._metadata, self._files = max(self._versions(), default=0), None, SnapshotFiles()
        if not self._version:
            return TableState(None, (), exists=False)
        data = self._store.get(_version_key(self._version)).data
        self._metadata = metadata = TableMetadataUtil.parse_raw(data.decode())
        if metadata.format_version != 2 or not metadata.spec().is_unpartitioned():
            raise UnsupportedOperationError(
                "the table is partitioned, or of a version of Iceberg other than 2; name another place",
                format_version=metadata.format_version,
            )
        self._files = self._read_files(metadata)
        text = metadata.properties.get(POSITION_PROPERTY)
        position = None if text is None else TablePosition.from_json(text)
        return TableState(position, tuple(map(self._file_of, self._files.data)), exists=True)

    def commit(self, change: TableChange) -> None:
        """Write the next version. Raises TableChangedError, StoreError, InvalidConfigError for a property of
        the table that is malformed."""
        made = self._made(change)
        data = made.model_dump_json(exclude_none=True).encode()
        version = self._version + 1
        # Former versions are deleted, so a number that is free may be one that was taken.
        is_newest = max(self._versions(), default=0) < version
        if not is_newest or not settled_put(self._store, _version_key(version), data):
            raise TableChangedError(
                "another refresh, or another program, has changed the table meanwhile; run again",
                table=self._store.url,
                version=version,
            )
        with suppress(StoreError):
            # The version is there without the hint; the next one writes it again, and does what is left.
            self._store.put(_HINT_KEY, str(version).encode())
            self._delete_former(made)

    def _made(self, change: TableChange) -> TableMetadata:
        """The metadata of the next version, without the snapshots that expire with it."""
        metadata, now_ms = self._metadata, self._clock.now_ms()
        base = metadata or new_table_metadata(
            self._schema,
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            table_location(self._store),
            {"format-version": "2"},
            uuid5(UUID(change.position.refresh_id), "table"),
        )
        base = update_table_metadata(base, tuple(self._schema_updates(base)))
        updates = tuple(self._snapshot_updates(base, change, now_ms))
        location = None if metadata is None else self._io.location_of(_version_key(self._version))
        made = update_table_metadata(base, updates, metadata_location=location)
        require_sound("iceberg", made.properties)
        if metadata is None:
            return made
        try:
            is_deleted = delete_expired(self._store, self._io, metadata)
        except StoreError:
            # What is left comes before anything else.
            return made
        if not is_deleted:
            logger.warning(
                "files of snapshots that a refresh has expired stay: another program has changed the table"
                " before they were deleted, and its snapshots may have them; expire those beside the row of"
                " the current snapshot with a tool for Iceberg: table=`%s`",
                self._store.url,
            )
            return made
        ends = expired_snapshots(made, now_ms)
        if ends or pending_lists(metadata):
            lists = json.dumps([one.manifest_list for one in ends])
            updates += (SetPropertiesUpdate(updates={EXPIRED_PROPERTY: lists}),)
        if ends:
            expiry: dict[str, Any] = {"snapshot-ids": [one.snapshot_id for one in ends]}
            updates += (RemoveSnapshotsUpdate(**expiry),)
        made = update_table_metadata(base, updates, metadata_location=location)
        return without_old_versions(made, now_ms)

    def _delete_former(self, made: TableMetadata) -> None:
        """Delete what the version that was just written does without. Raises StoreError."""
        delete_expired(self._store, self._io, made)
        ends = old_versions(made, self._versions(), self._clock.now_ms())
        if ends:
            self._store.delete_many([_version_key(number) for number in ends])

    def _versions(self) -> dict[int, int]:
        """When each version was written, by the store's clock, by their numbers."""
        return {
            int(found[1]): info.modified_ms
            for info in self._store.list("metadata/v")
            if (found := VERSION_KEY.fullmatch(info.key)) is not None
        }

    def _read_files(self, metadata: TableMetadata) -> SnapshotFiles:
        files = SnapshotFiles()
        snapshot = metadata.current_snapshot()
        for manifest in [] if snapshot is None else snapshot.manifests(self._io):
            entries = manifest.fetch_manifest_entry(self._io)
            if manifest.content == ManifestContent.DATA:
                files.data_manifests.append((manifest, entries))
                continue
            for entry in entries:
                files.deletes[_referenced_path(entry)] = entry
        return files

    def _file_of(self, entry: ManifestEntry) -> TableFile:
        file = entry.data_file
        mark = self._files.deletes.get(file.file_path)
        dead = None
        if mark is not None:
            key = self._io.key_of(mark.data_file.file_path)
            dead = DeadRows(key, 0, mark.data_file.file_size_in_bytes, mark.data_file.record_count)
        return TableFile(self._io.key_of(file.file_path), file.file_size_in_bytes, file.record_count, dead)

    def _schema_updates(self, base: TableMetadata) -> Iterable[TableUpdate]:
        """Files of a full refresh may have other columns."""
        if base.schema().as_struct() == self._schema.as_struct():
            return ()
        newest: dict[str, Any] = {"schema-id": -1}
        schema_id = max(one.schema_id for one in base.schemas) + 1
        schema = Schema(*self._schema.fields, schema_id=schema_id)
        return AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(**newest)

    def _snapshot_updates(
        self, base: TableMetadata, change: TableChange, now_ms: int
    ) -> Iterable[TableUpdate]:
        added = [self._data_file(written) for written in change.added]
        marks = {
            self._io.location_of(one.marked.path): self._delete_file(one.marked.path, one.marked.dead)
            for one in change.changed
            if one.marked is not None and one.marked.dead is not None
        }
        dropped = {self._io.location_of(one.before.path) for one in change.changed if one.marked is None}
        if change.is_full:
            dropped = {entry.data_file.file_path for entry in self._files.data}
        snapshot = made_snapshot(
            self._io,
            base,
            self._schema,
            self._files.changed(added, marks, dropped),
            change.position.refresh_id,
            now_ms,
        )
        reference: dict[str, Any] = {
            "ref-name": "main",
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": snapshot.snapshot_id,
        }
        return (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(**reference),
            SetPropertiesUpdate(updates={**self._properties, POSITION_PROPERTY: change.position.to_json()}),
        )

    def _data_file(self, written: WrittenFile) -> DataFile:
        statistics = data_file_statistics_from_parquet_metadata(
            pq.read_metadata(pa.BufferReader(written.footer)),
            compute_statistics_plan(self._schema, {}),
            parquet_path_to_id_mapping(self._schema),
        )
        return _file(
            DataFileContent.DATA,
            self._io.location_of(written.file.path),
            written.file.size_bytes,
            statistics.to_serialized_dict(),
        )

    def _delete_file(self, path: str, dead: DeadRows) -> DataFile:
        bound = {PATH_FIELD: self._io.location_of(path).encode()}
        # Equal bounds say which data file the deletes are of.
        return _file(
            DataFileContent.POSITION_DELETES,
            self._io.location_of(dead.path),
            dead.size_bytes,
            {"record_count": dead.row_count, "lower_bounds": bound, "upper_bounds": bound},
        )


def _version_key(version: int) -> str:
    return f"metadata/v{version}.metadata.json"


def _file(
    content: DataFileContent, location: str, size_bytes: int, statistics: Mapping[str, Any]
) -> DataFile:
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    file.spec_id = 0
    return file


def _referenced_path(entry: ManifestEntry) -> str:
    """The data file that deletes are of."""
    file = entry.data_file
    lower, upper = (bounds or {} for bounds in (file.lower_bounds, file.upper_bounds))
    path = lower.get(PATH_FIELD)
    if file.content != DataFileContent.POSITION_DELETES or path is None or path != upper.get(PATH_FIELD):
        raise UnsupportedOperationError(
            "another program has written deletes of several files to the table; name another place",
            file=file.file_path,
        )
    return path.decode()
